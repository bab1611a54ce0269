/* The builder's verbs and bounds, the text picture, plans as bytes, what the proof says, and the C calls of lwcc.h. */
#include "check.h"
#include "os/status.h"
#include "plan/codec.h"

/* ---- the builder ---- */

static lwcc_plan *fresh(int collective, int rank, int size, int nchunks) {
  lwcc_plan *p = NULL;
  CHECK(plan_new(collective, rank, size, nchunks, &p) == LWCC_OK, "%s", os_error());
  return p;
}

typedef void (*message_verb)(lwcc_plan *, int peer, int chunk, int n);
static const struct {
  const char *name;
  message_verb call;
  int wraps;
} verbs[] = {
    {"send", lwcc_plan_send, 0},
    {"recv_copy", lwcc_plan_recv_copy, 0},
    {"recv_reduce", lwcc_plan_recv_reduce, 0},
    {"send", lwcc_plan_send_range, 1},
    {"recv_copy", lwcc_plan_recv_copy_range, 1},
    {"recv_reduce", lwcc_plan_recv_reduce_range, 1},
};

/* 1: the verb with these arguments is taken. A refusal must name verb, rank, step and chunk. */
static int takes(int verb, int peer, int chunk, int n) {
  lwcc_plan *p = fresh(LWCC_ALLREDUCE, 1, 3, 4);
  lwcc_plan_send(p, 0, 0, 1);
  verbs[verb].call(p, peer, chunk, n);
  int status = plan_finish(p);
  char expected[64];
  snprintf(expected, sizeof expected, "%s peer %d, chunk", verbs[verb].name, peer);
  if (status < 0)
    CHECK(status == LWCC_ERR_PLAN && strstr(os_error(), expected) && strstr(os_error(), "rank 1 of 3, step 1"), "%s",
          os_error());
  plan_free(p);
  return status == LWCC_OK;
}

static void test_message_verbs_check_their_bounds(void) {
  for (int v = 0; v < 6; v++) {
    int wraps = verbs[v].wraps;
    CHECK(takes(v, 0, 0, 4) && takes(v, 2, 3, 1), "%s", os_error());
    CHECK(!takes(v, 1, 0, 1) && !takes(v, -1, 0, 1) && !takes(v, 3, 0, 1), "peer of %s", verbs[v].name);
    CHECK(!takes(v, 0, 0, 0) && !takes(v, 0, 0, -1) && !takes(v, 0, 0, 5), "n of %s", verbs[v].name);
    CHECK(!takes(v, 0, 0, 2147483647) && !takes(v, 2147483647, 0, 1), "largest int, %s", verbs[v].name);
    CHECK(takes(v, 0, 3, 2) == wraps && takes(v, 0, -1, 1) == wraps && takes(v, 0, 4, 1) == wraps, "%s wraps: %d",
          verbs[v].name, wraps);
  }
}

static void test_local_verbs_check_their_bounds(void) {
  static const int bad[][2] = {{-1, 0}, {4, 0}, {0, -1}, {0, 4}};
  for (int i = 0; i < 4; i++) {
    for (int reduce = 0; reduce < 2; reduce++) {
      lwcc_plan *p = fresh(LWCC_ALLREDUCE, 0, 2, 4);
      (reduce ? lwcc_plan_reduce : lwcc_plan_copy)(p, bad[i][0], bad[i][1]);
      CHECK(plan_finish(p) == LWCC_ERR_PLAN, "dst %d, src %d", bad[i][0], bad[i][1]);
      plan_free(p);
    }
  }
  static const int folds[][3] = {{0, 0, 0},  {3, 1, 0}, {4, 0, 1},
                                 {-1, 0, 1}, {0, 2, 1}, {0, -1, 1}}; /* chunk, owner, bad */
  for (int i = 0; i < 6; i++) {
    lwcc_plan *p = fresh(LWCC_ALLREDUCE, 0, 2, 4);
    lwcc_plan_fold(p, folds[i][0], folds[i][1]);
    CHECK((plan_finish(p) < 0) == folds[i][2], "fold chunk %d owner %d", folds[i][0], folds[i][1]);
    plan_free(p);
  }
}

