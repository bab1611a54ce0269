/* PATH 8/9 begins here: rounds of a plan become messages. Within a round everything travels side by side; what arrives
 * for a reduction is added as it comes. A chunk that the round also sends is changed only after it has been sent. */
#include "exec/wire.h"

#include <stdlib.h>
#include <string.h>

#include "os/mem.h"
#include "os/status.h"

#define SLICE ((size_t)256 << 10) /* bytes added at a time: stays in the second-level cache */

static size_t at(const exec_op *op, int chunk) {
  return op->bounds[chunk] * op->width;
}

static size_t length(const exec_op *op, int chunk, int n) {
  return at(op, chunk + n) - at(op, chunk);
}

static int real_index(const exec_op *op, int plan_rank) {
  return (plan_rank + op->rotation) % op->team->size;
}

static int real_peer(const exec_op *op, int plan_rank) {
  return op->team->ranks[real_index(op, plan_rank)];
}

static int round_first(const exec_op *op) {
  return op->round ? op->plan->round_end[op->round - 1] : 0;
}

static const plan_step *step_at(const exec_op *op, int i) {
  return &op->plan->steps[i];
}

/* Is any of these chunks sent in this round? */
static bool being_sent(const exec_op *op, const plan_step *s) {
  if (op->plan->collective == LWCC_ALLTOALL) return false; /* sends read IN */
  for (int i = round_first(op); i < op->plan->round_end[op->round]; i++) {
    const plan_step *o = step_at(op, i);
    if (o->kind == STEP_SEND && o->chunk < s->chunk + s->n && s->chunk < o->chunk + o->n) return true;
  }
  return false;
}

static transfer *add(exec_op *op, transfer_kind kind, const void *buf, size_t nbytes) {
  transfer *t = &op->transfers[op->ntransfers++];
  *t = (transfer){.kind = kind, .io = {.buf = (void *)(uintptr_t)buf, .nbytes = nbytes, .tag = op->tag}};
  return t;
}

static void launch(exec_op *op, transfer *t, int plan_peer) {
  int peer = real_peer(op, plan_peer);
  if (t->kind == SEND)
    channel_send(op->team->ch, peer, op->team->cls, &t->io);
  else
    channel_recv(op->team->ch, peer, op->team->cls, &t->io);
}

/* ---- rounds of messages ---- */

static size_t staged_nbytes(const exec_op *op, const plan_step *s) {
  bool stages = s->kind == STEP_RECV_REDUCE || (s->kind == STEP_RECV_COPY && being_sent(op, s));
  return stages ? (length(op, s->chunk, s->n) + 63) & ~(size_t)63 : 0;
}

static void begin_step(exec_op *op, const plan_step *s, char **scratch) {
  if (s->kind == STEP_SEND) {
    const size_t *b = op->input_bounds;
    size_t from = b[s->chunk] * op->width, to = b[s->chunk + s->n] * op->width;
    launch(op, add(op, SEND, op->input + from, to - from), s->peer);
    return;
  }
  size_t n = length(op, s->chunk, s->n), staged = staged_nbytes(op, s);
  transfer_kind kind = s->kind == STEP_RECV_REDUCE ? RECV_REDUCE : staged ? RECV_STAGED : RECV_COPY;
  char *to = op->data + at(op, s->chunk);
  transfer *t = add(op, kind, staged ? *scratch : to, n);
  t->to = to;
  *scratch += staged;
  launch(op, t, s->peer);
}

static int begin_messages(exec_op *op) {
  int first = round_first(op), end = op->plan->round_end[op->round];
  size_t need = 0;
  for (int i = first; i < end; i++) need += staged_nbytes(op, step_at(op, i));
  TRY(exec_room(&op->scratch, &op->scratch_nbytes, need));
  char *scratch = op->scratch;
  for (int i = first; i < end; i++)
    if (step_at(op, i)->kind <= STEP_RECV_REDUCE) begin_step(op, step_at(op, i), &scratch);
  return LWCC_OK;
}

/* ---- rounds of folds: terms travel to the owner, results back ---- */

static size_t fold_room(const exec_op *op, int chunk) {
  return (length(op, chunk, 1) + 63) & ~(size_t)63;
}

static int begin_terms(exec_op *op) {
  size_t need = 0;
  int me = op->plan->rank, size = op->plan->size;
  for (int i = round_first(op); i < op->plan->round_end[op->round]; i++)
    if (step_at(op, i)->peer == me) need += (size_t)size * fold_room(op, step_at(op, i)->chunk);
  TRY(exec_room(&op->scratch, &op->scratch_nbytes, need));
  char *scratch = op->scratch;
  for (int i = round_first(op); i < op->plan->round_end[op->round]; i++) {
    const plan_step *s = step_at(op, i);
    size_t n = length(op, s->chunk, 1);
    if (s->peer != me) launch(op, add(op, SEND, op->data + at(op, s->chunk), n), s->peer);
    for (int r = 0; r < size && s->peer == me; r++, scratch += fold_room(op, s->chunk))
      if (r != me) launch(op, add(op, RECV_TERM, scratch, n), r);
  }
  return LWCC_OK;
}

