/* The proof of a collective, over the plans of all ranks.
 *
 *   1. races     within a round no chunk is written twice, none is written and read by copy or reduce
 *   2. matching  the i-th send from a to b is tied to the i-th receive of b from a, and the i-th folds of all ranks.
 *                Both ends name the same chunks, because chunks differ in length (alltoall: the receiver's block of
 *                the input into the sender's block); for the same reason a copy serves only alltoall's own block
 *   3. run       on symbols, by rendezvous: no deadlock (prover.c)
 *   4. result    what plan.h promises for the collective, an allreduce to the last bit (prover.c) */
#include <stdlib.h>
#include <string.h>

#include "os/status.h"
#include "plan/prover.h"

/* ---- 1. races ---- */

static int check_local(const prover *v, int r, int i) {
  const plan_step *s = &v->plans[r]->steps[i];
  bool own_block = v->collective == LWCC_ALLTOALL && s->kind == STEP_COPY;
  if (own_block && (s->src != r || s->chunk != r))
    return prover_refuse(v, r, i, "only chunk %d of the input belongs into chunk %d; other blocks differ in length", r,
                         r);
  if (!own_block && s->src != s->chunk)
    return prover_refuse(v, r, i, "chunks %d and %d may differ in length", s->src, s->chunk);
  return LWCC_OK;
}

static int check_round(const prover *v, int r, int round) {
  const lwcc_plan *p = v->plans[r];
  int begin = round_begin(p, round), end = p->round_end[round];
  int *writer = v->writer + (size_t)r * v->nchunks;
  for (int i = begin; i < end; i++) {
    const plan_step *s = &p->steps[i];
    for (int c = s->chunk; writes(s) && c < s->chunk + s->n; c++) {
      if (writer[c] >= begin)
        return prover_refuse(v, r, i, "step %d of the same round writes chunk %d too: a race", writer[c], c);
      writer[c] = i;
    }
  }
  for (int i = begin; i < end; i++) {
    const plan_step *s = &p->steps[i];
    if (s->kind != STEP_COPY && s->kind != STEP_REDUCE) continue;
    TRY(check_local(v, r, i));
    bool reads_data = s->kind == STEP_REDUCE || v->collective != LWCC_ALLTOALL;
    if (reads_data && writer[s->src] >= begin)
      return prover_refuse(v, r, i, "step %d of the same round writes its source, chunk %d: a race", writer[s->src],
                           s->src);
  }
  return LWCC_OK;
}

static int check_races(const prover *v) {
  for (int r = 0; r < v->size; r++) {
    for (int round = 0; round < v->plans[r]->nrounds; round++) TRY(check_round(v, r, round));
  }
  memset(v->writer, -1, (size_t)v->size * v->nchunks * sizeof *v->writer);
  return LWCC_OK;
}

/* ---- 2. matching ---- */

static int tie(const prover *v, int from, int i, int to, int j) {
  const plan_step *out = &v->plans[from]->steps[i], *in = &v->plans[to]->steps[j];
  bool fits = out->chunk == in->chunk && out->n == in->n;
  if (v->collective == LWCC_ALLTOALL) fits = out->n == 1 && in->n == 1 && out->chunk == to && in->chunk == from;
  if (!fits) {
    char sent[PLAN_STEP_TEXT];
    plan_step_text(v->plans[from], i, sent);
    return prover_refuse(v, to, j, "its message is rank %d's step %d (%s); expected %s", from, i, sent,
                         v->collective == LWCC_ALLTOALL ? "the receiver's block into the sender's" : "the same chunks");
  }
  v->partner[v->first[from] + i] = j;
  v->partner[v->first[to] + j] = i;
  return LWCC_OK;
}

/* Queue the sends of every pair in order: head[from][to] is the oldest, and partner links it to the next one until it
 * is tied. */
static void queue_sends(const prover *v, int *head, int *tail) {
  memset(head, -1, (size_t)v->size * v->size * sizeof *head);
  for (int r = 0; r < v->size; r++) {
    const lwcc_plan *p = v->plans[r];
    for (int i = 0; i < p->nsteps; i++) {
      if (p->steps[i].kind != STEP_SEND) continue;
      size_t pair = (size_t)r * v->size + p->steps[i].peer;
      v->partner[v->first[r] + i] = -1;
      if (head[pair] < 0)
        head[pair] = i;
      else
        v->partner[v->first[r] + tail[pair]] = i;
      tail[pair] = i;
    }
  }
}

static int match_receives(const prover *v, int *head) {
  for (int r = 0; r < v->size; r++) {
    const lwcc_plan *p = v->plans[r];
    for (int i = 0; i < p->nsteps; i++) {
      const plan_step *s = &p->steps[i];
      if (s->kind != STEP_RECV_COPY && s->kind != STEP_RECV_REDUCE) continue;
      int *oldest = &head[(size_t)s->peer * v->size + r], sent = *oldest;
      if (sent < 0) return prover_refuse(v, r, i, "rank %d has no send for it", s->peer);
      *oldest = v->partner[v->first[s->peer] + sent];
      TRY(tie(v, s->peer, sent, r, i));
    }
  }
  for (size_t pair = 0; pair < (size_t)v->size * v->size; pair++) {
    int from = (int)(pair / v->size), to = (int)(pair % v->size);
    if (head[pair] >= 0) return prover_refuse(v, from, head[pair], "rank %d has no receive for it", to);
  }
  return LWCC_OK;
}

