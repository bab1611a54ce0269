/* A set's buckets, run one after the other in log order; and its raw calls over a wire, in their callers' order. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord/engine.h"
#include "coord/fuse.h"
#include "coord/stand_in.h"
#include "exec/adasum.h"
#include "os/clock.h"
#include "os/futex.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/status.h"

enum { RAW_YIELDS = 1000 }; /* a raw caller tries longer before it leaves the driving to another thread */
#define LEFT_GRACE_NS UINT64_C(2000000000) /* a running collective may still finish so long after a member has left */

int lane_append(pset *ps, bucket *b) {
  b->next = NULL;
  *ps->lane_tail = b;
  ps->lane_tail = &b->next;
  ps->lane_length++;
  return LWCC_OK;
}

/* ---- what to run ---- */

/* A rank that refuses memory takes part all the same, with memory of ours, because the others have begun. */
static int output_room(request *r, size_t nbytes) {
  r->nbytes = nbytes;
  if (r->output) return LWCC_OK;
  if (r->allocate) r->output = r->allocate(r->user, r->first_dim, nbytes);
  if (r->output) return LWCC_OK;
  r->refused = r->allocate != NULL;
  if (posix_memalign(&r->owned, 64, nbytes ? nbytes : 1) != 0) {
    r->owned = NULL;
    return os_fail(LWCC_ERR_SYSTEM, "\"%s\": no memory for %zu bytes of output", r->name, nbytes);
  }
  r->output = r->owned;
  return LWCC_OK;
}

static int keep_rows(request *r, int n) {
  void *memory;
  TRY(mem_zeroed((size_t)n, sizeof(int64_t), &memory));
  free(r->rows);
  r->rows = memory;
  r->nrows = n;
  return LWCC_OK;
}

static int args_allgather(pset *ps, request *r, const cached *c, coll_args *a) {
  size_t row = signature_row_count(&r->sig), total = 0;
  TRY(keep_rows(r, ps->size));
  for (int i = 0; i < ps->size; i++) {
    r->rows[i] = c->values[i];
    ps->counts[i] = (size_t)r->rows[i] * row;
    r->first_dim += r->rows[i];
    if (!mem_add(total, ps->counts[i], &total)) return os_fail(LWCC_ERR_SYSTEM, "\"%s\": too large", r->name);
  }
  a->counts = ps->counts;
  return output_room(r, total * coll_dtype_bytes(a->dtype));
}

static int args_alltoall(pset *ps, request *r, const cached *c, coll_args *a) {
  size_t row = signature_row_count(&r->sig), total = 0, p = (size_t)ps->size, me = (size_t)ps->me;
  TRY(keep_rows(r, ps->size));
  for (size_t i = 0; i < p; i++) {
    r->rows[i] = c->values[i * p + me];
    ps->counts[i] = (size_t)c->values[me * p + i] * row;
    ps->counts[p + i] = (size_t)r->rows[i] * row;
    r->first_dim += r->rows[i];
    if (!mem_add(total, ps->counts[p + i], &total)) return os_fail(LWCC_ERR_SYSTEM, "\"%s\": too large", r->name);
  }
  a->counts = ps->counts;
  a->recv_counts = ps->counts + p;
  bool equal = true;
  for (size_t i = 0; i < p * p; i++) {
    equal &= c->values[i] == c->values[0];
    if ((size_t)c->values[i] * row > a->longest) a->longest = (size_t)c->values[i] * row;
  }
  if (equal) {
    a->counts = a->recv_counts = NULL;
    a->count = a->longest;
  }
  return output_room(r, total * coll_dtype_bytes(a->dtype));
}

static int args_reducescatter(pset *ps, request *r, coll_args *a) {
  size_t row = signature_row_count(&r->sig), rows = (size_t)r->sig.shape[0], p = (size_t)ps->size;
  for (size_t i = 0; i < p; i++) ps->counts[i] = (rows / p + (i < rows % p)) * row;
  r->first_dim = (int64_t)(rows / p + ((size_t)ps->me < rows % p));
  a->counts = ps->counts;
  return output_room(r, ps->counts[ps->me] * coll_dtype_bytes(a->dtype));
}

