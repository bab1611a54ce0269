/* All fold kernels, once per instruction set: reduce_base.c, reduce_avx2.c and reduce_avx512.c include this file after
 * choosing the target and defining
 *   VECTOR           bytes of a vector
 *   TABLE, ISA_NAME  the table to define and its name
 *   f16_load, f16_store  VECTOR bytes of halves to a cell of floats and back, rounding to nearest even
 *   f32_numbers(x), f64_numbers(x)  1 if it is certain that no lane of the cell is NaN
 *
 * A kernel works on cells, two vectors each. Two cells are loaded and folded before anything is stored: sources and
 * destinations often are equal modulo 4096, and then a load that follows a store waits for it. */
#define VEC(T) __attribute__((vector_size(VECTOR))) T
typedef VEC(unsigned char) vec;
typedef vec vec_unaligned __attribute__((aligned(1), may_alias));
typedef struct {
  vec a, b;
} cell;

#define INLINE static inline __attribute__((always_inline, unused))
#define LOADED(p) (*(const vec_unaligned *)(p))
#define STORED(p, v) (*(vec_unaligned *)(p) = (v))

/* mask ? p : q, bit by bit. */
INLINE vec pick(vec mask, vec p, vec q) {
  return (mask & p) | (~mask & q);
}

/* ---- arithmetic: A_sum, A_min, A_max, A_prod and A_finish for each kind of lane ---- */
#define BINARY(A, OP, EXPR)                 \
  INLINE vec A##_##OP##_vec(vec x, vec y) { \
    A##_vec p = (A##_vec)x, q = (A##_vec)y; \
    return (vec)(EXPR);                     \
  }                                         \
  INLINE cell A##_##OP(cell x, cell y) {    \
    x.a = A##_##OP##_vec(x.a, y.a);         \
    x.b = A##_##OP##_vec(x.b, y.b);         \
    return x;                               \
  }

