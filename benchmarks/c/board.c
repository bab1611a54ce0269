#include "board.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  _Alignas(128) _Atomic uint32_t arrived;
  _Alignas(128) _Atomic uint32_t generation; /* release by the last to arrive: pairs with the acquire in barrier */
  _Alignas(128) _Atomic uint32_t ping; /* release by rank 0: pairs with rank 1's acquire, and the other way for pong */
  _Alignas(128) _Atomic uint32_t pong;
  _Alignas(128) _Atomic uint32_t wrong;
  uint32_t iterations; /* written by rank 0 between barriers */
  uint64_t began[BOARD_ITERATIONS][BOARD_RANKS], ended[BOARD_ITERATIONS][BOARD_RANKS];
} board;

typedef struct {
  board *b;
  const bench_setup *s;
  const bench_subject *subject;
  int crowded; /* more ranks than cores: waiting yields */
  size_t nbytes, in_bytes, out_bytes, count;
  float *in, *out;
} bench;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void relax(int yield) {
  if (yield)
    sched_yield();
  else
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

static void barrier(bench *x) {
  board *b = x->b;
  uint32_t g = atomic_load_explicit(&b->generation, memory_order_acquire);
  if (atomic_fetch_add(&b->arrived, 1) == (uint32_t)x->s->size - 1) {
    atomic_store(&b->arrived, 0);
    atomic_store_explicit(&b->generation, g + 1, memory_order_release);
    return;
  }
  for (uint32_t k = 0; atomic_load_explicit(&b->generation, memory_order_acquire) == g; k++)
    relax(x->crowded || k > 20000);
}

/* One way core to core between ranks 0 and 1, ns, best of 40 series. */
static double probe(bench *x) {
  double best = 1e9;
  if (x->s->size < 2) return 0;
  uint32_t base = atomic_load(&x->b->ping);
  barrier(x);
  for (int series = 0; series < 40 && x->s->rank < 2; series++) {
    uint64_t t = now_ns();
    for (int i = 1; i <= 50; i++) {
      uint32_t k = base + (uint32_t)(series * 50 + i);
      _Atomic uint32_t *mine = x->s->rank ? &x->b->pong : &x->b->ping, *theirs = x->s->rank ? &x->b->ping : &x->b->pong;
      if (!x->s->rank) atomic_store_explicit(mine, k, memory_order_release);
      for (uint32_t n = 1; atomic_load_explicit(theirs, memory_order_acquire) != k; n++) relax(n % 4000 == 0);
      if (x->s->rank) atomic_store_explicit(mine, k, memory_order_release);
    }
    double d = (double)(now_ns() - t) / 100.0;
    if (d < best) best = d;
  }
  barrier(x);
  return best;
}

static void *private_pages(size_t nbytes) {
  void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

static float term(int rank, size_t i) {
  return (float)((rank + 1) * (int)(i % 97 + 1));
}

static void fill(bench *x) {
  size_t n = x->in_bytes / 4;
  for (size_t i = 0; i < n; i++) x->in[i] = term(x->s->rank, i);
}

static float expected(const bench *x, size_t i) {
  int p = x->s->size, me = x->s->rank;
  size_t c = x->count, block = c ? i / c : 0;
  switch (x->s->collective) {
    case BENCH_ALLREDUCE:
      return (float)(p * (p + 1) / 2) * term(0, i);
    case BENCH_BROADCAST:
      return term(0, i);
    case BENCH_ALLGATHER:
      return term((int)block, i % c);
    case BENCH_REDUCESCATTER:
      return (float)(p * (p + 1) / 2) * term(0, (size_t)me * c + i);
    default:
      return term((int)block, (size_t)me * c + i % c);
  }
}

static void check(bench *x) {
  fill(x);
  barrier(x);
  if (x->subject->run(x->subject->ctx, x->s->collective, x->in, x->out, x->count)) atomic_store(&x->b->wrong, 1);
  if (x->s->collective == BENCH_BARRIER) return;
  for (size_t i = 0; i < x->out_bytes / 4; i++)
    if (x->out[i] != expected(x, i)) atomic_store(&x->b->wrong, 1);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void report(bench *x, double back_to_back, double before, double after) {
  static double d[BOARD_ITERATIONS];
  static const char *const names[] = {"allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"};
  uint32_t n = x->b->iterations;
  for (uint32_t i = 0; i < n; i++) {
    uint64_t longest = 0;
    for (int r = 0; r < x->s->size; r++) {
      uint64_t t = x->b->ended[i][r] - x->b->began[i][r];
      if (t > longest) longest = t;
    }
    d[i] = (double)longest * 1e-3;
  }
  qsort(d, n, sizeof *d, by_value);
  printf("%s,%s,%d,%zu,%u,%.3f,%.3f,%.3f,%.3f,%u,%.0f,%.0f\n", x->s->label, names[x->s->collective], x->s->size,
         x->nbytes, n, d[n / 2], d[n / 10], d[n * 9 / 10], back_to_back, atomic_load(&x->b->wrong), before, after);
  fflush(stdout);
}

static double measure(bench *x) {
  const bench_subject *u = x->subject;
  int warm = x->nbytes >= (16u << 20) ? 2 : x->nbytes >= (1u << 20) ? 5 : 50, c = x->s->collective;
  barrier(x);
  uint64_t t = now_ns();
  for (int i = 0; i < warm; i++) u->run(u->ctx, c, x->in, x->out, x->count);
  double each = (double)(now_ns() - t) / warm + 1;
  if (!x->s->rank) {
    double it = x->s->budget_s * 1e9 / each;
    x->b->iterations = it < 7 ? 7 : it > BOARD_ITERATIONS ? BOARD_ITERATIONS : (uint32_t)it;
  }
  barrier(x);
  uint32_t n = x->b->iterations;
  for (uint32_t i = 0; i < n; i++) {
    barrier(x);
    uint64_t a = now_ns();
    u->run(u->ctx, c, x->in, x->out, x->count);
    x->b->ended[i][x->s->rank] = now_ns();
    x->b->began[i][x->s->rank] = a;
  }
  barrier(x);
  t = now_ns();
  for (uint32_t i = 0; i < n; i++) u->run(u->ctx, c, x->in, x->out, x->count);
  double b2b = (double)(now_ns() - t) * 1e-3 / n;
  barrier(x);
  return b2b;
}

static int one_size(bench *x, size_t nbytes) {
  const bench_subject *u = x->subject;
  int c = x->s->collective, p = x->s->size;
  x->nbytes = nbytes;
  x->count = nbytes / 4;
  x->in_bytes = nbytes * (size_t)(c == BENCH_REDUCESCATTER || c == BENCH_ALLTOALL ? p : 1);
  x->out_bytes = nbytes * (size_t)(c == BENCH_ALLGATHER || c == BENCH_ALLTOALL ? p : 1);
  int in_place = c == BENCH_ALLREDUCE || c == BENCH_BROADCAST;
  x->in = u->alloc ? u->alloc(u->ctx, x->in_bytes) : private_pages(x->in_bytes);
  x->out = in_place ? x->in : u->alloc ? u->alloc(u->ctx, x->out_bytes) : private_pages(x->out_bytes);
  if (!x->in || !x->out) return fprintf(stderr, "bench: no memory for %zu bytes\n", nbytes), 1;
  memset(x->in, 0, x->in_bytes);
  memset(x->out, 0, x->out_bytes);
  if (!x->s->rank) atomic_store(&x->b->wrong, 0);
  barrier(x);
  double before = probe(x);
  check(x);
  barrier(x);
  memset(x->in, 0, x->in_bytes); /* sums stay finite over many calls */
  double b2b = measure(x);
  check(x);
  barrier(x);
  double after = probe(x);
  if (!x->s->rank) report(x, b2b, before, after);
  barrier(x);
  if (!in_place) u->release ? u->release(u->ctx, x->out, x->out_bytes) : (void)munmap(x->out, x->out_bytes);
  u->release ? u->release(u->ctx, x->in, x->in_bytes) : (void)munmap(x->in, x->in_bytes);
  return 0;
}

int bench_sizes(const bench_setup *setup, const bench_subject *subject, const char *sizes) {
  int cores = (int)sysconf(_SC_NPROCESSORS_ONLN), fd = open(setup->board, O_RDWR | O_CREAT, 0600);
  if (setup->size > BOARD_RANKS || fd < 0 || ftruncate(fd, sizeof(board))) return perror(setup->board), 1;
  bench x = {.s = setup, .subject = subject, .crowded = setup->size > cores};
  x.b = mmap(NULL, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (x.b == MAP_FAILED) return perror("mmap"), 1;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET((unsigned)(setup->rank % cores), &mask);
  if (setup->pin) sched_setaffinity(0, sizeof mask, &mask);
  int st = 0;
  for (const char *s = sizes; *s && !st;) {
    char *end;
    double v = strtod(s, &end);
    if (*end == 'k') v *= 1024, end++;
    if (*end == 'm') v *= 1048576, end++;
    st = one_size(&x, (size_t)v);
    s = *end == ',' ? end + 1 : end;
  }
  munmap(x.b, sizeof(board));
  return st;
}
