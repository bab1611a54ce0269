/* LWCC as the subject. Built as a shared object by benchmarks/peers.py and called from a rank that has initialised
 * lwcc, with the addresses of the library's functions: the loop is C, as the peers' is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "board.h"
#include "lwcc/lwcc.h"

typedef struct {
  int (*raw_allreduce)(const void *, void *, int64_t, int32_t, int32_t, int32_t);
  int (*raw_broadcast)(void *, int64_t, int32_t, int32_t, int32_t);
  int (*raw_allgather)(const void *, void *, int64_t, int32_t, int32_t);
  int (*raw_reducescatter)(const void *, void *, int64_t, int32_t, int32_t, int32_t);
  int (*raw_alltoall)(const void *, void *, int64_t, int32_t, int32_t);
  int (*raw_barrier)(int32_t);
  int (*submit)(const lwcc_request *, int32_t, lwcc_ticket *);
  int (*run)(const lwcc_request *, int32_t, double, lwcc_ticket *);
  int (*wait)(lwcc_ticket, double);
  void (*release)(lwcc_ticket);
  void *(*alloc)(size_t);
  void (*free)(void *);
} functions;

static int run_raw(void *ctx, int collective, void *in, void *out, size_t count) {
  const functions *f = ctx;
  int64_t n = (int64_t)count;
  switch (collective) {
    case BENCH_ALLREDUCE:
      return f->raw_allreduce(in, out, n, LWCC_FLOAT32, LWCC_SUM, 0);
    case BENCH_BROADCAST:
      return f->raw_broadcast(out, n, LWCC_FLOAT32, 0, 0);
    case BENCH_ALLGATHER:
      return f->raw_allgather(in, out, n, LWCC_FLOAT32, 0);
    case BENCH_REDUCESCATTER:
      return f->raw_reducescatter(in, out, n, LWCC_FLOAT32, LWCC_SUM, 0);
    case BENCH_ALLTOALL:
      return f->raw_alltoall(in, out, n, LWCC_FLOAT32, 0);
    default:
      return f->raw_barrier(0);
  }
}

static lwcc_request allreduce_of(const char *name, const int64_t *shape, const void *in, void *out) {
  return (lwcc_request){.name = name,
                        .collective = LWCC_ALLREDUCE,
                        .dtype = LWCC_FLOAT32,
                        .op = LWCC_SUM,
                        .ndim = 1,
                        .shape = shape,
                        .input = in,
                        .output = out,
                        .prescale = 1.0,
                        .postscale = 1.0};
}

/* The named path, one blocking allreduce at a time under one name. */
static int run_named(void *ctx, int collective, void *in, void *out, size_t count) {
  const functions *f = ctx;
  int64_t shape = (int64_t)count;
  lwcc_request r = allreduce_of("bench", &shape, in, out);
  lwcc_ticket t;
  if (collective != BENCH_ALLREDUCE) return 1;
  int st = f->run(&r, 1, -1.0, &t);
  f->release(t);
  return st;
}

/* The buffer as many small tensors, each asked for by itself; waited for when all are asked for. */
enum { OUTSTANDING = 1000 };
static int run_outstanding(void *ctx, int collective, void *in, void *out, size_t count) {
  const functions *f = ctx;
  static lwcc_ticket tickets[OUTSTANDING];
  static char names[OUTSTANDING][8];
  int64_t shape = (int64_t)count / OUTSTANDING;
  int st = collective != BENCH_ALLREDUCE || shape < 1;
  for (int i = 0; i < OUTSTANDING && !st; i++) {
    if (!names[i][0]) snprintf(names[i], sizeof names[i], "t%d", i);
    int64_t at = i * shape, n = i < OUTSTANDING - 1 ? shape : (int64_t)count - at;
    lwcc_request r = allreduce_of(names[i], &n, (float *)in + at, (float *)out + at);
    st = f->submit(&r, 1, &tickets[i]);
  }
  for (int i = 0; i < OUTSTANDING && !st; i++) {
    st = f->wait(tickets[i], -1.0);
    f->release(tickets[i]);
  }
  return st;
}

static void *registered(void *ctx, size_t nbytes) {
  return ((const functions *)ctx)->alloc(nbytes ? nbytes : 1);
}

static void unregister(void *ctx, void *p, size_t nbytes) {
  (void)nbytes;
  ((const functions *)ctx)->free(p);
}

__attribute__((visibility("default"))) int bench_lwcc(const bench_setup *s, const char *sizes, int way, int reg,
                                                      functions *f) {
  static int (*const ways[])(void *, int, void *, void *, size_t) = {run_raw, run_named, run_outstanding};
  bench_subject u = {.run = ways[way], .ctx = f};
  if (reg) u.alloc = registered, u.release = unregister;
  return bench_sizes(s, &u, sizes);
}
