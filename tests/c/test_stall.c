/* A request that some rank lacks: failed after the limit, with the missing rank in the text, and the job goes on. */
#include "coord/tally.h"
#include "engines.h"

static pthread_barrier_t all;

static void check_works(engine *e, const char *name) {
  char text[TEXT_CAP];
  int64_t v = e->rank;
  ask a = sum_of(name, &v, 1);
  int st = run_one(e, &a, text);
  CHECK(st == LWCC_OK && v == e->size * (e->size - 1) / 2, "rank %d: \"%s\": %d %s", e->rank, name, st, text);
}

/* All ranks together: from here on requests are given up after so long (0: never). What has to work must not be
 * given up on a busy machine. */
static void limit_all(engine *e, uint64_t abort_ns) {
  pthread_barrier_wait(&all);
  if (e->rank == 0) {
    coordinator_limits limits = {.warn_ns = abort_ns / 3, .abort_ns = abort_ns, .capacity = 4096};
    engine_lock(e);
    coordinator_limit(engine_set(e, 0)->co, &limits);
    e->count_at_ns = 0; /* planned by the old limits */
    engine_unlock(e);
  }
  pthread_barrier_wait(&all);
}

static void lacking(engine *e, void *arg) {
  const int *missing = arg;
  char text[TEXT_CAP], who[32];
  int64_t v = 1;
  ask a = sum_of("lacking", &v, 1);
  snprintf(who, sizeof who, "rank %d ", *missing); /* on a busy machine others may be late too */
  for (int round = 0; round < 3; round++) {        /* unknown name, unknown again, then a remembered one */
    limit_all(e, 30000000);
    if (e->rank != *missing) {
      int st = run_one(e, &a, text);
      const char *absent = strstr(text, "missing: ");
      CHECK(st == LWCC_ERR_TIMEOUT && strstr(text, "\"lacking\"") && absent && strstr(absent, who), "rank %d: %d %s",
            e->rank, st, text);
    }
    limit_all(e, 0);
    check_works(e, "other");
    if (round == 1) check_works(e, "lacking");
  }
}

static void test_a_missing_rank_is_named_and_the_job_goes_on(void) {
  for (int p = 2; p <= 5; p++) {
    for (int missing = 0; missing < p; missing += p - 1) {
      world w;
      pthread_barrier_init(&all, NULL, (unsigned)p);
      world_open(&w, world_of(p));
      world_run(&w, lacking, &missing);
      world_close(&w);
      pthread_barrier_destroy(&all);
    }
  }
}

/* The last rank asks around the moment at which the others' request is given up: they meet, or fail apart, but the
 * count is never confused, and in the end the name works. */
static void late(engine *e, void *arg) {
  (void)arg;
  char text[TEXT_CAP];
  for (int round = 0; round < 6; round++) {
    limit_all(e, 20000000);
    int64_t v = e->rank, first = 0;
    ask a = sum_of("late", &v, 1), b = sum_of("decoy", &first, 1);
    /* The last rank's wait for a decoy of its own ends when the others' request of the same age does. */
    int st = run_one(e, e->rank == e->size - 1 ? &b : &a, text);
    if (e->rank == e->size - 1) st = run_one(e, &a, text);
    CHECK(st == LWCC_OK || st == LWCC_ERR_TIMEOUT, "rank %d: %d %s", e->rank, st, text);
    limit_all(e, 0);
    check_works(e, "between");
  }
  check_works(e, "late");
}

static void test_a_late_rank_does_not_confuse_the_count(void) {
  for (int p = 2; p <= 3; p++) {
    world w;
    pthread_barrier_init(&all, NULL, (unsigned)p);
    world_open(&w, world_of(p));
    world_run(&w, late, NULL);
    world_close(&w);
    pthread_barrier_destroy(&all);
  }
}

/* Rank 1 stands still, as a stopped process does, with its part of a collective ordered but not done. */
static void stuck(engine *e, void *arg) {
  engine **all_engines = arg;
  int64_t v = 1;
  ask a = sum_of("stuck", &v, 1);
  char text[TEXT_CAP];
  lwcc_ticket t;
  if (e->rank == 1) {
    CHECK(submit(e, &a, 1, &t) == LWCC_OK, "%s", os_error());
    for (int waiting = 0; !waiting; sched_yield()) { /* the coordinator has heard of it */
      engine_lock(all_engines[0]);
      waiting = engine_set(all_engines[0], 0)->co->waiting;
      engine_unlock(all_engines[0]);
    }
    engine_lock(e);
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    engine_unlock(e);
    return;
  }
  pthread_barrier_wait(&all);
  int st = run_one(e, &a, text);
  CHECK(st == LWCC_ERR_TIMEOUT && strstr(text, "\"stuck\"") && strstr(text, "has not moved"), "%d %s", st, text);
  CHECK(engine_failed(e) == LWCC_ERR_TIMEOUT, "%d", engine_failed(e));
  pthread_barrier_wait(&all);
}

/* The coordinator stands still. */
static void silent(engine *e, void *arg) {
  (void)arg;
  int64_t v = 1;
  ask a = sum_of("silent", &v, 1);
  char text[TEXT_CAP];
  if (e->rank == 0) engine_lock(e);
  pthread_barrier_wait(&all);
  int st = e->rank ? run_one(e, &a, text) : LWCC_ERR_TIMEOUT;
  CHECK(st == LWCC_ERR_TIMEOUT && (!e->rank || strstr(text, "\"silent\" waits for the word of rank 0")), "%d %s", st,
        text);
  pthread_barrier_wait(&all);
  if (e->rank == 0) engine_unlock(e);
}

static void test_who_neither_runs_nor_dies_keeps_nobody_waiting(void (*program)(engine *e, void *arg)) {
  world w;
  world_options o = world_of(2);
  o.limits.abort_ns = 100000000;
  pthread_barrier_init(&all, NULL, 2);
  world_open(&w, o);
  world_run(&w, program, w.e);
  world_close(&w);
  pthread_barrier_destroy(&all);
}

/* Ctrl-Z for a minute while a request is pending must not make a stall of it. */
static void test_time_in_which_the_process_is_stopped_does_not_count(void) {
  const uint64_t second = 1000000000;
  int ranks[2] = {0, 1};
  pset *ps;
  CHECK(pset_create(0, ranks, 2, 0, &ps) == LWCC_OK && ps->co, "%s", os_error());
  uint64_t clock = 50 * second, t = coordinator_now(ps->co, clock);
  CHECK(coordinator_now(ps->co, clock += 90 * second) - t == 90 * second, "idle time counts");
  ps->co->waiting = 1;
  t = coordinator_now(ps->co, clock);
  for (int i = 0; i < 10; i++) coordinator_now(ps->co, clock += second / 2);
  CHECK(coordinator_now(ps->co, clock) - t == 5 * second, "waiting time counts");
  t = coordinator_now(ps->co, clock);
  CHECK(coordinator_now(ps->co, clock += 90 * second) - t <= second, "a stop of 90 s counts");
  CHECK(coordinator_now(ps->co, clock += second) - t <= 2 * second, "what counts goes on");
  ps->co->waiting = 0;
  pset_free(ps);
}

int main(void) {
  alarm(200);
  test_time_in_which_the_process_is_stopped_does_not_count();
  log_set_level(LOG_ERROR);
  test_a_missing_rank_is_named_and_the_job_goes_on();
  test_a_late_rank_does_not_confuse_the_count();
  test_who_neither_runs_nor_dies_keeps_nobody_waiting(stuck);
  test_who_neither_runs_nor_dies_keeps_nobody_waiting(silent);
  return check_report();
}
