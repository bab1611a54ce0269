/* PATH 4/9: the arguments of named requests are checked here, on the caller's thread, and pushed. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "api/ctx.h"
#include "exec/adasum.h"
#include "exec/coll.h"
#include "os/clock.h"
#include "os/mem.h"
#include "os/status.h"
#include "plan/defined.h"

typedef struct {
  engine *e;
  const lwcc_request *requests;
  int n;
  uint64_t group;
} submission;

static int is_float(int dtype) {
  return dtype >= LWCC_FLOAT16 && dtype <= LWCC_FLOAT64;
}

static int check_name(const lwcc_request *a) {
  if (!a->name || !a->name[0]) return os_fail(LWCC_ERR_INVALID, "a request needs a name");
  if (strlen(a->name) >= NAME_CAP)
    return os_fail(LWCC_ERR_INVALID, "\"%.60s...\": a name has at most %d bytes, this one %zu", a->name, NAME_CAP - 1,
                   strlen(a->name));
  return LWCC_OK;
}

static int check_shape(const lwcc_request *a) {
  size_t count = 1;
  if (a->ndim < 0 || a->ndim > DIMS_MAX)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": %d dimensions; at most %d are supported", a->name, a->ndim, DIMS_MAX);
  if (a->ndim && !a->shape) return os_fail(LWCC_ERR_INVALID, "\"%s\": shape is NULL", a->name);
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] < 0)
      return os_fail(LWCC_ERR_INVALID, "\"%s\": dimension %d is %lld", a->name, d, (long long)a->shape[d]);
  size_t nbytes = coll_dtype_bytes(a->dtype);
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] == 0) count = 0;
  for (int d = 0; d < a->ndim && count; d++)
    if (!mem_mul(count, (size_t)a->shape[d], &count)) return os_fail(LWCC_ERR_INVALID, "\"%s\": too large", a->name);
  if (!mem_mul(count, nbytes, &nbytes) || nbytes > PTRDIFF_MAX)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": too large", a->name);
  if (count && !a->input && a->collective != LWCC_BARRIER && a->collective != LWCC_BROADCAST)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": the input is NULL, its shape has %zu elements", a->name, count);
  int fixed = a->collective == LWCC_ALLREDUCE || a->collective == LWCC_BROADCAST;
  if (count && !a->output && fixed) return os_fail(LWCC_ERR_INVALID, "\"%s\": the output is NULL", a->name);
  return LWCC_OK;
}

static int check_op(const lwcc_request *a) {
  if (a->collective != LWCC_ALLREDUCE && a->collective != LWCC_REDUCESCATTER) {
    if (a->prescale == 1.0 && a->postscale == 1.0) return LWCC_OK;
    return os_fail(LWCC_ERR_INVALID, "\"%s\": prescale and postscale belong to reductions only", a->name);
  }
  if (a->op < LWCC_AVERAGE || a->op > LWCC_PRODUCT)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": op %d; expected 0 (Average) to 5 (Product)", a->name, a->op);
  if (a->op == LWCC_ADASUM && (a->collective != LWCC_ALLREDUCE || !adasum_serves(a->dtype)))
    return os_fail(LWCC_ERR_INVALID, "\"%s\": op Adasum is for allreduce of floating types; this is %s of %s", a->name,
                   collective_name(a->collective), dtype_name(a->dtype));
  if (a->op == LWCC_AVERAGE && a->dtype == LWCC_BOOL)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": op Average has no meaning for bool; use Sum (or), Min (and)", a->name);
  if (isnan(a->prescale) || isnan(a->postscale))
    return os_fail(LWCC_ERR_INVALID, "\"%s\": prescale %g, postscale %g: not a number", a->name, a->prescale,
                   a->postscale);
  if ((a->prescale != 1.0 || a->postscale != 1.0) && !is_float(a->dtype))
    return os_fail(LWCC_ERR_INVALID, "\"%s\": prescale %g, postscale %g need a floating type, this is %s", a->name,
                   a->prescale, a->postscale, dtype_name(a->dtype));
  return LWCC_OK;
}

static int check_splits(const lwcc_request *a, const pset *ps) {
  int64_t sum = 0;
  if (a->collective != LWCC_ALLTOALL)
    return a->splits ? os_fail(LWCC_ERR_INVALID, "\"%s\": splits belong to alltoall only", a->name) : LWCC_OK;
  if (a->ndim < 1) return os_fail(LWCC_ERR_INVALID, "\"%s\": alltoall needs at least one dimension", a->name);
  if (!a->splits && a->shape[0] % ps->size == 0) return LWCC_OK;
  if (!a->splits)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": alltoall without splits: %lld rows are not divisible by %d ranks",
                   a->name, (long long)a->shape[0], ps->size);
  for (int i = 0; i < ps->size; i++) {
    if (a->splits[i] < 0)
      return os_fail(LWCC_ERR_INVALID, "\"%s\": splits[%d] is %lld", a->name, i, (long long)a->splits[i]);
    sum += a->splits[i];
  }
  if (sum != a->shape[0])
    return os_fail(LWCC_ERR_INVALID, "\"%s\": splits add up to %lld, the tensor has %lld rows", a->name, (long long)sum,
                   (long long)a->shape[0]);
  return LWCC_OK;
}

static int check_place(const lwcc_request *a, const engine *e, const pset *ps) {
  if (a->collective == LWCC_BROADCAST && pset_index(ps, a->root) < 0)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": root rank %d is no member of process set %d (%d ranks of %d)", a->name,
                   a->root, ps->id, ps->size, e->size);
  if (a->collective == LWCC_REDUCESCATTER && a->ndim < 1)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": reducescatter needs at least one dimension", a->name);
  return check_splits(a, ps);
}

/* What the request names, else what the set uses; NULL: selected when it runs. A set of one needs none. */
static int find_algorithm(const lwcc_request *a, const pset *ps, const char **out) {
  *out = NULL;
  if (!a->algorithm || !a->algorithm[0]) {
    *out = ps->chosen[a->collective];
    return LWCC_OK;
  }
  int st = ps->size == 1 ? LWCC_OK : algo_resolve(a->collective, a->algorithm, ps->size, out);
  return st == LWCC_ERR_INVALID ? os_fail(st, "\"%s\": %s", a->name, os_error()) : st;
}

