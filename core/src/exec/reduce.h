/* Reduction kernels, picked at run time by instruction set (LWCC_ISA=base|avx2|avx512 forces one).
 * fp16 and bf16 accumulate in fp32 over all sources of one call and round once. bool: SUM and MAX are or, PRODUCT and
 * MIN are and. Integers wrap. NaN: MIN and MAX return NaN if any source is NaN. The bits of a result do not depend on
 * the instruction set, nor on the order of two sources: every NaN that comes out is the positive quiet one without
 * payload, and MIN and MAX hold -0 for less than +0. */
#ifndef EXEC_REDUCE_H
#define EXEC_REDUCE_H
#include <stddef.h>

/* Every dst[d][i] = scale * (src[0][i] op src[1][i] op ... ), terms in the order of src, for i < n elements.
 * A dst may be one of the sources (the same pointer); otherwise no overlap. Any alignment. nsrc >= 1, ndst >= 1.
 * scale 1.0 = none; applied in fp32 (fp64 for float64) before rounding; integer types: in double, truncated to zero.
 * Any thread. */
typedef void (*reduce_fold_fn)(int nsrc, const void *const *src, int ndst, void *const *dst, size_t n, double scale);
reduce_fold_fn reduce_fold(int dtype, int op); /* never NULL for valid dtype and op (not AVERAGE, ADASUM) */
/* dst[i] *= scale (same arithmetic). */
void reduce_scale(int dtype, void *dst, const void *src, size_t n, double scale);
/* memcpy with the kernels' habits; nontemporal: the destination is not read again soon. */
void reduce_copy(void *dst, const void *src, size_t nbytes, int nontemporal);
/* n elements that change no result of op (not AVERAGE, ADASUM); negated: still so once their sign is turned. */
void reduce_neutral(int dtype, int op, int negated, void *dst, size_t n);
const char *reduce_isa(void);
#endif
