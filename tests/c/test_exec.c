/* Collectives over links in memory, ranks as threads: every algorithm against a reference of small whole numbers, so
 * that each result is exact; then with mischief, with rough numbers, and with a link that breaks. */
#pragma GCC diagnostic ignored "-Wformat-zero-length" /* of CHECK without a text */

#include <inttypes.h>
#include <math.h>
#include <sched.h>

#include "check.h"
#include "exec/exec.h"
#include "os/clock.h"
#include "os/status.h"
#include "os/thread.h"
#include "plan/ir.h"

enum { MOST_RANKS = 8, DIGESTS = 4096, DEADLINE_S = 60 };

typedef struct {
  int p, most_count, batch; /* batch: operations under way at once */
  uint64_t seed;            /* 0: no mischief */
  transport_link *links[MOST_RANKS][MOST_RANKS];
  int finished;                         /* atomic: ranks that have all their results; a channel is closed only after */
  uint64_t digest[MOST_RANKS][DIGESTS]; /* of the results that must be the same everywhere */
  const algo_entry *breaks;             /* the algorithm of the job whose link breaks */
  int outcome[MOST_RANKS];
} world;

typedef struct {
  world *w;
  int me, ncalls;
  channel *ch;
  exec_team team;
} rank;

typedef struct { /* one call of one rank */
  const algo_entry *algo;
  coll_args a;
  size_t each, counts[MOST_RANKS], recv_counts[MOST_RANKS];
  bool uneven, in_place, rough;
  int serial;
  char *in, *out;
  exec_op *op;
} call;

/* ---- numbers ---- */

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static void store(int dtype, char *p, size_t i, double v) {
  int e;
  if (dtype == LWCC_INT64) memcpy(p + 8 * i, &(int64_t){(int64_t)v}, 8);
  if (dtype == LWCC_FLOAT32) memcpy(p + 4 * i, &(float){(float)v}, 4);
  if (dtype == LWCC_BOOL || dtype == LWCC_INT8) p[i] = (char)v;
  if (dtype != LWCC_FLOAT16) return;
  double part = frexp(fabs(v), &e); /* normal halves or 0 only */
  uint16_t bits = v == 0 ? 0 : (uint16_t)((v < 0 ? 0x8000 : 0) | (e + 14) << 10 | ((int)(part * 2048) & 0x3ff));
  memcpy(p + 2 * i, &bits, 2);
}

static double fetch(int dtype, const char *p, size_t i) {
  int64_t whole;
  float real;
  uint16_t half;
  if (dtype == LWCC_INT64) return memcpy(&whole, p + 8 * i, 8), (double)whole;
  if (dtype == LWCC_FLOAT32) return memcpy(&real, p + 4 * i, 4), (double)real;
  if (dtype == LWCC_BOOL || dtype == LWCC_INT8) return (double)(signed char)p[i];
  memcpy(&half, p + 2 * i, 2);
  double v = ldexp((half & 0x3ff) | (half & 0x7c00 ? 0x400 : 0), (half >> 10 & 31) - 25);
  return half & 0x8000 ? -v : v;
}

/* Element i of what rank r gives. */
static double given(const call *c, int r, size_t i) {
  uint64_t h = mix((uint64_t)c->serial * 7919 + (uint64_t)r * 1000003 + i * 2654435761u + 1);
  static const double factors[] = {-2, -1, 1, 2};
  if (c->rough) return (double)(float)((double)(h % 2000003) * 1e-3 - 1000);
  if (c->a.dtype == LWCC_BOOL) return (double)(h & 1);
  if (c->a.dtype == LWCC_INT8) return (double)(h % 255) - 127; /* its sums need more than 8 bits */
  return c->a.op == LWCC_PRODUCT ? factors[h & 3] : (double)(h % 5) - 2;
}

static double combine(int op, int dtype, double x, double y) {
  if (dtype == LWCC_BOOL) return op == LWCC_SUM || op == LWCC_MAX ? fmax(x, y) : fmin(x, y);
  return op == LWCC_SUM ? x + y : op == LWCC_PRODUCT ? x * y : op == LWCC_MIN ? fmin(x, y) : fmax(x, y);
}

static double reduced(const call *c, int p, size_t i) {
  double x = given(c, 0, i) * c->a.prescale;
  for (int r = 1; r < p; r++) x = combine(c->a.op, c->a.dtype, x, given(c, r, i) * c->a.prescale);
  x *= c->a.postscale;
  return c->a.dtype == LWCC_INT64 || c->a.dtype == LWCC_INT8 ? trunc(x) : x;
}

/* ---- shapes ---- */

