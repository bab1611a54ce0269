/* Ranks that have joined take part with neutral elements, in every collective, with groups, fusion and the cache. */
#include "engines.h"

enum { EPOCHS = 6, STEPS = 7, GROUP = 3 };

static uint64_t seed = 20240311;

static uint32_t dice(uint64_t a, uint64_t b, uint32_t n) {
  uint64_t z = seed + a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xd1342543de82ef95);
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return (uint32_t)((z >> 33) % n);
}

static int fill_join(void *arg, int index, request *r) {
  (void)arg, (void)index;
  r->sig = (signature){.collective = JOIN, .op = LWCC_SUM, .prescale = 1, .postscale = 1};
  snprintf(r->name, sizeof r->name, "%s", JOIN_NAME);
  r->set = 0;
  r->input = NULL;
  r->output = NULL;
  return LWCC_OK;
}

static lwcc_ticket start_join(engine *e) {
  lwcc_ticket t;
  if (queue_submit(&e->q, 1, fill_join, NULL, &t) < 0) abort();
  engine_kick(e);
  return t;
}

/* The last rank to join, or a failure. */
static int join_all(engine *e) {
  char name[NAME_CAP];
  lwcc_ticket t = start_join(e);
  engine_lock(e);
  CHECK(queue_look(&e->q, 0, name) == 0, "waiting for the others is no stall");
  engine_unlock(e);
  int st = finish_request(e, t, NULL);
  request *r = queue_lookup(&e->q, t);
  int last = st < 0 ? st : (int)r->first_dim;
  queue_release(&e->q, r);
  return last;
}

static int steps_of(int rank, int epoch) {
  return (int)dice((uint64_t)rank, (uint64_t)epoch, STEPS);
}

/* One step of one epoch: sums and averages over the ranks that still have data, alone and in a group. */
static void one_step(engine *e, int epoch, int step) {
  int64_t total = 0, n = 0;
  char names[GROUP + 1][32];
  float v[GROUP + 1][2];
  ask asks[GROUP + 1];
  lwcc_ticket t[GROUP + 1];
  for (int r = 0; r < e->size; r++)
    if (steps_of(r, epoch) > step) total += r + 1, n++;
  for (int i = 0; i <= GROUP; i++) {
    v[i][0] = (float)(e->rank + 1), v[i][1] = (float)(i * (e->rank + 1));
    snprintf(names[i], sizeof names[i], "%s%d.%d", step % 2 ? "a" : "b", i, step % 3);
    asks[i] = reduce_of(names[i], LWCC_FLOAT32, i % 2 ? LWCC_SUM : LWCC_AVERAGE, v[i], 2);
  }
  CHECK(submit(e, &asks[GROUP], 1, &t[GROUP]) == LWCC_OK && submit(e, asks, GROUP, t) == LWCC_OK, "%s", os_error());
  for (int i = 0; i <= GROUP; i++) {
    char text[TEXT_CAP];
    int st = finish_request(e, t[i], text);
    float whole = (float)total / (float)(i % 2 ? 1 : n);
    CHECK(st == LWCC_OK && v[i][0] > whole * 0.9999f && v[i][0] < whole * 1.0001f, "rank %d, step %d: %g, not %g: %s",
          e->rank, step, (double)v[i][0], (double)whole, text);
    request *r = queue_lookup(&e->q, t[i]);
    CHECK(r->contributors == n, "%d contributors, not %d", (int)r->contributors, (int)n);
    queue_release(&e->q, r);
  }
}

static void uneven(engine *e, void *arg) {
  (void)arg;
  for (int epoch = 0; epoch < EPOCHS; epoch++) {
    int mine = steps_of(e->rank, epoch), most = 0;
    for (int step = 0; step < mine; step++) one_step(e, epoch, step);
    int64_t last = join_all(e), same[2] = {last, -last};
    for (int r = 0; r < e->size; r++) most = steps_of(r, epoch) > most ? steps_of(r, epoch) : most;
    CHECK(last >= 0 && steps_of((int)last, epoch) == most, "rank %d joined last, after %d steps of %d", (int)last,
          steps_of((int)last, epoch), most);
    ask a = reduce_of("last", LWCC_INT64, LWCC_MAX, same, 2);
    CHECK(run_one(e, &a, NULL) == LWCC_OK && same[0] == last && same[1] == -last, "the ranks disagree about the last");
  }
}

static void test_uneven_data(void) {
  for (int size = 1; size <= 5; size++) {
    for (int calm = 0; calm < 2; calm++) {
      world w;
      world_options o = world_of(size);
      if (!calm) o.seed = seed + (uint64_t)size;
      o.limits.capacity = calm ? 4096 : 2; /* evictions on the way */
      world_open(&w, o);
      world_run(&w, uneven, NULL);
      world_close(&w);
    }
  }
}

