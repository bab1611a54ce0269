/* The reduction kernels: every type, operation and instruction set against one scalar reference, bit for bit. */
#include <inttypes.h>
#include <math.h>

#include "check.h"
#include "exec/coll.h"
#include "exec/reduce_isa.h"

enum { MOST = 700, SOURCES = 9, EXTRA = 64, KEEP = 0x5a };
static const int ops[REDUCE_OPS] = {LWCC_SUM, LWCC_MIN, LWCC_MAX, LWCC_PRODUCT};
static uint64_t state;

static uint64_t draw(void) { /* splitmix64 */
  uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* ---- the reference: 16-bit floats by arithmetic in double, which is exact ---- */

static double small_to_double(uint16_t h, int mantissa_bits, int bias) {
  int exponent = (h & 0x7fff) >> mantissa_bits, mantissa = h & ((1 << mantissa_bits) - 1);
  int top = (1 << (15 - mantissa_bits)) - 1;
  double sign = h & 0x8000 ? -1 : 1;
  if (exponent == top) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/* The nearest, ties to even; NaN gives the one NaN. */
static uint16_t double_to_small(double v, int mantissa_bits, int bias) {
  uint16_t sign = signbit(v) ? 0x8000 : 0;
  int top = (1 << (15 - mantissa_bits)) - 1, e;
  if (isnan(v)) return (uint16_t)((top << mantissa_bits) | (1 << (mantissa_bits - 1)));
  if (isinf(v)) return (uint16_t)(sign | (top << mantissa_bits));
  frexp(v, &e);
  int exponent = v == 0 || e - 1 < 1 - bias ? 1 - bias : e - 1;
  double units = nearbyint(ldexp(fabs(v), mantissa_bits - exponent));
  /* units counts 2^(exponent - mantissa_bits); a carry into the next binade is right by itself */
  int64_t bits = (int64_t)units + ((int64_t)(exponent + bias - 1) << mantissa_bits);
  return (uint16_t)(sign | (bits >= (int64_t)top << mantissa_bits ? top << mantissa_bits : bits));
}

/* The one NaN of a type, and minus zero below zero. */
#define FOLD_FLOAT(T)                                                 \
  static T tidy_##T(T x) {                                            \
    return isnan(x) ? (T)NAN : x;                                     \
  }                                                                   \
  static T fold_##T(int op, T x, T y) {                               \
    if (op == LWCC_SUM) return tidy_##T(x + y);                       \
    if (op == LWCC_PRODUCT) return tidy_##T(x * y);                   \
    if (isnan(x) || isnan(y)) return (T)NAN;                          \
    if (x == y) return (op == LWCC_MIN) == (signbit(x) != 0) ? x : y; \
    return (op == LWCC_MIN) == (x < y) ? x : y;                       \
  }
FOLD_FLOAT(float)
FOLD_FLOAT(double)

static float get_float(int dtype, const void *p, size_t i) {
  uint16_t h = ((const uint16_t *)p)[i];
  if (dtype == LWCC_FLOAT32) return ((const float *)p)[i];
  return (float)(dtype == LWCC_FLOAT16 ? small_to_double(h, 10, 15) : small_to_double(h, 7, 127));
}

static void put_float(int dtype, void *p, size_t i, float v) {
  if (dtype == LWCC_FLOAT32)
    ((float *)p)[i] = tidy_float(v);
  else
    ((uint16_t *)p)[i] = dtype == LWCC_FLOAT16 ? double_to_small(v, 10, 15) : double_to_small(v, 7, 127);
}

static uint64_t fold_unsigned(int op, uint64_t x, uint64_t y) {
  return op == LWCC_SUM ? x + y : op == LWCC_PRODUCT ? x * y : (op == LWCC_MIN) == (x < y) ? x : y;
}
static int64_t fold_signed(int op, int64_t x, int64_t y) {
  if (op == LWCC_SUM || op == LWCC_PRODUCT) return (int64_t)fold_unsigned(op, (uint64_t)x, (uint64_t)y);
  return (op == LWCC_MIN) == (x < y) ? x : y;
}

typedef struct { /* one call of a kernel, as the reference sees it */
  int dtype, op, n;
  const void *const *src;
  void *dst;
  double scale;
} fold;

/* Wraps to the type at every step, scales in double, truncates, saturates. */
#define FOLD_INT(T, WIDE, FOLD, LEAST, MOST_)                                                        \
  static void int_##T(const fold *f, size_t i) {                                                     \
    T x = ((const T *)f->src[0])[i];                                                                 \
    for (int s = 1; s < f->n; s++) x = (T)FOLD(f->op, (WIDE)x, (WIDE)((const T *)f->src[s])[i]);     \
    double v = trunc((double)x * f->scale);                                                          \
    if (f->scale != 1.0) x = v <= (double)(LEAST) ? (LEAST) : v >= (double)(MOST_) ? (MOST_) : (T)v; \
    ((T *)f->dst)[i] = x;                                                                            \
  }
