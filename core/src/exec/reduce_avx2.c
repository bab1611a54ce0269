/* The kernels for AVX2 and F16C. */
#include <stdint.h>
#include <string.h>

#include "exec/reduce_isa.h"
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif
#define VECTOR 32
#define TABLE reduce_avx2
#define ISA_NAME "avx2"

#define f16_load(p)                                                 \
  ((cell){(vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)(p))), \
          (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)((p) + 16)))})
#define f16_store(p, x)                                                                                          \
  (_mm_storeu_si128((void *)(p), _mm256_cvtps_ph((__m256)(x).a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)), \
   _mm_storeu_si128((void *)((p) + 16),                                                                          \
                    _mm256_cvtps_ph((__m256)(x).b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)))
#define f32_numbers(x) (_mm256_movemask_ps(_mm256_cmp_ps((__m256)(x).a, (__m256)(x).b, _CMP_UNORD_Q)) == 0)
#define f64_numbers(x) (_mm256_movemask_pd(_mm256_cmp_pd((__m256d)(x).a, (__m256d)(x).b, _CMP_UNORD_Q)) == 0)
#include "exec/reduce_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
