/* How sharp is plan_verify? Faults are put into the built-in plans; whether a fault matters is decided by running data
 * through simulate.h, which shares nothing with the proof. Each that changes a result, cannot pass a wire or never ends
 * must be refused with rank, step and chunk in the text. */
#include "check.h"
#include "os/status.h"
#include "plan/codec.h"
#include "simulate.h"

enum { MAX_RANKS = 16, PER_KIND = 12, SEED = 20251 };

typedef struct {
  int size;
  lwcc_plan *plans[MAX_RANKS];
} world;

static uint64_t state = SEED;

static int below(int n) { /* xorshift64* */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return n > 0 ? (int)((state * 2685821657736338717u >> 33) % (uint64_t)n) : 0;
}

/* ---- surgery ---- */

static int round_of(const lwcc_plan *p, int step) {
  int round = 0;
  while (p->round_end[round] <= step) round++;
  return round;
}

static void drop(lwcc_plan *p, int i) {
  int round = round_of(p, i);
  memmove(p->steps + i, p->steps + i + 1, (size_t)(p->nsteps - i - 1) * sizeof *p->steps);
  p->nsteps--;
  for (int k = round; k < p->nrounds; k++) p->round_end[k]--;
  if (p->round_end[round] != (round ? p->round_end[round - 1] : 0)) return;
  memmove(p->round_end + round, p->round_end + round + 1, (size_t)(p->nrounds - round - 1) * sizeof *p->round_end);
  p->nrounds--;
}

/* Put s into a new round after the round of step i. */
static void insert_round(lwcc_plan *p, int i, plan_step s) {
  int round = round_of(p, i), at = p->round_end[round];
  p->steps = realloc(p->steps, (size_t)(p->nsteps + 1) * sizeof s);
  p->round_end = realloc(p->round_end, (size_t)(p->nrounds + 1) * sizeof *p->round_end);
  memmove(p->steps + at + 1, p->steps + at, (size_t)(p->nsteps - at) * sizeof s);
  memmove(p->round_end + round + 1, p->round_end + round, (size_t)(p->nrounds - round) * sizeof *p->round_end);
  p->steps[at] = s;
  p->nsteps++;
  p->nrounds++;
  for (int k = round + 1; k < p->nrounds; k++) p->round_end[k]++;
}

/* A random step for which want[kind]; -1: none. */
static int pick(const lwcc_plan *p, const char *want) {
  int found = -1, seen = 0;
  for (int i = 0; i < p->nsteps; i++) {
    if (want[p->steps[i].kind] == '1' && below(++seen) == 0) found = i;
  }
  return found;
}

/* The other end of rank r's message step. */
static int other_end(const world *w, int r, int i) {
  const plan_step *s = &w->plans[r]->steps[i];
  const lwcc_plan *q = w->plans[s->peer];
  int nth = sim_messages(w->plans[r], s->kind == STEP_SEND, s->peer, i + 1);
  for (int j = 0; j < q->nsteps; j++) {
    if (q->steps[j].kind <= STEP_RECV_REDUCE && sim_messages(q, s->kind != STEP_SEND, r, j + 1) == nth) return j;
  }
  return -1;
}

/* ---- faults: each returns whether it found a place ---- */

typedef bool (*fault)(world *w, int r);

static bool dropped_step(world *w, int r) {
  int i = pick(w->plans[r], "111111");
  if (i >= 0) drop(w->plans[r], i);
  return i >= 0;
}

static bool dropped_message(world *w, int r) {
  int i = pick(w->plans[r], "100000");
  if (i < 0) return false;
  int peer = w->plans[r]->steps[i].peer;
  drop(w->plans[peer], other_end(w, r, i));
  drop(w->plans[r], i);
  return true;
}

static bool wrong_peer(world *w, int r) {
  int i = pick(w->plans[r], "111001");
  if (i < 0 || w->size < 3) return false;
  plan_step *s = &w->plans[r]->steps[i];
  int peer = s->peer;
  while (peer == s->peer || peer == r) peer = below(w->size);
  s->peer = peer;
  return true;
}

static int shifted(const lwcc_plan *p, const plan_step *s) {
  int places = p->nchunks - s->n + 1;
  return places < 2 ? -1 : (s->chunk + 1 + below(places - 1)) % places;
}

