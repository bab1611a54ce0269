/* Shared-memory collectives with ranks as threads: every collective, type and operation, odd sizes, in place or not,
 * private, registered or mixed, many calls back to back without a barrier. Usage: test_shm [seed [calls]] */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "exec/reduce.h"
#include "exec/shm.h"
#include "os/mem.h"
#include "os/status.h"

enum { MAX_RANKS = 16, GUARD = 64 };

typedef struct { /* one call of the script, equal on all ranks but for what `salt` decides */
  coll_args a;
  size_t counts[MAX_RANKS];
  uint64_t salt;
} step;

typedef struct {
  int p, cores, calls;
  bool peeks;
  uint64_t seed;
  size_t most; /* elements of a block */
  void *area;
  char *registered[MAX_RANKS]; /* in at 0, out in the second half */
  size_t room;                 /* of each half */
} world;

typedef struct {
  world *w;
  int me;
} rank;

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
static uint64_t pick(uint64_t *s, uint64_t n) {
  *s += 0x9e3779b97f4a7c15u;
  return mix(*s) % n;
}

static bool find(void *arg, const void *p, size_t n, uint32_t *region, uint64_t *offset) {
  rank *r = arg;
  const char *base = r->w->registered[r->me], *c = p;
  if (c < base || c + n > base + 2 * r->w->room) return false;
  *region = (uint32_t)r->me + 7;
  *offset = (uint64_t)(c - base);
  return true;
}
static void *map(void *arg, int index, uint32_t region, uint64_t offset, size_t n) {
  world *w = ((rank *)arg)->w;
  if (region != (uint32_t)index + 7 || offset + n > 2 * w->room) return NULL;
  return w->registered[index] + offset;
}

/* Element i of what rank r gives in a call: any value of a few bits that its type can hold. */
static void fill(const step *s, int r, char *to, size_t first, size_t n) {
  for (size_t i = 0; i < n; i++) {
    uint64_t h = mix(s->salt + (uint64_t)r * 1000003 + (first + i) * 2654435761u), b = h >> 32;
    double v = (double)(int64_t)(h % 33) * 0.37 - 5;
    float f = (float)v;
    uint16_t half = (uint16_t)((b & 0x83ff) | ((13 + (b >> 16) % 4) << 10));
    switch (s->a.dtype) {
      case LWCC_UINT8:
      case LWCC_INT8:
        to[i] = (char)(h % 7);
        break;
      case LWCC_BOOL:
        to[i] = (char)(h & 1);
        break;
      case LWCC_UINT16:
      case LWCC_INT16:
        memcpy(to + 2 * i, &(uint16_t){(uint16_t)(h % 60000)}, 2);
        break;
      case LWCC_FLOAT16:
        memcpy(to + 2 * i, &half, 2);
        break;
      case LWCC_BFLOAT16:
        memcpy(to + 2 * i, (char *)&f + 2, 2);
        break;
      case LWCC_UINT32:
      case LWCC_INT32:
        memcpy(to + 4 * i, &(uint32_t){(uint32_t)b}, 4);
        break;
      case LWCC_FLOAT32:
        memcpy(to + 4 * i, &f, 4);
        break;
      case LWCC_FLOAT64:
        memcpy(to + 8 * i, &v, 8);
        break;
      default:
        memcpy(to + 8 * i, &b, 8);
        break;
    }
  }
}

static size_t block(const step *s, int r) {
  return s->a.counts ? s->counts[r] : s->a.count;
}
static size_t before(const step *s, int r) {
  size_t n = 0;
  for (int i = 0; i < r; i++) n += block(s, i);
  return n;
}
/* alltoall with counts: what rank a sends to rank b */
static size_t sent(const world *w, const step *s, int a, int b) {
  if (!s->a.counts) return s->a.count;
  uint64_t h = mix(s->salt + (uint64_t)(a * 31 + b));
  return h % 4 == 0 ? 0 : (h >> 8) % (w->most / (size_t)w->p + 1);
}

