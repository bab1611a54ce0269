#include <stdint.h>
#include <string.h>

#include "exec/coll.h"
#include "exec/reduce.h"

typedef struct {
  uint64_t one, lowest, highest;
} landmarks;

/* Bits of 1 and of the ends of the line, infinities where there are some. */
static landmarks landmarks_of(int dtype) {
  const uint64_t all = coll_dtype_bytes(dtype) == 8 ? ~UINT64_C(0) : (UINT64_C(1) << 8 * coll_dtype_bytes(dtype)) - 1;
  switch (dtype) {
    case LWCC_BOOL:
      return (landmarks){1, 0, 1};
    case LWCC_FLOAT16:
      return (landmarks){0x3c00, 0xfc00, 0x7c00};
    case LWCC_BFLOAT16:
      return (landmarks){0x3f80, 0xff80, 0x7f80};
    case LWCC_FLOAT32:
      return (landmarks){0x3f800000, 0xff800000, 0x7f800000};
    case LWCC_FLOAT64:
      return (landmarks){UINT64_C(0x3ff0) << 48, UINT64_C(0xfff0) << 48, UINT64_C(0x7ff0) << 48};
    case LWCC_UINT8:
    case LWCC_UINT16:
    case LWCC_UINT32:
    case LWCC_UINT64:
      return (landmarks){1, 0, all};
    default:
      return (landmarks){1, all / 2 + 1, all / 2};
  }
}

void reduce_neutral(int dtype, int op, int negated, void *dst, size_t n) {
  landmarks m = landmarks_of(dtype);
  uint64_t bits = op == LWCC_PRODUCT                 ? m.one
                  : op == LWCC_MIN || op == LWCC_MAX ? ((op == LWCC_MIN) == !negated ? m.highest : m.lowest)
                                                     : 0;
  uint8_t *p8 = dst;
  uint16_t *p16 = dst;
  uint32_t *p32 = dst;
  uint64_t *p64 = dst;
  switch (coll_dtype_bytes(dtype)) {
    case 1:
      memset(p8, (int)bits, n);
      break;
    case 2:
      for (size_t i = 0; i < n; i++) p16[i] = (uint16_t)bits;
      break;
    case 4:
      for (size_t i = 0; i < n; i++) p32[i] = (uint32_t)bits;
      break;
    default:
      for (size_t i = 0; i < n; i++) p64[i] = bits;
  }
}
