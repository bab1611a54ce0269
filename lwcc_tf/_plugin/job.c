#include "_plugin/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_plugin/done.h"
#include "_plugin/steps.h"

enum { DIMS = 33, TEXT = STEPS_TEXT, SUFFIX = 96 }; /* SUFFIX: what a name gets besides */

typedef struct job job;
typedef struct {
  job *owner;
  TF_Tensor *in, *out;      /* in is NULL where out has taken over its memory */
  void *unused;             /* the core's output where TensorFlow wants none any more */
  int32_t type, ndim, pair; /* TF_DataType; of the tensor; 1: complex, a further dimension of two reals */
  int64_t shape[DIMS];
} part;

struct job {
  step_entry entry; /* first: a job is found by it */
  TF_OpKernelContext *ctx;
  taken_done done;
  bool has_done, told; /* told: of a failure; touched only by who took the entry out */
  int32_t collective, n, status;
  atomic_int left; /* parts under way; acq_rel: the last one sees what the others wrote */
  char text[TEXT];
  int64_t *splits;
  lwcc_ticket *tickets; /* written by lwcc_submit before any part can be complete */
  part parts[];
};

static atomic_int forwarded, allocated; /* relaxed: counters */
static _Thread_local bool in_callback;  /* the core's: such a thread must not wait */
static char nothing[8];                 /* the address of outputs without elements */

int32_t job_forwarded(void) {
  return atomic_load_explicit(&forwarded, memory_order_relaxed);
}

int32_t job_allocated(void) {
  return atomic_load_explicit(&allocated, memory_order_relaxed);
}

static bool late(int32_t collective) { /* the output's size is known when all ranks have asked */
  return collective != LWCC_ALLREDUCE && collective != LWCC_BROADCAST;
}

static bool has_rows(int32_t collective) {
  return collective == LWCC_ALLGATHER || collective == LWCC_ALLTOALL;
}

static int32_t dtype_of(int32_t type) {
  static const signed char codes[32] = {
      [1] = LWCC_FLOAT32 + 1,  [2] = LWCC_FLOAT64 + 1,   [3] = LWCC_INT32 + 1,   [4] = LWCC_UINT8 + 1,
      [5] = LWCC_INT16 + 1,    [6] = LWCC_INT8 + 1,      [8] = LWCC_FLOAT32 + 1, [9] = LWCC_INT64 + 1,
      [10] = LWCC_BOOL + 1,    [14] = LWCC_BFLOAT16 + 1, [17] = LWCC_UINT16 + 1, [18] = LWCC_FLOAT64 + 1,
      [19] = LWCC_FLOAT16 + 1, [22] = LWCC_UINT32 + 1,   [23] = LWCC_UINT64 + 1};
  return type > 0 && type < 32 ? codes[type] - 1 : -1;
}

/* ---- the end ---- */

static void fail(job *j, int status, const char *text) {
  if (j->status < 0) return;
  j->status = status;
  snprintf(j->text, sizeof j->text, "%s", text);
}

static void fail_tf(job *j, const TF_Status *st) {
  if (tf.TF_GetCode(st) != TF_OK) fail(j, LWCC_ERR_SYSTEM, tf.TF_Message(st));
}

static void free_tensors(job *j) {
  for (int i = 0; i < j->n; i++) {
    part *p = &j->parts[i];
    if (p->in) tf.TF_DeleteTensor(p->in);
    if (p->out) tf.TF_DeleteTensor(p->out);
    free(p->unused);
    p->in = p->out = NULL;
  }
}

static void let_go(job *j) {
  if (atomic_fetch_sub_explicit(&j->entry.holders, 1, memory_order_acq_rel) != 1) return;
  free_tensors(j);
  free(j->splits);
  free(j->tickets);
  free(j);
}

static void tell(job *j) {
  if (j->status < 0) {
    TF_Status *st = kernel_status(j->status, j->text);
    tf.TF_OpKernelContext_Failure(j->ctx, st);
    tf.TF_DeleteStatus(st);
  } else {
    free_tensors(j); /* before TensorFlow goes on: who has the last reference may write in place */
  }
  if (j->has_done) done_run(&j->done);
}

