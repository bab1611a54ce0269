/* Plans executed on symbols.
 *
 * A chunk's value is the multiset of terms it is the sum of, as two bit sets over the terms: `once` (at least once) and
 * `many` (more than once; never right, so no finer count is needed). Term r is rank r's contribution; one more term
 * stands for bytes that nobody wrote. A last word is a hash of the order of additions: a+b is b+a, but (a+b)+c is not
 * a+(b+c) to the last bit. A message may only join equal chunk numbers (alltoall: equal blocks), so a value
 * needs no note of which chunk it came from.
 *
 * Channels have no capacity: a message passes when both ends are in its round. The matching is fixed beforehand, so the
 * outcome does not depend on the order in which ranks are looked at, and each step is tried twice at most. */
#include "plan/prover.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "os/status.h"

static int round_of(const lwcc_plan *p, int step) {
  int round = 0;
  while (p->round_end[round] <= step) round++;
  return round;
}

int prover_refuse(const prover *v, int rank, int step, const char *fmt, ...) {
  char what[PLAN_STEP_TEXT], detail[400];
  va_list args;
  va_start(args, fmt);
  vsnprintf(detail, sizeof detail, fmt, args);
  va_end(args);
  plan_step_text(v->plans[rank], step, what);
  return os_fail(LWCC_ERR_PLAN, "%s of %d ranks: rank %d, round %d, step %d (%s): %s", collective_name(v->collective),
                 v->size, rank, round_of(v->plans[rank], step), step, what, detail);
}

/* ---- values ---- */

static uint64_t *value(const prover *v, uint64_t *values, int rank, int chunk) {
  return values + ((size_t)rank * v->nchunks + chunk) * value_words(v);
}

/* splitmix64's last steps. */
static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

static void set_term(const prover *v, uint64_t *x, int term) {
  memset(x, 0, value_words(v) * sizeof *x);
  x[term / 64] = 1ULL << (term % 64);
  x[2 * v->words] = mix((uint64_t)term + 1);
}

static void add_value(const prover *v, uint64_t *x, const uint64_t *y) {
  for (size_t w = 0; w < v->words; w++) {
    x[v->words + w] |= y[v->words + w] | (x[w] & y[w]);
    x[w] |= y[w];
  }
  x[2 * v->words] = mix(x[2 * v->words] + y[2 * v->words]);
}

static void copy_value(const prover *v, uint64_t *x, const uint64_t *y) {
  memcpy(x, y, value_words(v) * sizeof *x);
}

/* The term that rank's chunk is before the first round; size: nobody's. */
static int initial_term(const prover *v, int rank, int chunk) {
  switch (v->collective) {
    case LWCC_BROADCAST:
      return rank == 0 ? 0 : v->size;
    case LWCC_ALLGATHER:
      return rank == chunk ? rank : v->size;
    case LWCC_ALLTOALL:
      return v->size;
    default:
      return rank;
  }
}

/* ---- the run ---- */

static bool in_round(const prover *v, int r, int step) {
  const lwcc_plan *p = v->plans[r];
  int round = v->round[r];
  return round >= 0 && round < p->nrounds && step >= round_begin(p, round) && step < p->round_end[round];
}

static void one_done(prover *v, int r) {
  if (--v->left[r] == 0) v->ready[v->nready++] = r;
}

static void pass_message(prover *v, int from, int to, const plan_step *in) {
  if (v->collective == LWCC_BARRIER) add_value(v, value(v, v->staged, to, 0), value(v, v->held, from, 0));
  for (int c = in->chunk; c < in->chunk + in->n; c++) {
    uint64_t *x = value(v, v->staged, to, c);
    if (in->kind == STEP_RECV_COPY && v->collective == LWCC_ALLTOALL)
      set_term(v, x, from);
    else if (in->kind == STEP_RECV_COPY)
      copy_value(v, x, value(v, v->held, from, c));
    else
      add_value(v, x, value(v, v->held, from, c));
  }
}

static void do_fold(prover *v, int chunk) {
  uint64_t *sum = value(v, v->staged, 0, chunk);
  for (int r = 1; r < v->size; r++) add_value(v, sum, value(v, v->held, r, chunk));
  for (int r = 1; r < v->size; r++) copy_value(v, value(v, v->staged, r, chunk), sum);
  for (int r = 0; r < v->size; r++) one_done(v, r);
}

