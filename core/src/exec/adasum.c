#include "exec/adasum.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "os/mem.h"
#include "os/status.h"

enum { BLOCK = 256, LANES = 8 }; /* elements of a term that are worked on at a time, and side by side */

struct adasum {
  int stage, dtype, me, n;
  double scale;
  size_t count;           /* of my slice */
  size_t *lengths, *mine; /* [n] of the slices that I send, and of those that I get */
  char *slices;           /* [n][count] of dtype: everybody's terms for my slice; in the end the result's */
  double *products, *weights, *blocks; /* [n * (n + 1) / 2] of terms i >= j; [n]; [n][BLOCK] */
  coll_args whole;
};

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

/* Elements `at` to `at + k` of every term, as doubles. */
static void load(const adasum *x, size_t at, size_t k) {
  for (int i = 0; i < x->n; i++) {
    double *to = x->blocks + (size_t)i * BLOCK;
    size_t from = (size_t)i * x->count + at;
    const uint16_t *halves = (const uint16_t *)x->slices + from;
    if (x->dtype == LWCC_FLOAT64) memcpy(to, (const double *)x->slices + from, k * sizeof *to);
    for (size_t e = 0; x->dtype == LWCC_FLOAT32 && e < k; e++) to[e] = ((const float *)x->slices)[from + e];
    for (size_t e = 0; x->dtype == LWCC_FLOAT16 && e < k; e++) to[e] = load_f16(halves[e]);
    for (size_t e = 0; x->dtype == LWCC_BFLOAT16 && e < k; e++) to[e] = of_bits((uint32_t)halves[e] << 16);
    memset(to + k, 0, (BLOCK - k) * sizeof *to);
  }
}

static void store(const adasum *x, size_t at, const double *from, size_t k) {
  uint16_t *halves = (uint16_t *)x->slices + at;
  if (x->dtype == LWCC_FLOAT64) memcpy((double *)x->slices + at, from, k * sizeof *from);
  for (size_t e = 0; x->dtype == LWCC_FLOAT32 && e < k; e++) ((float *)x->slices)[at + e] = (float)from[e];
  for (size_t e = 0; x->dtype == LWCC_FLOAT16 && e < k; e++) halves[e] = store_f16((float)from[e]);
  for (size_t e = 0; x->dtype == LWCC_BFLOAT16 && e < k; e++) halves[e] = store_bf16((float)from[e]);
}

static double dot(const double *a, const double *b) {
  double lanes[LANES] = {0}, sum = 0;
  for (size_t e = 0; e < BLOCK; e += LANES)
    for (size_t l = 0; l < LANES; l++) lanes[l] += a[e + l] * b[e + l];
  for (size_t l = 0; l < LANES; l++) sum += lanes[l];
  return sum;
}

static double *product(const adasum *x, int i, int j) {
  size_t row = (size_t)(i > j ? i : j), column = (size_t)(i > j ? j : i);
  return x->products + row * (row + 1) / 2 + column;
}

static void multiply(const adasum *x) {
  for (size_t at = 0; at < x->count; at += BLOCK) {
    load(x, at, x->count - at < BLOCK ? x->count - at : BLOCK);
    for (int i = 0; i < x->n; i++)
      for (int j = 0; j <= i; j++)
        *product(x, i, j) += dot(x->blocks + (size_t)i * BLOCK, x->blocks + (size_t)j * BLOCK);
  }
}

/* The scalar product of two partial results: weighted terms [a, b) and [c, d). */
static double partial(const adasum *x, const int from[2], const int to[2]) {
  double sum = 0;
  for (int i = from[0]; i < from[1]; i++)
    for (int j = to[0]; j < to[1]; j++) sum += x->weights[i] * x->weights[j] * *product(x, i, j);
  return sum;
}

/* The tree, on weights alone: each partial result is a weighted sum of terms, so the terms' products say it all. */
static void weigh(const adasum *x) {
  for (int i = 0; i < x->n; i++) x->weights[i] = 1;
  for (int step = 1; step < x->n; step *= 2)
    for (int i = 0; i + step < x->n; i += 2 * step) {
      int a[2] = {i, i + step}, b[2] = {i + step, i + 2 * step < x->n ? i + 2 * step : x->n};
      double ab = partial(x, a, b), aa = partial(x, a, a), bb = partial(x, b, b);
      for (int k = a[0]; aa > 0 && k < a[1]; k++) x->weights[k] *= 1 - ab / (2 * aa); /* zero stays what it is */
      for (int k = b[0]; bb > 0 && k < b[1]; k++) x->weights[k] *= 1 - ab / (2 * bb);
    }
}

static void mix(const adasum *x) {
  for (size_t at = 0; at < x->count; at += BLOCK) {
    double sum[BLOCK] = {0};
    size_t k = x->count - at < BLOCK ? x->count - at : BLOCK;
    load(x, at, k);
    for (int i = 0; i < x->n; i++)
      for (size_t e = 0; e < BLOCK; e++) sum[e] += x->scale * x->weights[i] * x->blocks[(size_t)i * BLOCK + e];
    store(x, at, sum, k);
  }
}

int adasum_create(const coll_args *whole, int me, int n, adasum **out) {
  size_t p = (size_t)n, count = whole->count / p + ((size_t)me < whole->count % p), nbytes;
  size_t doubles = p * (p + 1) / 2 + p + p * BLOCK;
  void *memory;
  if (!mem_mul(count, p * coll_dtype_bytes(whole->dtype), &nbytes) ||
      !mem_add(nbytes, sizeof(adasum) + 2 * p * sizeof(size_t) + doubles * sizeof(double), &nbytes))
    return os_fail(LWCC_ERR_SYSTEM, "Adasum: too large: %zu elements", whole->count);
  TRY(mem_zeroed(nbytes, 1, &memory));
  adasum *x = memory;
  *x = (adasum){.dtype = whole->dtype, .me = me, .n = n, .count = count, .whole = *whole};
  x->scale = whole->prescale * whole->postscale;
  x->products = (double *)(x + 1);
  x->weights = x->products + p * (p + 1) / 2;
  x->blocks = x->weights + p;
  x->lengths = (size_t *)(x->blocks + p * BLOCK);
  x->mine = x->lengths + p;
  x->slices = (char *)(x->mine + p);
  for (size_t i = 0; i < p; i++) {
    x->lengths[i] = whole->count / p + (i < whole->count % p);
    x->mine[i] = count;
  }
  *out = x;
  return LWCC_OK;
}

bool adasum_next(adasum *x, coll_args *out) {
  size_t p = (size_t)x->n;
  *out = (coll_args){.dtype = x->dtype, .op = LWCC_SUM, .prescale = 1, .postscale = 1};
  out->in = out->out = x->slices;
  switch (x->stage++) {
    case 0:
      out->collective = LWCC_ALLTOALL;
      out->in = x->whole.in;
      out->counts = x->lengths;
      out->recv_counts = x->mine;
      out->longest = x->lengths[0];
      return true;
    case 1:
      multiply(x);
      out->collective = LWCC_ALLREDUCE;
      out->dtype = LWCC_FLOAT64;
      out->in = out->out = x->products;
      out->count = p * (p + 1) / 2;
      return true;
    case 2:
      weigh(x);
      mix(x);
      out->collective = LWCC_ALLGATHER;
      out->out = x->whole.out;
      out->counts = x->lengths;
      return true;
    default:
      return false;
  }
}
