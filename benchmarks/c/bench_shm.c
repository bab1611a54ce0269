/* Time of the shared-memory collectives between forked ranks, float32 sum, without the layers above.
 *   cc -std=c11 -D_GNU_SOURCE -O2 -Icore/include -Icore/src -o build/bench_shm benchmarks/c/bench_shm.c <core sources>
 *   build/bench_shm <ranks> <sizes: 4,64k,25m> <private|registered|both> [collective ...]
 * Sizes are bytes of the whole buffer (allgather, reducescatter, alltoall: of the larger one). Time: median over
 * iterations of the maximum over ranks, each iteration from a shared-memory barrier; every result is checked.
 * Environment: BUDGET, seconds per row (0.1). Exit status 1 if a result was wrong. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "exec/shm.h"

enum { MAX_RANKS = 16, MAX_ITERATIONS = 3000, ALIGN = 2 << 20 };

typedef struct {
  _Alignas(128) _Atomic uint32_t arrived;
  _Alignas(128) _Atomic uint32_t generation;
  _Alignas(128) _Atomic uint32_t iterations, wrong;
  pid_t pid[MAX_RANKS];
  uint64_t ns[MAX_RANKS][MAX_ITERATIONS]; /* written after the call only: a store before it would be timed too */
} control;

typedef struct {
  control *ctl;
  int p, me, cores;
  char *registered[MAX_RANKS];
  size_t half; /* of each: input, then output */
  shm_team *team;
  double budget_s;
} bench;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void barrier(bench *b) {
  control *c = b->ctl;
  uint32_t g = atomic_load(&c->generation);
  if (atomic_fetch_add(&c->arrived, 1) == (uint32_t)b->p - 1) {
    atomic_store(&c->arrived, 0);
    atomic_store(&c->generation, g + 1);
    return;
  }
  while (atomic_load_explicit(&c->generation, memory_order_acquire) == g) {
    if (b->cores < b->p) {
      sched_yield();
    } else {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
}

static bool find(void *arg, const void *p, size_t n, uint32_t *region, uint64_t *offset) {
  bench *b = arg;
  const char *base = b->registered[b->me], *c = p;
  if (!base || c < base || c + n > base + 2 * b->half) return false;
  *region = 1;
  *offset = (uint64_t)(c - base);
  return true;
}
static void *map(void *arg, int index, uint32_t region, uint64_t offset, size_t n) {
  bench *b = arg;
  return region == 1 && offset + n <= 2 * b->half ? b->registered[index] + offset : NULL;
}

static int peek(void *arg, int index, void *to, uint64_t address, size_t n) {
  struct iovec mine = {to, n}, theirs = {(void *)(uintptr_t)address, n};
  return process_vm_readv(((bench *)arg)->ctl->pid[index], &mine, 1, &theirs, 1, 0) == (ssize_t)n ? LWCC_OK
                                                                                                  : LWCC_ERR_SYSTEM;
}

static void *pages(size_t n, int flags) {
  char *p = mmap(NULL, n + ALIGN, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(2);
  }
  return (char *)(((uintptr_t)p + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
}

static float term(int r, size_t i) {
  return (float)((r + 1) * (int)(i % 97 + 1));
}
static void fill(const bench *b, const coll_args *a) {
  float *x = (float *)(uintptr_t)a->in;
  size_t n = a->count;
  if (a->collective == LWCC_BARRIER) return;
  if (a->collective == LWCC_REDUCESCATTER || a->collective == LWCC_ALLTOALL) n *= (size_t)b->p;
  for (size_t i = 0; i < n; i++) x[i] = term(b->me, i);
}
static float wanted(const bench *b, const coll_args *a, size_t i) {
  size_t block = i / (a->count ? a->count : 1), at = i % (a->count ? a->count : 1);
  size_t mine = (size_t)b->me * a->count;
  switch (a->collective) {
    case LWCC_ALLREDUCE:
      return (float)(b->p * (b->p + 1) / 2) * (float)(i % 97 + 1);
    case LWCC_REDUCESCATTER:
      return (float)(b->p * (b->p + 1) / 2) * (float)((mine + i) % 97 + 1);
    case LWCC_BROADCAST:
      return term(a->root, i);
    case LWCC_ALLGATHER:
      return term((int)block, at);
    default:
      return term((int)block, mine + at);
  }
}
static void check(const bench *b, const coll_args *a) {
  const float *x = a->out;
  size_t n = a->count, bad = 0;
  if (a->collective == LWCC_BARRIER) return;
  if (a->collective == LWCC_ALLGATHER || a->collective == LWCC_ALLTOALL) n *= (size_t)b->p;
  for (size_t i = 0; i < n; i++) bad += x[i] != wanted(b, a, i);
  if (bad) atomic_store(&b->ctl->wrong, 1);
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void run(bench *b, const coll_args *a) {
  if (shm_run(b->team, a, NULL, NULL) != LWCC_OK) atomic_store(&b->ctl->wrong, 1);
}

static uint32_t warm_up(bench *b, const coll_args *a, size_t nbytes) {
  int warm = nbytes >= (16u << 20) ? 2 : nbytes >= (1u << 20) ? 5 : 50;
  uint64_t t = now_ns();
  for (int i = 0; i < warm; i++) run(b, a);
  double each = (double)(now_ns() - t) / warm + 1, n = b->budget_s * 1e9 / each;
  if (b->me == 0) atomic_store(&b->ctl->iterations, n < 7 ? 7 : n > MAX_ITERATIONS ? MAX_ITERATIONS : (uint32_t)n);
  barrier(b);
  return atomic_load(&b->ctl->iterations);
}

static void report(const bench *b, const coll_args *a, size_t nbytes, bool registered, double back_to_back_us) {
  static const char *const names[] = {"allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"};
  static double us[MAX_ITERATIONS];
  control *c = b->ctl;
  uint32_t n = c->iterations;
  for (uint32_t i = 0; i < n; i++) {
    us[i] = 0;
    for (int r = 0; r < b->p; r++) {
      double d = (double)c->ns[r][i] * 1e-3;
      if (d > us[i]) us[i] = d;
    }
  }
  qsort(us, n, sizeof *us, by_value);
  printf("%d %9zu %-13s %-5s %-10s med %10.3f p10 %10.3f b2b %10.3f us %s it %u\n", b->p, nbytes, names[a->collective],
         shm_kernel_name(b->team, a, registered), registered ? "registered" : "private", us[n / 2], us[n / 10],
         back_to_back_us, c->wrong ? "WRONG" : "ok", n);
  fflush(stdout);
}

static void row(bench *b, int collective, size_t nbytes, bool registered) {
  size_t count = nbytes / sizeof(float), blocks = (size_t)b->p;
  bool whole = collective == LWCC_ALLREDUCE || collective == LWCC_BROADCAST || collective == LWCC_BARRIER;
  char *in = registered ? b->registered[b->me] : pages(nbytes + 64, MAP_PRIVATE);
  char *out = registered ? in + b->half : collective == LWCC_ALLREDUCE ? in : pages(nbytes + 64, MAP_PRIVATE);
  coll_args a = {.collective = collective, .dtype = LWCC_FLOAT32, .op = LWCC_SUM, .prescale = 1, .postscale = 1};
  a.count = whole ? count : count / blocks;
  a.in = in;
  a.out = whole ? in : out;
  fill(b, &a);
  barrier(b);
  run(b, &a);
  check(b, &a);
  memset(in, 0, nbytes);
  barrier(b);
  uint32_t n = warm_up(b, &a, nbytes);
  for (uint32_t i = 0; i < n; i++) {
    barrier(b);
    uint64_t begin = now_ns();
    run(b, &a);
    b->ctl->ns[b->me][i] = now_ns() - begin;
  }
  barrier(b);
  uint64_t t = now_ns();
  for (uint32_t i = 0; i < n; i++) run(b, &a);
  double back_to_back = (double)(now_ns() - t) * 1e-3 / n;
  barrier(b);
  fill(b, &a);
  barrier(b);
  run(b, &a);
  check(b, &a);
  barrier(b);
  if (b->me == 0) report(b, &a, nbytes, registered, back_to_back);
  barrier(b);
  if (registered) return;
  munmap(in, nbytes + 64);
  if (out != in) munmap(out, nbytes + 64);
}

static size_t parse_size(const char *s, char **end) {
  double v = strtod(s, end);
  size_t unit = **end == 'k' ? 1024 : **end == 'm' ? 1 << 20 : 1;
  *end += unit > 1;
  return (size_t)(v * (double)unit);
}

static int parse_collective(const char *s) {
  static const char *const names[] = {"allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"};
  for (int i = 0; i < LWCC_COLLECTIVES; i++)
    if (!strcmp(s, names[i])) return i;
  fprintf(stderr, "unknown collective %s\n", s);
  exit(2);
}

static void rank_main(bench *b, void *area, char **argv) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(b->me % b->cores, &set);
  sched_setaffinity(0, sizeof set, &set);
  setpriority(PRIO_PROCESS, 0, -15);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  b->ctl->pid[b->me] = getpid();
  shm_reach reach = {.arg = b, .find = find, .map = map, .peek = getenv("NO_PEEK") ? NULL : peek};
  if (shm_team_open(area, b->p, b->me, b->cores, &reach, &b->team) < 0) exit(2);
  char *all[] = {"allreduce", NULL}, **names = argv[4] ? argv + 4 : all;
  for (char **name = names; *name; name++)
    for (char *s = argv[2]; *s;) {
      size_t nbytes = parse_size(s, &s);
      if (*s == ',') s++;
      for (int registered = 0; registered < 2; registered++)
        if (argv[3][0] == 'b' || (argv[3][0] == 'r') == registered) row(b, parse_collective(*name), nbytes, registered);
    }
  _exit(atomic_load(&b->ctl->wrong) != 0);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: bench_shm <ranks> <sizes> <private|registered|both> [collective ...]\n");
    return 2;
  }
  bench b = {.p = atoi(argv[1]), .cores = (int)sysconf(_SC_NPROCESSORS_ONLN)};
  b.budget_s = getenv("BUDGET") ? atof(getenv("BUDGET")) : 0.1;
  size_t most = 0;
  for (char *s = argv[2]; *s; s += *s == ',') {
    size_t n = parse_size(s, &s);
    if (n > most) most = n;
  }
  b.half = (most + ALIGN) & ~(size_t)(ALIGN - 1);
  b.ctl = pages(sizeof *b.ctl, MAP_SHARED);
  void *area = pages(shm_area_bytes(b.p), MAP_SHARED);
  if (argv[3][0] != 'p')
    for (int r = 0; r < b.p; r++) b.registered[r] = pages(2 * b.half, MAP_SHARED);
  for (b.me = 0; b.me < b.p; b.me++)
    if (fork() == 0) rank_main(&b, area, argv);
  int bad = 0, st;
  while (wait(&st) > 0) bad |= st != 0;
  return bad;
}