static void make_step(const world *w, int k, step *s) {
  static const int ops[] = {LWCC_SUM, LWCC_MIN, LWCC_MAX, LWCC_PRODUCT};
  uint64_t x = w->seed * 7919 + (uint64_t)k * 104729;
  *s = (step){.salt = mix(x)};
  coll_args *a = &s->a;
  a->collective = pick(&x, 3) ? LWCC_ALLREDUCE : (int)pick(&x, LWCC_COLLECTIVES);
  a->dtype = (int)pick(&x, LWCC_DTYPES);
  a->op = pick(&x, 2) ? LWCC_SUM : ops[pick(&x, 4)];
  a->root = (int)pick(&x, (uint64_t)w->p);
  a->prescale = a->postscale = 1.0;
  bool floats = a->dtype >= LWCC_FLOAT16;
  if (pick(&x, 4) == 0) a->postscale = 1.0 / w->p;
  if (floats && pick(&x, 4) == 0) a->prescale = 0.625;
  if (a->dtype == LWCC_BOOL) a->postscale = 1.0;
  static const size_t tops[] = {5, 70, 3000, SIZE_MAX};
  size_t top = tops[pick(&x, 4)];
  a->count = pick(&x, (top < w->most ? top : w->most) + 1);
  bool blocks = a->collective != LWCC_ALLREDUCE && a->collective != LWCC_BROADCAST && a->collective != LWCC_BARRIER;
  if (blocks) a->count /= (size_t)w->p;
  if (!blocks || pick(&x, 2)) return;
  for (int r = 0; r < w->p; r++) s->counts[r] = pick(&x, 4) ? pick(&x, w->most / (size_t)w->p) : 0;
  a->counts = s->counts;
}

#define AVERAGE(T)                                                           \
  for (size_t i = 0; i < n; i++) {                                           \
    int64_t sum = 0;                                                         \
    for (int r = 0; r < p; r++) sum += ((const T *)(const void *)tmp[r])[i]; \
    ((T *)(void *)out)[i] = (T)((double)sum * scale);                        \
  }                                                                          \
  return true;

/* Averages of narrow integers: their sums need not fit the type. */
static bool average(int dtype, int p, char *const tmp[], char *out, size_t n, double scale) {
  switch (dtype) {
    case LWCC_UINT8:
      AVERAGE(uint8_t)
    case LWCC_INT8:
      AVERAGE(int8_t)
    case LWCC_UINT16:
      AVERAGE(uint16_t)
    case LWCC_INT16:
      AVERAGE(int16_t)
    case LWCC_UINT32:
      AVERAGE(uint32_t)
    case LWCC_INT32:
      AVERAGE(int32_t)
    default:
      return false;
  }
}

/* The result for rank me: written with reduce_* alone. Returns its elements. */
static size_t expected(const world *w, const step *s, int me, char *out, char *tmp[]) {
  const coll_args *a = &s->a;
  size_t wd = coll_dtype_bytes(a->dtype), at = 0;
  if (a->collective == LWCC_BARRIER) return 0;
  if (a->collective == LWCC_BROADCAST) {
    fill(s, a->root, out, 0, a->count);
    return a->count;
  }
  if (a->collective == LWCC_ALLGATHER || a->collective == LWCC_ALLTOALL) {
    for (int r = 0; r < w->p; r++) {
      size_t n = a->collective == LWCC_ALLGATHER ? block(s, r) : sent(w, s, r, me), first = 0;
      for (int d = 0; d < me && a->collective == LWCC_ALLTOALL; d++) first += sent(w, s, r, d);
      fill(s, r, out + at * wd, first, n);
      at += n;
    }
    return at;
  }
  bool scatter = a->collective == LWCC_REDUCESCATTER, pre = a->op != LWCC_SUM && a->prescale != 1.0;
  size_t n = scatter ? block(s, me) : a->count, first = scatter ? before(s, me) : 0;
  for (int r = 0; r < w->p; r++) {
    fill(s, r, tmp[r], first, n);
    if (pre) reduce_scale(a->dtype, tmp[r], tmp[r], n, a->prescale);
  }
  if (a->op == LWCC_SUM && a->postscale != 1.0 && average(a->dtype, w->p, tmp, out, n, a->postscale)) return n;
  reduce_fold(a->dtype, a->op)(w->p, (const void *const *)tmp, 1, (void *const *)&out, n,
                               pre ? a->postscale : a->prescale * a->postscale);
  return n;
}

typedef struct {
  char *in, *out, *want, *tmp[MAX_RANKS]; /* private */
} memory;

static void place_buffers(const rank *me, const step *s, memory *m, coll_args *a) {
  static const int shapes[] = {0, 0, 1, 1, 2, 3};
  int shape = shapes[mix(s->salt + 5) % 6]; /* 0 private, 1 registered everywhere, 2 mixed, 3 half registered */
  bool registered = shape == 1 || (shape == 2 && mix(s->salt + (uint64_t)me->me * 77) % 2);
  char *reg = me->w->registered[me->me];
  size_t nudge = mix(s->salt + 9) % 3 * 64; /* the same call may lie elsewhere in the region */
  char *in = registered || shape == 3 ? reg + nudge : m->in + 8 * (mix(s->salt) % 5);
  char *out = registered ? reg + me->w->room + nudge : m->out + 8 * (mix(s->salt + 1) % 5);
  bool in_place = mix(s->salt + 2 + (s->salt & 1 ? 0 : (uint64_t)me->me)) % 2;
  size_t wd = coll_dtype_bytes(a->dtype);
  if (in_place && (a->collective == LWCC_ALLREDUCE || a->collective == LWCC_BROADCAST)) in = out;
  if (in_place && a->collective == LWCC_ALLGATHER) in = out + before(s, me->me) * wd;
  a->in = in;
  a->out = out;
}

