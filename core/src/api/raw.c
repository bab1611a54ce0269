/* Raw collectives: unnamed, blocking, in program order. Over shared memory they run on the caller's thread with an area
 * of their own; the background thread, asleep, notices a death and interrupts them. Over a wire the engine runs
 * them (coord/lane.c). */
#include <sched.h>
#include <string.h>

#include "api/ctx.h"
#include "exec/coll.h"
#include "os/clock.h"
#include "os/mem.h"
#include "os/status.h"
#include "plan/ir.h"

#define LEFT_GRACE_NS UINT64_C(2000000000)

/* ---- over shared memory ---- */

typedef struct {
  engine *e;
  pset *ps;
  uint64_t left_since_ns; /* when this call first saw that a member had left */
} watch;

static int lost_member(const engine *e, const pset *ps) {
  char text[TEXT_CAP];
  order_left_text(e, atomic_load(&ps->left), text, sizeof text);
  return os_fail(LWCC_ERR_SHUTDOWN, "raw collective: %s", text);
}

static int has_left(watch *w) {
  uint64_t now = clock_ns();
  if (!w->left_since_ns) w->left_since_ns = now;
  if (now - w->left_since_ns < LEFT_GRACE_NS) return LWCC_OK; /* it may have finished this very call before */
  return lost_member(w->e, w->ps);
}

static int aborted(void *arg) {
  watch *w = arg;
  if (engine_failed(w->e)) return ctx_alive(w->e);
  return atomic_load(&w->ps->left) >= 0 ? has_left(w) : LWCC_OK;
}

/* By a blocking call of MPI, which is why the engine's lock is left to the others. */
static int run_blocking(engine *e, pset *ps, const coll_args *a, const char *name) {
  exec_op *op;
  bool progress = false;
  while (atomic_exchange_explicit(&ps->raw_lock, 1, memory_order_acquire)) sched_yield(); /* pairs with the release */
  pset_count_raw(ps);
  int st = ctx_alive(e);
  if (st >= 0) st = exec_start(&ps->raw, a, name, 0, &op);
  if (st >= 0) {
    st = exec_step(op, &progress);
    exec_free(op);
  }
  atomic_store_explicit(&ps->raw_lock, 0, memory_order_release);
  return st;
}

static int run_shared(engine *e, pset *ps, const coll_args *a) {
  TRY(ctx_alive(e));
  watch w = {.e = e, .ps = ps};
  while (atomic_exchange_explicit(&ps->raw_lock, 1, memory_order_acquire)) sched_yield(); /* pairs with the release */
  pset_count_raw(ps);
  int st = shm_run(ps->raw_shm, a, aborted, &w);
  atomic_store_explicit(&ps->raw_lock, 0, memory_order_release);
  return st < 0 ? aborted(&w) < 0 ? st : os_fail(st, "raw collective ended: %s", os_error()) : st;
}

static int run(const coll_args *a, int set) {
  pset *ps;
  engine *e = ctx_member(set, &ps);
  if (!e) return ps ? LWCC_ERR_INVALID : lwcc_initialized() ? LWCC_ERR_INVALID : LWCC_ERR_SHUTDOWN;
  const char *name = ps->chosen[a->collective];
  if (ps->raw.blocking) return run_blocking(e, ps, a, name);
  if (!ps->raw.shm || (name && strcmp(name, "shm") != 0)) return raw_run(e, ps, a, name);
  return run_shared(e, ps, a);
}

/* ---- arguments ---- */

static int check(int64_t count, int dtype, int op, const char *what) {
  size_t nbytes;
  if (dtype < 0 || dtype >= LWCC_DTYPES) return os_fail(LWCC_ERR_INVALID, "%s: dtype %d is unknown", what, dtype);
  if (count < 0 || !mem_mul((size_t)count, coll_dtype_bytes(dtype), &nbytes) || nbytes > PTRDIFF_MAX)
    return os_fail(LWCC_ERR_INVALID, "%s: count %lld", what, (long long)count);
  if (op == LWCC_ADASUM) return os_fail(LWCC_ERR_UNSUPPORTED, "%s: op Adasum is for named requests only", what);
  if (op < LWCC_AVERAGE || op > LWCC_PRODUCT)
    return os_fail(LWCC_ERR_INVALID, "%s: op %d; expected 0 (Average) to 5 (Product)", what, op);
  if (op == LWCC_AVERAGE && dtype == LWCC_BOOL)
    return os_fail(LWCC_ERR_INVALID, "%s: op Average has no meaning for bool", what);
  return LWCC_OK;
}

static coll_args arguments(int collective, const void *in, void *out, int64_t count, int dtype) {
  return (coll_args){.collective = collective,
                     .dtype = dtype,
                     .op = LWCC_SUM,
                     .in = in,
                     .out = out,
                     .count = (size_t)count,
                     .prescale = 1.0,
                     .postscale = 1.0};
}

static void set_op(coll_args *a, int op, int set) {
  pset *ps = NULL;
  a->op = op;
  if (op != LWCC_AVERAGE || !ctx_member(set, &ps)) return;
  a->op = LWCC_SUM;
  a->postscale = 1.0 / ps->size;
}

int lwcc_raw_allreduce(const void *input, void *output, int64_t count, int32_t dtype, int32_t op, int32_t set) {
  TRY(check(count, dtype, op, "lwcc_raw_allreduce"));
  coll_args a = arguments(LWCC_ALLREDUCE, input, output, count, dtype);
  set_op(&a, op, set);
  return run(&a, set);
}

int lwcc_raw_broadcast(void *data, int64_t count, int32_t dtype, int32_t root, int32_t set) {
  pset *ps;
  TRY(check(count, dtype, LWCC_SUM, "lwcc_raw_broadcast"));
  coll_args a = arguments(LWCC_BROADCAST, data, data, count, dtype);
  if (ctx_member(set, &ps)) a.root = pset_index(ps, root);
  if (a.root < 0)
    return os_fail(LWCC_ERR_INVALID, "lwcc_raw_broadcast: root rank %d is no member of process set %d", root, set);
  return run(&a, set);
}

int lwcc_raw_allgather(const void *input, void *output, int64_t count, int32_t dtype, int32_t set) {
  TRY(check(count, dtype, LWCC_SUM, "lwcc_raw_allgather"));
  coll_args a = arguments(LWCC_ALLGATHER, input, output, count, dtype);
  return run(&a, set);
}

int lwcc_raw_reducescatter(const void *input, void *output, int64_t count, int32_t dtype, int32_t op, int32_t set) {
  TRY(check(count, dtype, op, "lwcc_raw_reducescatter"));
  coll_args a = arguments(LWCC_REDUCESCATTER, input, output, count, dtype);
  set_op(&a, op, set);
  return run(&a, set);
}

int lwcc_raw_alltoall(const void *input, void *output, int64_t count, int32_t dtype, int32_t set) {
  TRY(check(count, dtype, LWCC_SUM, "lwcc_raw_alltoall"));
  coll_args a = arguments(LWCC_ALLTOALL, input, output, count, dtype);
  return run(&a, set);
}

int lwcc_raw_barrier(int32_t set) {
  coll_args a = arguments(LWCC_BARRIER, NULL, NULL, 0, LWCC_UINT8);
  return run(&a, set);
}

int raw_meet(void) {
  pset *ps;
  engine *e = ctx_member(0, &ps);
  coll_args a = arguments(LWCC_BARRIER, NULL, NULL, 0, LWCC_UINT8);
  return e && ps->raw_shm ? run_shared(e, ps, &a) : run(&a, 0);
}
