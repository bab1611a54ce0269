/* Process sets over a wire: several sets with members in common, each at work on its own. */
#include "engines.h"

static uint64_t seed = 20240301;

enum { RANKS = 4, SETS = 4, ROUNDS = 40, LENGTH = 700 };
static const int members[SETS][RANKS] = {{0, 1, 2, 3}, {1, 2}, {1, 2, 3}, {0, 2, 3}};
static const int sizes[SETS] = {4, 2, 3, 3};

static void add_sets(world *w) {
  for (int s = 1; s < SETS; s++)
    for (int r = 0; r < w->size; r++) {
      pset *ps;
      CHECK(pset_create(s, members[s], sizes[s], r, &ps) == LWCC_OK);
      engine_lock(w->e[r]);
      CHECK(engine_add_set(w->e[r], ps, NULL) == LWCC_OK);
      engine_unlock(w->e[r]);
    }
}

static uint64_t next_random(uint64_t *s) {
  *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *s >> 33;
}

static ask sum_in(int set, const char *name, int64_t *data, int64_t n) {
  ask a = sum_of(name, data, n);
  a.set = set;
  return a;
}

static int64_t term(int rank, int set, int round, int i) {
  return (int64_t)(rank + 1) * 1000003 + set * 101 + round * 7 + i;
}

static bool is_member(int set, int rank) {
  for (int i = 0; i < sizes[set]; i++)
    if (members[set][i] == rank) return true;
  return false;
}

static void check_round(int rank, int set, int round, const int64_t *data, int n) {
  int wrong = 0;
  for (int i = 0; i < n; i++) {
    int64_t sum = 0;
    for (int k = 0; k < sizes[set]; k++) sum += term(members[set][k], set, round, i);
    wrong += data[i] != sum;
  }
  CHECK(wrong == 0, "rank %d, set %d, round %d: %d of %d elements are wrong", rank, set, round, wrong, n);
}

/* One set after the other, waiting each time. */
static void one_by_one(engine *e, void *arg) {
  (void)arg;
  static _Thread_local int64_t data[LENGTH];
  for (int round = 0; round < 6; round++)
    for (int s = 0; s < SETS; s++) {
      if (!is_member(s, e->rank)) continue;
      for (int i = 0; i < LENGTH; i++) data[i] = term(e->rank, s, round, i);
      ask a = sum_in(s, "t", data, LENGTH);
      char text[TEXT_CAP];
      int st = run_one(e, &a, text);
      CHECK(st == LWCC_OK, "rank %d, set %d: %s", e->rank, s, text);
      if (st == LWCC_OK) check_round(e->rank, s, round, data, LENGTH);
    }
}

/* All sets at once, in an order of each rank's own. */
static void side_by_side(engine *e, void *arg) {
  (void)arg;
  int64_t(*data)[LENGTH] = calloc(SETS, sizeof *data);
  uint64_t random = seed + (uint64_t)e->rank;
  for (int round = 0; round < ROUNDS; round++) {
    lwcc_ticket tickets[SETS] = {0};
    int first = (int)(next_random(&random) % SETS), n = 1 + (round * 97) % LENGTH;
    for (int k = 0; k < SETS; k++) {
      int s = (first + k) % SETS;
      if (!is_member(s, e->rank)) continue;
      for (int i = 0; i < n; i++) data[s][i] = term(e->rank, s, round, i);
      ask a = sum_in(s, "t", data[s], n);
      CHECK(submit(e, &a, 1, &tickets[s]) == LWCC_OK, "%s", os_error());
    }
    for (int s = 0; s < SETS; s++) {
      char text[TEXT_CAP];
      if (!tickets[s]) continue;
      int st = finish_request(e, tickets[s], text);
      CHECK(st == LWCC_OK, "rank %d, set %d, round %d: %s", e->rank, s, round, text);
      if (st == LWCC_OK) check_round(e->rank, s, round, data[s], n);
      queue_release(&e->q, queue_lookup(&e->q, tickets[s]));
    }
  }
  free(data);
}

static void with_sets(void (*program)(engine *e, void *arg), uint64_t mischief) {
  world w;
  world_options o = world_of(RANKS);
  o.seed = mischief;
  world_open(&w, o);
  add_sets(&w);
  world_run(&w, program, NULL);
  world_close(&w);
}

int main(int argc, char **argv) {
  if (argc > 1) seed = strtoull(argv[1], NULL, 10);
  printf("seed %llu\n", (unsigned long long)seed);
  with_sets(one_by_one, 0);
  with_sets(side_by_side, 0);
  with_sets(side_by_side, seed);
  return check_report();
}