static void test_a_barrier_has_only_empty_messages(void) {
  lwcc_plan *p = fresh(LWCC_BARRIER, 0, 2, 2);
  lwcc_plan_send(p, 1, 0, 0);
  lwcc_plan_recv_copy(p, 1, 0, 0);
  CHECK(plan_finish(p) == LWCC_OK, "%s", os_error());
  lwcc_plan_send(p, 1, 0, 1);
  CHECK(plan_finish(p) == LWCC_ERR_PLAN, "a chunk in a barrier");
  plan_free(p);
  p = fresh(LWCC_BARRIER, 0, 2, 2);
  lwcc_plan_copy(p, 0, 0);
  CHECK(plan_finish(p) == LWCC_ERR_PLAN, "a copy in a barrier");
  plan_free(p);
}

static void test_the_first_mistake_is_kept(void) {
  lwcc_plan *p = fresh(LWCC_ALLREDUCE, 0, 2, 2);
  lwcc_plan_send(p, 7, 0, 1);
  lwcc_plan_send(p, 1, 9, 1);
  lwcc_plan_send(p, 1, 0, 1);
  lwcc_plan_end_round(p);
  CHECK(plan_finish(p) == LWCC_ERR_PLAN && strstr(os_error(), "peer 7") && p->nsteps == 0, "%s", os_error());
  const lwcc_plan *two[2] = {p, p};
  CHECK(plan_verify(two, 2) == LWCC_ERR_PLAN && strstr(os_error(), "peer 7"), "%s", os_error());
  plan_free(p);
}

static void test_rounds_and_wrapping(void) {
  lwcc_plan *p = fresh(LWCC_ALLREDUCE, 0, 3, 5);
  lwcc_plan_end_round(p); /* empty: none */
  lwcc_plan_send_range(p, 1, 8, 4);
  lwcc_plan_end_round(p);
  lwcc_plan_end_round(p);
  lwcc_plan_recv_copy(p, 2, 0, 1);
  CHECK(plan_finish(p) == LWCC_OK, "%s", os_error());
  CHECK(p->nrounds == 2 && p->nsteps == 3 && p->round_end[0] == 2 && p->round_end[1] == 3, "%d rounds", p->nrounds);
  CHECK(p->steps[0].chunk == 3 && p->steps[0].n == 2 && p->steps[1].chunk == 0 && p->steps[1].n == 2, "cut at 5");
  plan_free(p);
  CHECK(lwcc_mod(-1, 5) == 4 && lwcc_mod(5, 5) == 0 && lwcc_mod(-5, 5) == 0 && lwcc_mod(7, 5) == 2, "lwcc_mod");
}

static void test_headers_are_checked(void) {
  static const int bad[][4] = {{6, 0, 2, 2}, {-1, 0, 2, 2},      {0, 2, 2, 2},      {0, -1, 2, 2},
                               {0, 0, 0, 1}, {0, 0, 2, 0},       {2, 0, 2, 3},      {3, 0, 2, 1},
                               {4, 0, 2, 1}, {0, 0, 2, 1 << 30}, {0, 0, 1 << 30, 2}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    lwcc_plan *p = NULL;
    CHECK(plan_new(bad[i][0], bad[i][1], bad[i][2], bad[i][3], &p) == LWCC_ERR_PLAN && !p, "header %zu", i);
  }
}

/* ---- text and bytes ---- */

