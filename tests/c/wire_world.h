/* Ranks as threads over the in-process transport, and collectives whose right results are computed here: what
 * test_wire.c is made of. */
#ifndef WIRE_WORLD_H
#define WIRE_WORLD_H
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "channel/channel.h"
#include "check.h"
#include "exec/exec.h"
#include "os/clock.h"
#include "os/status.h"
#include "plan/ir.h"

enum { MAX_RANKS = 8 };
static const int64_t deadline_ns = INT64_C(240) * 1000000000;

typedef struct {
  coll_args a; /* in, out and counts are filled in by each rank */
  const char *algorithm;
  bool in_place, blocks; /* blocks: uneven counts */
} job;

typedef struct {
  int size, njobs;
  job *jobs;
  uint64_t *digests;   /* [njobs][size] */
  atomic_int *entered; /* [njobs]: ranks that have begun it */
  void *area;          /* for "shm"; NULL: wire only */
} world;

typedef struct {
  world *w;
  int me;
  transport_link *links[MAX_RANKS];
  channel *ch;
  exec_team team;
} rank;

static void no_control(void *arg, int peer, const void *msg, size_t nbytes) {
  (void)arg, (void)peer, (void)msg, (void)nbytes;
}
static void no_lost(void *arg, int peer, int status, const char *text) {
  (void)arg, (void)peer, (void)status, (void)text;
}

static bool floating(int dtype) {
  return dtype >= LWCC_FLOAT16;
}

/* ---- numbers that every type holds exactly, as are their sums and products over eight ranks ---- */

static int number(int r, size_t i, int op) {
  unsigned h = (unsigned)(i * 2654435761u) ^ ((unsigned)r * 40503u);
  h ^= h >> 13;
  return op == LWCC_PRODUCT ? 1 + (int)(h % 2) * (r % 4 == 1) : (int)(h % 14);
}

/* Halves here are small integers: no rounding, so a short conversion will do. */
static uint16_t half_bits(double v) {
  int e = 0;
  if (v == 0) return 0;
  double m = frexp(fabs(v), &e);
  return (uint16_t)((v < 0 ? 0x8000 : 0) | ((e + 14) << 10) | ((int)(m * 2048) & 0x3ff));
}

static void put(int dtype, void *p, size_t i, double v) {
  float f = (float)v;
  uint32_t bits;
  memcpy(&bits, &f, 4);
  switch (dtype) {
    case LWCC_UINT8:
      ((uint8_t *)p)[i] = (uint8_t)v;
      break;
    case LWCC_INT8:
      ((int8_t *)p)[i] = (int8_t)v;
      break;
    case LWCC_UINT16:
      ((uint16_t *)p)[i] = (uint16_t)v;
      break;
    case LWCC_INT16:
      ((int16_t *)p)[i] = (int16_t)v;
      break;
    case LWCC_UINT32:
      ((uint32_t *)p)[i] = (uint32_t)v;
      break;
    case LWCC_INT32:
      ((int32_t *)p)[i] = (int32_t)v;
      break;
    case LWCC_UINT64:
      ((uint64_t *)p)[i] = (uint64_t)v;
      break;
    case LWCC_INT64:
      ((int64_t *)p)[i] = (int64_t)v;
      break;
    case LWCC_BOOL:
      ((uint8_t *)p)[i] = v != 0;
      break;
    case LWCC_FLOAT16:
      ((uint16_t *)p)[i] = half_bits(v);
      break;
    case LWCC_BFLOAT16:
      ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
      break;
    case LWCC_FLOAT32:
      ((float *)p)[i] = f;
      break;
    default:
      ((double *)p)[i] = v;
      break;
  }
}

/* What allreduce must leave at element i; signed types see some negative numbers. */
static double term(const coll_args *a, int r, size_t i) {
  int v = number(r, i, a->op);
  if (a->dtype == LWCC_BOOL) return v % 3 == 0;
  bool sign = floating(a->dtype) || (a->dtype % 2 == 1 && a->dtype < LWCC_BOOL);
  return sign && i % 3 == 1 ? -v : v;
}

static double expected(const coll_args *a, int size, size_t i) {
  double x = term(a, 0, i) * a->prescale;
  for (int r = 1; r < size; r++) {
    double y = term(a, r, i) * a->prescale;
    bool any = a->op == LWCC_SUM || a->op == LWCC_MAX;
    if (a->dtype == LWCC_BOOL)
      x = any ? (x != 0 || y != 0) : (x != 0 && y != 0);
    else
      x = a->op == LWCC_SUM ? x + y : a->op == LWCC_MIN ? fmin(x, y) : a->op == LWCC_MAX ? fmax(x, y) : x * y;
  }
  x *= a->postscale;
  return floating(a->dtype) ? x : trunc(x);
}