/* Adasum: several collectives, one after the other. */
static int args_adasum(const pset *ps, bucket *b, coll_args *a) {
  if (a->count == 0) return LWCC_OK;
  TRY(adasum_create(a, ps->me, ps->size, &b->adaptive));
  adasum_next(b->adaptive, a);
  return LWCC_OK;
}

/* What every member of a bucket has before it runs. */
static int prepare_members(bucket *b) {
  for (int i = 0; i < b->n; i++) {
    request *m = b->members[i].r;
    if (m->stand_in) TRY(stand_in_fill(m));
    m->contributors = b->members[i].answer->contributors;
    m->nbytes = signature_count(&m->sig) * coll_dtype_bytes(m->sig.dtype); /* if fixed; the others overwrite it */
    m->first_dim = 0;
  }
  return LWCC_OK;
}

static int prepare(engine *e, pset *ps, bucket *b, coll_args *a) {
  TRY(prepare_members(b));
  request *r = b->members[0].r;
  const signature *s = &r->sig;
  *a = (coll_args){.collective = s->collective,
                   .dtype = s->dtype,
                   .op = s->op,
                   .in = r->input,
                   .out = r->output,
                   .count = signature_count(s),
                   .prescale = s->prescale,
                   .postscale = s->postscale};
  if (s->op == LWCC_AVERAGE && (s->collective == LWCC_ALLREDUCE || s->collective == LWCC_REDUCESCATTER)) {
    a->op = LWCC_SUM;
    a->postscale /= r->contributors;
  }
  if (r->contributors < ps->size) stand_in_scale(a, r->contributors);
  int st = LWCC_OK;
  switch (s->collective) {
    case LWCC_ALLREDUCE:
      TRY(fuse_pack(e, ps, b, a, &b->packed));
      return s->op == LWCC_ADASUM ? args_adasum(ps, b, a) : LWCC_OK;
    case LWCC_BROADCAST:
      a->root = pset_index(ps, s->root);
      break;
    case LWCC_ALLGATHER:
      st = args_allgather(ps, r, b->members[0].answer, a);
      break;
    case LWCC_ALLTOALL:
      st = args_alltoall(ps, r, b->members[0].answer, a);
      break;
    case LWCC_REDUCESCATTER:
      st = args_reducescatter(ps, r, a);
      break;
    default:
      r->nbytes = a->count = 0;
      break;
  }
  a->out = r->output;
  e->stats.bytes += r->nbytes;
  return st;
}

/* Does nobody have anything to move? Decided from what all ranks know. */
static bool nothing_to_move(const pset *ps, const bucket *b, const coll_args *a) {
  if (a->collective == LWCC_BARRIER) return false;
  if (a->collective == LWCC_ALLGATHER || a->collective == LWCC_REDUCESCATTER) {
    size_t any = 0;
    for (int i = 0; i < ps->size; i++) any |= a->counts[i];
    return any == 0;
  }
  if (a->collective != LWCC_ALLTOALL) return a->count == 0;
  int64_t rows = 0;
  for (int i = 0; i < ps->size * ps->size; i++) rows |= b->members[0].answer->values[i];
  return rows == 0 || signature_row_count(&b->members[0].r->sig) == 0;
}

/* ---- running ---- */

static void finish_members(engine *e, bucket *b, int status, const char *text) {
  for (int i = 0; i < b->n; i++) {
    request *r = b->members[i].r;
    cached_unuse(b->members[i].answer);
    if (e->trace) timeline_request(e->trace, r, b->began_ns, status);
    if (stand_in_free(r)) continue;
    if (r->refused && status >= 0) {
      char why[NAME_CAP + 64];
      snprintf(why, sizeof why, "\"%s\": no memory for %zu bytes of output", r->name, r->nbytes);
      request_complete(&e->q, r, LWCC_ERR_SYSTEM, why);
      continue;
    }
    /* PATH 9/9: the result stands in the output; the ticket is done */
    request_complete(&e->q, r, status, text);
  }
  *(status < 0 ? &e->stats.failed : &e->stats.completed) += (uint64_t)b->n;
}

