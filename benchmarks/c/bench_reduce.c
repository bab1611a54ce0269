/* Speed of the reduction kernels: bytes of one source per second, for every instruction set that this processor has.
 *   cc -std=c11 -D_GNU_SOURCE -O2 -Icore/include -Icore/src -o build/bench_reduce benchmarks/c/bench_reduce.c \
 *     core/src/exec/reduce*.c core/src/os/{env,log,status,clock}.c -lm
 *   build/bench_reduce [bytes of one source, default 131072] [op: sum min max product]
 * Rows are interleaved: every round times each kernel once, the median of the rounds is printed. The sources lie in one
 * block, a page multiple apart (equal modulo 4096), as slots in shared memory do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/coll.h"
#include "exec/reduce_isa.h"
#include "os/clock.h"

enum { ROUNDS = 41, SHAPES = 6, ISAS = 3 };
static const int from[SHAPES] = {2, 2, 4, 4, 8, 8}, to[SHAPES] = {1, 2, 1, 4, 1, 8};
static const char *const names[LWCC_DTYPES] = {"uint8", "int8", "uint16",  "int16",    "uint32",  "int32",  "uint64",
                                               "int64", "bool", "float16", "bfloat16", "float32", "float64"};

typedef struct {
  const reduce_table *isa;
  int dtype, op, shape;
  size_t nbytes;
  char *memory;
} row;

static double seconds(const row *r, int calls) {
  const void *src[8];
  void *dst[8];
  size_t apart = (r->nbytes + 4095) / 4096 * 4096;
  for (int i = 0; i < 8; i++) src[i] = dst[i] = r->memory + (size_t)i * apart;
  reduce_fold_fn fold = r->isa->fold[r->dtype][r->op];
  size_t n = r->nbytes / coll_dtype_bytes(r->dtype);
  fold(from[r->shape], src, to[r->shape], dst, n, 1.0);
  uint64_t start = clock_ns();
  for (int c = 0; c < calls; c++) fold(from[r->shape], src, to[r->shape], dst, n, 1.0);
  return (double)(clock_ns() - start) * 1e-9 / calls;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double times[LWCC_DTYPES][SHAPES][ROUNDS];

static void measure(row *r) {
  int calls = (int)((size_t)(4 << 20) / (r->nbytes + 1)) + 1;
  for (int round = 0; round < ROUNDS; round++)
    for (r->dtype = 0; r->dtype < LWCC_DTYPES; r->dtype++)
      for (r->shape = 0; r->shape < SHAPES; r->shape++) times[r->dtype][r->shape][round] = seconds(r, calls);
  printf("%s, %s, %zu bytes of each source, GB/s of one source (ratio to float32)\n%-9s", r->isa->name,
         (const char *[]){"sum", "min", "max", "product"}[r->op], r->nbytes, "");
  for (int s = 0; s < SHAPES; s++) printf("      %d to %d     ", from[s], to[s]);
  printf("\n");
  for (int d = 0; d < LWCC_DTYPES; d++) {
    printf("%-9s", names[d]);
    for (int s = 0; s < SHAPES; s++) {
      double *t = times[d][s], *f = times[LWCC_FLOAT32][s];
      qsort(t, ROUNDS, sizeof *t, ascending);
      qsort(f, ROUNDS, sizeof *f, ascending);
      printf(" %7.2f (%4.2f)  ", (double)r->nbytes * 1e-9 / t[ROUNDS / 2], f[ROUNDS / 2] / t[ROUNDS / 2]);
    }
    printf("\n");
  }
}

int main(int argc, char **argv) {
  size_t nbytes = argc > 1 ? strtoull(argv[1], NULL, 10) / 64 * 64 : 128 << 10;
  const char *op = argc > 2 ? argv[2] : "sum";
  row r = {.op = op[0] == 's' ? 0 : op[0] == 'p' ? 3 : op[1] == 'i' ? 1 : 2, .nbytes = nbytes};
  void *memory;
  if (nbytes == 0 || posix_memalign(&memory, 4096, 8 * (nbytes + 4096)) != 0) return 1;
  memset(memory, 0, 8 * (nbytes + 4096));
  r.memory = memory;
  for (int i = 0; (r.isa = reduce_usable(i)) != NULL; i++) measure(&r);
  free(memory);
  return 0;
}
