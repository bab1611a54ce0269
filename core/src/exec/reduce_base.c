/* The kernels for any processor: 16-byte vectors (SSE2, NEON), halves converted by integer arithmetic. */
#include <stdint.h>
#include <string.h>

#include "exec/reduce_isa.h"
#define VECTOR 16
#define TABLE reduce_base
#define ISA_NAME "base"
#define f32_numbers(x) ((void)(x), 0) /* finding out costs as much as the careful way */
#define f64_numbers(x) ((void)(x), 0)

typedef __attribute__((vector_size(VECTOR))) uint32_t lanes;
typedef __attribute__((vector_size(VECTOR))) int32_t masks;
typedef __attribute__((vector_size(VECTOR))) float floats;

static inline lanes choose(masks m, lanes p, lanes q) {
  return ((lanes)m & p) | (~(lanes)m & q);
}

/* Each lane: a half in the lower 16 bits to a float. A subnormal half is built as 2^-14 + m * 2^-24 and has 2^-14
 * taken away, which is exact and never meets a subnormal float. */
static inline lanes half_to_float(lanes h) {
  const lanes sign = (h & 0x8000u) << 16, body = (h & 0x7fffu) << 13;
  const lanes least = (lanes){0} + (113u << 23);
  const lanes small = (lanes)((floats)(body + (113u << 23)) - (floats)least);
  lanes bits = choose((masks)body < (1 << 23), small, body + (112u << 23));
  bits = choose((masks)body >= (31 << 23), body + (224u << 23), bits); /* infinity, NaN */
  bits = choose((masks)body > (31 << 23), bits | 0x400000u, bits);     /* NaNs become quiet */
  return bits | sign;
}

/* Each lane: a float to the nearest half, ties to even. Below 2^-14 the addition of 1/2 leaves the half's own bits at
 * the bottom of the sum, correctly rounded. */
static inline lanes float_to_half(lanes f) {
  const lanes sign = (f >> 16) & 0x8000u, body = f & 0x7fffffffu;
  const lanes half = (lanes){0} + (126u << 23);
  const lanes small = (lanes)((floats)body + (floats)half) - half;
  const lanes normal = (body - (112u << 23) + 0xfffu + ((body >> 13) & 1u)) >> 13;
  lanes h = choose((masks)body < (113 << 23), small, normal);
  h = choose((masks)body >= (143 << 23), (lanes){0} + 0x7c00u, h);
  h = choose((masks)body > (255 << 23), 0x7e00u | (body >> 13 & 0x3ffu), h);
  return h | sign;
}

#define f16_load(p) ((cell){(vec)half_to_float((lanes)LOADED(p) & 0xffffu), (vec)half_to_float((lanes)LOADED(p) >> 16)})
#define f16_store(p, x) STORED(p, (vec)(float_to_half((lanes)(x).a) | (float_to_half((lanes)(x).b) << 16)))
#include "exec/reduce_body.h"