static bucket *pop(pset *ps) {
  bucket *b = ps->lane;
  ps->lane = b->next;
  if (!ps->lane) ps->lane_tail = &ps->lane;
  ps->lane_length--;
  return b;
}

/* An operation begins to run; one that ran has ended. */
static void count_start(engine *e) {
  if (e->running++ == 0) e->busy_since_ns = clock_ns();
}
static void count_end(engine *e, exec_op **op) {
  if (*op && --e->running == 0) e->stats.busy_ns += clock_ns() - e->busy_since_ns;
  if (*op) exec_free(*op);
  *op = NULL;
}

static void finish(engine *e, pset *ps, int status) {
  char text[TEXT_CAP];
  bucket *b = pop(ps);
  os_copy_text(text, sizeof text, status < 0 ? os_error() : "");
  if (status >= 0 && b->packed) fuse_unpack(ps, b);
  count_end(e, &ps->op);
  finish_members(e, b, status, text);
  free(b->adaptive);
  free(b);
}

static void fail_job(engine *e, int status) {
  char text[TEXT_CAP];
  os_copy_text(text, sizeof text, os_error());
  engine_fail(e, status, text);
}

static int lost_member(const engine *e, const pset *ps) {
  char text[TEXT_CAP];
  order_left_text(e, atomic_load(&ps->left), text, sizeof text);
  return os_fail(LWCC_ERR_SHUTDOWN, "in the middle of a collective: %s", text);
}

/* Begin a collective of the first bucket, unless preparing it has failed. */
static void begin(engine *e, pset *ps, int st, const coll_args *a) {
  const bucket *b = ps->lane;
  const char *algorithm = b->members[0].r->sig.algorithm;
  ps->tag++;
  if (st >= 0)
    st = exec_start(&ps->named, a, algorithm[0] && !b->adaptive ? algorithm : NULL, pset_tag(ps, ps->tag), &ps->op);
  if (st >= 0) {
    ps->op_moved = true;
    count_start(e);
    return;
  }
  ps->op = NULL;
  if (st == LWCC_ERR_SYSTEM)
    fail_job(e, st); /* of this rank alone: the others have begun, and would wait for it */
  else
    finish(e, ps, st);
}

static void start(engine *e, pset *ps) {
  coll_args a;
  if (ps->broken) {
    finish(e, ps, lost_member(e, ps));
    return;
  }
  bucket *b = ps->lane;
  int st = prepare(e, ps, b, &a);
  if (ps->lane != b) return; /* the job failed while prepare waited for the peers' memory: b is gone */
  e->stats.buckets++;
  if (e->trace) b->began_ns = clock_ns();
  if (st >= 0 && !b->adaptive && nothing_to_move(ps, b, &a))
    finish(e, ps, LWCC_OK);
  else
    begin(e, ps, st, &a);
}

static bool goes_on(engine *e, pset *ps) {
  coll_args a;
  if (!ps->lane->adaptive || !adasum_next(ps->lane->adaptive, &a)) return false;
  count_end(e, &ps->op);
  begin(e, ps, LWCC_OK, &a);
  return true;
}

/* A member that has left cannot help any more; what it had to do it mostly did before. */
static bool hopeless(engine *e, const pset *ps) {
  return atomic_load(&ps->left) >= 0 && clock_ns() - e->left_ns > LEFT_GRACE_NS;
}

