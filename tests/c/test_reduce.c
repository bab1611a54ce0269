/* Every kernel of every instruction set that this processor has, against one element at a time in plain C. */
#pragma GCC diagnostic ignored "-Wformat-zero-length" /* of CHECK without a text */

#include <inttypes.h>
#include <math.h>

#include "check.h"
#include "exec/coll.h"
#include "exec/reduce_isa.h"

enum { MOST = 1000, SOURCES = 8, GUARD = 64, ROOM = MOST * 8 + 2 * GUARD };
static const uint64_t SEED = 20261130;
static const int ops[REDUCE_OPS] = {LWCC_SUM, LWCC_MIN, LWCC_MAX, LWCC_PRODUCT};
static uint64_t state;
typedef struct { /* one call */
  int dtype, op, nsrc, ndst;
  size_t count;
  double scale;
  const void *src[SOURCES];
} fold;

static uint64_t draw(void) { /* splitmix64 */
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* ---- the reference ---- */

/* A small float of so many stored mantissa bits: its value, and the nearest such float to a value (ties to even). */
static float small_decode(uint16_t bits, int mantissa) {
  int top = (1 << (15 - mantissa)) - 1, bias = top / 2, e = bits >> mantissa & top, m = bits & ((1 << mantissa) - 1);
  double v = e == top ? (m ? NAN : INFINITY)
             : e      ? ldexp(m + (1 << mantissa), e - bias - mantissa)
                      : ldexp(m, 1 - bias - mantissa);
  return (float)(bits & 0x8000 ? -v : v);
}

static uint16_t small_encode(float v, int mantissa) {
  int top = (1 << (15 - mantissa)) - 1, bias = top / 2, e;
  uint16_t sign = signbit(v) ? 0x8000 : 0, infinite = (uint16_t)(top << mantissa);
  if (isnan(v)) return sign | infinite | 1;
  if (isinf(v)) return sign | infinite;
  if (v == 0) return sign;
  frexp(v, &e); /* 2^(e-1) <= |v| < 2^e */
  if (e - 1 < 1 - bias) e = 2 - bias;
  long units = lrint(ldexp(fabs((double)v), mantissa - (e - 1))); /* of the last place; one more carries into e */
  long bits = units + ((long)(e - 1 + bias - 1) << mantissa);
  return sign | (uint16_t)(bits < infinite ? bits : infinite);
}

#define FOLD_REAL(T, LOAD)                                                    \
  T x = LOAD(f->src[0], i);                                                   \
  for (int s = 1; s < f->nsrc; s++) {                                         \
    T y = LOAD(f->src[s], i);                                                 \
    if (f->op == LWCC_SUM) x = x + y;                                         \
    if (f->op == LWCC_PRODUCT) x = x * y;                                     \
    if (f->op == LWCC_MIN) x = isnan(x) || isnan(y) ? (T)NAN : x < y ? x : y; \
    if (f->op == LWCC_MAX) x = isnan(x) || isnan(y) ? (T)NAN : x > y ? x : y; \
  }                                                                           \
  if (f->scale != 1.0) x = x * (T)f->scale;
#define FOLD_INTEGER(D, T, LOW, HIGH)                                                          \
  case D: {                                                                                    \
    T x, y;                                                                                    \
    memcpy(&x, (const char *)f->src[0] + i * sizeof x, sizeof x);                              \
    for (int s = 1; s < f->nsrc; s++) {                                                        \
      memcpy(&y, (const char *)f->src[s] + i * sizeof y, sizeof y);                            \
      if (f->op == LWCC_SUM) x = (T)((uint64_t)x + (uint64_t)y);                               \
      if (f->op == LWCC_PRODUCT) x = (T)((uint64_t)x * (uint64_t)y);                           \
      if (f->op == LWCC_MIN) x = x < y ? x : y;                                                \
      if (f->op == LWCC_MAX) x = x > y ? x : y;                                                \
    }                                                                                          \
    double v = (double)x * f->scale;                                                           \
    if (f->scale != 1.0) x = v <= (double)(LOW) ? (LOW) : v >= (double)(HIGH) ? (HIGH) : (T)v; \
    memcpy(to, &x, sizeof x);                                                                  \
    break;                                                                                     \
  }

static float load_f32(const void *p, size_t i) {
  float x;
  memcpy(&x, (const char *)p + 4 * i, 4);
  return x;
}
static double load_f64(const void *p, size_t i) {
  double x;
  memcpy(&x, (const char *)p + 8 * i, 8);
  return x;
}
static float load_small(const void *p, size_t i, int mantissa) {
  uint16_t x;
  memcpy(&x, (const char *)p + 2 * i, 2);
  return small_decode(x, mantissa);
}
static void fold_small(const fold *f, size_t i, int mantissa, void *to) {
#define LOAD_SMALL(p, k) load_small(p, k, mantissa)
  FOLD_REAL(float, LOAD_SMALL)
  memcpy(to, &(uint16_t){small_encode(x, mantissa)}, 2);
}

/* Element i of the result. */
static void fold_element(const fold *f, size_t i, void *to) {
  switch (f->dtype) {
    FOLD_INTEGER(LWCC_UINT8, uint8_t, 0, UINT8_MAX)
    FOLD_INTEGER(LWCC_INT8, int8_t, INT8_MIN, INT8_MAX)
    FOLD_INTEGER(LWCC_UINT16, uint16_t, 0, UINT16_MAX)
    FOLD_INTEGER(LWCC_INT16, int16_t, INT16_MIN, INT16_MAX)
    FOLD_INTEGER(LWCC_UINT32, uint32_t, 0, UINT32_MAX)
    FOLD_INTEGER(LWCC_INT32, int32_t, INT32_MIN, INT32_MAX)
    FOLD_INTEGER(LWCC_UINT64, uint64_t, 0, UINT64_MAX)
    FOLD_INTEGER(LWCC_INT64, int64_t, INT64_MIN, INT64_MAX)
    case LWCC_FLOAT16:
      fold_small(f, i, 10, to);
      break;
    case LWCC_BFLOAT16:
      fold_small(f, i, 7, to);
      break;
    case LWCC_FLOAT32: {
      FOLD_REAL(float, load_f32)
      memcpy(to, &x, 4);
      break;
    }
    case LWCC_FLOAT64: {
      FOLD_REAL(double, load_f64)
      memcpy(to, &x, 8);
      break;
    }
    default: { /* bool: any or all */
      int trues = 0;
      for (int s = 0; s < f->nsrc; s++) trues += ((const uint8_t *)f->src[s])[i] != 0;
      *(uint8_t *)to = f->op == LWCC_SUM || f->op == LWCC_MAX ? trues > 0 : trues == f->nsrc;
    }
  }
}

static bool is_nan(int dtype, const void *p) {
  if (dtype == LWCC_FLOAT64) return isnan(load_f64(p, 0));
  if (dtype == LWCC_FLOAT32) return isnan(load_f32(p, 0));
  return (dtype == LWCC_FLOAT16 && isnan(load_small(p, 0, 10))) ||
         (dtype == LWCC_BFLOAT16 && isnan(load_small(p, 0, 7)));
}

/* ---- one call against the reference ---- */

/* Ordinary numbers, with any bits whatever (infinities, NaNs, subnormals) in one place out of eight. */
static void fill(int dtype, char *p, size_t count) {
  const size_t w = coll_dtype_bytes(dtype);
  for (size_t i = 0; i < count; i++) {
    const uint64_t any = draw();
    const float x = (float)((double)(int64_t)draw() * 0x1p-62);
    const bool odd = any >> 61 == 0;
    if (dtype == LWCC_BOOL)
      p[i] = (char)(any & 64 ? any >> 8 : 0);
    else if (dtype == LWCC_FLOAT64 && !odd)
      memcpy(p + i * w, &(double){x * 1.0000000003}, w);
    else if (dtype == LWCC_FLOAT32 && !odd)
      memcpy(p + i * w, &x, w);
    else if ((dtype == LWCC_FLOAT16 || dtype == LWCC_BFLOAT16) && !odd)
      memcpy(p + i * w, &(uint16_t){small_encode(x, dtype == LWCC_FLOAT16 ? 10 : 7)}, w);
    else
      memcpy(p + i * w, &any, w);
  }
}

static char sources[SOURCES][ROOM], results[2][ROOM], base[ROOM], wanted[ROOM];

/* in_place: the first destination is the first source. skew: how far the pointers are from being aligned. */
static void check_call(fold *f, int skew, int in_place) {
  const size_t w = coll_dtype_bytes(f->dtype), nbytes = f->count * w;
  const reduce_table *t;
  for (int s = 0; s < f->nsrc; s++) {
    f->src[s] = sources[s] + GUARD + (s ? skew : 0);
    fill(f->dtype, sources[s] + GUARD + (s ? skew : 0), f->count);
  }
  for (size_t i = 0; i < f->count; i++) fold_element(f, i, wanted + i * w);
  for (int k = 0; (t = reduce_usable(k)) != NULL; k++) {
    void *dst[2] = {results[0] + GUARD + skew, results[1] + GUARD};
    const void *src[SOURCES];
    memcpy(src, f->src, sizeof src);
    memset(results, 0x5a, sizeof results);
    if (in_place) src[0] = memcpy(dst[0], f->src[0], nbytes);
    t->fold[f->dtype][reduce_op_index(f->op)](f->nsrc, src, f->ndst, dst, f->count, f->scale);
    if (k == 0) memcpy(base, dst[0], nbytes);
    size_t bad = 0, unlike = 0, spilled = 0;
    for (int d = 0; d < f->ndst; d++)
      for (size_t i = 0; i < f->count; i++) {
        const char *got = (char *)dst[d] + i * w, *want = wanted + i * w;
        bad += is_nan(f->dtype, want) ? !is_nan(f->dtype, got) : memcmp(got, want, w) != 0;
        unlike += !is_nan(f->dtype, want) && memcmp(got, base + i * w, w) != 0; /* of two NaNs either may survive */
      }
    for (int d = 0; d < f->ndst; d++)
      for (int i = 1; i <= GUARD / 2; i++)
        spilled += ((char *)dst[d])[-i] != 0x5a || ((char *)dst[d])[nbytes + (size_t)i - 1] != 0x5a;
    CHECK(!bad && !unlike && !spilled,
          "%s dtype %d op %d count %zu nsrc %d ndst %d scale %g skew %d: %zu wrong, %zu unlike base, %zu outside",
          t->name, f->dtype, f->op, f->count, f->nsrc, f->ndst, f->scale, skew, bad, unlike, spilled);
  }
}

static void check_kernel(int dtype, int op) {
  static const size_t counts[] = {0, 1, 3, 17, 64, 129, MOST};
  static const int nsrcs[] = {1, 2, 3, 4, 8};
  static const double scales[] = {1.0, 1.0, 0.25, 1.0 / 3, -3.0};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (size_t s = 0; s < sizeof nsrcs / sizeof *nsrcs; s++)
      for (int variant = 0; variant < 8; variant++) {
        fold f = {dtype, op, nsrcs[s], 1 + (variant & 1), counts[c], scales[(c + s + (unsigned)variant) % 5], {0}};
        check_call(&f, variant & 2 ? 3 : 0, variant & 4);
      }
}

/* What the reference itself must say, in bits. */
static void test_the_edges_of_the_halves(void) {
  const struct {
    int dtype, op;
    uint16_t x, y, want;
  } cases[] = {{LWCC_FLOAT16, LWCC_SUM, 0x7bff, 0x4c00, 0x7c00},     /* 65504 + 16 is a tie: up to even, infinity */
               {LWCC_FLOAT16, LWCC_SUM, 0x7bff, 0x4bff, 0x7bff},     /* a little less does not reach it */
               {LWCC_FLOAT16, LWCC_SUM, 0x6800, 0x3c00, 0x6800},     /* 2048 + 1: tie, down to even */
               {LWCC_FLOAT16, LWCC_SUM, 0x6801, 0x3c00, 0x6802},     /* 2050 + 1: tie, up to even */
               {LWCC_FLOAT16, LWCC_PRODUCT, 0x0001, 0x3800, 0x0000}, /* half the least: tie, to zero */
               {LWCC_FLOAT16, LWCC_PRODUCT, 0x0003, 0x3800, 0x0002},
               {LWCC_FLOAT16, LWCC_MIN, 0xfc00, 0x0001, 0xfc00},
               {LWCC_BFLOAT16, LWCC_SUM, 0x7f7f, 0x7f7f, 0x7f80},
               {LWCC_BFLOAT16, LWCC_SUM, 0x4380, 0x3f80, 0x4380}, /* 256 + 1: tie, down to even */
               {LWCC_BFLOAT16, LWCC_SUM, 0x4381, 0x3f80, 0x4382},
               {LWCC_BFLOAT16, LWCC_MAX, 0xff80, 0x8001, 0x8001}};
  const reduce_table *t;
  for (int k = 0; (t = reduce_usable(k)) != NULL; k++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      uint16_t out = 0;
      t->fold[cases[i].dtype][reduce_op_index(cases[i].op)](2, (const void *[]){&cases[i].x, &cases[i].y}, 1,
                                                            (void *[]){&out}, 1, 1.0);
      CHECK(out == cases[i].want, "%s case %zu: %04x", t->name, i, out);
    }
}

static void test_scaling_truncates_integers_to_zero(void) {
  int8_t x[] = {-7, 7, -128, 127, 1}, y[5];
  int64_t big[] = {INT64_MAX, -9, 9};
  reduce_scale(LWCC_INT8, y, x, 5, 0.25);
  CHECK(y[0] == -1 && y[1] == 1 && y[2] == -32 && y[3] == 31 && y[4] == 0);
  reduce_scale(LWCC_INT8, y, x, 5, 2.0); /* what does not fit saturates */
  CHECK(y[0] == -14 && y[1] == 14 && y[2] == -128 && y[3] == 127 && y[4] == 2);
  reduce_scale(LWCC_INT64, big, big, 3, 0.5);
  CHECK(big[0] == INT64_C(1) << 62 && big[1] == -4 && big[2] == 4);
}

int main(void) {
  printf("seed %" PRIu64 ", kernels %s\n", SEED, reduce_isa());
  state = SEED;
  test_the_edges_of_the_halves();
  test_scaling_truncates_integers_to_zero();
  for (int dtype = 0; dtype < LWCC_DTYPES; dtype++)
    for (int k = 0; k < REDUCE_OPS; k++) check_kernel(dtype, ops[k]);
  return check_report();
}
