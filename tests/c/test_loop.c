/* Sleeping, waking, driving: nothing that is asked for may be slept over, whoever drives. */
#include "engines.h"

enum { CALLS = TSAN ? 450 : 3000, THREADS = 3 };

typedef struct {
  engine *e;
  int thread, calls;
} caller;

/* As lwcc_run: nobody is woken, because the caller waits at once. */
static int run_blocking(engine *e, const ask *a, char *text) {
  lwcc_ticket t;
  asking g = {a, 1, e->size};
  int st = queue_submit(&e->q, 1, fill_request, &g, &t);
  if (st < 0) return st;
  st = finish_request(e, t, text);
  queue_release(&e->q, queue_lookup(&e->q, t));
  return st;
}

static void *call_often(void *arg) {
  caller *c = arg;
  char name[16], text[TEXT_CAP];
  snprintf(name, sizeof name, "thread%d", c->thread);
  int p = c->e->size, wrong = 0;
  for (int i = 0; i < c->calls; i++) {
    int64_t v = c->e->rank + i;
    ask a = sum_of(name, &v, 1);
    int st = run_blocking(c->e, &a, text);
    wrong += st != LWCC_OK || v != (int64_t)p * i + p * (p - 1) / 2;
  }
  CHECK(wrong == 0, "rank %d thread %d: %d of %d calls are wrong", c->e->rank, c->thread, wrong, c->calls);
  return NULL;
}

static void one_caller(engine *e, void *arg) {
  (void)arg;
  caller c = {e, 0, CALLS};
  call_often(&c);
}

/* Several threads of a rank wait side by side: one drives, the others sleep. */
static void several_callers(engine *e, void *arg) {
  (void)arg;
  pthread_t threads[THREADS];
  caller c[THREADS];
  for (int i = 0; i < THREADS; i++) {
    c[i] = (caller){e, i, CALLS / THREADS};
    if (pthread_create(&threads[i], NULL, call_often, &c[i]) != 0) abort();
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void test_a_blocking_call_is_never_slept_over(int size, int spins, void (*program)(engine *e, void *arg)) {
  world w;
  world_open(&w, world_of(size));
  for (int r = 0; r < size; r++) w.e[r]->spins = spins; /* few: sleep soon, and often */
  world_run(&w, program, NULL);
  world_close(&w);
}

int main(void) {
  alarm(280);
  for (int p = 1; p <= 3; p++) {
    for (int spins = 0; spins <= 300; spins += 300) {
      test_a_blocking_call_is_never_slept_over(p, spins, one_caller);
      test_a_blocking_call_is_never_slept_over(p, spins, several_callers);
    }
  }
  return check_report();
}
