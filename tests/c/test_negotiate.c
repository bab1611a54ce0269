/* Negotiation between whole engines: any order of submission, disagreement, changing shapes, eviction, fusion.
 */
#include "engines.h"

static uint64_t seed = 20240229;
static const int sizes[] = {1, 2, 3, 5};
enum { SIZES = 4, MANY = 300, WIDTH = 5 };

static uint64_t next_random(uint64_t *s) {
  *s += UINT64_C(0x9e3779b97f4a7c15);
  uint64_t z = (*s ^ *s >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  return z ^ z >> 27;
}

static void shuffle(int *order, int n, uint64_t *s) {
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n - 1; i > 0; i--) {
    int j = (int)(next_random(s) % (uint64_t)(i + 1)), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
}

static void check_sum(engine *e, const char *name) {
  char text[TEXT_CAP];
  int64_t v[2] = {e->rank + 1, 10 * e->rank};
  ask a = sum_of(name, v, 2);
  int st = run_one(e, &a, text);
  int64_t p = e->size;
  CHECK(st == LWCC_OK && v[0] == p * (p + 1) / 2 && v[1] == 5 * p * (p - 1), "rank %d of %d: \"%s\": %d %s", e->rank,
        e->size, name, st, text);
}

static lwcc_stats stats_of(engine *e) {
  engine_lock(e);
  lwcc_stats s = e->stats;
  engine_unlock(e);
  return s;
}

/* ---- any order ---- */

static void submit_many(engine *e, int64_t (*data)[WIDTH], uint64_t *s) {
  int order[MANY];
  lwcc_ticket t[MANY];
  char name[32];
  shuffle(order, MANY, s);
  for (int i = 0; i < MANY; i++) {
    int k = order[i];
    for (int j = 0; j < WIDTH; j++) data[k][j] = (int64_t)(e->rank + 1) * (k * 100 + j);
    snprintf(name, sizeof name, "tensor.%d", k);
    ask a = sum_of(name, data[k], 1 + k % WIDTH);
    CHECK(submit(e, &a, 1, &t[k]) == LWCC_OK, "%s", os_error());
  }
  shuffle(order, MANY, s);
  for (int i = 0; i < MANY; i++) {
    char text[TEXT_CAP];
    int st = finish_request(e, t[order[i]], text);
    CHECK(st == LWCC_OK, "rank %d tensor.%d: %d %s", e->rank, order[i], st, text);
    queue_release(&e->q, queue_lookup(&e->q, t[order[i]]));
  }
}

static void many(engine *e, void *arg) {
  (void)arg;
  int64_t(*data)[WIDTH] = malloc(MANY * sizeof *data), ranks = (int64_t)e->size * (e->size + 1) / 2;
  uint64_t s = seed + (uint64_t)(e->rank * 97);
  for (int pass = 0; pass < 2; pass++) {
    submit_many(e, data, &s);
    int wrong = 0;
    for (int k = 0; k < MANY; k++)
      for (int j = 0; j < WIDTH; j++) wrong += data[k][j] != (j <= k % WIDTH ? ranks : e->rank + 1) * (k * 100 + j);
    CHECK(wrong == 0, "rank %d of %d, pass %d: %d wrong elements", e->rank, e->size, pass, wrong);
    lwcc_stats st = stats_of(e);
    CHECK(st.cache_hits == (uint64_t)pass * MANY && st.negotiated == MANY, "pass %d: hits %llu, negotiated %llu", pass,
          (unsigned long long)st.cache_hits, (unsigned long long)st.negotiated);
    CHECK(st.requests == (uint64_t)(pass + 1) * MANY && st.completed == st.requests && st.failed == 0, "rank %d",
          e->rank);
  }
  free(data);
  check_sum(e, "after");
}

static void test_any_order_of_many_requests(void) {
  for (int i = 0; i < SIZES * 2; i++) {
    world w;
    world_options o = world_of(sizes[i % SIZES]);
    o.seed = i < SIZES ? 0 : seed;
    world_open(&w, o);
    world_run(&w, many, NULL);
    world_close(&w);
  }
}

/* ---- disagreement ---- */

static const struct {
  const char *what, *odd, *usual; /* what the text must say of the odd rank, and of the others */
} mismatches[] = {{"dtype", "int32[6]", "int64[6]"},
                  {"shape", "int64[5]", "int64[6]"},
                  {"dims", "int64[2, 3]", "int64[6]"},
                  {"op", "op Max", "op Sum"},
                  {"root", "root 0", "root 1"}};
enum { MISMATCHES = 5 };

static ask mismatching(int kind, const char *name, int64_t *data, bool odd) {
  ask a = sum_of(name, data, 6);
  if (kind == 4) a.collective = LWCC_BROADCAST, a.root = 1;
  if (!odd) return a;
  if (kind == 0) a.dtype = LWCC_INT32;
  if (kind == 1) a.shape[0] = 5;
  if (kind == 2) a.ndim = 2, a.shape[0] = 2, a.shape[1] = 3;
  if (kind == 3) a.op = LWCC_MAX;
  if (kind == 4) a.root = 0;
  return a;
}

static void disagree(engine *e, void *arg) {
  const int *odd = arg;
  char name[32], text[TEXT_CAP], who[16];
  for (int pass = 0; pass < 2; pass++) { /* the second time the name is known from an agreement in between */
    for (int k = 0; k < MISMATCHES; k++) {
      int64_t data[6] = {0};
      snprintf(name, sizeof name, "clash.%s", mismatches[k].what);
      ask a = mismatching(k, name, data, e->rank == *odd), good = mismatching(k, name, data, false);
      int st = run_one(e, &a, text);
      CHECK(st == LWCC_ERR_MISMATCH, "rank %d: %s: %d %s", e->rank, name, st, text);
      CHECK(strstr(text, name) && strstr(text, mismatches[k].odd) && strstr(text, mismatches[k].usual), "%s", text);
      snprintf(who, sizeof who, "rank %d:", *odd);
      CHECK(strstr(text, who), "%s does not name rank %d", text, *odd);
      st = run_one(e, &good, text);
      CHECK(st == LWCC_OK, "rank %d: %s after the failure: %d %s", e->rank, name, st, text);
      check_sum(e, "next");
    }
  }
}

static void test_disagreement_fails_on_every_rank_and_the_job_goes_on(void) {
  for (int i = 1; i < SIZES; i++) {
    for (int odd = 0; odd < sizes[i]; odd += sizes[i] - 1) {
      world w;
      world_open(&w, world_of(sizes[i]));
      world_run(&w, disagree, &odd);
      world_close(&w);
    }
  }
}

/* ---- shapes that change, and outputs whose size depends on all ranks ---- */

static void check_allgather(engine *e, int round) {
  int64_t in[8], rows = (e->rank + round) % 4, at = 0, wrong = 0;
  for (int i = 0; i < 8; i++) in[i] = 100 * e->rank + i + round;
  ask a = {
      .name = "gather", .collective = LWCC_ALLGATHER, .dtype = LWCC_INT64, .ndim = 2, .shape = {rows, 2}, .in = in};
  lwcc_ticket t;
  CHECK(submit(e, &a, 1, &t) == LWCC_OK, "%s", os_error());
  CHECK(finish_request(e, t, NULL) == LWCC_OK, "rank %d round %d", e->rank, round);
  request *r = queue_lookup(&e->q, t);
  const int64_t *out = r->output;
  for (int from = 0; from < e->size; from++) {
    int64_t n = (from + round) % 4;
    wrong += r->nrows != e->size || r->rows[from] != n;
    for (int i = 0; i < 2 * n; i++) wrong += out[at++] != 100 * from + i + round;
  }
  CHECK(wrong == 0 && r->first_dim * 2 == at && r->nbytes == (size_t)at * 8, "rank %d round %d: %d wrong", e->rank,
        round, (int)wrong);
  queue_release(&e->q, r);
}

/* Rank s sends (s + d + round) % 3 rows to rank d. */
static void check_alltoall(engine *e, int round) {
  int64_t in[3 * MOST], splits[MOST], n = 0, at = 0, wrong = 0;
  for (int d = 0; d < e->size; d++) {
    splits[d] = (e->rank + d + round) % 3;
    for (int i = 0; i < splits[d]; i++) in[n++] = 1000 * e->rank + 10 * d + i;
  }
  ask a = {.name = "exchange",
           .collective = LWCC_ALLTOALL,
           .dtype = LWCC_INT64,
           .ndim = 1,
           .shape = {n},
           .splits = splits,
           .in = in};
  lwcc_ticket t;
  CHECK(submit(e, &a, 1, &t) == LWCC_OK, "%s", os_error());
  CHECK(finish_request(e, t, NULL) == LWCC_OK, "rank %d round %d", e->rank, round);
  request *r = queue_lookup(&e->q, t);
  const int64_t *out = r->output;
  for (int from = 0; from < e->size; from++) {
    int64_t k = (from + e->rank + round) % 3;
    wrong += r->rows[from] != k;
    for (int i = 0; i < k; i++) wrong += out[at++] != 1000 * from + 10 * e->rank + i;
  }
  CHECK(wrong == 0 && r->first_dim == at, "rank %d round %d: %d wrong", e->rank, round, (int)wrong);
  queue_release(&e->q, r);
}

static void change(engine *e, void *arg) {
  (void)arg;
  static const int64_t counts[] = {3, 3, 7, 1, 0, 7, 7};
  for (int i = 0; i < 7; i++) {
    int64_t v[8];
    char text[TEXT_CAP];
    for (int j = 0; j < 8; j++) v[j] = e->rank + j;
    ask a = sum_of("grows", v, counts[i]);
    int st = run_one(e, &a, text), wrong = 0;
    int64_t p = e->size;
    for (int j = 0; j < 8; j++) wrong += v[j] != (j < counts[i] ? p * (p - 1) / 2 + j * p : e->rank + j);
    CHECK(st == LWCC_OK && !wrong, "rank %d, %d: %d %s", e->rank, i, st, text);
  }
  CHECK(stats_of(e).cache_hits == 2, "equal neighbours: %d", (int)stats_of(e).cache_hits);
  for (int round = 0; round < 12; round++) {
    check_allgather(e, round / 2); /* each shape twice: agreed anew, then remembered */
    check_alltoall(e, round / 2);
  }
  CHECK(stats_of(e).cache_hits == 14, "%d", (int)stats_of(e).cache_hits);
}

static void test_shapes_and_splits_may_change(void) {
  for (int i = 0; i < SIZES; i++) {
    world w;
    world_options o = world_of(sizes[i]);
    o.seed = seed;
    world_open(&w, o);
    world_run(&w, change, NULL);
    world_close(&w);
  }
}

/* ---- limits ---- */

static void few_remembered(engine *e, void *arg) {
  (void)arg;
  uint64_t s = seed + (uint64_t)e->rank;
  int order[12];
  char name[12][32], text[TEXT_CAP];
  int64_t v[12];
  lwcc_ticket t[12];
  for (int round = 0; round < 30; round++) {
    shuffle(order, 12, &s);
    for (int i = 0; i < 12; i++) {
      int k = order[i];
      v[k] = k + e->rank;
      snprintf(name[k], sizeof name[k], "n%d", k);
      ask a = sum_of(name[k], &v[k], 1);
      CHECK(submit(e, &a, 1, &t[k]) == LWCC_OK, "%s", os_error());
    }
    for (int k = 0; k < 12; k++) {
      int st = finish_request(e, t[k], text), p = e->size;
      CHECK(st == LWCC_OK && v[k] == k * p + p * (p - 1) / 2, "rank %d round %d n%d: %d %s", e->rank, round, k, st,
            text);
      queue_release(&e->q, queue_lookup(&e->q, t[k]));
    }
  }
  engine_lock(e);
  size_t known = engine_set(e, 0)->by_name.count;
  engine_unlock(e);
  CHECK(known <= 2 + 12, "%zu answers are remembered", known);
}

static void test_little_room_for_answers(void) {
  for (int i = 0; i < SIZES; i++) {
    world w;
    world_options o = world_of(sizes[i]);
    o.limits.capacity = 2;
    world_open(&w, o);
    world_run(&w, few_remembered, NULL);
    world_close(&w);
  }
}

typedef struct {
  pthread_barrier_t all;
  uint64_t fusion_nbytes;
} gate;

/* Rank 0 asks for the first name and alone; the other requests gather until the last rank has asked. */
static void fuse(engine *e, void *arg) {
  gate *g = arg;
  char name[16], text[TEXT_CAP];
  int64_t v[20];
  lwcc_ticket t[20], twice;
  for (int i = 0; i < 20; i++) {
    v[i] = i + e->rank;
    snprintf(name, sizeof name, "f%d", i);
    ask a = sum_of(name, &v[i], 1);
    if (e->rank == 1 && i == 0) pthread_barrier_wait(&g->all);
    CHECK(submit(e, &a, 1, &t[i]) == LWCC_OK, "%s", os_error());
    if (e->rank != 0 || i != 0) continue;
    CHECK(submit(e, &a, 1, &twice) == LWCC_ERR_INVALID && strstr(os_error(), "\"f0\""), "%s", os_error());
    pthread_barrier_wait(&g->all);
  }
  for (int i = 0; i < 20; i++) {
    int st = finish_request(e, t[i], text), p = e->size;
    CHECK(st == LWCC_OK && v[i] == i * p + p * (p - 1) / 2, "rank %d f%d: %d %s", e->rank, i, st, text);
    queue_release(&e->q, queue_lookup(&e->q, t[i]));
  }
  lwcc_stats s = stats_of(e);
  CHECK(g->fusion_nbytes || (s.fused == 0 && s.buckets == 20), "fused %d", (int)s.fused);
  CHECK(s.buckets <= 20 && s.completed == 20, "%d buckets", (int)s.buckets);
  CHECK(s.fused == 0 || s.buckets < 20, "%d fused in %d buckets", (int)s.fused, (int)s.buckets);
}

static void test_fusion_and_a_name_that_is_pending(void) {
  for (int i = 0; i < 6; i++) {
    world w;
    world_options o = world_of(sizes[1 + i % 3]);
    gate g = {.fusion_nbytes = i < 3 ? 0 : 1 << 20};
    pthread_barrier_init(&g.all, NULL, 2);
    o.limits.fusion_nbytes = g.fusion_nbytes;
    world_open(&w, o);
    world_run(&w, fuse, &g);
    world_close(&w);
    pthread_barrier_destroy(&g.all);
  }
}

int main(int argc, char **argv) {
  if (argc > 1) seed = strtoull(argv[1], NULL, 0);
  alarm(280);
  log_set_level(LOG_ERROR);
  printf("seed %llu\n", (unsigned long long)seed);
  test_any_order_of_many_requests();
  test_disagreement_fails_on_every_rank_and_the_job_goes_on();
  test_shapes_and_splits_may_change();
  test_little_room_for_answers();
  test_fusion_and_a_name_that_is_pending();
  return check_report();
}