/* All parts are complete, or none was submitted. */
static void end(job *j) {
  for (int i = 0; i < j->n && j->tickets[i]; i++) core.lwcc_release(j->tickets[i]);
  if (steps_leave(&j->entry)) tell(j);
  let_go(j);
}

static void give_up_step(const job *failing) {
  for (step_entry *e = steps_fail(&failing->entry, failing->text), *next; e; e = next) {
    next = e->next;
    job *j = (job *)(void *)e;
    j->told = true;
    if (j != failing) {
      TF_Status *st = kernel_status(LWCC_ERR_MISMATCH, failing->text);
      tf.TF_OpKernelContext_Failure(j->ctx, st);
      tf.TF_DeleteStatus(st);
      if (j->has_done) done_run(&j->done);
    } else {
      tell(j);
    }
    let_go(j);
  }
}

/* Hand over the rows that came from each rank. */
static void set_rows(job *j, int index) {
  lwcc_result result;
  if (!has_rows(j->collective) || j->told) return;
  if (core.lwcc_get_result(j->tickets[index], &result) < 0) {
    fail(j, LWCC_ERR_SYSTEM, core.lwcc_error());
    return;
  }
  TF_Status *st = tf.TF_NewStatus();
  const int64_t count = result.nsplits;
  TF_Tensor *rows = tf.TF_AllocateOutput(j->ctx, j->n + index, TF_INT64, &count, 1, (size_t)count * sizeof count, st);
  fail_tf(j, st);
  if (rows && count) memcpy(tf.TF_TensorData(rows), result.splits, (size_t)count * sizeof count);
  if (rows) tf.TF_DeleteTensor(rows);
  tf.TF_DeleteStatus(st);
}

/* The core's callbacks, on its driving thread. */

static void *allocate(void *user, int64_t first_dim, size_t nbytes) {
  part *p = user;
  job *j = p->owner;
  if (j->told) return p->unused = malloc(nbytes ? nbytes : 1);
  TF_Status *st = tf.TF_NewStatus();
  p->shape[0] = first_dim;
  p->out = tf.TF_AllocateOutput(j->ctx, (int)(p - j->parts), p->type, p->shape, p->ndim, nbytes, st);
  fail_tf(j, st);
  tf.TF_DeleteStatus(st);
  void *data = p->out ? tf.TF_TensorData(p->out) : NULL;
  return p->out && nbytes == 0 ? nothing : data;
}

static void part_done(void *user, int status, const char *text) {
  part *p = user;
  job *j = p->owner;
  bool outer = in_callback;
  in_callback = true;
  if (status < 0) fail(j, status, text);
  if (status >= 0) set_rows(j, (int)(p - j->parts));
  if (status == LWCC_ERR_MISMATCH && !j->told) give_up_step(j);
  if (atomic_fetch_sub_explicit(&j->left, 1, memory_order_acq_rel) == 1) end(j);
  in_callback = outer;
}

/* ---- the way in ---- */

/* A scalar is gathered as one row; it has none to deal out. */
static void make_row(part *p, TF_Status *st) {
  p->ndim = 1;
  p->shape[0] = 1;
  if (p->owner->collective != LWCC_ALLGATHER)
    tf.TF_SetStatus(st, TF_INVALID_ARGUMENT, "lwcc: a scalar has no rows to deal out to the ranks");
}

static void read_shape(part *p, TF_Status *st) {
  p->type = tf.TF_TensorType(p->in);
  p->ndim = tf.TF_NumDims(p->in);
  p->pair = p->type == TF_COMPLEX64 || p->type == TF_COMPLEX128;
  if (p->ndim + p->pair >= DIMS) {
    tf.TF_SetStatus(st, TF_INVALID_ARGUMENT, "lwcc: a tensor has more than 32 dimensions");
    return;
  }
  for (int d = 0; d < p->ndim; d++) p->shape[d] = tf.TF_Dim(p->in, d);
  if (p->ndim == 0 && late(p->owner->collective)) /* the graph knew of no number of dimensions */
    make_row(p, st);
  if (p->pair) p->shape[p->ndim] = 2;
}