/* ---- every collective, before any other ---- */

static void check_reductions(engine *e, int64_t n) {
  for (int dtype = 0; dtype < LWCC_DTYPES; dtype++) {
    if (dtype == LWCC_BOOL || dtype == LWCC_FLOAT16 || dtype == LWCC_BFLOAT16) continue;
    for (int op = LWCC_AVERAGE; op <= LWCC_PRODUCT; op++) {
      if (op == LWCC_ADASUM) continue;
      union {
        uint8_t bytes[64];
        int8_t i8;
        int64_t i64;
        float f32;
        double f64;
      } v = {{0}};
      char name[32];
      /* every contributor has 2; a joined rank's zeros, or anything else of its own, would show */
      if (dtype == LWCC_FLOAT32)
        v.f32 = 2;
      else if (dtype == LWCC_FLOAT64)
        v.f64 = 2;
      else
        v.i8 = 2;
      snprintf(name, sizeof name, "t%d.%d", dtype, op);
      ask a = reduce_of(name, dtype, op, &v, 1);
      int st = run_one(e, &a, NULL);
      double got = dtype == LWCC_FLOAT32 ? (double)v.f32 : dtype == LWCC_FLOAT64 ? v.f64 : v.i8;
      double expected = op == LWCC_SUM ? 2.0 * (double)n : op == LWCC_PRODUCT ? (double)(1 << n) : 2;
      CHECK(st == LWCC_OK && got == expected, "%s %s of %d ranks: %g, not %g", dtype_name(dtype), op_name(op), (int)n,
            got, expected);
    }
  }
}

/* Rank index r of the active ones gives r + 1 rows; the last rank of the world has joined. */
static void check_moves(engine *e, int64_t n) {
  int64_t in[MOST * MOST], out[MOST * MOST] = {0}, splits[MOST] = {0};
  for (int i = 0; i < MOST * MOST; i++) in[i] = e->rank;
  lwcc_ticket t;
  ask gather = {
      .name = "g", .collective = LWCC_ALLGATHER, .dtype = LWCC_INT64, .ndim = 1, .shape = {e->rank + 1}, .in = in};
  CHECK(submit(e, &gather, 1, &t) == LWCC_OK && finish_request(e, t, NULL) == LWCC_OK, "allgather: %s", os_error());
  request *r = queue_lookup(&e->q, t);
  CHECK(r->first_dim == n * (n + 1) / 2 && r->rows[n] == 0, "%d rows", (int)r->first_dim);
  int64_t at = 0;
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = 0; k <= i; k++) CHECK(((int64_t *)r->output)[at++] == i, "allgather: a wrong row");
  queue_release(&e->q, r);
  for (int i = 0; i < e->size; i++) splits[i] = i + 1; /* also rows for the one that has joined: lost */
  ask all = {.name = "a",
             .collective = LWCC_ALLTOALL,
             .dtype = LWCC_INT64,
             .ndim = 1,
             .shape = {(int64_t)e->size * (e->size + 1) / 2},
             .in = in,
             .splits = splits};
  CHECK(submit(e, &all, 1, &t) == LWCC_OK && finish_request(e, t, NULL) == LWCC_OK, "alltoall: %s", os_error());
  r = queue_lookup(&e->q, t);
  CHECK(r->first_dim == n * (e->rank + 1) && r->rows[n] == 0, "%d rows", (int)r->first_dim);
  queue_release(&e->q, r);
  ask scatter = {.name = "s",
                 .collective = LWCC_REDUCESCATTER,
                 .dtype = LWCC_INT64,
                 .op = LWCC_SUM,
                 .ndim = 1,
                 .shape = {e->size},
                 .in = in};
  CHECK(submit(e, &scatter, 1, &t) == LWCC_OK && finish_request(e, t, NULL) == LWCC_OK, "scatter: %s", os_error());
  r = queue_lookup(&e->q, t);
  CHECK(r->first_dim == 1 && *(int64_t *)r->output == n * (n - 1) / 2, "reducescatter: a wrong sum");
  queue_release(&e->q, r);
  ask bcast = {
      .name = "b", .collective = LWCC_BROADCAST, .dtype = LWCC_INT64, .ndim = 1, .shape = {3}, .in = in, .out = out};
  CHECK(run_one(e, &bcast, NULL) == LWCC_OK && out[2] == 0, "broadcast");
  ask barrier = {.name = "y", .collective = LWCC_BARRIER, .dtype = LWCC_UINT8};
  CHECK(run_one(e, &barrier, NULL) == LWCC_OK, "barrier");
}

