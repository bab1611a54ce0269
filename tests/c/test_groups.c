/* Groups between whole engines: they run as one or fail as one, also where the ranks disagree about the members. */
#include "engines.h"

static const int sizes[] = {1, 2, 3, 5};
enum { SIZES = 4 };

static void check_sum(engine *e, const char *name) {
  char text[TEXT_CAP];
  int64_t v = e->rank;
  ask a = sum_of(name, &v, 1);
  int st = run_one(e, &a, text);
  CHECK(st == LWCC_OK && v == e->size * (e->size - 1) / 2, "rank %d: \"%s\": %d %s", e->rank, name, st, text);
}

static lwcc_stats stats_of(engine *e) {
  engine_lock(e);
  lwcc_stats s = e->stats;
  engine_unlock(e);
  return s;
}

enum { GROUP = 4 };

static void run_group(engine *e, int round, int bad) {
  int64_t v[GROUP][2];
  ask a[GROUP];
  lwcc_ticket t[GROUP];
  char name[GROUP][32], text[TEXT_CAP];
  int64_t p = e->size;
  for (int i = 0; i < GROUP; i++) {
    snprintf(name[i], sizeof name[i], "g%d.%d", round, i);
    v[i][0] = v[i][1] = e->rank + i;
    a[i] = sum_of(name[i], v[i], i == bad && e->rank == 1 ? 1 : 2);
  }
  CHECK(submit(e, a, GROUP, t) == LWCC_OK, "%s", os_error());
  for (int i = 0; i < GROUP; i++) {
    int st = finish_request(e, t[i], text);
    bool right = v[i][1] == (bad < 0 ? p * (p - 1) / 2 + i * p : e->rank + i);
    CHECK(st == (bad < 0 ? LWCC_OK : LWCC_ERR_MISMATCH) && right, "rank %d %s: %d %s", e->rank, name[i], st, text);
    CHECK(bad < 0 || (strstr(text, name[i]) && strstr(text, name[bad])), "%s does not name %s", text, name[bad]);
    queue_release(&e->q, queue_lookup(&e->q, t[i]));
  }
}

static void groups(engine *e, void *arg) {
  (void)arg;
  int singles = 0;
  for (int round = 0; round < 12; round++) {
    int bad = e->size > 1 && round % 3 == 1 ? round % GROUP : -1;
    run_group(e, round / 3, -1);
    run_group(e, round / 3, bad);
    check_sum(e, "single");
    singles++;
  }
  lwcc_stats s = stats_of(e);
  uint64_t whole = e->size > 1 ? 20 : 24;
  CHECK(s.fused == whole * GROUP && s.buckets == whole + (uint64_t)singles, "fused %llu in %llu buckets",
        (unsigned long long)s.fused, (unsigned long long)s.buckets);
}

static void test_a_group_runs_as_one_or_fails_as_one(void) {
  for (int i = 0; i < 2 * SIZES; i++) {
    world w;
    world_options o = world_of(sizes[i % SIZES]);
    if (i >= SIZES) o.limits.fusion_nbytes = 0; /* groups do not mind */
    world_open(&w, o);
    world_run(&w, groups, NULL);
    world_close(&w);
  }
}

/* ---- disagreement about the members ---- */

/* Rank `odd` calls a group of `n` members, the others one of GROUP; the odd one's last member is called `last`. */
typedef struct {
  int odd, n;
  const char *last; /* NULL: as the others call it */
} torn;

static void torn_once(engine *e, const torn *t) {
  int64_t v[GROUP + 1];
  ask a[GROUP + 1];
  lwcc_ticket tickets[GROUP + 1];
  char name[GROUP + 1][32], text[TEXT_CAP];
  int odd = t->odd == e->rank, n = odd ? t->n : GROUP;
  for (int i = 0; i < n; i++) {
    snprintf(name[i], sizeof name[i], "torn%d", i);
    a[i] = sum_of(odd && t->last && i == n - 1 ? t->last : name[i], &v[i], 1);
  }
  CHECK(submit(e, a, n, tickets) == LWCC_OK, "%s", os_error());
  for (int i = 0; i < n; i++) {
    int st = finish_request(e, tickets[i], text);
    CHECK(st == LWCC_ERR_MISMATCH && strstr(text, a[i].name), "rank %d %s of %d: %d %s", e->rank, a[i].name, n, st,
          text);
    queue_release(&e->q, queue_lookup(&e->q, tickets[i]));
  }
}

static void tear(engine *e, void *arg) {
  (void)arg;
  for (int odd = 0; odd < e->size; odd += e->size - 1) {
    const torn cases[] = {{odd, GROUP - 1, NULL}, {odd, GROUP + 1, NULL}, {odd, GROUP, "other"}, {odd, 2, "other"}};
    for (int i = 0; i < 4; i++) {
      torn_once(e, &cases[i]);
      check_sum(e, "between");
      if (i % 2) run_group(e, i, -1);
    }
  }
}

static void test_disagreement_about_members_fails_at_once_on_every_rank(void) {
  for (int i = 1; i < SIZES; i++) { /* no limit on stalls is set: who is forgotten hangs */
    world w;
    world_open(&w, world_of(sizes[i]));
    world_run(&w, tear, NULL);
    world_close(&w);
  }
}

int main(void) {
  alarm(200);
  test_a_group_runs_as_one_or_fails_as_one();
  test_disagreement_about_members_fails_at_once_on_every_rank();
  return check_report();
}