static size_t block(const call *c, int b) { /* of allgather and reducescatter */
  return !c->uneven ? c->each : b % 3 == 1 ? 0 : c->each / (size_t)(b + 1) + (size_t)b;
}
static size_t sent(const call *c, int from, int to) { /* of alltoall */
  return !c->uneven ? c->each : c->each * (size_t)((from + 2 * to) % 3) / 2;
}
static size_t before(const call *c, int b) {
  size_t n = 0;
  for (int k = 0; k < b; k++) n += block(c, k);
  return n;
}

static void shape(const call *c, const rank *r, size_t *in_out, size_t *out_out) {
  int p = r->w->p;
  *in_out = *out_out = c->each;
  if (c->a.collective == LWCC_ALLGATHER) *in_out = block(c, r->me), *out_out = before(c, p);
  if (c->a.collective == LWCC_REDUCESCATTER) *in_out = before(c, p), *out_out = block(c, r->me);
  if (c->a.collective == LWCC_BARRIER) *in_out = *out_out = 0;
  if (c->a.collective != LWCC_ALLTOALL) return;
  *in_out = *out_out = 0;
  for (int k = 0; k < p; k++) *in_out += sent(c, r->me, k), *out_out += sent(c, k, r->me);
}

static double wanted(const call *c, const rank *r, size_t i) {
  int b = 0, p = r->w->p;
  switch (c->a.collective) {
    case LWCC_ALLREDUCE:
      return reduced(c, p, i);
    case LWCC_REDUCESCATTER:
      return reduced(c, p, before(c, r->me) + i);
    case LWCC_BROADCAST:
      return given(c, c->a.root, i);
    case LWCC_ALLGATHER:
      for (; i >= block(c, b); b++) i -= block(c, b);
      return given(c, b, i);
    default:
      for (; i >= sent(c, b, r->me); b++) i -= sent(c, b, r->me);
      for (int k = 0; k < r->me; k++) i += sent(c, b, k);
      return given(c, b, i);
  }
}

/* ---- one call ---- */

static void call_begin(call *c, rank *r) {
  size_t nin, nout, w = coll_dtype_bytes(c->a.dtype);
  shape(c, r, &nin, &nout);
  size_t room = (c->in_place && nin > nout ? nin : nout) * w;
  c->out = memset(malloc(room + 1), 0x5a, room + 1); /* its last byte must stay */
  c->in = c->in_place ? c->out : malloc(nin * w + 1);
  for (size_t i = 0; i < nin; i++) store(c->a.dtype, c->in, i, given(c, r->me, i));
  for (int b = 0; b < r->w->p; b++) {
    bool pairs = c->a.collective == LWCC_ALLTOALL;
    c->counts[b] = pairs ? sent(c, r->me, b) : block(c, b);
    c->recv_counts[b] = pairs ? sent(c, b, r->me) : 0;
  }
  c->a.in = c->in;
  c->a.out = c->out;
  c->a.count = c->each;
  c->a.counts = c->uneven ? c->counts : NULL;
  c->a.recv_counts = c->uneven ? c->recv_counts : NULL;
  int st = exec_start(&r->team, &c->a, c->algo->name, (uint32_t)c->serial, &c->op);
  if (st < 0) c->op = NULL;
  bool serves = r->w->p == 1 || !c->algo->algo->power_of_two || (r->w->p & (r->w->p - 1)) == 0;
  CHECK(serves ? st == LWCC_OK : st == LWCC_ERR_UNSUPPORTED, "%s p %d: %d %s", c->algo->name, r->w->p, st, os_error());
}

static void call_check(const call *c, rank *r) {
  size_t nin, nout, bad = 0, w = coll_dtype_bytes(c->a.dtype), room;
  shape(c, r, &nin, &nout);
  room = (c->in_place && nin > nout ? nin : nout) * w;
  double got = 0, want = 0;
  for (size_t i = 0; i < nout && !bad; i++) {
    got = fetch(c->a.dtype, c->out, i);
    want = wanted(c, r, i);
    bad = c->rough ? fabs(got - want) > 0.01 : got != want;
    if (bad) bad = i + 1;
  }
  CHECK(!bad && c->out[room] == 0x5a,
        "call %d rank %d of %d: %s %s dtype %d op %d count %zu uneven %d in place %d root %d: [%zu] is %g, not %g",
        c->serial, r->me, r->w->p, collective_name(c->a.collective), c->algo->name, c->a.dtype, c->a.op, c->each,
        c->uneven, c->in_place, c->a.root, bad - 1, got, want);
  uint64_t digest = 1;
  for (size_t i = 0; i < nout * w; i++) digest = mix(digest + (uint8_t)c->out[i]);
  if (c->a.collective == LWCC_ALLREDUCE || c->a.collective == LWCC_BROADCAST || c->a.collective == LWCC_ALLGATHER)
    r->w->digest[r->me][c->serial % DIGESTS] = digest;
}