static void prepare(job *j, int index, TF_Status *st) {
  part *p = &j->parts[index];
  tf.TF_GetInput(j->ctx, index, &p->in, st);
  if (tf.TF_GetCode(st) == TF_OK) read_shape(p, st);
  if (tf.TF_GetCode(st) != TF_OK || late(j->collective)) return;
  tf.TF_DeleteTensor(p->in); /* the handle counts: with it the memory would be in use twice, and not be handed on */
  p->in = NULL;
  int from = -1;
  p->out = tf.TF_ForwardInputOrAllocateOutput(j->ctx, &index, 1, index, p->shape, p->ndim, &from, st);
  atomic_fetch_add_explicit(from >= 0 ? &forwarded : &allocated, 1, memory_order_relaxed);
  if (tf.TF_GetCode(st) == TF_OK && from < 0) tf.TF_GetInput(j->ctx, index, &p->in, st);
}

static void read_splits(job *j, const kernel *k, TF_Status *st) {
  TF_Tensor *given = NULL;
  int32_t rank, members;
  tf.TF_GetInput(j->ctx, j->n, &given, st);
  if (tf.TF_GetCode(st) != TF_OK) return;
  int64_t count = tf.TF_TensorElementCount(given);
  if (core.lwcc_set_info(k->set, &rank, &members) < 0) {
    fail(j, LWCC_ERR_INVALID, core.lwcc_error());
  } else if (count && count != members) {
    char text[TEXT];
    snprintf(text, sizeof text, "\"%s\": alltoall with %lld splits; need one for each of %d ranks, or none", k->name,
             (long long)count, members);
    fail(j, LWCC_ERR_INVALID, text);
  } else if (count && (j->splits = malloc((size_t)count * sizeof *j->splits))) {
    memcpy(j->splits, tf.TF_TensorData(given), (size_t)count * sizeof *j->splits);
  }
  tf.TF_DeleteTensor(given);
}

static job *make_job(const kernel *k, TF_OpKernelContext *ctx) {
  int n = tf.TF_NumInputs(ctx) - (k->collective == LWCC_ALLTOALL ? 1 : 0);
  if (k->collective == LWCC_BARRIER) n = 1;
  job *j = calloc(1, sizeof *j + (size_t)n * sizeof(part));
  if (!j || !(j->tickets = calloc((size_t)n, sizeof *j->tickets))) {
    free(j);
    return NULL;
  }
  j->ctx = ctx;
  j->n = n;
  j->collective = k->collective;
  j->entry.step = tf.TF_StepId(ctx);
  j->entry.set = k->set;
  atomic_init(&j->left, n);
  atomic_init(&j->entry.holders, 1);
  TF_Status *st = tf.TF_NewStatus();
  for (int i = 0; i < n; i++) j->parts[i].owner = j; /* a barrier, which has no input, has a part too */
  for (int i = 0; i < n && k->collective != LWCC_BARRIER && tf.TF_GetCode(st) == TF_OK; i++) prepare(j, i, st);
  if (tf.TF_GetCode(st) == TF_OK && k->collective == LWCC_ALLTOALL) read_splits(j, k, st);
  if (tf.TF_GetCode(st) != TF_OK) fail(j, LWCC_ERR_INVALID, tf.TF_Message(st));
  tf.TF_DeleteStatus(st);
  return j;
}

/* "name[.number][[index]][#failures]": the first member of a group has the name of a call with one tensor, and the
 * others do not tell their number, so that ranks that bring different numbers of tensors meet, and disagree. */
static void write_name(char *out, size_t cap, const char *base, int index, int64_t failures) {
  size_t used = (size_t)snprintf(out, cap, "%s", base);
  if (index > 0) used += (size_t)snprintf(out + used, cap - used, "[%d]", index);
  if (failures) snprintf(out + used, cap - used, "#%lld", (long long)failures);
}