FOLD_INT(uint8_t, uint64_t, fold_unsigned, 0, UINT8_MAX)
FOLD_INT(uint16_t, uint64_t, fold_unsigned, 0, UINT16_MAX)
FOLD_INT(uint32_t, uint64_t, fold_unsigned, 0, UINT32_MAX)
FOLD_INT(uint64_t, uint64_t, fold_unsigned, 0, UINT64_MAX)
FOLD_INT(int8_t, int64_t, fold_signed, INT8_MIN, INT8_MAX)
FOLD_INT(int16_t, int64_t, fold_signed, INT16_MIN, INT16_MAX)
FOLD_INT(int32_t, int64_t, fold_signed, INT32_MIN, INT32_MAX)
FOLD_INT(int64_t, int64_t, fold_signed, INT64_MIN, INT64_MAX)

static void real_float(const fold *f, size_t i) {
  float x = get_float(f->dtype, f->src[0], i);
  for (int s = 1; s < f->n; s++) x = fold_float(f->op, x, get_float(f->dtype, f->src[s], i));
  put_float(f->dtype, f->dst, i, f->scale == 1.0 ? x : x * (float)f->scale);
}

static void real_double(const fold *f, size_t i) {
  double x = ((const double *)f->src[0])[i];
  for (int s = 1; s < f->n; s++) x = fold_double(f->op, x, ((const double *)f->src[s])[i]);
  ((double *)f->dst)[i] = tidy_double(f->scale == 1.0 ? x : x * f->scale);
}

static void logic(const fold *f, size_t i) {
  int trues = 0;
  for (int s = 0; s < f->n; s++) trues += ((const uint8_t *)f->src[s])[i] != 0;
  ((uint8_t *)f->dst)[i] = f->op == LWCC_SUM || f->op == LWCC_MAX ? trues > 0 : trues == f->n;
}

static void reference(const fold *f, size_t i) {
  static void (*const of[LWCC_DTYPES])(const fold *, size_t) = {
      int_uint8_t, int_int8_t, int_uint16_t, int_int16_t, int_uint32_t, int_int32_t, int_uint64_t,
      int_int64_t, logic,      real_float,   real_float,  real_float,   real_double};
  of[f->dtype](f, i);
}

static bool same(int dtype, const void *x, const void *y, size_t i) {
  size_t w = coll_dtype_bytes(dtype);
  return memcmp((const char *)x + i * w, (const char *)y + i * w, w) == 0;
}

/* ---- inputs ---- */

/* Ordinary numbers, and now and then any bits at all: infinities, NaNs, subnormals, extremes. */
static void fill(int dtype, void *p, size_t n) {
  for (size_t i = 0; i < n; i++) {
    uint64_t bits = draw();
    double v = (double)((int64_t)(draw() >> 11) - (INT64_C(1) << 52)) * 0x1p-50;
    bool wild = draw() % 16 == 0;
    if (draw() % 4 == 0)
      bits |= dtype == LWCC_FLOAT64   ? UINT64_C(0x7ff) << 52
              : dtype == LWCC_FLOAT16 ? 0x7c00
                                      : 0x7f807f80; /* infinities and NaNs */
    if (dtype == LWCC_FLOAT64 && !wild)
      ((double *)p)[i] = v;
    else if (dtype >= LWCC_FLOAT16 && !wild)
      put_float(dtype, p, i, (float)v);
    else
      memcpy((char *)p + i * coll_dtype_bytes(dtype), &bits, coll_dtype_bytes(dtype));
    if (dtype == LWCC_BOOL) ((uint8_t *)p)[i] = (uint8_t)(bits % 3 == 2 ? 1 + bits % 255 : bits % 3);
  }
}

static _Alignas(64) char source_memory[SOURCES][MOST * 8 + EXTRA], aligned[SOURCES][MOST * 8], want[MOST * 8],
    got[SOURCES][MOST * 8 + EXTRA], plain[MOST * 8];

typedef struct {
  int dtype, op, nsrc, ndst;
  size_t n, shift; /* shift: bytes off alignment, not a multiple of the element */
  double scale;
  bool in_place;
} example;

