/* Shared-memory collectives with ranks as processes: one is stopped for a moment, one is killed inside its loop. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "exec/shm.h"

enum { MAX_RANKS = 8, COUNT = 5000, DEADLINE_S = 60, CALLS_AFTER = 200 };

typedef struct {
  _Atomic uint32_t calls[MAX_RANKS]; /* finished by each rank */
  _Atomic uint32_t last;             /* the call after which all stop; set by the parent; 0: not yet */
  _Atomic int dead;                  /* set by the parent when a rank has died */
} shared;

typedef struct {
  shared *sh;
  void *area;
  int p, me;
} rank;

static int aborted(void *arg) {
  const shared *sh = arg;
  return atomic_load(&sh->dead) ? LWCC_ERR_PEER_LOST : LWCC_OK;
}

/* 0: all results right; 1: a wrong one; 2: ended by `aborted`; 3: another failure */
static int loop(const rank *r) {
  static float x[COUNT];
  static const size_t counts[] = {1, COUNT, 37, 2500};
  shm_team *t;
  if (shm_team_open(r->area, r->p, r->me, (int)sysconf(_SC_NPROCESSORS_ONLN), NULL, &t) < 0) return 3;
  for (uint32_t k = 1;; k++) {
    size_t n = counts[k % 4];
    coll_args a = {.collective = k % 5 ? LWCC_ALLREDUCE : LWCC_BROADCAST,
                   .dtype = LWCC_FLOAT32,
                   .op = LWCC_SUM,
                   .in = x,
                   .out = x,
                   .count = n,
                   .prescale = 1,
                   .postscale = 1};
    for (size_t i = 0; i < n; i++) x[i] = (float)(r->me + 1) * (float)(i % 50 + k % 50);
    int st = shm_run(t, &a, aborted, r->sh);
    if (st < 0) return st == LWCC_ERR_PEER_LOST ? 2 : 3;
    float each = k % 5 ? (float)(r->p * (r->p + 1) / 2) : 1.0f;
    for (size_t i = 0; i < n; i++)
      if (x[i] != each * (float)(i % 50 + k % 50)) return 1;
    atomic_store(&r->sh->calls[r->me], k);
    if (k == atomic_load(&r->sh->last)) return 0;
  }
}

static void start(rank *r, pid_t pid[]) {
  for (r->me = 0; r->me < r->p; r->me++) {
    pid[r->me] = fork();
    if (pid[r->me]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(DEADLINE_S);
    _exit(loop(r));
  }
}

static rank make_world(int p) {
  rank r = {.p = p};
  int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
  r.sh = mmap(NULL, sizeof *r.sh, prot, flags, -1, 0);
  r.area = mmap(NULL, shm_area_bytes(p), prot, flags, -1, 0);
  CHECK(r.sh != MAP_FAILED && r.area != MAP_FAILED, "mmap");
  return r;
}
static void free_world(rank *r) {
  munmap(r->area, shm_area_bytes(r->p));
  munmap(r->sh, sizeof *r->sh);
}

static void until_calls(const shared *sh, int r, uint32_t n) { /* the alarm of the ranks and of main bounds this */
  while (atomic_load(&sh->calls[r]) < n) sched_yield();
}

static void until_asleep(pid_t pid) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  while (state != 'S') {
    FILE *f = fopen(path, "r");
    int n = f ? fscanf(f, "%*d %*s %c", &state) : 0;
    if (f) fclose(f);
    if (n != 1) return; /* gone: the checks that follow say so */
    sched_yield();
  }
}

/* A stopped rank only delays: the others wait (asleep, by then), and all results stay right. */
static void test_a_stopped_rank_only_delays(int p) {
  rank w = make_world(p);
  pid_t pid[MAX_RANKS];
  int st;
  start(&w, pid);
  for (int r = 0; r < p; r++) {
    until_calls(w.sh, r, 20);
    CHECK(kill(pid[r], SIGSTOP) == 0, "stop");
    CHECK(waitpid(pid[r], &st, WUNTRACED) == pid[r] && WIFSTOPPED(st), "rank %d ended with %d", r, st);
    uint32_t at = atomic_load(&w.sh->calls[r]), most = 0;
    for (int q = 0; q < p; q++)
      if (q != r) until_asleep(pid[q]);
    for (int q = 0; q < p; q++)
      if (atomic_load(&w.sh->calls[q]) > most) most = atomic_load(&w.sh->calls[q]);
    CHECK(most <= at + 8, "rank %d stopped at call %u, another is at %u", r, at, most);
    CHECK(kill(pid[r], SIGCONT) == 0, "continue");
  }
  /* far enough ahead that nobody has passed it when it is read */
  for (int r = 0; r < p; r++) until_calls(w.sh, r, 40);
  CHECK(kill(pid[0], SIGSTOP) == 0, "stop");
  CHECK(waitpid(pid[0], &st, WUNTRACED) == pid[0] && WIFSTOPPED(st), "rank 0 ended with %d", st);
  atomic_store(&w.sh->last, atomic_load(&w.sh->calls[0]) + CALLS_AFTER);
  CHECK(kill(pid[0], SIGCONT) == 0, "continue");
  for (int r = 0; r < p; r++) {
    CHECK(waitpid(pid[r], &st, 0) == pid[r], "wait");
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0, "p %d rank %d: status %x", p, r, st);
  }
  free_world(&w);
}

/* A killed rank: the others' calls end through `aborted`. */
static void test_a_killed_rank_ends_the_others(int p) {
  rank w = make_world(p);
  pid_t pid[MAX_RANKS];
  int st, victim = p - 1;
  start(&w, pid);
  until_calls(w.sh, victim, 50);
  CHECK(kill(pid[victim], SIGKILL) == 0, "kill");
  CHECK(waitpid(pid[victim], &st, 0) == pid[victim] && WIFSIGNALED(st), "the victim ended with %x", st);
  atomic_store(&w.sh->dead, 1);
  for (int r = 0; r < victim; r++) {
    CHECK(waitpid(pid[r], &st, 0) == pid[r], "wait");
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 2, "p %d rank %d: status %x", p, r, st);
  }
  free_world(&w);
}

int main(void) {
  alarm(3 * DEADLINE_S);
  for (int p = 2; p <= MAX_RANKS; p *= 2) {
    test_a_stopped_rank_only_delays(p);
    test_a_killed_rank_ends_the_others(p);
  }
  return check_report();
}