static lwcc_request *make_requests(job *j, const kernel *k, int64_t failures) {
  size_t cap = k->name_nbytes + SUFFIX;
  lwcc_request *requests = calloc((size_t)j->n + 1, sizeof *requests + cap);
  if (!requests) return NULL;
  char *names = (char *)(requests + j->n), *base = names + (size_t)j->n * cap;
  if (k->counter)
    snprintf(base, cap, "%s.%lu", k->name, kernel_number(k));
  else
    memcpy(base, k->name, k->name_nbytes);
  for (int i = 0; i < j->n; i++) {
    part *p = &j->parts[i];
    char *name = names + (size_t)i * cap;
    write_name(name, cap, base, i, failures);
    requests[i] = (lwcc_request){.name = name,
                                 .collective = k->collective,
                                 .dtype = k->collective == LWCC_BARRIER ? LWCC_UINT8 : dtype_of(p->type),
                                 .op = k->op,
                                 .root = k->root,
                                 .process_set = k->set,
                                 .ndim = p->ndim + p->pair,
                                 .shape = p->shape,
                                 .splits = j->splits,
                                 .prescale = k->prescale,
                                 .postscale = k->postscale,
                                 .algorithm = k->algorithm,
                                 .allocate = late(k->collective) ? allocate : NULL,
                                 .user = p};
    void *out = p->out ? tf.TF_TensorData(p->out) : NULL, *in = p->in ? tf.TF_TensorData(p->in) : out;
    requests[i].output = out;
    requests[i].input = in ? in : nothing;
    if (!out && !late(k->collective)) requests[i].output = nothing;
    if (k->collective == LWCC_BARRIER) requests[i].allocate = NULL;
  }
  return requests;
}

/* Wait for all parts, driving the engine. */
static void run_blocking(job *j, lwcc_request *requests) {
  int st = core.lwcc_run(requests, j->n, -1, j->tickets);
  if (!j->tickets[0]) {
    fail(j, st, core.lwcc_error());
    return;
  }
  for (int i = 0; i < j->n; i++) {
    st = core.lwcc_wait(j->tickets[i], -1);
    if (st < 0) fail(j, st, core.lwcc_error());
    if (st >= 0) set_rows(j, i);
  }
}

static void end_now(job *j) {
  for (int i = 0; i < j->n; i++)
    if (j->tickets[i]) core.lwcc_release(j->tickets[i]);
  tell(j);
  let_go(j);
}

/* Submit and return; part_done does the rest. */
static void start(job *j, const kernel *k) {
  char why[TEXT] = "lwcc: no memory for a request";
  int64_t failures = steps_enter(&j->entry, why);
  lwcc_request *requests = failures < 0 ? NULL : make_requests(j, k, failures);
  if (!requests) {
    fail(j, failures < 0 ? LWCC_ERR_MISMATCH : LWCC_ERR_SYSTEM, why);
    if (failures < 0 || steps_leave(&j->entry)) tell(j);
    let_go(j);
    return;
  }
  for (int i = 0; i < j->n; i++) requests[i].done = part_done;
  int st = core.lwcc_submit(requests, j->n, j->tickets);
  free(requests);
  if (st >= 0) return; /* and j may be gone already */
  bool mine = steps_leave(&j->entry);
  if (mine) {
    fail(j, st, core.lwcc_error());
    tell(j);
  }
  let_go(j);
}

static bool alone(const kernel *k) {
  int32_t rank, members = 0;
  return core.lwcc_set_info(k->set, &rank, &members) >= 0 && members == 1;
}

static void run(const kernel *k, TF_OpKernelContext *ctx, TF_AsyncOpKernelDoneCallback *done) {
  job *j = make_job(k, ctx);
  if (!j) {
    TF_Status *st = kernel_status(LWCC_ERR_SYSTEM, "lwcc: no memory for a collective");
    tf.TF_OpKernelContext_Failure(ctx, st);
    tf.TF_DeleteStatus(st);
    if (done) tf.TF_RunAsyncOpKernelDoneCallback(done);
    return;
  }
  if (done) done_take(done, &j->done);
  j->has_done = done != NULL;
  bool waits = !done || k->blocking || alone(k);
  if (j->status >= 0 && !(waits && !in_callback)) {
    start(j, k);
    return;
  }
  lwcc_request *requests = j->status < 0 ? NULL : make_requests(j, k, steps_failures(k->set));
  if (requests) run_blocking(j, requests);
  if (!requests) fail(j, LWCC_ERR_SYSTEM, "lwcc: no memory for a request");
  free(requests);
  end_now(j);
}

void job_run(void *k, TF_OpKernelContext *ctx, TF_AsyncOpKernelDoneCallback *done) {
  run(k, ctx, done);
}

void job_run_blocking(void *k, TF_OpKernelContext *ctx) {
  run(k, ctx, NULL);
}