static void run_example(const reduce_table *t, const example *c) {
  const void *src[SOURCES], *ref[SOURCES];
  void *dst[SOURCES];
  size_t nbytes = c->n * coll_dtype_bytes(c->dtype);
  for (int s = 0; s < c->nsrc; s++) {
    src[s] = memcpy(source_memory[s] + (c->shift ? c->shift + (size_t)s % 3 : 0), aligned[s], nbytes);
    ref[s] = aligned[s];
  }
  memset(got, KEEP, sizeof got);
  for (int d = 0; d < c->ndst; d++) dst[d] = got[d] + (c->shift ? c->shift + 1 : 0);
  for (int d = 0; d < c->ndst && c->in_place; d++) dst[d] = (void *)(uintptr_t)src[(d + 1) % c->nsrc];
  fold f = {.dtype = c->dtype, .op = c->op, .n = c->nsrc, .src = ref, .dst = want, .scale = c->scale};
  for (size_t i = 0; i < c->n; i++) reference(&f, i);
  t->fold[c->dtype][reduce_op_index(c->op)](c->nsrc, src, c->ndst, dst, c->n, c->scale);
  for (int d = 0; d < c->ndst; d++) {
    size_t bad = 0;
    memcpy(plain, dst[d], nbytes); /* aligned, for the comparison */
    while (bad < c->n && same(c->dtype, plain, want, bad)) bad++;
    CHECK(bad == c->n, "%s dtype %d op %d, %d to %d, n %zu, shift %zu, scale %g: element %zu of destination %d",
          t->name, c->dtype, c->op, c->nsrc, c->ndst, c->n, c->shift, c->scale, bad, d);
    if (!c->in_place) CHECK(((char *)dst[d])[nbytes] == KEEP, "%s writes past the end of %zu bytes", t->name, nbytes);
  }
}

static void test_shapes(const reduce_table *t, int dtype, int op) {
  static const size_t counts[] = {0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 127, 129, 255, 256, 257, 513, 700};
  static const int nsrc[] = {1, 2, 3, 4, 5, 8, 9};
  int turn = 0;
  for (int s = 0; s < SOURCES; s++) fill(dtype, aligned[s], MOST);
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (size_t k = 0; k < sizeof nsrc / sizeof *nsrc; k++) {
      int ndst[3] = {1, 2, nsrc[k]};
      double scale = turn % 4 == 1 ? 0.5 : turn % 4 == 3 ? 1.0 / 3 : 1.0;
      example e = {.dtype = dtype,
                   .op = op,
                   .nsrc = nsrc[k],
                   .ndst = ndst[turn % 3],
                   .n = counts[c],
                   .shift = turn % 2 ? 1 + (size_t)turn % 5 : 0,
                   .scale = scale};
      e.in_place = turn % 5 == 0 && e.ndst <= e.nsrc;
      run_example(t, &e);
      turn++;
    }
}

static void test_specials_at_full_width(const reduce_table *t) {
  for (int dtype = LWCC_FLOAT16; dtype <= LWCC_FLOAT64; dtype++)
    for (int shape = 0; shape < 8; shape++) { /* the shapes compiled with constant counts */
      static const int from[8] = {2, 2, 4, 4, 4, 8, 8, 8}, to[8] = {1, 2, 1, 2, 4, 1, 2, 8};
      example e = {.dtype = dtype, .op = LWCC_SUM, .nsrc = from[shape], .ndst = to[shape], .n = 613, .scale = 1};
      for (int s = 0; s < SOURCES; s++) fill(dtype, aligned[s], MOST);
      run_example(t, &e);
      e.in_place = true;
      run_example(t, &e);
    }
}

/* All 65536 values through load, arithmetic and store; the scales make ties, subnormals, overflow and underflow. */
static void test_every_half(const reduce_table *t, int dtype) {
  static uint16_t in[65536], out[65536], ref[65536];
  static const double scales[] = {1.0, 0.5, 0x1p-7, 1.0 / 3, 3.0, 65520.0, 1e-5, 0x1p-24, 1 + 0x1p-11, 1 - 0x1p-12};
  const void *src[1] = {in};
  void *dst[1] = {out};
  for (int i = 0; i < 65536; i++) in[i] = (uint16_t)i;
  for (size_t k = 0; k < sizeof scales / sizeof *scales; k++) {
    t->fold[dtype][0](1, src, 1, dst, 65536, scales[k]);
    size_t bad = 0;
    fold f = {.dtype = dtype, .op = LWCC_SUM, .n = 1, .src = src, .dst = ref, .scale = scales[k]};
    for (size_t i = 0; i < 65536; i++) reference(&f, i);
    while (bad < 65536 && same(dtype, out, ref, bad)) bad++;
    CHECK(bad == 65536, "%s dtype %d scale %g: %04zx gives %04x, expected %04x", t->name, dtype, scales[k], bad,
          out[bad % 65536], ref[bad % 65536]);
  }
}