static void fill_input(const rank *me, const step *s, const coll_args *a) {
  size_t n = a->count;
  if (a->collective == LWCC_BARRIER || (a->collective == LWCC_BROADCAST && a->root != me->me)) return;
  if (a->collective == LWCC_ALLGATHER) n = block(s, me->me);
  if (a->collective == LWCC_REDUCESCATTER) n = before(s, me->w->p);
  if (a->collective == LWCC_ALLTOALL)
    for (int d = (n = 0); d < me->w->p; d++) n += sent(me->w, s, me->me, d);
  fill(s, me->me, (char *)a->in, 0, n);
}

/* The ranks are threads of this process. */
static int peek(void *arg, int index, void *to, uint64_t address, size_t n) {
  (void)arg, (void)index;
  return mem_peek((int)getpid(), to, address, n);
}

static int call(shm_team *t, const coll_args *a, bool stepped) {
  if (!stepped) return shm_run(t, a, NULL, NULL);
  shm_call *c = shm_start(t, a);
  int st;
  bool progress;
  while ((st = shm_step(c, &progress)) == LWCC_PENDING)
    if (!progress) sched_yield();
  return st;
}

static void *rank_main(void *arg) {
  rank *me = arg;
  world *w = me->w;
  shm_reach reach = {.arg = me, .find = find, .map = map, .peek = w->peeks ? peek : NULL};
  shm_team *t = NULL;
  memory m;
  size_t room = w->room;
  m.in = malloc(room);
  m.out = malloc(room);
  m.want = malloc(room);
  for (int r = 0; r < w->p; r++) m.tmp[r] = malloc(room);
  CHECK(shm_team_open(w->area, w->p, me->me, w->cores, &reach, &t) == LWCC_OK, "open");
  for (int k = 0; k < w->calls; k++) {
    step s;
    size_t send[MAX_RANKS], recv[MAX_RANKS];
    make_step(w, k, &s);
    coll_args a = s.a;
    if (a.counts) a.counts = s.counts;
    if (a.counts && a.collective == LWCC_ALLTOALL) {
      for (int r = 0; r < w->p; r++) {
        send[r] = sent(w, &s, me->me, r);
        recv[r] = sent(w, &s, r, me->me);
      }
      a.counts = send;
      a.recv_counts = recv;
    }
    if (a.counts && a.collective != LWCC_ALLTOALL) s.a.counts = s.counts;
    place_buffers(me, &s, &m, &a);
    size_t n = expected(w, &s, me->me, m.want, m.tmp), wd = coll_dtype_bytes(a.dtype);
    memset((char *)a.out + n * wd, 0x5a, GUARD);
    fill_input(me, &s, &a);
    int st = call(t, &a, mix(s.salt + 11 + (uint64_t)me->me) % 4 == 0);
    CHECK(st == LWCC_OK, "status %d", st);
    CHECK(memcmp(a.out, m.want, n * wd) == 0,
          "seed %llu p %d rank %d call %d: collective %d dtype %d op %d count %zu %s", (unsigned long long)w->seed,
          w->p, me->me, k, a.collective, a.dtype, a.op, a.count, shm_kernel_name(t, &a, false));
    for (int i = 0; i < GUARD; i++) CHECK(((char *)a.out)[n * wd + (size_t)i] == 0x5a, "call %d wrote past its end", k);
  }
  shm_team_close(t);
  free(m.in);
  free(m.out);
  free(m.want);
  for (int r = 0; r < w->p; r++) free(m.tmp[r]);
  return NULL;
}

static void run_world(world w) {
  pthread_t th[MAX_RANKS];
  rank ranks[MAX_RANKS];
  size_t n = shm_area_bytes(w.p);
  CHECK(n % 4096 == 0, "%zu", n);
  w.area = aligned_alloc(4096, n);
  memset(w.area, 0, n);
  w.room = (w.most * 8 + GUARD + 1024) & ~(size_t)63;
  for (int r = 0; r < w.p; r++) w.registered[r] = aligned_alloc(64, 2 * w.room);
  for (int r = 0; r < w.p; r++) {
    ranks[r] = (rank){&w, r};
    CHECK(pthread_create(&th[r], NULL, rank_main, &ranks[r]) == 0, "thread");
  }
  for (int r = 0; r < w.p; r++) pthread_join(th[r], NULL);
  for (int r = 0; r < w.p; r++) free(w.registered[r]);
  free(w.area);
}

