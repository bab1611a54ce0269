/* Scaled sums of integers that would wrap in their own type, as in the average of int8: summed in 64 bits, scaled in
 * double, truncated to zero; what does not fit the type saturates. */
#include <stdint.h>

#include "exec/shm_area.h"

#define WIDE(T, LEAST, MOST)                                                                                   \
  static void wide_##T(int nsrc, const void *const *src, int ndst, void *const *dst, size_t n, double scale) { \
    for (size_t i = 0; i < n; i++) {                                                                           \
      int64_t sum = 0;                                                                                         \
      for (int r = 0; r < nsrc; r++) sum += ((const T *)src[r])[i];                                            \
      double v = (double)sum * scale;                                                                          \
      T out = v <= (double)(LEAST) ? (T)(LEAST) : v >= (double)(MOST) ? (T)(MOST) : (T)v;                      \
      for (int d = 0; d < ndst; d++) ((T *)dst[d])[i] = out;                                                   \
    }                                                                                                          \
  }
WIDE(uint8_t, 0, UINT8_MAX)
WIDE(int8_t, INT8_MIN, INT8_MAX)
WIDE(uint16_t, 0, UINT16_MAX)
WIDE(int16_t, INT16_MIN, INT16_MAX)
WIDE(uint32_t, 0, UINT32_MAX)
WIDE(int32_t, INT32_MIN, INT32_MAX)

reduce_fold_fn shm_wide_sum(int dtype) {
  switch (dtype) {
    case LWCC_UINT8:
      return wide_uint8_t;
    case LWCC_INT8:
      return wide_int8_t;
    case LWCC_UINT16:
      return wide_uint16_t;
    case LWCC_INT16:
      return wide_int16_t;
    case LWCC_UINT32:
      return wide_uint32_t;
    case LWCC_INT32:
      return wide_int32_t;
    default:
      return NULL;
  }
}