static void call_end(call *c) {
  if (c->op) exec_free(c->op);
  if (c->in != c->out) free(c->in);
  free(c->out);
}

/* Drive calls until all have ended; LWCC_PENDING past the deadline. */
static int drive(rank *r, call *c, int n) {
  uint64_t end = clock_deadline(DEADLINE_S);
  int ended = 0, status[2] = {LWCC_PENDING, LWCC_PENDING};
  for (int i = 0; i < n; i++)
    if (!c[i].op) status[i] = LWCC_OK, ended++;
  while (ended < n) {
    bool progress = channel_progress(r->ch) > 0;
    for (int i = 0; i < n; i++) {
      if (status[i] != LWCC_PENDING) continue;
      status[i] = exec_step(c[i].op, &progress);
      if (status[i] < 0) return status[i];
      ended += status[i] == LWCC_OK;
    }
    if (progress || ended == n) continue;
    if (clock_ns() > end) return LWCC_PENDING;
    sched_yield();
  }
  return LWCC_OK;
}

/* ---- ranks ---- */

static void on_control(void *arg, int peer, const void *msg, size_t nbytes) {
  (void)arg, (void)peer, (void)msg, (void)nbytes;
}
static void on_lost(void *arg, int peer, int status, const char *text) {
  (void)arg, (void)peer, (void)status, (void)text;
}

static void open_rank(rank *r, int *ranks) {
  channel_events ev = {.arg = r, .on_control = on_control, .on_lost = on_lost};
  for (int i = 0; i < r->w->p; i++) ranks[i] = i;
  CHECK(channel_create(r->me, r->w->p, 7, r->w->links[r->me], &ev, &r->ch) == LWCC_OK);
  r->team = (exec_team){
      .size = r->w->p, .me = r->me, .ranks = ranks, .ch = r->ch, .cls = LINK_NAMED, .cost = {1e-6, 1e-9, 1e-10, 0}};
}

/* Others may still read what this rank has sent: it leaves when all have their results. */
static void leave(rank *r) {
  uint64_t end = clock_deadline(DEADLINE_S);
  __atomic_fetch_add(&r->w->finished, 1, __ATOMIC_ACQ_REL); /* pairs with the load below */
  while (__atomic_load_n(&r->w->finished, __ATOMIC_ACQUIRE) < r->w->p && clock_ns() < end)
    if (channel_progress(r->ch) <= 0) sched_yield();
  channel_close(r->ch);
  exec_team_close(&r->team);
}

static call make_call(const algo_entry *algo, int dtype, size_t each, rank *r) {
  int serial = r->ncalls++, collective = algo->algo->collective;
  uint64_t h = mix(r->w->seed + (uint64_t)serial * 0x9e3779b97f4a7c15u + 99);
  static const int ops[] = {LWCC_SUM, LWCC_SUM, LWCC_MIN, LWCC_MAX, LWCC_PRODUCT};
  call c = {.algo = algo, .serial = serial, .each = each};
  c.a = (coll_args){.collective = collective, .dtype = dtype, .op = ops[h % 5], .prescale = 1, .postscale = 1};
  bool reduces = collective == LWCC_ALLREDUCE || collective == LWCC_REDUCESCATTER;
  c.in_place = h >> 8 & 1;
  c.uneven = (h >> 9 & 1) && collective != LWCC_ALLREDUCE && collective != LWCC_BROADCAST;
  c.a.root = collective == LWCC_BROADCAST ? (int)((h >> 16) % (uint64_t)r->w->p) : 0;
  if (collective != LWCC_ALLREDUCE && collective != LWCC_BROADCAST && each > 1000) c.each /= (size_t)r->w->p;
  if (collective == LWCC_BARRIER) c.each = 0, c.uneven = false;
  if (reduces && dtype == LWCC_FLOAT32 && (h >> 10 & 3) == 0) c.rough = true, c.a.op = LWCC_SUM;
  if (dtype == LWCC_INT8 && reduces) c.a.op = LWCC_SUM, c.a.postscale = 1.0 / r->w->p; /* an average */
  if (!reduces || c.rough || dtype == LWCC_BOOL || dtype == LWCC_INT8 || (h >> 12 & 1)) return c;
  c.a.prescale = dtype == LWCC_INT64 ? 2 : 0.5;
  c.a.postscale = 0.25;
  return c;
}

