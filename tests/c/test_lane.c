/* What runs when something goes wrong: memory is refused, a rank leaves, a link breaks. The memory of a request is
 * given back as soon as the request has ended, so that the address sanitizer sees whoever still writes to it. */
#include "engines.h"

static uint64_t seed = 20240307;

enum { RANKS = 3, LENGTH = 60000 };

static uint64_t next_random(uint64_t *s) {
  *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *s >> 33;
}

/* ---- memory is refused ---- */

static void *refuse(void *user, int64_t first_dim, size_t nbytes) {
  (void)first_dim;
  *(size_t *)user = nbytes;
  return NULL;
}

typedef struct {
  asking asking;
  size_t *seen;
} refusing;

static int fill_refusing(void *arg, int index, request *r) {
  refusing *x = arg;
  TRY(fill_request(&x->asking, index, r));
  r->allocate = refuse;
  r->user = x->seen;
  return LWCC_OK;
}

static void gather(engine *e, void *arg) {
  (void)arg;
  char text[TEXT_CAP];
  for (int round = 0; round < 10; round++) {
    int32_t mine[2] = {e->rank, round};
    ask a = {.name = "g",
             .collective = LWCC_ALLGATHER,
             .dtype = LWCC_INT32,
             .op = LWCC_SUM,
             .ndim = 1,
             .shape = {2},
             .in = mine};
    size_t seen = 0;
    refusing x = {{&a, 1, e->size}, &seen};
    bool odd = e->rank == 1 && round % 2;
    lwcc_ticket t;
    CHECK(queue_submit(&e->q, 1, odd ? fill_refusing : fill_request, odd ? (void *)&x : (void *)&x.asking, &t) == 0,
          "%s", os_error());
    int st = finish_request(e, t, text);
    request *r = queue_lookup(&e->q, t);
    if (odd)
      CHECK(st == LWCC_ERR_SYSTEM && strstr(text, "no memory for 24 bytes") && seen == 24, "%d: %s", st, text);
    else
      CHECK(st == LWCC_OK && r->nbytes == 24, "rank %d: %d %s", e->rank, st, text);
    for (int i = 0; st == LWCC_OK && i < RANKS; i++)
      CHECK(((int32_t *)r->output)[2 * i] == i && ((int32_t *)r->output)[2 * i + 1] == round, "rank %d", e->rank);
    queue_release(&e->q, r);
  }
}

static void test_a_rank_that_refuses_memory_keeps_nobody_waiting(void) {
  world w;
  world_open(&w, world_of(RANKS));
  world_run(&w, gather, NULL);
  world_close(&w);
}

/* ---- a rank leaves, a link breaks ---- */

typedef struct {
  bool leaves; /* the last rank does; else its link breaks */
  const char *algorithm;
  int delay; /* requests that the last rank waits for before it leaves */
  int ok[RANKS], shutdown[RANKS], lost[RANKS];
} accident;

static int run_on_own_memory(engine *e, const char *name, int set, const char *algorithm, char *text) {
  int64_t *data = malloc(LENGTH * sizeof *data);
  int wrong = 0, p = set ? 2 : RANKS;
  for (int i = 0; i < LENGTH; i++) data[i] = e->rank + i;
  ask a = sum_of(name, data, LENGTH);
  a.set = set;
  a.algorithm = algorithm;
  int st = run_one(e, &a, text);
  for (int i = 0; i < LENGTH && st == LWCC_OK; i++) wrong += data[i] != (int64_t)p * i + p * (p - 1) / 2;
  CHECK(wrong == 0, "rank %d: %d elements are wrong", e->rank, wrong);
  free(data);
  return st;
}

/* Two requests are always pending; the last rank leaves in the middle of them. */
static void leave_in_the_middle(engine *e, const accident *x) {
  int64_t *data[2];
  lwcc_ticket t[2];
  for (int i = 0; i < x->delay; i++) run_on_own_memory(e, "before", 0, x->algorithm, NULL);
  for (int i = 0; i < 2; i++) {
    data[i] = malloc(LENGTH * sizeof *data[i]);
    for (int k = 0; k < LENGTH; k++) data[i][k] = e->rank + k;
    ask a = sum_of(i ? "second" : "first", data[i], LENGTH);
    a.algorithm = x->algorithm;
    CHECK(submit(e, &a, 1, &t[i]) == LWCC_OK, "%s", os_error());
  }
  for (int i = 0; i < x->delay; i++) sched_yield();
  engine_shutdown(e);
  for (int i = 0; i < 2; i++) {
    int st = request_status(queue_lookup(&e->q, t[i]));
    CHECK(st == LWCC_OK || st == LWCC_ERR_SHUTDOWN, "%d", st);
    free(data[i]);
  }
}