static int match_messages(const prover *v) {
  size_t pairs = (size_t)v->size * v->size;
  int *head = malloc(2 * pairs * sizeof *head);
  if (!head) return os_fail(LWCC_ERR_SYSTEM, "plan: no memory to prove plans of %d ranks", v->size);
  queue_sends(v, head, head + pairs);
  int status = match_receives(v, head);
  free(head);
  return status;
}

static int match_folds(const prover *v) {
  for (int r = 0; r < v->size; r++) {
    const lwcc_plan *p = v->plans[r];
    int n = 0;
    for (int i = 0; i < p->nsteps; i++) {
      const plan_step *s = &p->steps[i], *leader;
      if (s->kind != STEP_FOLD) continue;
      if (n == v->nfolds) return prover_refuse(v, r, i, "rank 0 has only %d folds", v->nfolds);
      v->fold_step[(size_t)n * v->size + r] = i;
      leader = &v->plans[0]->steps[v->fold_step[(size_t)n * v->size]];
      if (s->chunk != leader->chunk || s->peer != leader->peer)
        return prover_refuse(v, r, i, "rank 0's fold number %d is of chunk %d on rank %d", n, leader->chunk,
                             leader->peer);
      v->partner[v->first[r] + i] = n++;
    }
    if (n < v->nfolds) return prover_refuse(v, 0, v->fold_step[(size_t)n * v->size], "rank %d has only %d folds", r, n);
  }
  return LWCC_OK;
}

/* ---- set-up ---- */

static int check_headers(const lwcc_plan *const *plans, int size) {
  if (size < 1 || size > PLAN_VERIFY_MAX_RANKS)
    return os_fail(LWCC_ERR_UNSUPPORTED, "plan: %d ranks, the proof serves 1 to %d", size, PLAN_VERIFY_MAX_RANKS);
  const lwcc_plan *a = plans[0];
  for (int r = 0; r < size; r++) {
    const lwcc_plan *p = plans[r];
    if (p->status < 0) return os_fail(p->status, "%s", p->text);
    if (p->rank != r || p->size != size || p->collective != a->collective || p->nchunks != a->nchunks)
      return os_fail(LWCC_ERR_PLAN, "plan of rank %d: made for rank %d of %d, %s, %d chunks; expected %d of %d, %s, %d",
                     r, p->rank, p->size, collective_name(p->collective), p->nchunks, r, size,
                     collective_name(a->collective), a->nchunks);
  }
  return LWCC_OK;
}

static void close_prover(prover *v) {
  free(v->held);
  free(v->writer);
  free(v->first);
  free(v->partner);
  free(v->round);
  free(v->fold_step);
}

static int open_prover(prover *v) {
  size_t chunks = (size_t)v->size * v->nchunks, nsteps = 0, size = v->size;
  size_t nbytes = 2 * chunks * value_words(v) * sizeof *v->held;
  if (nbytes > PLAN_VERIFY_MAX_BYTES)
    return os_fail(LWCC_ERR_UNSUPPORTED, "plan: proving %d ranks with %d chunks takes %zu MiB, at most %zu", v->size,
                   v->nchunks, nbytes >> 20, PLAN_VERIFY_MAX_BYTES >> 20);
  for (int i = 0; i < v->plans[0]->nsteps; i++) v->nfolds += v->plans[0]->steps[i].kind == STEP_FOLD;
  v->first = malloc(size * sizeof *v->first);
  for (size_t r = 0; v->first && r < size; r++) {
    v->first[r] = nsteps;
    nsteps += v->plans[r]->nsteps;
  }
  v->held = malloc(nbytes);
  v->writer = malloc(chunks * sizeof *v->writer);
  v->partner = malloc((nsteps + 1) * sizeof *v->partner);
  v->round = malloc(3 * size * sizeof *v->round);
  v->fold_step = calloc(((size_t)v->nfolds + 1) * (size + 1), sizeof *v->fold_step);
  if (!v->first || !v->held || !v->writer || !v->partner || !v->round || !v->fold_step)
    return os_fail(LWCC_ERR_SYSTEM, "plan: no memory to prove plans of %d ranks", v->size);
  v->staged = v->held + chunks * value_words(v);
  memset(v->writer, -1, chunks * sizeof *v->writer);
  v->left = v->round + size;
  v->ready = v->left + size;
  v->arrived = v->fold_step + (size_t)v->nfolds * size;
  return LWCC_OK;
}

static int prove(prover *v) {
  TRY(open_prover(v));
  TRY(check_races(v));
  TRY(match_messages(v));
  TRY(match_folds(v));
  TRY(prover_run(v));
  return prover_check_result(v);
}

int plan_verify(const lwcc_plan *const *plans, int size) {
  TRY(check_headers(plans, size));
  prover v = {.plans = plans, .size = size, .nchunks = plans[0]->nchunks, .collective = plans[0]->collective};
  v.words = ((size_t)size + 1 + 63) / 64;
  int status = prove(&v);
  close_prover(&v);
  return status;
}