static void test_print_shows_every_verb(void) {
  static const char expected[] =
      "allreduce: rank 0 of 3, 4 chunks, 2 rounds\n"
      "round 0\n"
      "  step 0: send chunks 1..3 to rank 1\n"
      "  step 1: recv_reduce chunk 0 from rank 2\n"
      "round 1\n"
      "  step 2: recv_copy chunk 3 from rank 2\n"
      "  step 3: copy chunk 1 from chunk 2\n"
      "  step 4: reduce chunk 2 from chunk 0\n"
      "  step 5: fold chunk 0 on rank 2\n";
  lwcc_plan *p = fresh(LWCC_ALLREDUCE, 0, 3, 4);
  lwcc_plan_send(p, 1, 1, 3);
  lwcc_plan_recv_reduce(p, 2, 0, 1);
  lwcc_plan_end_round(p);
  lwcc_plan_recv_copy(p, 2, 3, 1);
  lwcc_plan_copy(p, 1, 2);
  lwcc_plan_reduce(p, 2, 0);
  lwcc_plan_fold(p, 0, 2);
  CHECK(plan_finish(p) == LWCC_OK, "%s", os_error());
  char text[sizeof expected];
  int64_t length = sizeof expected - 1;
  CHECK(plan_print(p, NULL, 0) == length, "length without a buffer");
  for (size_t cap = 1; cap <= sizeof text; cap++) { /* cut anywhere: terminated, never past the end */
    memset(text, '#', sizeof text);
    CHECK(plan_print(p, text, cap) == length && strlen(text) == cap - 1 && !memcmp(text, expected, cap - 1), "%zu",
          cap);
  }
  plan_free(p);
}

static int same(const lwcc_plan *a, const lwcc_plan *b) {
  return a->collective == b->collective && a->rank == b->rank && a->size == b->size && a->nchunks == b->nchunks &&
         a->nsteps == b->nsteps && a->nrounds == b->nrounds &&
         (!a->nsteps || !memcmp(a->steps, b->steps, (size_t)a->nsteps * sizeof *a->steps)) &&
         (!a->nrounds || !memcmp(a->round_end, b->round_end, (size_t)a->nrounds * sizeof *a->round_end));
}

static void check_round_trip(const lwcc_plan *p) {
  size_t nbytes = plan_encode(p, NULL, 0);
  uint8_t *bytes = malloc(nbytes + 4);
  lwcc_plan *back = NULL;
  CHECK(plan_encode(p, bytes, nbytes) == nbytes, "length");
  CHECK(plan_decode(bytes, nbytes, &back) == LWCC_OK, "%s", os_error());
  CHECK(back && same(p, back), "%s rank %d of %d", collective_name(p->collective), p->rank, p->size);
  plan_free(back);
  back = NULL;
  for (size_t n = 0; n <= nbytes + 4; n += 1 + nbytes / 40) {
    if (n != nbytes) CHECK(plan_decode(bytes, n, &back) == LWCC_ERR_PROTOCOL && !back, "%zu of %zu bytes", n, nbytes);
  }
  for (size_t word = 0; word < nbytes / 4; word++) { /* no field takes this value */
    uint8_t saved[4], absurd[4] = {0xf0, 0xff, 0xff, 0x7f};
    memcpy(saved, bytes + 4 * word, 4);
    memcpy(bytes + 4 * word, absurd, 4);
    CHECK(plan_decode(bytes, nbytes, &back) < 0 && !back, "word %zu", word);
    memcpy(bytes + 4 * word, saved, 4);
  }
  free(bytes);
}

static void test_every_algorithm_survives_the_codec(void) {
  for (int i = 0; i < algo_table_length; i++) {
    for (int size = algo_table[i].algo->min_ranks; size <= 8; size++) {
      lwcc_plan *p = NULL;
      if (plan_build(algo_table[i].algo, size - 1, size, &p) < 0) continue;
      check_round_trip(p);
      plan_free(p);
    }
  }
}

/* ---- what the proof says ---- */

static void expect_refusal(lwcc_plan *a, lwcc_plan *b, const char *words) {
  const lwcc_plan *plans[2] = {a, b};
  CHECK(plan_finish(a) == LWCC_OK && plan_finish(b) == LWCC_OK, "%s", os_error());
  int status = plan_verify(plans, 2);
  CHECK(status == LWCC_ERR_PLAN && strstr(os_error(), words), "status %d: %s; expected: %s", status, os_error(), words);
  plan_free(a);
  plan_free(b);
}