static void try_step(prover *v, int r, int i) {
  const plan_step *s = &v->plans[r]->steps[i];
  int other = v->partner[v->first[r] + i];
  if (s->kind == STEP_COPY || s->kind == STEP_REDUCE) { /* the races leave one useful case: alltoall's own block */
    set_term(v, value(v, v->staged, r, s->chunk), r);
    one_done(v, r);
  } else if (s->kind == STEP_FOLD) {
    if (++v->arrived[other] == v->size) do_fold(v, s->chunk);
  } else if (in_round(v, s->peer, other)) {
    if (s->kind == STEP_SEND)
      pass_message(v, r, s->peer, &v->plans[s->peer]->steps[other]);
    else
      pass_message(v, s->peer, r, s);
    one_done(v, r);
    one_done(v, s->peer);
  }
}

static void end_round(prover *v, int r) {
  const lwcc_plan *p = v->plans[r];
  if (v->round[r] < 0) return;
  for (int i = round_begin(p, v->round[r]); i < p->round_end[v->round[r]]; i++) {
    const plan_step *s = &p->steps[i];
    for (int c = s->chunk; writes(s) && c < s->chunk + s->n; c++) {
      copy_value(v, value(v, v->held, r, c), value(v, v->staged, r, c));
      v->writer[(size_t)r * v->nchunks + c] = i;
    }
  }
  if (v->collective == LWCC_BARRIER) copy_value(v, value(v, v->held, r, 0), value(v, v->staged, r, 0));
}

static void begin_round(prover *v, int r) {
  const lwcc_plan *p = v->plans[r];
  if (++v->round[r] >= p->nrounds) return;
  int begin = round_begin(p, v->round[r]), end = p->round_end[v->round[r]];
  v->left[r] = end - begin + 1; /* one more, so that the rank is not ready before all were tried */
  for (int i = begin; i < end; i++) try_step(v, r, i);
  one_done(v, r);
}

static bool is_ahead(const prover *v, int r, int step) {
  const lwcc_plan *p = v->plans[r];
  return v->round[r] < p->nrounds && step >= p->round_end[v->round[r]];
}

/* The first step of r's round that has not happened; r has not finished. */
static int waiting_step(const prover *v, int r) {
  const lwcc_plan *p = v->plans[r];
  int i = round_begin(p, v->round[r]);
  for (; i < p->round_end[v->round[r]] - 1; i++) {
    const plan_step *s = &p->steps[i];
    int other = v->partner[v->first[r] + i];
    if (s->kind == STEP_FOLD && v->arrived[other] < v->size) break;
    if (s->kind <= STEP_RECV_REDUCE && is_ahead(v, s->peer, other)) break;
  }
  return i;
}

static int check_finished(const prover *v) {
  for (int r = 0; r < v->size; r++) {
    if (v->round[r] >= v->plans[r]->nrounds) continue;
    int i = waiting_step(v, r), other = v->partner[v->first[r] + i];
    const plan_step *s = &v->plans[r]->steps[i];
    if (s->kind == STEP_FOLD)
      return prover_refuse(v, r, i, "deadlock: only %d of %d ranks reach this fold", v->arrived[other], v->size);
    int blocked = waiting_step(v, s->peer);
    char text[PLAN_STEP_TEXT];
    plan_step_text(v->plans[s->peer], blocked, text);
    return prover_refuse(v, r, i, "deadlock: rank %d would answer at step %d, but waits in round %d at step %d (%s)",
                         s->peer, other, v->round[s->peer], blocked, text);
  }
  return LWCC_OK;
}

int prover_run(prover *v) {
  for (int r = 0; r < v->size; r++) {
    v->round[r] = -1;
    v->ready[v->nready++] = r;
    for (int c = 0; c < v->nchunks; c++) {
      set_term(v, value(v, v->held, r, c), initial_term(v, r, c));
      copy_value(v, value(v, v->staged, r, c), value(v, v->held, r, c));
    }
  }
  while (v->nready > 0) {
    int r = v->ready[--v->nready];
    end_round(v, r);
    begin_round(v, r);
  }
  return check_finished(v);
}

/* ---- the result ---- */

static bool term_wanted(const prover *v, int chunk, int term) {
  switch (v->collective) {
    case LWCC_BROADCAST:
      return term == 0;
    case LWCC_ALLGATHER:
    case LWCC_ALLTOALL:
      return term == chunk;
    default:
      return term < v->size;
  }
}

