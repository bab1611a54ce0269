/* The kernels for AVX-512 (F, BW, DQ, VL). */
#include <stdint.h>
#include <string.h>

#include "exec/reduce_isa.h"
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define VECTOR 64
#define TABLE reduce_avx512
#define ISA_NAME "avx512"

#define f16_load(p)                                                    \
  ((cell){(vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p))), \
          (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)((p) + 32)))})
#define f16_store(p, x)                                                                                             \
  (_mm256_storeu_si256((void *)(p), _mm512_cvtps_ph((__m512)(x).a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)), \
   _mm256_storeu_si256((void *)((p) + 32),                                                                          \
                       _mm512_cvtps_ph((__m512)(x).b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)))
#define f32_numbers(x) (_mm512_cmp_ps_mask((__m512)(x).a, (__m512)(x).b, _CMP_UNORD_Q) == 0)
#define f64_numbers(x) (_mm512_cmp_pd_mask((__m512d)(x).a, (__m512d)(x).b, _CMP_UNORD_Q) == 0)
#include "exec/reduce_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