static void suffer(engine *e, void *arg) {
  accident *x = arg;
  char text[TEXT_CAP];
  static const char *const names[] = {"first", "second", "third"};
  if (x->leaves && e->rank == RANKS - 1) {
    leave_in_the_middle(e, x);
    return;
  }
  for (int i = 0; i < (x->leaves ? x->delay : 3); i++) {
    int st = run_on_own_memory(e, "before", 0, x->algorithm, text);
    CHECK(st == LWCC_OK || (!x->leaves && st == LWCC_ERR_PEER_LOST), "rank %d: %d %s", e->rank, st, text);
  }
  for (int i = 0; i < 3; i++) {
    int st = run_on_own_memory(e, names[i], 0, x->algorithm, text);
    x->ok[e->rank] += st == LWCC_OK;
    x->shutdown[e->rank] += st == LWCC_ERR_SHUTDOWN;
    x->lost[e->rank] += st == LWCC_ERR_PEER_LOST;
    CHECK(st >= 0 || strstr(text, "rank 2") || !x->leaves, "rank %d: %s", e->rank, text);
  }
  if (!x->leaves) return;
  CHECK(x->shutdown[e->rank] >= 1 && x->lost[e->rank] == 0, "rank %d: %d ok, %d shut down, %d lost", e->rank,
        x->ok[e->rank], x->shutdown[e->rank], x->lost[e->rank]);
  for (int i = 0; i < 3; i++) { /* a set without the rank that has left goes on */
    int st = run_on_own_memory(e, "after", 1, NULL, text);
    CHECK(st == LWCC_OK, "rank %d: %d %s", e->rank, st, text);
  }
}

static void run_accident(accident x, world_options o) {
  static const int two[] = {0, 1};
  world w;
  world_open(&w, o);
  for (int r = 0; r < RANKS; r++) {
    pset *ps;
    w.e[r]->spins = 100;
    CHECK(pset_create(1, two, 2, r, &ps) == LWCC_OK);
    engine_lock(w.e[r]);
    CHECK(engine_add_set(w.e[r], ps, NULL) == LWCC_OK);
    engine_unlock(w.e[r]);
  }
  world_run(&w, suffer, &x);
  for (int r = 0; r < RANKS && !x.leaves; r++)
    CHECK(x.ok[r] + x.shutdown[r] + x.lost[r] == 3, "rank %d: %d %d %d", r, x.ok[r], x.shutdown[r], x.lost[r]);
  world_close(&w);
}

static void test_a_rank_leaves_while_others_wait(void) {
  static const char *const algorithms[] = {NULL, "ring", "direct"};
  for (int i = 0; i < 4; i++) {
    world_options o = world_of(RANKS);
    o.seed = i % 2 ? seed + (uint64_t)i : 0;
    run_accident((accident){.leaves = true, .algorithm = algorithms[i % 3], .delay = i}, o);
  }
}

/* What rank 1 alone has heard of rank 2 when it leaves. */
typedef struct {
  entry_kind kind;
  int status;
  const char *expected;
} hearsay;

static void say(engine *e, const hearsay *h) {
  bytes news = {0};
  bytes_u32(&news, MESSAGE_ALL);
  bytes_u8(&news, h->kind);
  bytes_u32(&news, h->kind == ENTRY_LOST ? 2 : NOBODY);
  if (h->kind == ENTRY_LOST) bytes_text(&news, "rank 2 is gone: out of memory");
  engine_lock(e);
  order_control(e, h->kind == ENTRY_LOST ? 0 : 2, news.data, news.n);
  engine_unlock(e);
  bytes_free(&news);
}

static void follow(engine *e, void *arg) {
  const hearsay *h = arg;
  int64_t value[1] = {1};
  char text[TEXT_CAP];
  ask a = sum_of("after a leaver", value, 1);
  if (e->rank == 1) {
    say(e, h);
    engine_shutdown(e);
  }
  if (e->rank != 0) return;
  int st = run_one(e, &a, text);
  CHECK(st == h->status && strstr(text, h->expected), "rank %d: %d %s; expected %s", e->rank, st, text, h->expected);
}

static void test_who_leaves_for_another_says_for_whom(void) {
  hearsay said[] = {{ENTRY_BYE, LWCC_ERR_SHUTDOWN, "has left (lwcc shutdown) after rank 2 and"},
                    {ENTRY_LOST, LWCC_ERR_PEER_LOST, "rank 2 is gone: out of memory"}};
  for (int i = 0; i < 2; i++) {
    world w;
    world_open(&w, world_of(3));
    world_run(&w, follow, &said[i]);
    world_close(&w);
  }
}

static void test_a_link_breaks_at_any_byte(void) {
  uint64_t random = seed;
  for (int i = 0; i < 8; i++) {
    world_options o = world_of(RANKS);
    o.seed = i % 2 ? seed + (uint64_t)i : 0;
    o.fault_after = 1 + next_random(&random) % (i < 4 ? 3000 : 1500000);
    run_accident((accident){.leaves = false}, o);
  }
}

int main(int argc, char **argv) {
  if (argc > 1) seed = strtoull(argv[1], NULL, 0);
  alarm(280);
  log_set_level(LOG_ERROR);
  printf("seed %llu\n", (unsigned long long)seed);
  test_a_rank_that_refuses_memory_keeps_nobody_waiting();
  test_a_rank_leaves_while_others_wait();
  test_who_leaves_for_another_says_for_whom();
  test_a_link_breaks_at_any_byte();
  return check_report();
}
