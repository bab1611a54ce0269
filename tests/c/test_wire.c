/* Every algorithm of the table over the in-process transport: ranks are threads, each with a channel of its own, and
 * the links do seeded mischief. Results against sums computed here; the bits must be the same on all ranks. */
#include "wire_world.h"

enum { SCALES = 3 };

/* ---- the jobs ---- */

static job *add(world *w, job j) {
  w->jobs = realloc(w->jobs, (size_t)(w->njobs + 1) * sizeof j);
  if (j.a.prescale == 0) j.a.prescale = 1;
  if (j.a.postscale == 0) j.a.postscale = 1;
  w->jobs[w->njobs] = j;
  return &w->jobs[w->njobs++];
}

static void add_reductions(world *w, int collective, const char *name) {
  static const int ops[] = {LWCC_SUM, LWCC_MIN, LWCC_MAX, LWCC_PRODUCT};
  static const double scales[SCALES][2] = {{1, 1}, {1, 0.5}, {2, 0.25}};
  int n = 0;
  for (int dtype = 0; dtype < LWCC_DTYPES; dtype++)
    for (int o = 0; o < 4; o++, n++)
      add(w, (job){.a = {.collective = collective, .dtype = dtype, .op = ops[o], .count = 97},
                   .algorithm = name,
                   .in_place = n % 2});
  for (int dtype = 0; dtype < LWCC_DTYPES; dtype++)
    for (int s = 1; s < SCALES && dtype != LWCC_BOOL; s++)
      add(w, (job){.a = {.collective = collective,
                         .dtype = dtype,
                         .op = LWCC_SUM,
                         .count = 61,
                         .prescale = floating(dtype) ? scales[s][0] : 1,
                         .postscale = scales[s][1]},
                   .algorithm = name,
                   .in_place = (dtype + s) % 2});
}

static void add_counts(world *w, int collective, const char *name, size_t big) {
  size_t counts[] = {0, 1, 3, (size_t)w->size - 1, 1000, 1003, big};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (int v = 0; v < 4; v++) {
      bool blocks = v / 2 && collective >= LWCC_ALLGATHER && collective <= LWCC_ALLTOALL;
      add(w, (job){.a = {.collective = collective,
                         .dtype = v % 2 ? LWCC_FLOAT32 : LWCC_UINT8,
                         .op = LWCC_SUM,
                         .root = (int)(c + (size_t)v) % w->size,
                         .count = counts[c]},
                   .algorithm = name,
                   .blocks = blocks,
                   .in_place = (v + (int)c) % 2 && collective != LWCC_REDUCESCATTER});
    }
}

static void add_algorithm(world *w, int collective, const char *name, size_t big) {
  if (collective == LWCC_ALLREDUCE || collective == LWCC_REDUCESCATTER) add_reductions(w, collective, name);
  add_counts(w, collective, name, big);
}

static void test_every_algorithm(int size, uint64_t seed, size_t big) {
  world w = {.size = size};
  for (int c = 0; c < LWCC_COLLECTIVES; c++) {
    const algo_entry *e;
    add_algorithm(&w, c, NULL, 1003); /* selected */
    for (int i = 0; (e = algo_at(c, i)) != NULL && size > 1; i++)
      if (size >= e->algo->min_ranks && (!e->algo->power_of_two || (size & (size - 1)) == 0))
        add_algorithm(&w, c, e->name, big);
  }
  run_world(&w, seed);
  free(w.jobs);
}

static void test_long_messages(int size, uint64_t seed) {
  world w = {.size = size};
  const algo_entry *e;
  for (int c = 0; c < LWCC_BARRIER; c++)
    for (int i = 0; (e = algo_at(c, i)) != NULL; i++) {
      size_t count = c == LWCC_ALLREDUCE || c == LWCC_BROADCAST ? 600011 : 300007;
      add(&w, (job){.a = {.collective = c, .dtype = LWCC_FLOAT32, .op = LWCC_SUM, .count = count, .root = size - 1},
                    .algorithm = e->name,
                    .in_place = c != LWCC_REDUCESCATTER});
      add(&w, (job){.a = {.collective = c, .dtype = LWCC_INT16, .op = LWCC_SUM, .count = count + 1, .root = 0},
                    .algorithm = e->name});
    }
  run_world(&w, seed);
  free(w.jobs);
}