#define PAIR lwcc_plan *a = fresh(LWCC_ALLREDUCE, 0, 2, 2), *b = fresh(LWCC_ALLREDUCE, 1, 2, 2)

static void test_refusals_of_messages(void) {
  {
    PAIR;
    lwcc_plan_send(a, 1, 1, 1);
    expect_refusal(a, b, "rank 0, round 0, step 0 (send chunk 1 to rank 1): rank 1 has no receive for it");
  }
  {
    PAIR;
    lwcc_plan_recv_copy(b, 0, 1, 1);
    expect_refusal(a, b, "rank 1, round 0, step 0 (recv_copy chunk 1 from rank 0): rank 0 has no send for it");
  }
  {
    PAIR;
    lwcc_plan_send(a, 1, 0, 2);
    lwcc_plan_recv_copy(b, 0, 0, 1);
    expect_refusal(a, b, "its message is rank 0's step 0 (send chunks 0..1 to rank 1); expected the same chunks");
  }
  {
    PAIR; /* each waits for the other before it sends */
    lwcc_plan_recv_copy(a, 1, 0, 1);
    lwcc_plan_end_round(a);
    lwcc_plan_send(a, 1, 0, 1);
    lwcc_plan_recv_copy(b, 0, 0, 1);
    lwcc_plan_end_round(b);
    lwcc_plan_send(b, 0, 0, 1);
    expect_refusal(a, b,
                   "rank 0, round 0, step 0 (recv_copy chunk 0 from rank 1): deadlock: rank 1 would answer at step 1");
  }
}

static void test_refusals_of_races(void) {
  {
    PAIR;
    lwcc_plan_recv_reduce(a, 1, 0, 2);
    lwcc_plan_recv_copy(a, 1, 1, 1);
    expect_refusal(a, b, "step 1 (recv_copy chunk 1 from rank 1): step 0 of the same round writes chunk 1 too");
  }
  {
    PAIR;
    lwcc_plan_reduce(a, 1, 1);
    expect_refusal(a, b, "step 0 of the same round writes its source, chunk 1");
  }
  {
    PAIR;
    lwcc_plan_copy(a, 1, 0);
    expect_refusal(a, b, "chunks 0 and 1 may differ in length");
  }
}

static void test_refusals_of_results(void) {
  {
    PAIR;
    expect_refusal(a, b, "rank 0 ends with rank 1's term not at all of chunk 0, expected once; no step of this rank");
  }
  {
    PAIR; /* swapped, not summed */
    lwcc_plan_send(a, 1, 0, 2);
    lwcc_plan_recv_copy(a, 1, 0, 2);
    lwcc_plan_send(b, 0, 0, 2);
    lwcc_plan_recv_copy(b, 0, 0, 2);
    expect_refusal(a, b, "rank 0's term not at all");
  }
  {
    PAIR;
    lwcc_plan_fold(a, 0, 0);
    lwcc_plan_fold(b, 1, 0);
    expect_refusal(a, b, "rank 1, round 0, step 0 (fold chunk 1 on rank 0): rank 0's fold number 0 is of chunk 0");
  }
  {
    PAIR; /* two folds of one chunk: every term twice */
    for (int i = 0; i < 2; i++) {
      lwcc_plan_fold(a, 0, 0);
      lwcc_plan_end_round(a);
      lwcc_plan_fold(b, 0, 0);
      lwcc_plan_end_round(b);
    }
    expect_refusal(a, b, "more than once");
  }
}