/* Results must be the same bytes on ranks with different processors, and for either order of two sources. */
static void test_bits_do_not_depend_on_the_isa(void) {
  const void *src[SOURCES];
  void *dst[1];
  for (int s = 0; s < SOURCES; s++) src[s] = aligned[s];
  for (int dtype = 0; dtype < LWCC_DTYPES; dtype++)
    for (int o = 0; o < REDUCE_OPS; o++)
      for (int n = 1; n <= SOURCES; n++) {
        const reduce_table *t;
        size_t nbytes = MOST * coll_dtype_bytes(dtype);
        for (int s = 0; s < SOURCES; s++) fill(dtype, aligned[s], MOST);
        for (int s = 0; s < 2; s++) memset(aligned[s] + 64, 0x7f + s * 0x80, 64); /* NaN meets another NaN */
        for (int i = 0; (t = reduce_usable(i)) != NULL; i++) {
          dst[0] = got[i];
          t->fold[dtype][o](n, src, 1, dst, MOST, n % 2 ? 1.0 : 0.25);
          CHECK(memcmp(got[0], got[i], nbytes) == 0, "%s: other bits than base, dtype %d op %d, %d sources", t->name,
                dtype, ops[o], n);
          if (n != 2) continue;
          dst[0] = got[SOURCES - 1];
          t->fold[dtype][o](2, (const void *[]){src[1], src[0]}, 1, dst, MOST, 0.25);
          CHECK(memcmp(got[i], got[SOURCES - 1], nbytes) == 0, "%s: the order shows, dtype %d op %d", t->name, dtype,
                ops[o]);
        }
      }
}

static void test_nan_wins(const reduce_table *t) {
  float a[3] = {NAN, 1, NAN}, b[3] = {1, NAN, NAN}, r[3];
  const void *src[2] = {a, b};
  void *dst[1] = {r};
  for (int o = 0; o < REDUCE_OPS; o++) {
    t->fold[LWCC_FLOAT32][o](2, src, 1, dst, 3, 1.0);
    CHECK(isnan(r[0]) && isnan(r[1]) && isnan(r[2]), "%s op %d", t->name, ops[o]);
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
  CHECK(y[0] == -1 && y[1] == 1 && y[2] == -32 && y[3] == 31 && y[4] == 0, "%d", y[0]);
  reduce_scale(LWCC_INT8, y, x, 5, 2.0); /* what does not fit saturates */
  CHECK(y[0] == -14 && y[1] == 14 && y[2] == -128 && y[3] == 127 && y[4] == 2, "%d", y[0]);
  reduce_scale(LWCC_INT64, big, big, 3, 0.5);
  CHECK(big[0] == INT64_C(1) << 62 && big[1] == -4 && big[2] == 4, "%" PRId64, big[0]);
}

static void test_copies(void) {
  static char from[5000], to[5000];
  for (size_t i = 0; i < sizeof from; i++) from[i] = (char)draw();
  for (size_t n = 0; n < 4800; n = n * 3 / 2 + 1)
    for (size_t shift = 0; shift < 70; shift += 23)
      for (int past = 0; past < 2; past++) {
        memset(to, KEEP, sizeof to);
        reduce_copy(to + shift, from + shift / 2, n, past);
        CHECK(memcmp(to + shift, from + shift / 2, n) == 0 && to[shift + n] == KEEP, "%zu bytes, shift %zu", n, shift);
        CHECK(shift == 0 || to[shift - 1] == KEEP, "%zu bytes, shift %zu: writes before the place", n, shift);
      }
}

int main(int argc, char **argv) {
  const reduce_table *t;
  state = argc > 1 ? strtoull(argv[1], NULL, 10) : 20261130;
  printf("seed %" PRIu64 ", isa %s\n", state, reduce_isa());
  for (int i = 0; (t = reduce_usable(i)) != NULL; i++) {
    for (int dtype = 0; dtype < LWCC_DTYPES; dtype++)
      for (int o = 0; o < REDUCE_OPS; o++) test_shapes(t, dtype, ops[o]);
    test_specials_at_full_width(t);
    test_every_half(t, LWCC_FLOAT16);
    test_every_half(t, LWCC_BFLOAT16);
    test_nan_wins(t);
  }
  test_bits_do_not_depend_on_the_isa();
  test_the_edges_of_the_halves();
  test_scaling_truncates_integers_to_zero();
  test_copies();
  CHECK(reduce_fold(LWCC_FLOAT32, LWCC_AVERAGE) == NULL && reduce_fold(LWCC_DTYPES, LWCC_SUM) == NULL);
  return check_report();
}
