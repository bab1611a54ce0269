/* Several engines in one process, joined by mem links, each rank's program on a thread of its own. */
#ifndef ENGINES_H
#define ENGINES_H
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "coord/engine.h"
#include "os/clock.h"
#include "os/log.h"
#include "os/status.h"

enum { MOST = 8 };
#define WAIT_S 60.0

typedef struct {
  int size;
  coordinator_limits limits;
  uint64_t seed;        /* of the links' mischief; 0: none */
  uint64_t fault_after; /* > 0: the links of the last rank break after so many bytes */
} world_options;

typedef struct {
  int size;
  engine *e[MOST];
} world;

typedef struct {
  const char *name;
  int collective, dtype, op, root, ndim;
  int64_t shape[4];
  const int64_t *splits; /* NULL, or one for each rank */
  const void *in;
  void *out;
  int priority, set;
  const char *algorithm; /* NULL: selected */
} ask;

/* An allreduce of n elements in place. */
static inline ask reduce_of(const char *name, int dtype, int op, void *data, int64_t n) {
  return (ask){.name = name,
               .collective = LWCC_ALLREDUCE,
               .dtype = dtype,
               .op = op,
               .ndim = 1,
               .shape = {n},
               .in = data,
               .out = data};
}
static inline ask sum_of(const char *name, int64_t *data, int64_t n) {
  return reduce_of(name, LWCC_INT64, LWCC_SUM, data, n);
}

typedef struct {
  const ask *asks;
  int n, size;
} asking;

static inline world_options world_of(int size) {
  return (world_options){.size = size, .limits = {.fusion_nbytes = 64 << 20, .capacity = 4096}};
}

static inline void world_open(world *w, world_options o) {
  transport_link *links[MOST][MOST] = {{NULL}};
  rank_identity ids[MOST] = {{0}};
  w->size = o.size;
  for (int a = 0; a < o.size; a++) {
    snprintf(ids[a].host, sizeof ids[a].host, "host%d", a);
    for (int b = a + 1; b < o.size; b++) {
      uint64_t fault = b == o.size - 1 ? o.fault_after : 0, seed = o.seed ? o.seed + (uint64_t)(a * MOST + b) : 0;
      if (transport_mem_pair(seed, fault, &links[a][b], &links[b][a]) < 0) abort();
      links[a][b]->peer = b;
      links[b][a]->peer = a;
    }
  }
  for (int r = 0; r < o.size; r++) {
    engine_parts parts = {.rank = r, .size = o.size, .ids = ids, .limits = o.limits};
    channel *ch;
    if (engine_create(&parts, &w->e[r]) < 0) abort();
    channel_events events = engine_events(w->e[r]);
    if (channel_create(r, o.size, 0, links[r], &events, &ch) < 0) abort();
    if (engine_bind(w->e[r], ch, NULL) < 0) abort();
  }
  for (int r = 0; r < o.size; r++)
    if (engine_start(w->e[r]) < 0) abort();
}

typedef struct {
  engine *e;
  void (*program)(engine *e, void *arg);
  void *arg;
} rank_thread;

static inline void *rank_main(void *arg) {
  rank_thread *t = arg;
  t->program(t->e, t->arg);
  return NULL;
}

/* Every rank's program at once; returns when all have ended. */
static inline void world_run(world *w, void (*program)(engine *e, void *arg), void *arg) {
  pthread_t threads[MOST];
  rank_thread parts[MOST];
  for (int r = 0; r < w->size; r++) {
    parts[r] = (rank_thread){w->e[r], program, arg};
    if (pthread_create(&threads[r], NULL, rank_main, &parts[r]) != 0) abort();
  }
  for (int r = 0; r < w->size; r++) pthread_join(threads[r], NULL);
}

static inline void leave(engine *e, void *arg) {
  (void)arg;
  engine_shutdown(e);
}

static inline void world_close(world *w) {
  world_run(w, leave, NULL);
  for (int r = 0; r < w->size; r++) engine_free(w->e[r]);
}

static inline int fill_request(void *arg, int index, request *r) {
  const asking *g = arg;
  const ask *a = &g->asks[index];
  signature_free(&r->sig);
  r->sig = (signature){.collective = a->collective,
                       .dtype = a->dtype,
                       .op = a->op,
                       .root = a->root,
                       .ndim = a->ndim,
                       .prescale = 1.0,
                       .postscale = 1.0,
                       .group_size = g->n > 1 ? g->n : 0,
                       .group = g->n > 1 ? name_hash(g->asks[0].name, 0) : 0};
  memcpy(r->sig.shape, a->shape, sizeof a->shape);
  if (a->algorithm) os_copy_text(r->sig.algorithm, sizeof r->sig.algorithm, a->algorithm);
  if (a->splits) {
    r->sig.nsplits = g->size;
    r->sig.splits = malloc((size_t)g->size * sizeof *a->splits);
    memcpy(r->sig.splits, a->splits, (size_t)g->size * sizeof *a->splits);
  }
  snprintf(r->name, sizeof r->name, "%s", a->name);
  r->set = a->set;
  r->priority = a->priority;
  r->input = a->in;
  r->output = a->out;
  r->allocate = NULL;
  r->on_done = NULL;
  return LWCC_OK;
}

/* n > 1: one group. */
static inline int submit(engine *e, const ask *asks, int n, lwcc_ticket *tickets_out) {
  asking g = {asks, n, e->size};
  int st = queue_submit(&e->q, n, fill_request, &g, tickets_out);
  if (st >= 0) engine_kick(e);
  return st;
}

/* The end of one request, kept (not released) so that its results can be read. text: TEXT_CAP bytes, or NULL. */
static inline int finish_request(engine *e, lwcc_ticket t, char *text) {
  request *r = queue_lookup(&e->q, t);
  int st = engine_wait(e, r, clock_deadline(WAIT_S));
  CHECK(st != LWCC_PENDING, "rank %d: \"%s\" hangs", e->rank, r->name);
  if (text) snprintf(text, TEXT_CAP, "%s", st < 0 ? r->text : "");
  return st;
}

/* Submit one, wait, release. */
static inline int run_one(engine *e, const ask *a, char *text) {
  lwcc_ticket t;
  int st = submit(e, a, 1, &t);
  if (text && st < 0) snprintf(text, TEXT_CAP, "%s", os_error());
  if (st < 0) return st;
  st = finish_request(e, t, text);
  queue_release(&e->q, queue_lookup(&e->q, t));
  return st;
}
#endif