static bool wrong_chunk(world *w, int r) {
  int i = pick(w->plans[r], "111111");
  if (i < 0 || w->plans[r]->collective == LWCC_BARRIER) return false;
  plan_step *s = &w->plans[r]->steps[i];
  int chunk = shifted(w->plans[r], s);
  if (chunk >= 0) s->chunk = chunk;
  return chunk >= 0;
}

static bool wrong_chunk_at_both_ends(world *w, int r) {
  int i = pick(w->plans[r], "100000");
  if (i < 0 || w->plans[r]->collective == LWCC_BARRIER) return false;
  plan_step *s = &w->plans[r]->steps[i];
  int chunk = shifted(w->plans[r], s);
  if (chunk < 0) return false;
  w->plans[s->peer]->steps[other_end(w, r, i)].chunk = chunk;
  s->chunk = chunk;
  return true;
}

static bool wrong_length(world *w, int r) {
  int i = pick(w->plans[r], "111000");
  if (i < 0 || w->plans[r]->collective == LWCC_BARRIER) return false;
  plan_step *s = &w->plans[r]->steps[i];
  if (s->n == 1 && s->chunk + 1 >= w->plans[r]->nchunks) return false;
  s->n += s->n > 1 ? -1 : 1;
  return true;
}

static bool swapped_steps(world *w, int r) {
  lwcc_plan *p = w->plans[r];
  int i = pick(p, "111111"), j = pick(p, "111111");
  if (i < 0 || i == j) return false;
  plan_step s = p->steps[i];
  p->steps[i] = p->steps[j];
  p->steps[j] = s;
  return true;
}

static bool swapped_rounds(world *w, int r) {
  lwcc_plan *p = w->plans[r];
  if (p->nrounds < 2) return false;
  int k = below(p->nrounds - 1), a = k ? p->round_end[k - 1] : 0, b = p->round_end[k], c = p->round_end[k + 1];
  plan_step *copy = malloc((size_t)(b - a) * sizeof *copy);
  memcpy(copy, p->steps + a, (size_t)(b - a) * sizeof *copy);
  memmove(p->steps + a, p->steps + b, (size_t)(c - b) * sizeof *copy);
  memcpy(p->steps + a + c - b, copy, (size_t)(b - a) * sizeof *copy);
  p->round_end[k] = a + c - b;
  free(copy);
  return true;
}

static bool merged_rounds(world *w, int r) {
  lwcc_plan *p = w->plans[r];
  if (p->nrounds < 2) return false;
  int k = below(p->nrounds - 1);
  memmove(p->round_end + k, p->round_end + k + 1, (size_t)(p->nrounds - k - 1) * sizeof *p->round_end);
  p->nrounds--;
  return true;
}

static bool doubled_step(world *w, int r) {
  int i = pick(w->plans[r], "111111");
  if (i >= 0) insert_round(w->plans[r], i, w->plans[r]->steps[i]);
  return i >= 0;
}

static bool doubled_reduce(world *w, int r) {
  int i = pick(w->plans[r], "001000");
  if (i < 0) return false;
  int peer = w->plans[r]->steps[i].peer, j = other_end(w, r, i);
  insert_round(w->plans[peer], j, w->plans[peer]->steps[j]);
  insert_round(w->plans[r], i, w->plans[r]->steps[i]);
  return true;
}

static bool copy_for_reduce(world *w, int r) {
  int i = pick(w->plans[r], "011000");
  if (i < 0) return false;
  step_kind *kind = &w->plans[r]->steps[i].kind;
  *kind = *kind == STEP_RECV_COPY ? STEP_RECV_REDUCE : STEP_RECV_COPY;
  return true;
}

static bool added_local_step(world *w, int r) {
  lwcc_plan *p = w->plans[r];
  if (p->nsteps == 0 || p->collective == LWCC_BARRIER) return false;
  step_kind kind = below(2) ? STEP_COPY : STEP_REDUCE;
  int at = below(p->nsteps), dst = below(p->nchunks), src = below(p->nchunks);
  insert_round(p, at, (plan_step){kind, 0, dst, 1, src});
  return true;
}

static const struct {
  const char *name;
  fault make;
} faults[] = {
    {"dropped step", dropped_step},
    {"dropped message", dropped_message},
    {"wrong peer", wrong_peer},
    {"wrong chunk", wrong_chunk},
    {"wrong chunk at both ends", wrong_chunk_at_both_ends},
    {"wrong length", wrong_length},
    {"swapped steps", swapped_steps},
    {"swapped rounds", swapped_rounds},
    {"merged rounds", merged_rounds},
    {"doubled step", doubled_step},
    {"doubled reduce", doubled_reduce},
    {"recv_copy <-> recv_reduce", copy_for_reduce},
    {"added local step", added_local_step},
};
enum { FAULTS = sizeof faults / sizeof *faults };