/* ---- one collective of one rank ---- */

static size_t block(const job *j, int r) {
  return j->blocks ? (r % 3 == 1 ? 0 : j->a.count + (size_t)r) : j->a.count;
}

/* alltoall: what rank s sends to rank d */
static size_t cross(const job *j, int s, int d) {
  return j->blocks ? ((s + d) % 4 == 1 ? 0 : j->a.count + (size_t)(3 * s + d)) : j->a.count;
}

typedef struct {
  size_t in, out, counts[MAX_RANKS], recv_counts[MAX_RANKS];
  char *input, *output;
} memory;

static void shape(const job *j, int me, int size, memory *m) {
  size_t total = 0, sent = 0, received = 0;
  for (int r = 0; r < size; r++) {
    bool all = j->a.collective == LWCC_ALLTOALL;
    m->counts[r] = all ? cross(j, me, r) : block(j, r);
    m->recv_counts[r] = cross(j, r, me);
    total += block(j, r);
    sent += m->counts[r];
    received += m->recv_counts[r];
  }
  switch (j->a.collective) {
    case LWCC_ALLGATHER:
      m->in = block(j, me), m->out = total;
      break;
    case LWCC_REDUCESCATTER:
      m->in = total, m->out = block(j, me);
      break;
    case LWCC_ALLTOALL:
      m->in = sent, m->out = received;
      break;
    case LWCC_BARRIER:
      m->in = m->out = 0;
      break;
    default:
      m->in = m->out = j->a.count;
      break;
  }
}

/* The element numbered i of what rank r puts in. In an alltoall the numbers tell the destination too. */
static void fill(const job *j, int me, int size, memory *m) {
  size_t i = 0;
  if (j->a.collective != LWCC_ALLTOALL) {
    for (; i < m->in; i++) put(j->a.dtype, m->input, i, term(&j->a, me, i));
    return;
  }
  for (int d = 0; d < size; d++)
    for (size_t k = 0; k < m->counts[d]; k++) put(j->a.dtype, m->input, i++, term(&j->a, me, k + 1000 * (size_t)d));
}

static void expect(const job *j, int me, int size, char *want) {
  size_t n = 0, base = 0;
  switch (j->a.collective) {
    case LWCC_ALLREDUCE:
      for (; n < j->a.count; n++) put(j->a.dtype, want, n, expected(&j->a, size, n));
      break;
    case LWCC_BROADCAST:
      for (; n < j->a.count; n++) put(j->a.dtype, want, n, term(&j->a, j->a.root, n));
      break;
    case LWCC_ALLGATHER:
      for (int r = 0; r < size; r++)
        for (size_t k = 0; k < block(j, r); k++) put(j->a.dtype, want, n++, term(&j->a, r, k));
      break;
    case LWCC_REDUCESCATTER:
      for (int r = 0; r < me; r++) base += block(j, r);
      for (; n < block(j, me); n++) put(j->a.dtype, want, n, expected(&j->a, size, base + n));
      break;
    case LWCC_ALLTOALL:
      for (int s = 0; s < size; s++)
        for (size_t k = 0; k < cross(j, s, me); k++) put(j->a.dtype, want, n++, term(&j->a, s, k + 1000 * (size_t)me));
      break;
    default:
      break;
  }
}

static int run(rank *k, const coll_args *a, const char *algorithm) {
  exec_op *op = NULL;
  int64_t start = (int64_t)clock_ns();
  int st = exec_start(&k->team, a, algorithm, 1, &op);
  if (st < 0) return st;
  st = LWCC_PENDING;
  while (st == LWCC_PENDING && (int64_t)clock_ns() - start < deadline_ns) {
    bool progress = false;
    st = exec_step(op, &progress);
    if (st == LWCC_PENDING && channel_progress(k->ch) == 0 && !progress) sched_yield();
  }
  if (st == LWCC_PENDING) { /* the messages under way belong to the operation: nothing can be freed */
    fprintf(stderr, "rank %d: %s %s does not end\n", k->me, collective_name(a->collective), exec_algorithm(op));
    exit(1);
  }
  if (st < 0) channel_close(k->ch), k->ch = NULL;
  exec_free(op);
  return st;
}

static uint64_t digest(const char *p, size_t n) {
  uint64_t h = UINT64_C(14695981039346656037);
  for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)p[i]) * UINT64_C(1099511628211);
  return h;
}