static int check(const lwcc_request *a, const engine *e, pset **ps_out) {
  TRY(check_name(a));
  if (a->collective < 0 || a->collective >= LWCC_COLLECTIVES)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": collective %d is unknown", a->name, a->collective);
  if (a->dtype < 0 || a->dtype >= LWCC_DTYPES)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": dtype %d is unknown", a->name, a->dtype);
  pset *ps = engine_set(e, a->process_set);
  if (!ps || ps->removed)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": there is no process set %d", a->name, a->process_set);
  if (ps->me < 0)
    return os_fail(LWCC_ERR_INVALID, "\"%s\": rank %d is no member of process set %d", a->name, e->rank, ps->id);
  TRY(check_shape(a));
  TRY(check_op(a));
  *ps_out = ps;
  return check_place(a, e, ps);
}

static void attach(request *r, const lwcc_request *a) {
  os_copy_text(r->name, sizeof r->name, a->name);
  r->set = a->process_set;
  r->priority = a->priority;
  r->input = a->input;
  r->output = a->output;
  r->allocate = a->allocate;
  r->on_done = a->done;
  r->user = a->user;
}

static int fill(void *arg, int index, request *r) {
  submission *s = arg;
  const lwcc_request *a = &s->requests[index];
  pset *ps = NULL;
  const char *algorithm;
  TRY(check(a, s->e, &ps));
  TRY(find_algorithm(a, ps, &algorithm));
  int reduces = a->collective == LWCC_ALLREDUCE || a->collective == LWCC_REDUCESCATTER;
  signature sig = {.collective = a->collective,
                   .dtype = a->dtype,
                   .op = reduces ? a->op : LWCC_SUM,
                   .ndim = a->ndim,
                   .root = a->collective == LWCC_BROADCAST || a->collective == LWCC_ALLREDUCE ? a->root : 0,
                   .group = s->group,
                   .group_size = s->n > 1 ? s->n : 0,
                   .prescale = a->prescale,
                   .postscale = a->postscale};
  if (a->ndim) memcpy(sig.shape, a->shape, (size_t)a->ndim * sizeof *a->shape);
  if (algorithm) os_copy_text(sig.algorithm, sizeof sig.algorithm, algorithm);
  if (a->splits) {
    sig.splits = (int64_t *)(uintptr_t)a->splits; /* borrowed: copied below */
    sig.nsplits = ps->size;
  }
  TRY(signature_copy(&r->sig, &sig));
  attach(r, a);
  return LWCC_OK;
}