static int give_up(void *arg) {
  return ++*(int *)arg < 3 ? LWCC_OK : LWCC_ERR_PEER_LOST;
}

/* The peer never comes: aborted ends the call, and the team stays unusable. */
static void test_abort_ends_the_call_and_poisons_the_team(void) {
  void *area = aligned_alloc(4096, shm_area_bytes(2));
  memset(area, 0, shm_area_bytes(2));
  for (int cores = 1; cores <= 2; cores++) {
    shm_team *t;
    float x[3] = {1, 2, 3};
    int polls = 0;
    bool progress;
    coll_args a = {.collective = LWCC_ALLREDUCE,
                   .dtype = LWCC_FLOAT32,
                   .op = LWCC_SUM,
                   .in = x,
                   .out = x,
                   .count = 3,
                   .prescale = 1,
                   .postscale = 1};
    CHECK(shm_team_open(area, 2, 0, cores, NULL, &t) == LWCC_OK, "open");
    CHECK(shm_run(t, &a, give_up, &polls) == LWCC_ERR_PEER_LOST, "cores %d", cores);
    CHECK(polls == 3, "%d polls", polls);
    CHECK(shm_run(t, &a, give_up, &polls) == LWCC_ERR_PEER_LOST, "cores %d", cores);
    CHECK(shm_step(shm_start(t, &a), &progress) == LWCC_ERR_PEER_LOST, "cores %d", cores);
    CHECK(polls == 3, "%d polls", polls);
    shm_team_close(t);
    memset(area, 0, shm_area_bytes(2));
  }
  free(area);
}

/* Ranks 0 and 1 on one thread; the process of index 1 has ended when index 0 reads from it. */
static int peek_at_nobody(void *arg, int index, void *to, uint64_t address, size_t n) {
  (void)index, (void)to, (void)address, (void)n;
  ++*(int *)arg;
  return os_fail(LWCC_ERR_PEER_LOST, "gone");
}

static void test_a_giver_that_has_ended_is_left_to_whoever_watches(void) {
  enum { COUNT = 100000 };
  void *area = aligned_alloc(4096, shm_area_bytes(2));
  float *in = calloc(COUNT, sizeof *in), *out = calloc(2 * COUNT, sizeof *out);
  shm_team *team[2];
  int looks = 0, polls = 0;
  shm_reach reach = {.arg = &looks, .peek = peek_at_nobody};
  coll_args a = {.collective = LWCC_ALLGATHER, .dtype = LWCC_FLOAT32, .in = in, .out = out, .count = COUNT};
  memset(area, 0, shm_area_bytes(2));
  for (int r = 0; r < 2; r++) CHECK(shm_team_open(area, 2, r, 1, &reach, &team[r]) == LWCC_OK, "open");
  CHECK(strcmp(shm_kernel_name(team[0], &a, false), "pull") == 0, "%s", shm_kernel_name(team[0], &a, false));
  shm_start(team[1], &a);
  CHECK(shm_run(team[0], &a, give_up, &polls) == LWCC_ERR_PEER_LOST, "status");
  CHECK(looks > 1 && polls == 3, "%d looks, %d polls", looks, polls); /* by give_up, not by the first look */
  for (int r = 0; r < 2; r++) shm_team_close(team[r]);
  free(in);
  free(out);
  free(area);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20240607;
  int calls = argc > 2 ? atoi(argv[2]) : 120;
  printf("seed %llu\n", (unsigned long long)seed);
  test_abort_ends_the_call_and_poisons_the_team();
  test_a_giver_that_has_ended_is_left_to_whoever_watches();
  for (int p = 1; p <= MAX_RANKS; p += p == 8 ? 8 : 1)
    for (int over = 0; over <= (p > 1); over++) {
      int n = p > 4 || !over ? calls / 4 : calls;
      if (p == 2) n = 2 * calls;
      run_world((world){.p = p,
                        .cores = over ? 1 : p,
                        .calls = n,
                        .peeks = p % 3 != 1,
                        .seed = seed + (uint64_t)over,
                        .most = 20000});
    }
  /* several chunks, all slots */
  for (int p = 2; p <= 4; p++)
    run_world(
        (world){.p = p, .cores = p % 2 ? 1 : p, .calls = calls / 6, .peeks = p != 3, .seed = seed + 9, .most = 700001});
  return check_report();
}
