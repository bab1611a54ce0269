/* Algorithms that come at run time: definitions by bytes, fingerprints, plugins' descriptors, names. */
#include "check.h"
#include "os/status.h"
#include "plan/codec.h"
#include "plan/defined.h"

enum { MAX = 8, ROOM = 4096 };

typedef struct {
  uint8_t bytes[MAX][ROOM];
  const void *plans[MAX];
  size_t nbytes[MAX];
  lwcc_definition d;
} definition;

/* The plans of a built-in algorithm under another name. */
static void take(definition *x, const char *name, const char *built_in, int size) {
  x->d = (lwcc_definition){.name = name, .size = size, .plans = x->plans, .nbytes = x->nbytes};
  for (int r = 0; r < size; r++) {
    int64_t n = lwcc_algorithm_encode(LWCC_ALLREDUCE, built_in, r, size, x->bytes[r], ROOM);
    CHECK(n > 0 && n <= ROOM, "%s: %lld bytes", os_error(), (long long)n);
    x->plans[r] = x->bytes[r];
    x->nbytes[r] = (size_t)n;
  }
}

static definition x;

static void test_a_definition_is_found_by_name_and_by_fingerprint_for_its_size_alone(void) {
  lwcc_defined ring, again, other;
  const char *found;
  take(&x, "mine", "ring", 4);
  CHECK(lwcc_algorithm_define(&x.d, &ring) == LWCC_OK, "%s", os_error());
  CHECK(ring.rounds == 6 && ring.sent == 1.5 && ring.reduced == 0.75, "%d %g %g", ring.rounds, ring.sent, ring.reduced);
  CHECK(strncmp(ring.name, "mine#", 5) == 0 && strlen(ring.name) == 13, "%s", ring.name);
  CHECK(lwcc_algorithm_define(&x.d, &again) == LWCC_OK && strcmp(again.name, ring.name) == 0, "%s", again.name);
  take(&x, "mine", "circulant", 4);
  CHECK(lwcc_algorithm_define(&x.d, &other) == LWCC_OK && strcmp(other.name, ring.name) != 0, "%s", other.name);
  CHECK(algo_resolve(LWCC_ALLREDUCE, "mine", 4, &found) == LWCC_OK && strcmp(found, other.name) == 0, "%s", found);
  CHECK(algo_resolve(LWCC_ALLREDUCE, ring.name, 4, &found) == LWCC_OK && strcmp(found, ring.name) == 0, "%s", found);
  CHECK(algo_resolve(LWCC_ALLREDUCE, "mine", 3, &found) == LWCC_ERR_INVALID, "%s", found);
  CHECK(strstr(os_error(), "\"mine\" for 3 ranks; known: shm, circulant"), "%s", os_error());
  CHECK(algo_resolve(LWCC_BROADCAST, "mine", 4, &found) == LWCC_ERR_INVALID, "%s", found);
  CHECK(algo_resolve(LWCC_ALLREDUCE, "ring", 3, &found) == LWCC_OK && strcmp(found, "ring") == 0, "%s", found);
  CHECK(algo_resolve(LWCC_ALLREDUCE, "shm", 3, &found) == LWCC_OK && strcmp(found, "shm") == 0, "%s", found);
  const defined_algo *d = defined_find(LWCC_ALLREDUCE, ring.name, 4);
  CHECK(d && d->size == 4 && d->plans[3]->rank == 3 && d->plans[0]->nrounds == 6, "%s", ring.name);
}

static void refused(int status, const char *text) {
  lwcc_defined out;
  int seen = lwcc_algorithm_define(&x.d, &out);
  CHECK(seen == status && strstr(os_error(), text), "%d (expected %d): %s", seen, status, os_error());
}