static int submit(engine *e, const lwcc_request *requests, int32_t n, lwcc_ticket *tickets_out) {
  if (!e) return LWCC_ERR_SHUTDOWN;
  if (n < 1) return os_fail(LWCC_ERR_INVALID, "%d requests to submit", n);
  submission s = {.e = e, .requests = requests, .n = n};
  if (n > 1 && requests[0].name) s.group = name_hash(requests[0].name, (uint64_t)n) | 1;
  return queue_submit(&e->q, n, fill, &s, tickets_out);
}

int lwcc_submit(const lwcc_request *requests, int32_t n, lwcc_ticket *tickets_out) {
  engine *e = ctx_engine();
  TRY(submit(e, requests, n, tickets_out));
  engine_kick(e);
  return LWCC_OK;
}

int lwcc_run(const lwcc_request *requests, int32_t n, double timeout_s, lwcc_ticket *tickets_out) {
  *tickets_out = 0;
  TRY(submit(ctx_engine(), requests, n, tickets_out));
  return lwcc_wait(*tickets_out, timeout_s);
}

static int fill_join(void *arg, int index, request *r) {
  signature sig = {.collective = JOIN, .op = LWCC_SUM, .prescale = 1.0, .postscale = 1.0};
  (void)index;
  attach(r, &(lwcc_request){.name = JOIN_NAME, .process_set = *(const int32_t *)arg});
  return signature_copy(&r->sig, &sig);
}

int lwcc_submit_join(int32_t set, lwcc_ticket *ticket_out) {
  pset *ps;
  engine *e = ctx_member(set, &ps);
  if (!e) return ctx_engine() ? LWCC_ERR_INVALID : LWCC_ERR_SHUTDOWN;
  if (ps->removed) return os_fail(LWCC_ERR_INVALID, "there is no process set %d", set);
  TRY(queue_submit(&e->q, 1, fill_join, &set, ticket_out));
  engine_kick(e);
  return LWCC_OK;
}

/* ---- tickets ---- */

static int report(const request *r, int status) {
  return status < 0 ? os_fail(status, "%s", r->text) : status;
}

static request *lookup(lwcc_ticket t, engine **e_out) {
  *e_out = ctx_engine();
  return *e_out ? queue_lookup(&(*e_out)->q, t) : NULL;
}

int lwcc_poll(lwcc_ticket t) {
  engine *e;
  request *r = lookup(t, &e);
  if (!r) return e ? LWCC_ERR_INVALID : LWCC_ERR_SHUTDOWN;
  return report(r, request_status(r));
}

static int wait_for(lwcc_ticket t, double timeout_s, int (*wait)(engine *e, request *r, uint64_t deadline_ns)) {
  engine *e;
  request *r = lookup(t, &e);
  if (!r) return e ? LWCC_ERR_INVALID : LWCC_ERR_SHUTDOWN;
  int st = wait(e, r, timeout_s < 0 ? 0 : clock_deadline(timeout_s));
  if (st == LWCC_PENDING)
    return os_fail(LWCC_ERR_TIMEOUT, "\"%s\" is still pending at the end of the time that this wait allows", r->name);
  return report(r, st);
}

int lwcc_wait(lwcc_ticket t, double timeout_s) {
  return wait_for(t, timeout_s, engine_wait);
}

static int sleep_for(engine *e, request *r, uint64_t deadline_ns) {
  engine_kick(e); /* it may have been submitted by lwcc_run */
  request_sleep(r, deadline_ns);
  return request_status(r);
}

int lwcc_sleep(lwcc_ticket t, double timeout_s) {
  return wait_for(t, timeout_s, sleep_for);
}

int lwcc_get_result(lwcc_ticket t, lwcc_result *out) {
  engine *e;
  request *r = lookup(t, &e);
  if (!r) return e ? LWCC_ERR_INVALID : LWCC_ERR_SHUTDOWN;
  *out = (lwcc_result){.status = request_status(r)};
  if (out->status != LWCC_OK) return report(r, out->status);
  out->output = r->output;
  out->nbytes = r->nbytes;
  out->first_dim = r->first_dim;
  out->splits = r->nrows ? r->rows : NULL;
  out->nsplits = r->nrows;
  out->contributors = r->contributors;
  return LWCC_OK;
}

void *lwcc_take_output(lwcc_ticket t) {
  engine *e;
  request *r = lookup(t, &e);
  if (!r || request_status(r) != LWCC_OK) return NULL;
  void *p = r->owned;
  r->owned = NULL;
  return p;
}

void lwcc_release(lwcc_ticket t) {
  engine *e;
  request *r = t ? lookup(t, &e) : NULL;
  if (r) queue_release(&e->q, r);
}