bool lane_turn(engine *e, pset *ps) {
  bool any = false, progress = false;
  if (!ps->lane) return false;
  if (!ps->op) {
    start(e, ps);
    any = true;
    if (!ps->op) return any;
  }
  if (ps->named.blocking && !channel_idle(e->ch)) return any; /* the order must be out before we block for it */
  int st = exec_step(ps->op, &progress);
  ps->op_moved |= progress;
  bool left = atomic_load(&ps->left) >= 0;
  if (st == LWCC_PENDING && !(hopeless(e, ps) && !progress)) return any || progress;
  if (st == LWCC_PENDING || (st == LWCC_ERR_PEER_LOST && left)) st = lost_member(e, ps);
  ps->broken |= st < 0;
  if (st < 0 && st != LWCC_ERR_SHUTDOWN) { /* a running collective that fails leaves the lane in no known state */
    fail_job(e, st);
    return true;
  }
  if (st < 0 || !goes_on(e, ps)) finish(e, ps, st);
  return true;
}

void lane_abandon(engine *e, pset *ps) {
  count_end(e, &ps->op); /* before the buffers that it still receives into */
  while (ps->lane) {
    bucket *b = pop(ps);
    for (int i = 0; i < b->n; i++) {
      cached_unuse(b->members[i].answer);
      stand_in_free(b->members[i].r);
    }
    free(b->adaptive);
    free(b);
  }
}

/* ---- raw calls over a wire ---- */

static void raw_finish(engine *e, pset *ps, int status, const char *text) {
  request *r = &ps->raw_call;
  count_end(e, &ps->raw_op);
  ps->raw_broken |= status < 0;
  os_copy_text(r->text, sizeof r->text, text);
  atomic_store_explicit(&r->status, status, memory_order_release);
  atomic_store(&r->done, 1);
  if (atomic_load(&r->waiters)) futex_wake(&r->done);
}

bool raw_turn(engine *e, pset *ps) {
  bool progress = false;
  if (!ps->raw_op) return false;
  int st = exec_step(ps->raw_op, &progress);
  bool left = atomic_load(&ps->left) >= 0;
  if (st == LWCC_PENDING && !(hopeless(e, ps) && !progress)) return progress;
  if (st == LWCC_PENDING || (st == LWCC_ERR_PEER_LOST && left)) st = lost_member(e, ps);
  raw_finish(e, ps, st, st < 0 ? os_error() : "");
  return true;
}

void raw_abandon(engine *e, pset *ps, int status, const char *text) {
  if (ps->raw_op) raw_finish(e, ps, status, text);
}

static int raw_start(engine *e, pset *ps, const coll_args *a, const char *algorithm) {
  request *r = &ps->raw_call;
  int failed = engine_failed(e);
  if (failed < 0) return os_fail(failed, "%s", e->failed_text);
  if (ps->raw_broken) return lost_member(e, ps);
  atomic_store_explicit(&r->done, 0, memory_order_relaxed);
  atomic_store_explicit(&r->status, LWCC_PENDING, memory_order_relaxed);
  int st = exec_start(&ps->raw, a, algorithm, pset_tag(ps, ++ps->raw_tag), &ps->raw_op);
  if (st >= 0) count_start(e);
  if (st >= 0) return LWCC_OK;
  ps->raw_op = NULL;
  if (st == LWCC_ERR_SYSTEM) fail_job(e, st); /* the others have begun, and would wait for this rank */
  return st;
}

int raw_run(engine *e, pset *ps, const coll_args *a, const char *algorithm) {
  while (atomic_exchange_explicit(&ps->raw_lock, 1, memory_order_acquire)) sched_yield(); /* pairs with the release */
  pset_count_raw(ps);
  engine_lock(e);
  int st = raw_start(e, ps, a, algorithm);
  if (st < 0)
    engine_unlock(e);
  else if ((st = engine_wait_locked(e, &ps->raw_call, RAW_YIELDS)) < 0)
    os_fail(st, "%s", ps->raw_call.text);
  atomic_store_explicit(&ps->raw_lock, 0, memory_order_release);
  return st;
}
