/* Negotiation between whole engines: any order of submission, disagreement, changing shapes, groups, eviction, fusion.
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

static ask sum_of(const char *name, int64_t *data, int64_t n) {
  return (ask){.name = name,
               .collective = LWCC_ALLREDUCE,
               .dtype = LWCC_INT64,
               .op = LWCC_SUM,
               .ndim = 1,
               .shape = {n},
               .in = data,
               .out = data};
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

int main(int argc, char **argv) {
  if (argc > 1) seed = strtoull(argv[1], NULL, 0);
  alarm(280);
  log_set_level(LOG_ERROR);
  printf("seed %llu\n", (unsigned long long)seed);
  test_any_order_of_many_requests();
  return check_report();
}