static void test_a_sent_chunk_may_be_received_in_the_same_round(void) {
  PAIR;
  for (int r = 0; r < 2; r++) {
    lwcc_plan_send(r ? b : a, 1 - r, 0, 2);
    lwcc_plan_recv_reduce(r ? b : a, 1 - r, 0, 2);
  }
  const lwcc_plan *plans[2] = {a, b}, *turned[2] = {b, a};
  CHECK(plan_finish(a) == LWCC_OK && plan_finish(b) == LWCC_OK, "%s", os_error());
  CHECK(plan_verify(plans, 2) == LWCC_OK, "%s", os_error());
  CHECK(plan_verify(turned, 2) == LWCC_ERR_PLAN && strstr(os_error(), "made for rank 1"), "%s", os_error());
  CHECK(plan_verify(plans, 0) == LWCC_ERR_UNSUPPORTED && plan_verify(plans, 1025) == LWCC_ERR_UNSUPPORTED, "sizes");
  plan_free(a);
  plan_free(b);
}

/* ---- lwcc.h ---- */

static void test_the_public_calls(void) {
  for (int c = -1; c <= LWCC_COLLECTIVES; c++) {
    int n = lwcc_algorithm_count(c);
    CHECK((n > 0) == (c >= 0 && c < LWCC_COLLECTIVES), "%d algorithms of collective %d", n, c);
    CHECK(!lwcc_algorithm_name(c, n) && !lwcc_algorithm_name(c, -1), "past the end");
    for (int i = 0; i < n; i++) {
      const char *name = lwcc_algorithm_name(c, i);
      CHECK(lwcc_algorithm_about(c, name) != NULL, "%s", name);
      CHECK(lwcc_algorithm_verify(c, name, 6) == LWCC_OK, "%s", os_error());
      CHECK(lwcc_algorithm_verify(c, name, 1) == LWCC_ERR_UNSUPPORTED, "%s for one rank", name);
      CHECK(lwcc_algorithm_verify(c, name, 2000000000) == LWCC_ERR_UNSUPPORTED, "%s for many", name);
      CHECK(lwcc_algorithm_print(c, name, 5, 6, NULL, 0) > 20, "%s", os_error());
      CHECK(lwcc_algorithm_print(c, name, 6, 6, NULL, 0) == LWCC_ERR_PLAN, "%s, rank 6 of 6", name);
    }
  }
  CHECK(lwcc_algorithm_verify(LWCC_ALLREDUCE, "rign", 4) == LWCC_ERR_INVALID, "unknown name");
  CHECK(strstr(os_error(), "\"rign\"") && strstr(os_error(), "circulant"), "%s", os_error());
  CHECK(lwcc_algorithm_verify(LWCC_ALLREDUCE, NULL, 4) == LWCC_ERR_INVALID, "no name");
  CHECK(lwcc_algorithm_verify(17, "ring", 4) == LWCC_ERR_INVALID, "no such collective");
  CHECK(!lwcc_algorithm_about(LWCC_BARRIER, "ring"), "of another collective");
}

static void test_seconds_follow_the_model(void) {
  plan_cost_t c = {4, 1.5, 0.5, 6, 0, 0};
  double seen = plan_seconds(&c, 1000, &(wire_cost){1.0, 0.01, 0.001, 0.1});
  double expected = 4 * 1.0 + 2 * 0.1 + 1.5 * 1000 * 0.01 + 0.5 * 1000 * 0.001;
  CHECK(seen > expected - 1e-9 && seen < expected + 1e-9, "%g, expected %g", seen, expected);
}

int main(void) {
  test_message_verbs_check_their_bounds();
  test_local_verbs_check_their_bounds();
  test_a_barrier_has_only_empty_messages();
  test_the_first_mistake_is_kept();
  test_rounds_and_wrapping();
  test_headers_are_checked();
  test_print_shows_every_verb();
  test_every_algorithm_survives_the_codec();
  test_refusals_of_messages();
  test_refusals_of_races();
  test_refusals_of_results();
  test_a_sent_chunk_may_be_received_in_the_same_round();
  test_the_public_calls();
  test_seconds_follow_the_model();
  return check_report();
}
