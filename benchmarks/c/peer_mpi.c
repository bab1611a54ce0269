/* Any MPI as the subject: mpicc -O2 peer_mpi.c board.c; mpirun -np 2 ./peer_mpi LABEL COLLECTIVE SIZES BUDGET PIN BOARD
 */
#include <mpi.h>
#include <stdlib.h>

#include "board.h"

static int run(void *ctx, int collective, void *in, void *out, size_t count) {
  MPI_Comm w = MPI_COMM_WORLD;
  int n = (int)count;
  (void)ctx;
  switch (collective) {
    case BENCH_ALLREDUCE:
      return MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_FLOAT, MPI_SUM, w);
    case BENCH_BROADCAST:
      return MPI_Bcast(out, n, MPI_FLOAT, 0, w);
    case BENCH_ALLGATHER:
      return MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, w);
    case BENCH_REDUCESCATTER:
      return MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, w);
    case BENCH_ALLTOALL:
      return MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, w);
    default:
      return MPI_Barrier(w);
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  if (argc != 7) MPI_Abort(MPI_COMM_WORLD, 2);
  bench_setup s = {
      .board = argv[6], .label = argv[1], .collective = atoi(argv[2]), .budget_s = atof(argv[4]), .pin = atoi(argv[5])};
  MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &s.size);
  bench_subject u = {.run = run};
  int st = bench_sizes(&s, &u, argv[3]);
  MPI_Finalize();
  return st;
}