static void check_refusals(engine *e) {
  char text[TEXT_CAP];
  int64_t v[2] = {0, 0};
  ask bcast = {.name = "from the last",
               .collective = LWCC_BROADCAST,
               .dtype = LWCC_INT64,
               .root = e->size - 1,
               .ndim = 1,
               .shape = {2},
               .in = v,
               .out = v};
  int st = run_one(e, &bcast, text);
  CHECK(st == LWCC_ERR_MISMATCH && strstr(text, "has joined"), "%d %s", st, text);
  ask set = reduce_of("lwcc.set_add.0", LWCC_INT64, LWCC_MAX, v, 1);
  st = run_one(e, &set, text);
  CHECK(st == LWCC_ERR_MISMATCH && strstr(text, "process sets"), "%d %s", st, text);
  ask odd = reduce_of("odd", e->rank ? LWCC_INT64 : LWCC_UINT64, LWCC_SUM, v, 1);
  st = run_one(e, &odd, text);
  CHECK(st == (e->size > 2 ? LWCC_ERR_MISMATCH : LWCC_OK), "%d %s", st, text);
}

static void joined_first(engine *e, void *arg) {
  (void)arg;
  for (int again = 0; again < 2; again++) {
    if (e->rank < e->size - 1) {
      check_reductions(e, e->size - 1);
      check_moves(e, e->size - 1);
      check_refusals(e);
    }
    CHECK(join_all(e) >= 0, "rank %d: join failed", e->rank);
    check_reductions(e, e->size);
  }
}

static void test_a_rank_that_joins_before_anything_else(void) {
  for (int size = 2; size <= 4; size++) {
    world w;
    world_open(&w, world_of(size));
    world_run(&w, joined_first, NULL);
    world_close(&w);
  }
}

/* ---- what a rank asks for while it has joined ---- */

/* The last rank takes part again, under names that the others use at that moment: it meets them at some repetition. */
static void ask_after_join(engine *e, void *arg) {
  bool last = e->rank == e->size - 1;
  (void)arg;
  for (int i = 0; i < 40; i++) {
    int64_t v = 0;
    int st = LWCC_OK;
    lwcc_ticket join = last ? start_join(e) : 0;
    while (st == LWCC_OK && v != e->size) {
      v = 1;
      ask a = reduce_of(i % 2 ? "x" : "y", LWCC_INT64, LWCC_SUM, &v, 1);
      st = run_one(e, &a, NULL);
      CHECK(st == LWCC_OK && (v == e->size || (v == e->size - 1 && !last)), "rank %d: %d", e->rank, (int)v);
    }
    if (!join) join = start_join(e);
    CHECK(finish_request(e, join, NULL) == LWCC_OK, "join");
    queue_release(&e->q, queue_lookup(&e->q, join));
  }
}

static void leave_instead(engine *e, void *arg) {
  (void)arg;
  if (e->rank == e->size - 1) {
    engine_shutdown(e);
    return;
  }
  CHECK(join_all(e) == LWCC_ERR_SHUTDOWN, "a join without a rank that has left");
}

/* The others may work for much longer than the limit of a stalled request: joining is no stall. */
static void work_on(engine *e, void *arg) {
  const uint64_t *until = arg;
  while (e->rank == 0 && clock_ns() < *until) {
    int64_t v = 1;
    ask a = reduce_of("long", LWCC_INT64, LWCC_SUM, &v, 1);
    CHECK(run_one(e, &a, NULL) == LWCC_OK && v == 1, "%d", (int)v);
  }
  CHECK(join_all(e) == 0, "rank %d: the join has failed", e->rank);
}

static void test_a_join_waits_for_as_long_as_the_others_work(void) {
  world w;
  world_options o = world_of(2);
  uint64_t until = clock_ns() + UINT64_C(4000000000);
  o.limits.abort_ns = UINT64_C(600000000);
  world_open(&w, o);
  world_run(&w, work_on, &until);
  world_close(&w);
}

int main(int argc, char **argv) {
  if (argc > 1) seed = strtoull(argv[1], NULL, 0);
  alarm(200);
  printf("seed %llu\n", (unsigned long long)seed);
  log_set_level(LOG_ERROR);
  test_uneven_data();
  test_a_rank_that_joins_before_anything_else();
  test_a_join_waits_for_as_long_as_the_others_work();
  for (int size = 2; size <= 4; size++) {
    world w;
    world_options o = world_of(size);
    o.seed = seed;
    world_open(&w, o);
    world_run(&w, ask_after_join, NULL);
    world_run(&w, leave_instead, NULL);
    world_close(&w);
  }
  return check_report();
}
