/* A reference interpreter of plans on real data, written apart from plan_verify and sharing no code with it. Ranks are
 * swept again and again; a message passes by rendezvous; a chunk is as long as its collective says, and ends that
 * differ in length are an error, as on a wire. */
#ifndef SIMULATE_H
#define SIMULATE_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plan/ir.h"

typedef enum { SIM_RIGHT, SIM_WRONG, SIM_DEADLOCK, SIM_MISMATCH } sim_verdict;

typedef struct {
  const lwcc_plan *const *plans;
  int size, nchunks, collective;
  int count;       /* elements: allreduce, broadcast: of the buffer; others: scale of the blocks' lengths, up to 9 */
  int backwards;   /* sweep the ranks and apply local steps from the last to the first */
  uint64_t **data; /* [rank]: chunks one after the other */
  uint64_t **snapshot;
  int *offset;       /* [rank][chunk]: where the chunk begins; stride nchunks + 1 */
  int *round, *done; /* done: [rank][step]; its stride is max_steps */
  int *cursor;       /* [rank][peer][receives, sends] */
  int max_steps, mismatch;
} sim;

static inline uint64_t sim_term(int rank, int chunk, int element) { /* splitmix64: no sum of a few is another's */
  uint64_t z = ((uint64_t)rank << 40 | (uint64_t)chunk << 20 | (uint64_t)element) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Elements of chunk c of rank r's data buffer. */
static inline int sim_length(const sim *s, int r, int c) {
  if (s->collective == LWCC_BARRIER) return 1;
  if (s->collective == LWCC_ALLREDUCE || s->collective == LWCC_BROADCAST)
    return s->count / s->nchunks + (c < s->count % s->nchunks);
  int scale = s->count < 9 ? s->count : 9; /* small blocks are as telling as large ones, and faster */
  if (s->collective == LWCC_ALLTOALL) return scale * (1 + (3 * c + 5 * r) % 4) / 3; /* what c sends to r */
  return scale * (1 + (7 * c) % 5) / 3;
}

static inline uint64_t *sim_chunk(const sim *s, uint64_t **buffers, int r, int c) {
  return buffers[r] + s->offset[r * (s->nchunks + 1) + c];
}

static inline int sim_total(const sim *s, int r) {
  return s->offset[r * (s->nchunks + 1) + s->nchunks];
}

static inline uint64_t sim_initial(const sim *s, int r, int c, int e) {
  bool mine = s->collective == LWCC_BROADCAST ? r == 0 : s->collective == LWCC_ALLGATHER ? c == r : true;
  if (s->collective == LWCC_ALLTOALL) mine = false;
  return mine ? sim_term(r, c, e) : sim_term(900 + r, c, e);
}

static inline uint64_t sim_expected(const sim *s, int r, int c, int e) {
  if (s->collective == LWCC_BROADCAST) return sim_term(0, c, e);
  if (s->collective == LWCC_ALLGATHER) return sim_term(c, c, e);
  if (s->collective == LWCC_ALLTOALL) return sim_term(c, r, e);
  uint64_t sum = 0;
  for (int i = 0; i < s->size; i++) sum += sim_term(i, c, e);
  return sum;
}

static inline int sim_begin(const sim *s, int r) {
  return s->round[r] > 0 ? s->plans[r]->round_end[s->round[r] - 1] : 0;
}
static inline int sim_end(const sim *s, int r) {
  return s->round[r] < s->plans[r]->nrounds ? s->plans[r]->round_end[s->round[r]] : s->plans[r]->nsteps;
}

/* The first step of r's round that has not happened, is a send (or a receive) and has this peer; -1: none. The cursor
 * stands behind the pair's steps that have happened. */
static inline int sim_pending(const sim *s, int r, bool send, int peer) {
  if (s->round[r] >= s->plans[r]->nrounds) return -1;
  int *cursor = &s->cursor[(r * s->size + peer) * 2 + send], end = sim_end(s, r);
  for (; *cursor < end; ++*cursor) {
    const plan_step *st = &s->plans[r]->steps[*cursor];
    bool fits = send ? st->kind == STEP_SEND : st->kind == STEP_RECV_COPY || st->kind == STEP_RECV_REDUCE;
    if (fits && st->peer == peer && !s->done[r * s->max_steps + *cursor]) return *cursor;
  }
  return -1;
}

/* One chunk of a message, as a receiver that trusts only lengths would take it. */
static inline void sim_deliver(sim *s, const plan_step *out, const plan_step *in, int index) {
  int from = in->peer, to = out->peer, out_chunk = out->chunk + index, in_chunk = in->chunk + index;
  bool exchange = s->collective == LWCC_ALLTOALL;
  int n = exchange ? sim_length(s, out_chunk, from) : sim_length(s, from, out_chunk);
  if (n != sim_length(s, to, in_chunk)) {
    s->mismatch = 1;
    return;
  }
  const uint64_t *src = exchange ? NULL : sim_chunk(s, s->snapshot, from, out_chunk);
  uint64_t *dst = sim_chunk(s, s->data, to, in_chunk);
  for (int e = 0; e < n; e++) {
    uint64_t x = exchange ? sim_term(from, out_chunk, e) : src[e];
    dst[e] = in->kind == STEP_RECV_COPY ? x : dst[e] + x;
  }
}

static inline bool sim_message(sim *s, int from, int i) {
  const plan_step *out = &s->plans[from]->steps[i];
  int to = out->peer, j = sim_pending(s, to, false, from);
  if (j < 0 || sim_pending(s, from, true, to) != i) return false;
  const plan_step *in = &s->plans[to]->steps[j];
  if (in->n != out->n) s->mismatch = 1;
  for (int c = 0; c < out->n && !s->mismatch; c++) sim_deliver(s, out, in, c);
  s->done[from * s->max_steps + i] = s->done[to * s->max_steps + j] = 1;
  return true;
}

static inline void sim_local(sim *s, int r, const plan_step *st) {
  bool input = s->collective == LWCC_ALLTOALL && st->kind == STEP_COPY;
  int n = input ? sim_length(s, st->src, r) : sim_length(s, r, st->src);
  if (n != sim_length(s, r, st->chunk)) s->mismatch = 1;
  uint64_t *dst = sim_chunk(s, s->data, r, st->chunk), *src = sim_chunk(s, s->snapshot, r, st->src);
  for (int e = 0; e < n && !s->mismatch; e++) {
    uint64_t x = input ? sim_term(r, st->src, e) : src[e];
    dst[e] = st->kind == STEP_COPY ? x : dst[e] + x;
  }
}

/* r's first fold of its round that has not happened; NULL: none. */
static inline int *sim_pending_fold(const sim *s, int r, const plan_step **fold) {
  if (s->round[r] >= s->plans[r]->nrounds) return NULL;
  for (int i = sim_begin(s, r); i < sim_end(s, r); i++) {
    *fold = &s->plans[r]->steps[i];
    int *done = &s->done[r * s->max_steps + i];
    if ((*fold)->kind == STEP_FOLD && !*done) return done;
  }
  return NULL;
}

/* Do the fold that is next if every rank is at it. */
static inline bool sim_fold(sim *s) {
  const plan_step *first = NULL, *fold = NULL;
  if (!sim_pending_fold(s, 0, &first)) return false;
  for (int r = 0; r < s->size; r++) {
    if (!sim_pending_fold(s, r, &fold)) return false;
    if (fold->chunk != first->chunk || fold->peer != first->peer) s->mismatch = 1;
  }
  for (int r = 0; r < s->size; r++) *sim_pending_fold(s, r, &fold) = 1;
  for (int e = 0; e < sim_length(s, 0, first->chunk) && !s->mismatch; e++) {
    uint64_t sum = 0;
    for (int r = 0; r < s->size; r++) sum += sim_chunk(s, s->snapshot, r, first->chunk)[e];
    for (int r = 0; r < s->size; r++) sim_chunk(s, s->data, r, first->chunk)[e] = sum;
  }
  return true;
}

/* Try the steps of r's round; begin the next one when all have happened. */
static inline bool sim_turn(sim *s, int r) {
  const lwcc_plan *p = s->plans[r];
  if (s->round[r] >= p->nrounds) return false;
  int begin = sim_begin(s, r), end = sim_end(s, r), left = 0;
  bool moved = false;
  for (int k = begin; k < end && !s->mismatch; k++) {
    int i = s->backwards ? begin + end - 1 - k : k;
    const plan_step *st = &p->steps[i];
    int *done = &s->done[r * s->max_steps + i];
    if (*done) continue;
    if (st->kind == STEP_SEND) moved |= sim_message(s, r, i);
    if (st->kind == STEP_FOLD) moved |= sim_fold(s);
    if (st->kind != STEP_COPY && st->kind != STEP_REDUCE) continue;
    sim_local(s, r, st);
    *done = moved = true;
  }
  for (int i = begin; i < end; i++) left += !s->done[r * s->max_steps + i];
  if (left) return moved;
  s->round[r]++;
  memcpy(s->snapshot[r], s->data[r], (size_t)sim_total(s, r) * sizeof **s->data);
  return true;
}

static inline sim_verdict sim_compare(const sim *s) {
  for (int r = 0; r < s->size && s->collective != LWCC_BARRIER; r++) {
    for (int c = 0; c < s->nchunks; c++) {
      if (s->collective == LWCC_REDUCESCATTER && c != r) continue;
      const uint64_t *x = sim_chunk(s, s->data, r, c);
      for (int e = 0; e < sim_length(s, r, c); e++) {
        if (x[e] != sim_expected(s, r, c, e)) return SIM_WRONG;
      }
    }
  }
  return SIM_RIGHT;
}

static inline sim_verdict sim_sweep(sim *s) {
  for (bool moved = true; moved && !s->mismatch;) {
    moved = false;
    for (int k = 0; k < s->size; k++) moved |= sim_turn(s, s->backwards ? s->size - 1 - k : k);
  }
  if (s->mismatch) return SIM_MISMATCH;
  for (int r = 0; r < s->size; r++) {
    if (s->round[r] < s->plans[r]->nrounds) return SIM_DEADLOCK;
  }
  return sim_compare(s);
}

static inline sim_verdict sim_run(const lwcc_plan *const *plans, int size, int count, int backwards) {
  sim s = {.plans = plans, .size = size, .nchunks = plans[0]->nchunks, .collective = plans[0]->collective};
  s.count = count;
  s.backwards = backwards;
  s.data = calloc((size_t)size, sizeof *s.data);
  s.snapshot = calloc((size_t)size, sizeof *s.snapshot);
  s.round = calloc((size_t)size, sizeof *s.round);
  s.cursor = calloc((size_t)size * size * 2, sizeof *s.cursor);
  s.offset = calloc((size_t)size * (s.nchunks + 1), sizeof *s.offset);
  for (int r = 0; r < size; r++) {
    int *offset = s.offset + r * (s.nchunks + 1);
    for (int c = 0; c < s.nchunks; c++) offset[c + 1] = offset[c] + sim_length(&s, r, c);
    if (plans[r]->nsteps > s.max_steps) s.max_steps = plans[r]->nsteps;
    size_t n = (size_t)sim_total(&s, r) + 1;
    s.data[r] = calloc(n, sizeof **s.data);
    s.snapshot[r] = calloc(n, sizeof **s.data);
    for (int c = 0; c < s.nchunks; c++) {
      for (int e = 0; e < sim_length(&s, r, c); e++) sim_chunk(&s, s.data, r, c)[e] = sim_initial(&s, r, c, e);
    }
    memcpy(s.snapshot[r], s.data[r], n * sizeof **s.data);
  }
  s.done = calloc((size_t)size * s.max_steps + 1, sizeof *s.done);
  sim_verdict verdict = sim_sweep(&s);
  for (int r = 0; r < size; r++) {
    free(s.data[r]);
    free(s.snapshot[r]);
  }
  free(s.data);
  free(s.snapshot);
  free(s.offset);
  free(s.cursor);
  free(s.round);
  free(s.done);
  return verdict;
}

/* ---- barriers: may anyone leave before `absent` has come? Sends are buffered without limit here. ---- */

/* Messages with this peer among the first n steps. */
static inline int sim_messages(const lwcc_plan *p, bool send, int peer, int n) {
  int count = 0;
  for (int i = 0; i < n; i++) count += (p->steps[i].kind == STEP_SEND) == send && p->steps[i].peer == peer;
  return count;
}

static inline bool sim_barrier_round_ends(const lwcc_plan *const *plans, const int *round, int r, int absent) {
  const lwcc_plan *p = plans[r];
  for (int i = 0; i < p->round_end[round[r]]; i++) {
    int peer = p->steps[i].peer;
    if (p->steps[i].kind == STEP_SEND) continue;
    if (peer == absent) return false;
    const lwcc_plan *q = plans[peer];
    int begun = round[peer] < q->nrounds ? q->round_end[round[peer]] : q->nsteps;
    if (sim_messages(p, false, peer, i + 1) > sim_messages(q, true, r, begun)) return false;
  }
  return true;
}

static inline bool sim_barrier_leaks(const lwcc_plan *const *plans, int size, int absent) {
  int *round = calloc((size_t)size, sizeof *round);
  bool leak = false;
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < size; r++) {
      if (r == absent || round[r] >= plans[r]->nrounds || !sim_barrier_round_ends(plans, round, r, absent)) continue;
      round[r]++;
      moved = true;
    }
  }
  for (int r = 0; r < size; r++) leak |= r != absent && round[r] >= plans[r]->nrounds;
  free(round);
  return leak;
}

/* The whole judgement: both sweep directions must be right, and no barrier may leak. */
static inline sim_verdict sim_judge(const lwcc_plan *const *plans, int size, int count) {
  for (int backwards = 0; backwards < 2; backwards++) {
    sim_verdict verdict = sim_run(plans, size, count, backwards);
    if (verdict != SIM_RIGHT) return verdict;
  }
  for (int r = 0; r < size && plans[0]->collective == LWCC_BARRIER; r++) {
    if (sim_barrier_leaks(plans, size, r)) return SIM_WRONG;
  }
  return SIM_RIGHT;
}
#endif
