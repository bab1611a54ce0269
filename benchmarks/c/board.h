/* The part of the benchmarks that every library under test shares: a barrier and a table of time stamps in shared
 * memory, so that all are synchronised and timed by the same code, and a probe of the core-to-core latency. A figure
 * without the probe is worthless on a virtual machine: its cores are at times on one L3, at times on two. */
#ifndef BENCH_BOARD_H
#define BENCH_BOARD_H
#include <stddef.h>
#include <stdint.h>

enum { BOARD_RANKS = 64, BOARD_ITERATIONS = 3000 };
enum { BENCH_ALLREDUCE, BENCH_BROADCAST, BENCH_ALLGATHER, BENCH_REDUCESCATTER, BENCH_ALLTOALL, BENCH_BARRIER };

typedef struct { /* one library under test; float32; returns non-zero on failure */
  int (*run)(void *ctx, int collective, void *in, void *out, size_t count); /* allreduce, broadcast: in == out */
  void *ctx;
  void *(*alloc)(void *ctx, size_t nbytes); /* NULL: private pages */
  void (*release)(void *ctx, void *p, size_t nbytes);
} bench_subject;

typedef struct {
  const char *board; /* path of the shared file, the same on all ranks */
  const char *label; /* printed in each row */
  int rank, size, collective;
  double budget_s; /* per size */
  int pin;         /* rank k on core k mod cores */
} bench_setup;

/* Run every size (bytes of one rank's payload; comma separated, suffixes k and m) and let rank 0 print a row for each:
 * label,collective,np,bytes,iterations,median_us,p10_us,p90_us,back_to_back_us,wrong,near_ns_before,near_ns_after
 * Time of an iteration: the maximum over ranks, each from a common barrier. */
int bench_sizes(const bench_setup *setup, const bench_subject *subject, const char *sizes);
#endif