static void test_shared_memory(int size) {
  world w = {.size = size};
  size_t nbytes = shm_area_bytes(size);
  if (posix_memalign(&w.area, 4096, nbytes) != 0) return;
  memset(w.area, 0, nbytes);
  add_reductions(&w, LWCC_ALLREDUCE, "shm");
  for (int c = 0; c < LWCC_BARRIER; c++) add_counts(&w, c, c % 2 ? "shm" : NULL, 70001);
  run_world(&w, 0);
  free(w.jobs);
  free(w.area);
}

/* ---- choice and refusal ---- */

static void test_refusals(void) {
  float x[4] = {0};
  exec_op *op;
  int ranks[2] = {0, 1};
  exec_team t = {.size = 2, .ranks = ranks, .cls = LINK_NAMED, .cost = {1e-5, 1e-9, 0, 0}};
  coll_args a = {.collective = LWCC_ALLREDUCE,
                 .dtype = LWCC_FLOAT32,
                 .op = LWCC_SUM,
                 .in = x,
                 .out = x,
                 .count = 4,
                 .prescale = 1,
                 .postscale = 1};
  CHECK(exec_start(&t, &a, "rign", 0, &op) == LWCC_ERR_INVALID);
  CHECK(strstr(os_error(), "rign") && strstr(os_error(), "recursive_doubling") && strstr(os_error(), "shm"), "%s",
        os_error());
  CHECK(exec_start(&t, &a, "shm", 0, &op) == LWCC_ERR_UNSUPPORTED);
  setenv("LWCC_ALGORITHM", "broadcast=binomial,allreduce=nonsense", 1);
  CHECK(exec_start(&t, &a, NULL, 0, &op) == LWCC_ERR_INVALID && strstr(os_error(), "nonsense"), "%s", os_error());
  setenv("LWCC_ALGORITHM", "broadcast=binomial,allreduce=ring", 1);
  if (exec_start(&t, &a, NULL, 0, &op) == LWCC_OK) {
    CHECK(strcmp(exec_algorithm(op), "ring") == 0, "%s", exec_algorithm(op));
    exec_free(op); /* nothing is posted before the first step */
  } else {
    CHECK(0, "%s", os_error());
  }
  unsetenv("LWCC_ALGORITHM");
  exec_team_close(&t);
}

static void *doomed(void *arg) {
  rank *k = arg;
  size_t n = 1 << 18;
  float *x = calloc(n, sizeof *x);
  int ranks[2] = {0, 1};
  char who[16];
  channel_events ev = {.arg = k, .on_control = no_control, .on_lost = no_lost};
  CHECK(channel_create(k->me, 2, 1, k->links, &ev, &k->ch) == LWCC_OK);
  k->team =
      (exec_team){.size = 2, .me = k->me, .ranks = ranks, .ch = k->ch, .cls = LINK_NAMED, .cost = {1e-5, 0, 0, 0}};
  coll_args a = {.collective = LWCC_ALLREDUCE,
                 .dtype = LWCC_FLOAT32,
                 .op = LWCC_SUM,
                 .in = x,
                 .out = x,
                 .count = n,
                 .prescale = 1,
                 .postscale = 1};
  CHECK(run(k, &a, "ring") == LWCC_ERR_PEER_LOST);
  snprintf(who, sizeof who, "rank %d", !k->me);
  CHECK(strstr(os_error(), who), "%s", os_error());
  exec_team_close(&k->team);
  free(x);
  return NULL;
}

static void test_a_lost_peer_is_named(uint64_t fault_after) {
  rank ranks[2] = {{.me = 0}, {.me = 1}};
  pthread_t threads[2];
  link_all(ranks, 2, 0, fault_after);
  for (int r = 0; r < 2; r++) pthread_create(&threads[r], NULL, doomed, &ranks[r]);
  for (int r = 0; r < 2; r++) pthread_join(threads[r], NULL);
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 20261130;
  printf("seed %" PRIu64 "\n", seed);
  test_refusals();
  for (uint64_t after = 1000; after <= 1000000; after *= 10) test_a_lost_peer_is_named(after);
  for (int p = 1; p <= (TSAN ? 5 : MAX_RANKS); p += TSAN && p > 1 ? 3 : 1)
    test_every_algorithm(p, p % 3 ? seed + (uint64_t)p : 0, p < 5 && !TSAN ? 30011 : 4099);
  for (int p = TSAN ? 3 : 2; p <= (TSAN ? 3 : 5); p += p == 3 ? 2 : 1) test_long_messages(p, p == 3 ? seed : 0);
  for (int p = 2; p <= 5; p++) test_shared_memory(p);
  return check_report();
}
