/* Choice of the kernels, and copies. */
#include "exec/reduce.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "exec/coll.h"
#include "exec/reduce_isa.h"
#include "os/env.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

size_t coll_dtype_bytes(int dtype) {
  static const unsigned char nbytes[LWCC_DTYPES] = {1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 4, 8};
  return dtype >= 0 && dtype < LWCC_DTYPES ? nbytes[dtype] : 0;
}

#if defined(__x86_64__)
/* Asked by hand: not every compiler's __builtin_cpu_supports knows it. */
static bool has_f16c(void) {
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const reduce_table *reduce_usable(int index) {
  if (index == 0) return &reduce_base;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (index == 1 && __builtin_cpu_supports("avx2") && has_f16c()) return &reduce_avx2;
  if (index == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return &reduce_avx512;
#endif
  return NULL;
}

static const reduce_table *choose(void) {
  const char *wish = env_text(ENV_ISA);
  const reduce_table *t, *best = NULL;
  for (int i = 0; (t = reduce_usable(i)) != NULL; i++) {
    best = t;
    if (strcmp(wish, t->name) == 0) break;
  }
  return best;
}

/* The choice is the same whenever it is made, so that threads may make it twice. */
static const reduce_table *table(void) {
  static const reduce_table *_Atomic chosen; /* relaxed: points to constants */
  const reduce_table *t = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (t) return t;
  t = choose();
  atomic_store_explicit(&chosen, t, memory_order_relaxed);
  return t;
}

const char *reduce_isa(void) {
  return table()->name;
}

int reduce_op_index(int op) {
  switch (op) {
    case LWCC_SUM:
      return 0;
    case LWCC_MIN:
      return 1;
    case LWCC_MAX:
      return 2;
    case LWCC_PRODUCT:
      return 3;
    default:
      return -1;
  }
}

reduce_fold_fn reduce_fold(int dtype, int op) {
  const int k = reduce_op_index(op);
  return k >= 0 && dtype >= 0 && dtype < LWCC_DTYPES ? table()->fold[dtype][k] : NULL;
}

void reduce_scale(int dtype, void *dst, const void *src, size_t n, double scale) {
  reduce_fold(dtype, LWCC_SUM)(1, &src, 1, &dst, n, scale);
}

#if defined(__x86_64__)
/* Whole cache lines go past the caches; the fence orders them before the flag that announces them. */
static void copy_past_caches(char *dst, const char *src, size_t nbytes) {
  const size_t head = -(uintptr_t)dst & 63;
  if (nbytes < head + 64) {
    memcpy(dst, src, nbytes);
    return;
  }
  memcpy(dst, src, head);
  size_t at = head;
  for (; nbytes - at >= 64; at += 64) {
    const __m128i *from = (const void *)(src + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    __m128i *to = (void *)(dst + at);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  memcpy(dst + at, src + at, nbytes - at);
  _mm_sfence();
}
#else
static void copy_past_caches(char *dst, const char *src, size_t nbytes) {
  memcpy(dst, src, nbytes);
}
#endif

void reduce_copy(void *dst, const void *src, size_t nbytes, int nontemporal) {
  if (nbytes == 0 || dst == src) return;
  if (nontemporal)
    copy_past_caches(dst, src, nbytes);
  else
    memcpy(dst, src, nbytes);
}