/* "0 1* 3": the terms a value is made of. */
static void list_terms(const prover *v, const uint64_t *x, char *out, size_t cap) {
  size_t used = 0;
  for (int term = 0; term <= v->size && used < cap; term++) {
    uint64_t bit = 1ULL << (term % 64);
    const char *mark = x[v->words + term / 64] & bit ? "*" : "";
    if (!(x[term / 64] & bit)) continue;
    if (term == v->size)
      used += (size_t)snprintf(out + used, cap - used, "%s", used ? " nobody's" : "nobody's");
    else
      used += (size_t)snprintf(out + used, cap - used, "%s%d%s", used ? " " : "", term, mark);
  }
}

enum { BY_TEXT = 80 };
static void last_writer(const prover *v, int r, int chunk, char by[BY_TEXT]) {
  int step = v->writer[(size_t)r * v->nchunks + chunk];
  if (step < 0)
    snprintf(by, BY_TEXT, "no step of this rank writes it");
  else
    snprintf(by, BY_TEXT, "last written in round %d by step %d", round_of(v->plans[r], step), step);
}

static int left_early(const prover *v, int r, int missing) {
  char heard[200] = "", last[BY_TEXT + PLAN_STEP_TEXT] = "without a step", what[PLAN_STEP_TEXT];
  int step = v->plans[r]->nsteps - 1;
  if (step >= 0) {
    plan_step_text(v->plans[r], step, what);
    snprintf(last, sizeof last, "after round %d, step %d (%s)", v->plans[r]->nrounds - 1, step, what);
  }
  memset(value(v, v->held, r, 0) + v->words, 0, v->words * sizeof *v->held); /* how often does not matter */
  list_terms(v, value(v, v->held, r, 0), heard, sizeof heard);
  return os_fail(
      LWCC_ERR_PLAN,
      "barrier of %d ranks: rank %d leaves, %s, before rank %d has come: no chain of messages leads from it; "
      "it has heard of ranks %s, expected all",
      v->size, r, last, missing, heard);
}

static int other_bits(const prover *v, int r, int chunk) {
  char by[BY_TEXT];
  last_writer(v, r, chunk, by);
  return os_fail(LWCC_ERR_PLAN,
                 "%s of %d ranks: rank %d ends with other bits of chunk %d than rank 0: it has added the same terms in "
                 "another order, and rounding differs; expected the same sum on all ranks; %s",
                 collective_name(v->collective), v->size, r, chunk, by);
}

static int wrong_value(const prover *v, int r, int chunk, int term, bool twice) {
  char whose[40], held[200] = "", by[BY_TEXT];
  snprintf(whose, sizeof whose, term < v->size ? "rank %d's term" : "bytes that no rank wrote", term);
  const char *seen = twice ? "more than once" : term_wanted(v, chunk, term) ? "not at all" : "in it";
  const char *expected = term_wanted(v, chunk, term) ? "once" : "none of it";
  last_writer(v, r, chunk, by);
  list_terms(v, value(v, v->held, r, chunk), held, sizeof held);
  return os_fail(LWCC_ERR_PLAN,
                 "%s of %d ranks: rank %d ends with %s %s of chunk %d, expected %s; %s; it holds the terms of ranks %s "
                 "(* more than once)",
                 collective_name(v->collective), v->size, r, whose, seen, chunk, expected, by, held);
}

int prover_check_result(const prover *v) {
  for (int r = 0; r < v->size; r++) {
    for (int c = 0; c < v->nchunks; c++) {
      const uint64_t *x = value(v, v->held, r, c);
      if (v->collective == LWCC_REDUCESCATTER && c != r) continue;
      if (v->collective == LWCC_BARRIER && c > 0) continue;
      for (int term = 0; term <= v->size; term++) {
        uint64_t bit = 1ULL << (term % 64);
        bool once = x[term / 64] & bit, many = x[v->words + term / 64] & bit && v->collective != LWCC_BARRIER;
        if (v->collective == LWCC_BARRIER && once != term_wanted(v, c, term)) return left_early(v, r, term);
        if (many || once != term_wanted(v, c, term)) return wrong_value(v, r, c, term, many);
      }
      if (v->collective == LWCC_ALLREDUCE && x[2 * v->words] != value(v, v->held, 0, c)[2 * v->words])
        return other_bits(v, r, c);
    }
  }
  return LWCC_OK;
}