static void *script(void *arg) {
  static const int dtypes[] = {LWCC_FLOAT32, LWCC_INT64, LWCC_FLOAT16, LWCC_BOOL, LWCC_INT8};
  rank *r = arg;
  int ranks[MOST_RANKS], p = r->w->p, batch = r->w->batch, st = LWCC_OK, turn = 0;
  const size_t counts[] = {0, 1, (size_t)p - 1, 1000, (size_t)r->w->most_count};
  call c[2];
  open_rank(r, ranks);
  for (int a = 0; a < algo_table_length && st == LWCC_OK; a++)
    for (int d = 0; d < 5 && st == LWCC_OK; d++)
      for (int k = 0; k < 5 && st == LWCC_OK; k += batch) {
        int n = 0;
        for (; n < batch && k + n < 5; n++) {
          c[n] = make_call(&algo_table[a], dtypes[d], counts[k + n], r);
          if (k + n == 4 && turn++ % 2 && c[n].a.collective != LWCC_BARRIER)
            c[n].each = 4097; /* every second time not the largest */
          call_begin(&c[n], r);
        }
        st = drive(r, c, n);
        CHECK(st == LWCC_OK, "rank %d of %d, call %d, %s %s: %d %s", r->me, p, c[0].serial,
              collective_name(c[0].a.collective), c[0].algo->name, st, os_error());
        for (int i = 0; i < n && st == LWCC_OK; i++) {
          if (c[i].op) call_check(&c[i], r);
          call_end(&c[i]);
        }
      }
  leave(r);
  return NULL;
}

/* Reductions until the link breaks. A rank that fails closes its channel, as the library does when a peer is lost. */
static void *until_broken(void *arg) {
  rank *r = arg;
  int ranks[MOST_RANKS], st = LWCC_OK;
  open_rank(r, ranks);
  while (st == LWCC_OK && r->ncalls < 1000) {
    call c = make_call(r->w->breaks, LWCC_FLOAT32, 1000, r);
    call_begin(&c, r);
    if (c.op) st = drive(r, &c, 1);
    if (st == LWCC_OK) {
      call_check(&c, r);
    } else {
      channel_close(r->ch);
      r->ch = NULL;
    }
    call_end(&c);
  }
  if (r->ch) channel_close(r->ch);
  exec_team_close(&r->team);
  r->w->outcome[r->me] = st;
  return NULL;
}

/* fault_after: bytes until the link of the first two ranks breaks; 0: never. */
static void run(world *w, uint64_t fault_after, void *(*body)(void *)) {
  rank ranks[MOST_RANKS];
  pthread_t threads[MOST_RANKS];
  for (int i = 0; i < w->p; i++)
    for (int k = i + 1; k < w->p; k++) {
      CHECK(transport_mem_pair(w->seed ? mix(w->seed + (uint64_t)(i * 64 + k)) : 0, i + k == 1 ? fault_after : 0,
                               &w->links[i][k], &w->links[k][i]) == LWCC_OK);
      w->links[i][k]->peer = k;
      w->links[k][i]->peer = i;
    }
  for (int i = 0; i < w->p; i++) {
    ranks[i] = (rank){.w = w, .me = i};
    CHECK(thread_create(&threads[i], "rank", body, &ranks[i]) == LWCC_OK);
  }
  for (int i = 0; i < w->p; i++) thread_join(threads[i]);
}

static void test_all_algorithms(int p, uint64_t seed) {
  world *w = calloc(1, sizeof *w);
  *w = (world){.p = p, .seed = seed, .most_count = seed ? 5003 : 100003, .batch = 1};
  uint64_t begin = clock_ns();
  run(w, 0, script);
  for (int r = 1; r < p; r++)
    CHECK(memcmp(w->digest[r], w->digest[0], sizeof w->digest[0]) == 0 || p == 1, "rank %d of %d differs", r, p);
  printf("%d ranks, seed %" PRIu64 ": %.1f s\n", p, seed, (double)(clock_ns() - begin) * 1e-9);
  free(w);
}

static void test_a_link_that_breaks(const algo_entry *e, int p, uint64_t fault_after) {
  world *w = calloc(1, sizeof *w);
  *w = (world){.p = p, .seed = 5, .breaks = e};
  run(w, fault_after, until_broken);
  int lost = 0;
  for (int r = 0; r < p; r++) {
    CHECK(w->outcome[r] != LWCC_PENDING, "rank %d of %d hangs in %s", r, p, e->name);
    lost += w->outcome[r] == LWCC_ERR_PEER_LOST;
  }
  CHECK(lost > 0, "%s of %d ranks: the break went unnoticed", e->name, p);
  free(w);
}

int main(int argc, char **argv) {
  static const int sizes[] = {1, 2, 3, 4, 5, 8};
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 20261130;
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("seed %" PRIu64 "\n", seed);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) test_all_algorithms(sizes[i], 0);
  for (int p = 2; p <= 5; p++) test_all_algorithms(p, seed + (uint64_t)p);
  const algo_entry *e;
  for (int i = 0; (e = algo_at(LWCC_ALLREDUCE, i)); i++) test_a_link_that_breaks(e, 4, 10000 + (uint64_t)i * 7001);
  return check_report();
}
