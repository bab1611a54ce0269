#include "exec/adasum.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "os/mem.h"
#include "os/status.h"

bool adasum_serves(int dtype) {
  return dtype >= LWCC_FLOAT16 && dtype <= LWCC_FLOAT64;
}

static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float load_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
  if (rest >= 0x7c00u << 13) return of_bits(sign | 0x7f800000u | rest); /* infinity, NaN */
  return of_bits(sign | bits_of(of_bits(rest) * 0x1p112f));
}

/* To nearest even: adding a power of two that leaves room for just the bits that half precision keeps. */
static uint16_t store_f16(float x) {
  uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
  if (isnan(x)) return 0x7e00;
  x = fabsf(x);
  if (x >= 65520.0f) return sign | 0x7c00;
  if (x < 0x1p-14f) return sign | (uint16_t)(bits_of(x + 0.5f) - 0x3f000000u);
  uint32_t bits = bits_of(x);
  bits += 0xfff + (bits >> 13 & 1);
  return sign | (uint16_t)((bits >> 13) - (112u << 10));
}

static uint16_t store_bf16(float x) {
  uint32_t bits = bits_of(x);
  return isnan(x) ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void widen(int dtype, float *dst, const void *src, size_t n) {
  const uint16_t *halves = src;
  if (dtype == LWCC_FLOAT32) memcpy(dst, src, n * sizeof *dst);
  for (size_t i = 0; dtype == LWCC_FLOAT16 && i < n; i++) dst[i] = load_f16(halves[i]);
  for (size_t i = 0; dtype == LWCC_BFLOAT16 && i < n; i++) dst[i] = of_bits((uint32_t)halves[i] << 16);
}

static void put(int dtype, void *dst, const float *src, size_t n, double scale) {
  float s = (float)scale, *floats = dst;
  uint16_t *halves = dst;
  for (size_t i = 0; dtype == LWCC_FLOAT32 && i < n; i++) floats[i] = src[i] * s;
  for (size_t i = 0; dtype == LWCC_FLOAT16 && i < n; i++) halves[i] = store_f16(src[i] * s);
  for (size_t i = 0; dtype == LWCC_BFLOAT16 && i < n; i++) halves[i] = store_bf16(src[i] * s);
}

/* What a and b are multiplied by: 1 where one of them is zero. */
static void factors(double dot, double aa, double bb, double *fa, double *fb) {
  *fa = aa > 0 ? 1 - dot / (2 * aa) : 1;
  *fb = bb > 0 ? 1 - dot / (2 * bb) : 1;
}

/* a = adaptive sum of a and b */
static void pair32(float *a, const float *b, size_t n) {
  double dot = 0, aa = 0, bb = 0, fa, fb;
  for (size_t i = 0; i < n; i++) {
    dot += (double)a[i] * b[i];
    aa += (double)a[i] * a[i];
    bb += (double)b[i] * b[i];
  }
  factors(dot, aa, bb, &fa, &fb);
  for (size_t i = 0; i < n; i++) a[i] = (float)(fa * a[i] + fb * b[i]);
}

static void pair64(double *a, const double *b, size_t n) {
  double dot = 0, aa = 0, bb = 0, fa, fb;
  for (size_t i = 0; i < n; i++) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  factors(dot, aa, bb, &fa, &fb);
  for (size_t i = 0; i < n; i++) a[i] = fa * a[i] + fb * b[i];
}

int adasum_combine(const coll_args *a, const void *all, int n) {
  size_t terms, nbytes, count = a->count;
  double scale = a->prescale * a->postscale;
  bool wide = a->dtype == LWCC_FLOAT64;
  if (!mem_mul((size_t)n, count, &terms) || !mem_mul(terms, wide ? sizeof(double) : sizeof(float), &nbytes))
    return os_fail(LWCC_ERR_SYSTEM, "Adasum: no memory for %d times %zu elements", n, count);
  void *room = malloc(nbytes ? nbytes : 1);
  if (!room) return os_fail(LWCC_ERR_SYSTEM, "Adasum: no memory for %zu bytes", nbytes);
  float *f = room;
  double *d = room;
  wide ? (void)memcpy(d, all, nbytes) : widen(a->dtype, f, all, terms);
  for (int step = 1; step < n; step *= 2)
    for (int i = 0; i + step < n; i += 2 * step) {
      size_t to = (size_t)i * count, from = (size_t)(i + step) * count;
      wide ? pair64(d + to, d + from, count) : pair32(f + to, f + from, count);
    }
  for (size_t i = 0; wide && i < count; i++) ((double *)a->out)[i] = d[i] * scale;
  put(a->dtype, a->out, f, wide ? 0 : count, scale);
  free(room);
  return LWCC_OK;
}