static void run_job(rank *k, int index) {
  const job *j = &k->w->jobs[index];
  memory m;
  coll_args a = j->a;
  size_t width = coll_dtype_bytes(a.dtype);
  shape(j, k->me, k->w->size, &m);
  size_t most = (m.in > m.out ? m.in : m.out) * width;
  m.input = malloc(most + 1);
  m.output = j->in_place ? m.input : malloc(most + 1);
  char *want = malloc(m.out * width + 1);
  memset(m.output, 0x5a, most);
  fill(j, k->me, k->w->size, &m);
  if (j->in_place && a.collective == LWCC_ALLGATHER) { /* in place: my block already lies where it ends up */
    size_t before = 0;
    for (int r = 0; r < k->me; r++) before += block(j, r);
    memmove(m.output + before * width, m.input, m.in * width);
    m.input += before * width;
  }
  a.in = m.input;
  a.out = m.output;
  a.counts = j->blocks ? m.counts : NULL;
  a.recv_counts = j->blocks ? m.recv_counts : NULL;
  atomic_fetch_add(&k->w->entered[index], 1); /* pairs with the load after a barrier */
  int st = run(k, &a, j->algorithm);
  CHECK(st == LWCC_OK, "%s: %s", j->algorithm, os_error());
  CHECK(a.collective != LWCC_BARRIER || atomic_load(&k->w->entered[index]) == k->w->size,
        "p=%d: rank %d has left a barrier that only %d ranks have entered", k->w->size, k->me,
        atomic_load(&k->w->entered[index]));
  expect(j, k->me, k->w->size, want);
  CHECK(memcmp(want, m.output, m.out * width) == 0, "%s %s p=%d rank %d dtype %d op %d count %zu%s", j->algorithm,
        collective_name(a.collective), k->w->size, k->me, a.dtype, a.op, a.count, j->in_place ? " in place" : "");
  k->w->digests[index * k->w->size + k->me] = digest(m.output, m.out * width);
  free(want);
  if (m.output != m.input && !j->in_place) free(m.input);
  free(m.output);
}

static void *rank_main(void *arg) {
  rank *k = arg;
  channel_events ev = {.arg = k, .on_control = no_control, .on_lost = no_lost};
  int ranks[MAX_RANKS];
  for (int i = 0; i < MAX_RANKS; i++) ranks[i] = i;
  CHECK(channel_create(k->me, k->w->size, 1, k->links, &ev, &k->ch) == LWCC_OK);
  k->team = (exec_team){
      .size = k->w->size, .me = k->me, .ranks = ranks, .ch = k->ch, .cls = LINK_NAMED, .cost = {1e-5, 1e-9, 1e-10, 0}};
  if (k->w->area) CHECK(shm_team_open(k->w->area, k->w->size, k->me, 2, NULL, &k->team.shm) == LWCC_OK);
  for (int i = 0; i < k->w->njobs; i++) run_job(k, i);
  while (!channel_idle(k->ch)) channel_progress(k->ch);
  exec_team_close(&k->team);
  if (k->team.shm) shm_team_close(k->team.shm);
  return NULL;
}

/* ---- a world of threads ---- */

static void link_all(rank *ranks, int size, uint64_t seed, uint64_t fault_after) {
  for (int i = 0; i < size; i++) {
    for (int j = i + 1; j < size; j++) {
      transport_link *a, *b;
      CHECK(transport_mem_pair(seed ? seed + (uint64_t)(i * 64 + j) : 0, fault_after, &a, &b) == LWCC_OK);
      a->peer = j;
      b->peer = i;
      ranks[i].links[j] = a;
      ranks[j].links[i] = b;
    }
  }
}

static void run_world(world *w, uint64_t seed) {
  rank ranks[MAX_RANKS] = {0};
  pthread_t threads[MAX_RANKS];
  w->digests = calloc((size_t)w->njobs * (size_t)w->size, sizeof *w->digests);
  w->entered = calloc((size_t)w->njobs, sizeof *w->entered);
  link_all(ranks, w->size, seed, 0);
  for (int r = 0; r < w->size; r++) {
    ranks[r].w = w;
    ranks[r].me = r;
    pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
  }
  for (int r = 0; r < w->size; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < w->size; r++)
    if (ranks[r].ch) channel_close(ranks[r].ch);
  for (int i = 0; i < w->njobs; i++)
    for (int r = 1; r < w->size && w->jobs[i].a.collective <= LWCC_ALLGATHER; r++)
      CHECK(w->digests[i * w->size] == w->digests[i * w->size + r], "job %d: rank %d has other bits", i, r);
  free(w->digests);
  free(w->entered);
}

#endif