/* U: the lane type in which sums and products wrap. Scaled in double and truncated; what does not fit saturates. */
#define INTEGER(A, T, U, LOW, HIGH)                                                                         \
  typedef VEC(T) A##_vec;                                                                                   \
  typedef VEC(U) A##_wrap;                                                                                  \
  BINARY(A, sum, (A##_wrap)p + (A##_wrap)q)                                                                 \
  BINARY(A, prod, (A##_wrap)p *(A##_wrap)q)                                                                 \
  BINARY(A, min, pick((vec)(p < q), x, y))                                                                  \
  BINARY(A, max, pick((vec)(p > q), x, y))                                                                  \
  INLINE T A##_from_double(double v) {                                                                      \
    if (!(v > (double)(LOW))) return (LOW);                                                                 \
    return v >= (double)(HIGH) ? (HIGH) : (T)v;                                                             \
  }                                                                                                         \
  INLINE cell A##_finish(cell x, double scale) {                                                            \
    T lane[2 * VECTOR / sizeof(T)];                                                                         \
    if (scale == 1.0) return x;                                                                             \
    STORED(lane, x.a);                                                                                      \
    STORED((char *)lane + VECTOR, x.b);                                                                     \
    for (size_t i = 0; i < 2 * VECTOR / sizeof(T); i++) lane[i] = A##_from_double((double)lane[i] * scale); \
    return (cell){LOADED(lane), LOADED((char *)lane + VECTOR)};                                             \
  }

/* The bits must not depend on who adds what to what: -0 is less than +0, and a result that is NaN is always the same
 * NaN, whose bits are NAN_BITS (processors differ in which operand's NaN, and which sign, they hand on). */
#define FLOATING(A, T, BITS, NAN_BITS)                                                 \
  typedef VEC(T) A##_vec;                                                              \
  typedef VEC(BITS) A##_bits;                                                          \
  BINARY(A, sum, p + q)                                                                \
  BINARY(A, prod, p *q)                                                                \
  BINARY(A, min, pick((vec)(p < q) | (vec)(p != p), x, pick((vec)(p == q), x | y, y))) \
  BINARY(A, max, pick((vec)(p > q) | (vec)(p != p), x, pick((vec)(p == q), x & y, y))) \
  INLINE vec A##_one_nan(vec x) {                                                      \
    const A##_bits nan = (A##_bits){0} + (NAN_BITS);                                   \
    return pick((vec)((A##_vec)x == (A##_vec)x), x, (vec)nan);                         \
  }                                                                                    \
  INLINE cell A##_finish(cell x, double scale) {                                       \
    const T by = (T)scale;                                                             \
    if (scale != 1.0) x = (cell){(vec)((A##_vec)x.a * by), (vec)((A##_vec)x.b * by)};  \
    return A##_numbers(x) ? x : (cell){A##_one_nan(x.a), A##_one_nan(x.b)};            \
  }

INTEGER(u8, uint8_t, uint8_t, 0, UINT8_MAX)
INTEGER(i8, int8_t, uint8_t, INT8_MIN, INT8_MAX)
INTEGER(u16, uint16_t, uint16_t, 0, UINT16_MAX)
INTEGER(i16, int16_t, uint16_t, INT16_MIN, INT16_MAX)
INTEGER(u32, uint32_t, uint32_t, 0, UINT32_MAX)
INTEGER(i32, int32_t, uint32_t, INT32_MIN, INT32_MAX)
INTEGER(u64, uint64_t, uint64_t, 0, UINT64_MAX)
INTEGER(i64, int64_t, uint64_t, INT64_MIN, INT64_MAX)
FLOATING(f32, float, uint32_t, 0x7fc00000u)
FLOATING(f64, double, uint64_t, UINT64_C(0x7ff8) << 48)
/* bool: lanes are 0 or 1 once loaded; "any" serves sum and max, "all" serves product and min. */
#define logic_vec u8_vec
BINARY(logic, any, p | q)
BINARY(logic, all, p &q)
INLINE cell logic_finish(cell x, double scale) {
  (void)scale;
  return x;
}

/* ---- memory: M_CELL bytes in memory become a cell by M_load, and a cell becomes them by M_store ---- */
#define PLAIN_CELL (2 * VECTOR)
INLINE cell plain_load(const char *p) {
  return (cell){LOADED(p), LOADED(p + VECTOR)};
}
INLINE void plain_store(char *p, cell x) {
  STORED(p, x.a);
  STORED(p + VECTOR, x.b);
}
#define LOGIC_CELL PLAIN_CELL
INLINE cell logic_load(const char *p) {
  cell x = plain_load(p);
  x.a = (vec)((u8_vec)x.a != 0) & 1;
  x.b = (vec)((u8_vec)x.b != 0) & 1;
  return x;
}
#define logic_store plain_store
#define F16_CELL VECTOR
/* bfloat16: each 32-bit lane holds two values; the lower goes to a, the upper to b, so that nothing is shuffled. */
#define BF16_CELL VECTOR
INLINE cell bf16_load(const char *p) {
  const u32_vec two = (u32_vec)LOADED(p);
  return (cell){(vec)(two << 16), (vec)(two & 0xffff0000u)};
}
/* To the nearest, ties to even, on whole vectors: up if what falls away is more than half, or half below an odd one.
 * The one NaN stays itself. */
INLINE void bf16_store(char *p, cell x) {
  const u32_vec a = (u32_vec)x.a, b = (u32_vec)x.b;
  const u16_vec upper = (u16_vec)((a >> 16) | (b & 0xffff0000u)), lower = (u16_vec)((a & 0xffffu) | (b << 16));
  STORED(p, (vec)(upper - (u16_vec)((lower | (upper & 1)) > 0x8000)));
}

/* ---- folds: N = name, T = bytes of an element in memory, M = memory form and C its size, A = arithmetic ---- */
#define FOLD(N, T, M, C, A, OP)                                                                                       \
  static void N##_##OP##_tail(int nsrc, const void *const *src, int ndst, void *const *dst, size_t at, size_t nbytes, \
                              double scale) {                                                                         \
    for (size_t part; at < nbytes; at += part) {                                                                      \
      char room[C] = {0};                                                                                             \
      part = nbytes - at < C ? nbytes - at : C;                                                                       \
      memcpy(room, (const char *)src[0] + at, part);                                                                  \
      cell x = M##_load(room);                                                                                        \
      for (int s = 1; s < nsrc; s++) {                                                                                \
        memcpy(room, (const char *)src[s] + at, part);                                                                \
        x = A##_##OP(x, M##_load(room));                                                                              \
      }                                                                                                               \
      x = A##_finish(x, scale);                                                                                       \
      M##_store(room, x);                                                                                             \
      for (int d = 0; d < ndst; d++) memcpy((char *)dst[d] + at, room, part);                                         \
    }                                                                                                                 \
  }                                                                                                                   \
  INLINE void N##_##OP##_with(int nsrc, const char *const *src, int ndst, char *const *dst, size_t n, double scale) { \
    const size_t nbytes = n * (T);                                                                                    \
    size_t at = 0;                                                                                                    \
    for (; nbytes - at >= 2 * C; at += 2 * C) {                                                                       \
      cell x = M##_load(src[0] + at), y = M##_load(src[0] + at + C);                                                  \
      for (int s = 1; s < nsrc; s++) {                                                                                \
        x = A##_##OP(x, M##_load(src[s] + at));                                                                       \
        y = A##_##OP(y, M##_load(src[s] + at + C));                                                                   \
      }                                                                                                               \
      x = A##_finish(x, scale);                                                                                       \
      y = A##_finish(y, scale);                                                                                       \
      for (int d = 0; d < ndst; d++) {                                                                                \
        M##_store(dst[d] + at, x);                                                                                    \
        M##_store(dst[d] + at + C, y);                                                                                \
      }                                                                                                               \
    }                                                                                                                 \
    if (at < nbytes) N##_##OP##_tail(nsrc, (const void *const *)src, ndst, (void *const *)dst, at, nbytes, scale);    \
  }

#define FOLD_ANY(N, T, M, C, A, OP)                                                                                   \
  FOLD(N, T, M, C, A, OP)                                                                                             \
  static void N##_##OP##_fold(int nsrc, const void *const *src, int ndst, void *const *dst, size_t n, double scale) { \
    N##_##OP##_with(nsrc, (const char *const *)src, ndst, (char *const *)dst, n, scale);                              \
  }

/* Sums of floating types, which carry the gradients: the usual shapes are compiled with constant counts. The pointers
 * are copied to locals, because a store might otherwise change them as far as the compiler knows. */
#define SHAPE(N, OP, S, D)                          \
  if (nsrc == (S) && ndst == (D)) {                 \
    const char *from[S];                            \
    char *to[D];                                    \
    for (int s = 0; s < (S); s++) from[s] = src[s]; \
    for (int d = 0; d < (D); d++) to[d] = dst[d];   \
    N##_##OP##_with(S, from, D, to, n, 1.0);        \
    return;                                         \
  }
#define FOLD_SHAPED(N, T, M, C, A, OP)                                                                                \
  FOLD(N, T, M, C, A, OP)                                                                                             \
  static void N##_##OP##_fold(int nsrc, const void *const *src, int ndst, void *const *dst, size_t n, double scale) { \
    if (scale == 1.0) {                                                                                               \
      SHAPE(N, OP, 2, 1);                                                                                             \
      SHAPE(N, OP, 2, 2);                                                                                             \
      SHAPE(N, OP, 4, 1);                                                                                             \
      SHAPE(N, OP, 4, 2);                                                                                             \
      SHAPE(N, OP, 4, 4);                                                                                             \
      SHAPE(N, OP, 8, 1);                                                                                             \
      SHAPE(N, OP, 8, 2);                                                                                             \
      SHAPE(N, OP, 8, 8);                                                                                             \
    }                                                                                                                 \
    N##_##OP##_with(nsrc, (const char *const *)src, ndst, (char *const *)dst, n, scale);                              \
  }

#define FOLDS(N, T, M, C, A, SUM_FORM) \
  SUM_FORM(N, T, M, C, A, sum)         \
  FOLD_ANY(N, T, M, C, A, min)         \
  FOLD_ANY(N, T, M, C, A, max)         \
  FOLD_ANY(N, T, M, C, A, prod)
FOLDS(u8, 1, plain, PLAIN_CELL, u8, FOLD_ANY)
FOLDS(i8, 1, plain, PLAIN_CELL, i8, FOLD_ANY)
FOLDS(u16, 2, plain, PLAIN_CELL, u16, FOLD_ANY)
FOLDS(i16, 2, plain, PLAIN_CELL, i16, FOLD_ANY)
FOLDS(u32, 4, plain, PLAIN_CELL, u32, FOLD_ANY)
FOLDS(i32, 4, plain, PLAIN_CELL, i32, FOLD_ANY)
FOLDS(u64, 8, plain, PLAIN_CELL, u64, FOLD_ANY)
FOLDS(i64, 8, plain, PLAIN_CELL, i64, FOLD_ANY)
FOLDS(f16, 2, f16, F16_CELL, f32, FOLD_SHAPED)
FOLDS(bf16, 2, bf16, BF16_CELL, f32, FOLD_SHAPED)
FOLDS(f32, 4, plain, PLAIN_CELL, f32, FOLD_SHAPED)
FOLDS(f64, 8, plain, PLAIN_CELL, f64, FOLD_SHAPED)
FOLD_ANY(logic, 1, logic, LOGIC_CELL, logic, any)
FOLD_ANY(logic, 1, logic, LOGIC_CELL, logic, all)

#define ROW(N) \
  { N##_sum_fold, N##_min_fold, N##_max_fold, N##_prod_fold }
const reduce_table TABLE = {
    ISA_NAME,
    {[LWCC_UINT8] = ROW(u8),
     [LWCC_INT8] = ROW(i8),
     [LWCC_UINT16] = ROW(u16),
     [LWCC_INT16] = ROW(i16),
     [LWCC_UINT32] = ROW(u32),
     [LWCC_INT32] = ROW(i32),
     [LWCC_UINT64] = ROW(u64),
     [LWCC_INT64] = ROW(i64),
     [LWCC_BOOL] = {logic_any_fold, logic_all_fold, logic_any_fold, logic_all_fold},
     [LWCC_FLOAT16] = ROW(f16),
     [LWCC_BFLOAT16] = ROW(bf16),
     [LWCC_FLOAT32] = ROW(f32),
     [LWCC_FLOAT64] = ROW(f64)},
};
