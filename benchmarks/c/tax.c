/* A collective of MPI called directly and through LWCC's engine `mpi`, call by call in turn, in the same processes with
 * the same memory: whatever the machine does to one, it does to the other. Built by benchmarks/bench_tax.py against the
 * MPI that mpi4py loads, and called from a rank that has initialised lwcc with that engine. */
#include <mpi.h>
#include <stdint.h>

typedef int (*engine_call)(const void *in, void *out, int64_t count, int32_t dtype, int32_t op, int32_t set);

typedef struct {
  engine_call engine; /* lwcc_raw_allreduce */
  int32_t dtype, op;  /* LWCC's codes of float32 and the sum */
  void *data;         /* reduced in place; zeros, so that sums stay finite */
  int64_t count;
  int32_t iterations;
} tax;

static int call(const tax *t, int by_engine) {
  if (by_engine) return t->engine(t->data, t->data, t->count, t->dtype, t->op, 0);
  return MPI_Allreduce(MPI_IN_PLACE, t->data, (int)t->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* seconds_out: iterations times of the direct call, then as many of the engine's; each the longest over the ranks. */
int tax_loop(const tax *t, double *seconds_out) {
  for (int i = 0; i < t->iterations; i++) {
    for (int k = 0; k < 2; k++) {
      int by_engine = (i + k) % 2;
      MPI_Barrier(MPI_COMM_WORLD);
      double began = MPI_Wtime();
      int st = call(t, by_engine);
      if (st) return st;
      seconds_out[by_engine * t->iterations + i] = MPI_Wtime() - began;
    }
  }
  return MPI_Allreduce(MPI_IN_PLACE, seconds_out, 2 * t->iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}