static void test_what_is_wrong_is_refused_and_leaves_no_definition(void) {
  const char *found;
  take(&x, "bad", "ring", 3);
  x.plans[2] = x.plans[1];
  refused(LWCC_ERR_PLAN, "plan of rank 2: made for rank 1 of 3");
  take(&x, "bad", "ring", 3);
  x.nbytes[1]--;
  refused(LWCC_ERR_PROTOCOL, "plan bytes");
  take(&x, "bad", "ring", 3);
  x.d.size = 0;
  refused(LWCC_ERR_UNSUPPORTED, "the proof serves 1 to 1024");
  take(&x, "bad", "ring", 3);
  x.bytes[0][4 * (8 + 4 + 5)] = STEP_RECV_COPY; /* the second step of rank 0 adds no more */
  refused(LWCC_ERR_PLAN, "it holds the terms of ranks");
  CHECK(algo_resolve(LWCC_ALLREDUCE, "bad", 3, &found) == LWCC_ERR_INVALID, "%s", found);
  static const char *const names[] = {"", "a#b", "a=b", "a,b",
                                      "a name that is longer than the 47 bytes allowed for it"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    take(&x, names[i], "ring", 3);
    refused(LWCC_ERR_INVALID, "a name has 1 to 47 bytes");
  }
  take(&x, NULL, "ring", 3);
  lwcc_defined out;
  CHECK(lwcc_algorithm_define(&x.d, &out) == LWCC_OK && out.rounds == 4 && !out.name[0], "%s", os_error());
}

static int one(int size) {
  (void)size;
  return 1;
}

static void star(lwcc_plan *p, int me, int size) {
  for (int r = 1; r < size; r++) {
    if (me == 0) lwcc_plan_recv_reduce(p, r, 0, 1);
    if (me == r) lwcc_plan_send(p, 0, 0, 1);
    lwcc_plan_end_round(p);
  }
  for (int r = 1; r < size; r++) {
    if (me == 0) lwcc_plan_send(p, r, 0, 1);
    if (me == r) lwcc_plan_recv_copy(p, 0, 0, 1);
  }
}

static void lost(lwcc_plan *p, int me, int size) {
  if (me == 0) lwcc_plan_send(p, size - 1, 0, 1);
}

static void test_a_plugin_is_known_by_name_and_proved_when_a_size_is_wanted(void) {
  static const lwcc_algo good = {LWCC_ALLREDUCE, 3, 0, one, star, "star"},
                         bad = {LWCC_ALLREDUCE, 2, 0, one, lost, "lost"};
  static const lwcc_algo none = {LWCC_ALLREDUCE, 2, 0, one, NULL, "none"};
  const char *found = "";
  int before = lwcc_algorithm_count(LWCC_ALLREDUCE);
  CHECK(defined_add_plugin("star", &good) == LWCC_OK && defined_add_plugin("lost", &bad) == LWCC_OK, "%s", os_error());
  CHECK(defined_add_plugin("star", &good) == LWCC_ERR_INVALID, "twice");
  CHECK(defined_add_plugin("ring", &good) == LWCC_ERR_INVALID, "a built-in name");
  CHECK(defined_add_plugin("none", &none) == LWCC_ERR_INVALID, "no build");
  CHECK(lwcc_algorithm_count(LWCC_ALLREDUCE) == before + 2, "%d", lwcc_algorithm_count(LWCC_ALLREDUCE));
  CHECK(strcmp(lwcc_algorithm_name(LWCC_ALLREDUCE, before), "lost") == 0, "the latest first");
  CHECK(!lwcc_algorithm_name(LWCC_ALLREDUCE, before + 2), "past the end");
  CHECK(strcmp(lwcc_algorithm_about(LWCC_ALLREDUCE, "star"), "star") == 0, "about");
  CHECK(lwcc_algorithm_verify(LWCC_ALLREDUCE, "star", 5) == LWCC_OK, "%s", os_error());
  CHECK(algo_resolve(LWCC_ALLREDUCE, "star", 3, &found) == LWCC_OK && strncmp(found, "star#", 5) == 0, "%s", found);
  const char *first = found;
  CHECK(algo_resolve(LWCC_ALLREDUCE, "star", 3, &found) == LWCC_OK && found == first, "made once: %s", found);
  CHECK(algo_resolve(LWCC_ALLREDUCE, "star", 2, &found) == LWCC_ERR_UNSUPPORTED, "%s", os_error());
  CHECK(algo_resolve(LWCC_ALLREDUCE, "lost", 2, &found) == LWCC_ERR_PLAN, "%s", os_error());
}

int main(void) {
  test_a_definition_is_found_by_name_and_by_fingerprint_for_its_size_alone();
  test_what_is_wrong_is_refused_and_leaves_no_definition();
  test_a_plugin_is_known_by_name_and_proved_when_a_size_is_wanted();
  return check_report();
}
