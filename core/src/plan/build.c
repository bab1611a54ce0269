/* The verbs of plan.h. The first mistake is kept in the plan (status, text) and reported by plan_finish, so that the
 * author of an algorithm need not check each call; later steps are then ignored. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "os/status.h"
#include "plan/ir.h"

static const char *const kind_names[] = {"send", "recv_copy", "recv_reduce", "copy", "reduce", "fold"};

const char *plan_kind_name(step_kind kind) {
  return kind_names[kind];
}

int lwcc_mod(int a, int m) {
  int r = a % m;
  return r < 0 ? r + m : r;
}

static void refuse(lwcc_plan *p, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void refuse(lwcc_plan *p, int status, const char *fmt, ...) {
  if (p->status < 0) return;
  va_list args;
  va_start(args, fmt);
  vsnprintf(p->text, sizeof p->text, fmt, args);
  va_end(args);
  p->status = status;
}

const char *plan_step_fault(const lwcc_plan *p, const plan_step *s) {
  bool message = s->kind <= STEP_RECV_REDUCE, local = s->kind == STEP_COPY || s->kind == STEP_REDUCE;
  if ((local ? s->peer : s->src) != 0) return "a field that the verb does not use is not 0";
  if ((message || s->kind == STEP_FOLD) && (s->peer < 0 || s->peer >= p->size)) return "no such rank";
  if (message && s->peer == p->rank) return "a message to itself";
  if (p->collective == LWCC_BARRIER) {
    if (!message) return "a barrier has only messages";
    return s->n == 0 && s->chunk == 0 ? NULL : "a barrier's messages have 0 chunks";
  }
  if (s->n < 1 || s->chunk < 0 || s->n > p->nchunks || s->chunk > p->nchunks - s->n) return "no such chunk";
  if (!message && s->n != 1) return "takes one chunk";
  if (local && (s->src < 0 || s->src >= p->nchunks)) return "no such source chunk";
  if (s->kind == STEP_FOLD && p->collective != LWCC_ALLREDUCE) return "only an allreduce has folds";
  return NULL;
}

/* Room for one more element of width bytes; doubles. */
static int grow(lwcc_plan *p, void **items, int *capacity, size_t width) {
  if (*capacity >= PLAN_MAX_STEPS) {
    refuse(p, LWCC_ERR_PLAN, "rank %d: more than %d steps", p->rank, PLAN_MAX_STEPS);
    return -1;
  }
  int wanted = *capacity ? 2 * *capacity : 16;
  void *more = realloc(*items, (size_t)wanted * width);
  if (!more) {
    refuse(p, LWCC_ERR_SYSTEM, "rank %d: no memory for %d steps of a plan", p->rank, wanted);
    return -1;
  }
  *items = more;
  *capacity = wanted;
  return 0;
}

static void add(lwcc_plan *p, plan_step s) {
  if (p->status < 0) return;
  const char *fault = plan_step_fault(p, &s);
  if (fault) {
    refuse(p, LWCC_ERR_PLAN, "%s, rank %d of %d, step %d (round %d): %s peer %d, chunk %d, n %d of %d chunks: %s",
           collective_name(p->collective), p->rank, p->size, p->nsteps, p->nrounds, plan_kind_name(s.kind), s.peer,
           s.chunk, s.n, p->nchunks, fault);
    return;
  }
  if (p->nsteps == p->capacity && grow(p, (void **)&p->steps, &p->capacity, sizeof *p->steps)) return;
  p->steps[p->nsteps++] = s;
}

/* A range that wraps becomes two messages; both ends cut it at the same place, since they name the same chunks. */
static void add_range(lwcc_plan *p, plan_step s) {
  if (p->collective == LWCC_BARRIER || s.n < 1 || s.n > p->nchunks) {
    add(p, s);
    return;
  }
  s.chunk = lwcc_mod(s.chunk, p->nchunks);
  int before_end = p->nchunks - s.chunk, n = s.n;
  if (s.n > before_end) s.n = before_end;
  add(p, s);
  if (n <= before_end) return;
  s.chunk = 0;
  s.n = n - before_end;
  add(p, s);
}

void lwcc_plan_send(lwcc_plan *p, int peer, int chunk, int n) {
  add(p, (plan_step){.kind = STEP_SEND, .peer = peer, .chunk = chunk, .n = n});
}

void lwcc_plan_recv_copy(lwcc_plan *p, int peer, int chunk, int n) {
  add(p, (plan_step){.kind = STEP_RECV_COPY, .peer = peer, .chunk = chunk, .n = n});
}

void lwcc_plan_recv_reduce(lwcc_plan *p, int peer, int chunk, int n) {
  add(p, (plan_step){.kind = STEP_RECV_REDUCE, .peer = peer, .chunk = chunk, .n = n});
}

