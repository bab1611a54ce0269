/* Averages of narrow integers over a wire: the sum travels in 64 bits, so that it does not wrap before it is divided.
 */
#include <stdint.h>
#include <stdlib.h>

#include "exec/wire.h"
#include "os/mem.h"
#include "os/status.h"

#define FORMS(X)                               \
  X(LWCC_UINT8, uint8_t, 0, UINT8_MAX)         \
  X(LWCC_INT8, int8_t, INT8_MIN, INT8_MAX)     \
  X(LWCC_UINT16, uint16_t, 0, UINT16_MAX)      \
  X(LWCC_INT16, int16_t, INT16_MIN, INT16_MAX) \
  X(LWCC_UINT32, uint32_t, 0, UINT32_MAX)      \
  X(LWCC_INT32, int32_t, INT32_MIN, INT32_MAX)

static void widen(int dtype, int64_t *dst, const void *src, size_t n) {
  switch (dtype) {
#define X(D, T, LEAST, MOST)                                              \
  case D:                                                                 \
    for (size_t i = 0; i < n; i++) dst[i] = (int64_t)((const T *)src)[i]; \
    break;
    FORMS(X)
#undef X
    default:
      break;
  }
}

static void narrow(int dtype, void *dst, const int64_t *src, size_t n) {
  switch (dtype) {
#define X(D, T, LEAST, MOST)                                                                                 \
  case D:                                                                                                    \
    for (size_t i = 0; i < n; i++)                                                                           \
      ((T *)dst)[i] = (T)(src[i] < (LEAST) ? (int64_t)(LEAST) : src[i] > (MOST) ? (int64_t)(MOST) : src[i]); \
    break;
    FORMS(X)
#undef X
    default:
      break;
  }
}

static size_t total(const coll_args *a, int size) {
  size_t n = 0;
  if (a->collective == LWCC_ALLREDUCE) return a->count;
  for (int i = 0; i < size; i++) n += a->counts ? a->counts[i] : a->count;
  return n;
}

/* Put 64-bit copies in the place of narrow integers that are going to be scaled. */
int narrow_begin(exec_op *op) {
  coll_args *a = &op->a;
  bool narrow_int = a->dtype <= LWCC_INT32, scaled = a->prescale * a->postscale != 1.0;
  bool reduces = a->collective == LWCC_ALLREDUCE || a->collective == LWCC_REDUCESCATTER;
  if (!narrow_int || !scaled || !reduces || a->op != LWCC_SUM) return LWCC_OK;
  size_t n = total(a, op->team->size), nbytes;
  if (!mem_mul(n, sizeof(int64_t), &nbytes)) return os_fail(LWCC_ERR_SYSTEM, "no memory for %zu wide integers", n);
  TRY(exec_room(&op->wide, &op->wide_nbytes, nbytes));
  widen(a->dtype, (int64_t *)(void *)op->wide, a->in, n);
  op->narrow_dtype = a->dtype;
  op->narrow_out = a->out;
  a->dtype = LWCC_INT64;
  a->in = a->out = op->wide;
  return LWCC_OK;
}

void narrow_end(exec_op *op) {
  const coll_args *a = &op->a;
  if (op->narrow_dtype < 0) return;
  size_t n = a->collective == LWCC_ALLREDUCE ? a->count : a->counts ? a->counts[op->team->me] : a->count;
  narrow(op->narrow_dtype, op->narrow_out, (const int64_t *)(const void *)op->wide, n);
  op->narrow_dtype = -1;
}