/* ---- the study ---- */

typedef struct {
  int made, harmful, refused, deadlocks, mismatches, harmless_refused;
} tally;

static void close_world(world *w) {
  for (int r = 0; r < w->size; r++) plan_free(w->plans[r]);
}

static world build(const lwcc_algo *algo, int size) {
  world w = {.size = size};
  for (int r = 0; r < size; r++) CHECK(plan_build(algo, r, size, &w.plans[r]) == LWCC_OK, "%s", os_error());
  return w;
}

static void judge(const algo_entry *e, const world *w, const char *name, tally *t) {
  const lwcc_plan *const *plans = (const lwcc_plan *const *)w->plans;
  sim_verdict verdict = sim_judge(plans, w->size, 2 * w->size + 3);
  int status = plan_verify(plans, w->size);
  const char *text = os_error(), *coll = collective_name(e->algo->collective);
  bool names_chunk = strstr(text, "chunk") || e->algo->collective == LWCC_BARRIER; /* which has none */
  t->made++;
  t->deadlocks += verdict == SIM_DEADLOCK;
  t->mismatches += verdict == SIM_MISMATCH;
  t->harmful += verdict != SIM_RIGHT;
  t->refused += verdict != SIM_RIGHT && status == LWCC_ERR_PLAN;
  t->harmless_refused += verdict == SIM_RIGHT && status < 0;
  if (status < 0)
    CHECK(status == LWCC_ERR_PLAN && strstr(text, "rank ") && strstr(text, "step") && names_chunk,
          "%s %s p=%d, %s: names no rank, step or chunk: %s", coll, e->name, w->size, name, text);
  if (verdict != SIM_RIGHT)
    CHECK(status < 0, "%s %s p=%d, %s: accepted, verdict %d", coll, e->name, w->size, name, verdict);
}

static void study(const algo_entry *e, int size, tally *tallies) {
  world sound = build(e->algo, size);
  CHECK(plan_verify((const lwcc_plan *const *)sound.plans, size) == LWCC_OK, "%s: %s", e->name, os_error());
  CHECK(sim_judge((const lwcc_plan *const *)sound.plans, size, 2 * size + 3) == SIM_RIGHT, "%s p=%d", e->name, size);
  close_world(&sound);
  for (int k = 0; k < FAULTS; k++) {
    for (int i = 0; i < PER_KIND; i++) {
      world w = build(e->algo, size);
      if (faults[k].make(&w, below(size))) judge(e, &w, faults[k].name, &tallies[k]);
      close_world(&w);
    }
  }
}

int main(void) {
  static const int sizes[] = {2, 3, 4, 5, 6, 7, 8, 12, 16};
  tally tallies[FAULTS] = {{0}}, sum = {0};
  for (int i = 0; i < algo_table_length; i++) {
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
      if (sizes[k] < algo_table[i].algo->min_ranks) continue;
      if (algo_table[i].algo->power_of_two && (sizes[k] & (sizes[k] - 1))) continue;
      study(&algo_table[i], sizes[k], tallies);
    }
  }
  printf("%-26s %6s %8s %8s %9s %9s %9s\n", "fault (seed 20251)", "made", "harmful", "refused", "deadlock", "mismatch",
         "harmless");
  for (int k = 0; k < FAULTS; k++) {
    const tally *t = &tallies[k];
    printf("%-26s %6d %8d %8d %9d %9d %4d/%d refused\n", faults[k].name, t->made, t->harmful, t->refused, t->deadlocks,
           t->mismatches, t->harmless_refused, t->made - t->harmful);
    CHECK(t->harmful > 0, "%s: never harmful, so it tests nothing", faults[k].name);
    sum.made += t->made;
    sum.harmful += t->harmful;
    sum.refused += t->refused;
    sum.harmless_refused += t->harmless_refused;
  }
  printf("%d faults, %d harmful, %d of them refused; %d harmless, %d of them refused\n", sum.made, sum.harmful,
         sum.refused, sum.made - sum.harmful, sum.harmless_refused);
  CHECK(sum.harmful >= 500, "%d harmful faults", sum.harmful);
  CHECK(sum.made - sum.harmful > sum.harmless_refused, "the proof accepts no harmless change");
  return check_report();
}