void lwcc_plan_send_range(lwcc_plan *p, int peer, int chunk, int n) {
  add_range(p, (plan_step){.kind = STEP_SEND, .peer = peer, .chunk = chunk, .n = n});
}

void lwcc_plan_recv_copy_range(lwcc_plan *p, int peer, int chunk, int n) {
  add_range(p, (plan_step){.kind = STEP_RECV_COPY, .peer = peer, .chunk = chunk, .n = n});
}

void lwcc_plan_recv_reduce_range(lwcc_plan *p, int peer, int chunk, int n) {
  add_range(p, (plan_step){.kind = STEP_RECV_REDUCE, .peer = peer, .chunk = chunk, .n = n});
}

void lwcc_plan_copy(lwcc_plan *p, int dst, int src) {
  add(p, (plan_step){.kind = STEP_COPY, .chunk = dst, .n = 1, .src = src});
}

void lwcc_plan_reduce(lwcc_plan *p, int dst, int src) {
  add(p, (plan_step){.kind = STEP_REDUCE, .chunk = dst, .n = 1, .src = src});
}

void lwcc_plan_fold(lwcc_plan *p, int chunk, int owner) {
  add(p, (plan_step){.kind = STEP_FOLD, .peer = owner, .chunk = chunk, .n = 1});
}

void lwcc_plan_end_round(lwcc_plan *p) {
  int begun = p->nrounds ? p->round_end[p->nrounds - 1] : 0;
  if (p->status < 0 || p->nsteps == begun) return; /* a round without steps is none */
  if (p->nrounds == p->round_capacity && grow(p, (void **)&p->round_end, &p->round_capacity, sizeof *p->round_end))
    return;
  p->round_end[p->nrounds++] = p->nsteps;
}

int plan_new(int collective, int rank, int size, int nchunks, lwcc_plan **out) {
  if (collective < 0 || collective >= LWCC_COLLECTIVES)
    return os_fail(LWCC_ERR_PLAN, "plan: no collective has the number %d", collective);
  const char *name = collective_name(collective);
  if (size < 1 || size > PLAN_MAX_RANKS || rank < 0 || rank >= size)
    return os_fail(LWCC_ERR_PLAN, "plan: %s: rank %d of %d, expected 0 <= rank < size <= %d", name, rank, size,
                   PLAN_MAX_RANKS);
  bool blocks = collective == LWCC_ALLGATHER || collective == LWCC_REDUCESCATTER || collective == LWCC_ALLTOALL;
  if (blocks && nchunks != size)
    return os_fail(LWCC_ERR_PLAN, "plan: %s: %d chunks, expected one for each of the %d ranks", name, nchunks, size);
  if (nchunks < 1 || nchunks > PLAN_MAX_CHUNKS)
    return os_fail(LWCC_ERR_PLAN, "plan: %s: %d chunks, expected 1 to %d", name, nchunks, PLAN_MAX_CHUNKS);
  lwcc_plan *p = calloc(1, sizeof *p);
  if (!p) return os_fail(LWCC_ERR_SYSTEM, "plan: %s: no memory for rank %d's plan", name, rank);
  p->collective = collective;
  p->rank = rank;
  p->size = size;
  p->nchunks = nchunks;
  *out = p;
  return LWCC_OK;
}

int plan_finish(lwcc_plan *p) {
  lwcc_plan_end_round(p);
  return p->status < 0 ? os_fail(p->status, "%s", p->text) : LWCC_OK;
}

int lwcc_plan_node(const lwcc_plan *p, int rank) {
  return p->nodes ? p->nodes[rank] : rank / 2 * 2;
}

int plan_build(const lwcc_algo *algo, int rank, int size, lwcc_plan **out) {
  return plan_build_on(algo, rank, size, NULL, out);
}

int plan_build_on(const lwcc_algo *algo, int rank, int size, const int *nodes, lwcc_plan **out) {
  const char *name = collective_name(algo->collective);
  if (size < algo->min_ranks)
    return os_fail(LWCC_ERR_UNSUPPORTED, "%s of %d ranks: this algorithm needs at least %d", name, size,
                   algo->min_ranks);
  if (algo->power_of_two && (size & (size - 1)))
    return os_fail(LWCC_ERR_UNSUPPORTED, "%s of %d ranks: this algorithm needs a power of two", name, size);
  lwcc_plan *p;
  TRY(plan_new(algo->collective, rank, size, algo->chunks ? algo->chunks(size) : size, &p));
  p->nodes = nodes;
  algo->build(p, rank, size);
  p->nodes = NULL;
  int status = plan_finish(p);
  if (status < 0) {
    plan_free(p);
    return status;
  }
  *out = p;
  return LWCC_OK;
}

void plan_free(lwcc_plan *p) {
  if (!p) return;
  free(p->steps);
  free(p->round_end);
  free(p);
}