static void fold_own(exec_op *op, const plan_step *s, char *terms) {
  const void *src[64];
  void *dst = op->data + at(op, s->chunk);
  size_t count = op->bounds[s->chunk + 1] - op->bounds[s->chunk];
  int size = op->plan->size, n = 0;
  for (int r = 0; r < size; r++) {
    src[n++] = r == op->plan->rank ? dst : (void *)(terms + (size_t)r * fold_room(op, s->chunk));
    if (n < 64 && r < size - 1) continue;
    op->fold(n, src, 1, &dst, count, 1.0);
    src[0] = dst; /* more than 64 ranks: the partial result is the first term of the rest */
    n = 1;
  }
}

static void begin_results(exec_op *op) {
  char *terms = op->scratch;
  int me = op->plan->rank, size = op->plan->size;
  op->ntransfers = 0;
  op->folding = true;
  for (int i = round_first(op); i < op->plan->round_end[op->round]; i++) {
    const plan_step *s = step_at(op, i);
    char *chunk = op->data + at(op, s->chunk);
    size_t n = length(op, s->chunk, 1);
    if (s->peer != me) {
      launch(op, add(op, RECV_COPY, chunk, n), s->peer);
      continue;
    }
    fold_own(op, s, terms);
    terms += (size_t)size * fold_room(op, s->chunk);
    for (int r = 0; r < size; r++)
      if (r != me) launch(op, add(op, SEND, chunk, n), r);
  }
}

/* ---- one round ---- */

static bool is_fold_round(const exec_op *op) {
  int first = round_first(op);
  return first < op->plan->round_end[op->round] && step_at(op, first)->kind == STEP_FOLD;
}

static int begin_round(exec_op *op) {
  int steps = op->plan->round_end[op->round] - round_first(op);
  int need = is_fold_round(op) ? steps * op->plan->size : steps;
  if (need > op->room) {
    transfer *more = realloc(op->transfers, (size_t)need * sizeof *more);
    if (!more) return os_fail(LWCC_ERR_SYSTEM, "no memory for %d messages of a round", need);
    op->transfers = more;
    op->room = need;
  }
  op->ntransfers = 0;
  op->folding = false;
  return is_fold_round(op) ? begin_terms(op) : begin_messages(op);
}

int wire_begin(exec_op *op) {
  op->round = 0;
  return op->plan->nrounds ? begin_round(op) : LWCC_OK;
}

/* Put what has arrived where it belongs; sent: all sends of the round are done. */
static bool take(exec_op *op, transfer *t, bool sent) {
  size_t ready = t->io.done - t->taken, w = op->width;
  if (t->kind < RECV_STAGED || t->kind == RECV_TERM || !ready || !sent) return false;
  if (t->kind == RECV_REDUCE && t->io.done < t->io.nbytes && ready < SLICE) return false;
  ready -= ready % w;
  char *from = (char *)t->io.buf + t->taken, *to = t->to + t->taken;
  if (t->kind == RECV_STAGED) {
    reduce_copy(to, from, ready, 0);
  } else {
    const void *src[2] = {to, from};
    void *dst[1] = {to};
    op->fold(2, src, 1, dst, ready / w, 1.0);
  }
  t->taken += ready;
  return true;
}

static void local_steps(exec_op *op) {
  for (int i = round_first(op); i < op->plan->round_end[op->round]; i++) {
    const plan_step *s = step_at(op, i);
    if (s->kind != STEP_COPY && s->kind != STEP_REDUCE) continue;
    char *dst = op->data + at(op, s->chunk);
    const char *src = op->input + op->input_bounds[s->src] * op->width;
    size_t n = length(op, s->chunk, 1);
    const void *both[2] = {dst, src};
    if (s->kind == STEP_COPY)
      reduce_copy(dst, src, n, 0);
    else
      op->fold(2, both, 1, (void *[]){dst}, n / op->width, 1.0);
  }
}

/* LWCC_OK when all transfers of the round are in place. */
static int advance(exec_op *op, bool *progress_out) {
  bool sent = true, pending = false;
  for (int i = 0; i < op->ntransfers; i++) {
    const transfer *t = &op->transfers[i];
    if (t->io.status < 0)
      return os_fail(t->io.status, "%s %s: a message was lost with its peer", collective_name(op->a.collective),
                     op->name);
    if (t->kind == SEND && t->io.status == LWCC_PENDING) sent = false;
  }
  for (int i = 0; i < op->ntransfers; i++) {
    transfer *t = &op->transfers[i];
    *progress_out |= take(op, t, sent);
    bool placed = t->kind < RECV_STAGED || t->kind == RECV_TERM || t->taken == t->io.nbytes;
    pending |= t->io.status == LWCC_PENDING || !placed;
  }
  return pending ? LWCC_PENDING : LWCC_OK;
}

int wire_step(exec_op *op, bool *progress_out) {
  while (op->round < op->plan->nrounds) {
    int st = advance(op, progress_out);
    if (st != LWCC_OK) return st;
    *progress_out = true;
    if (is_fold_round(op) && !op->folding) {
      begin_results(op);
      continue;
    }
    local_steps(op);
    if (++op->round < op->plan->nrounds) TRY(begin_round(op));
  }
  return LWCC_OK;
}
