/* Which kernel runs a call, and the resumable form. */
#include "exec/shm_area.h"
#include "os/status.h"

enum { SWAP_ANYWAY = 1 << 10 }; /* two ranks with a core each: below, one wait of swap beats the two of fold */
/* One copy by the system beats two by hand; but of a large broadcast, with a core each, root and readers do one each.
 */
enum { PULL_BROADCAST = 16 << 10, PULL_BROADCAST_END = 2 << 20, PULL_BLOCK = 32 << 10 };
enum { CLAIM_BYTES = 16 << 10, CLAIM_BYTES_MANY = 64 << 10, MANY_RANKS = 8 };

/* Judged by the largest block, which all ranks know. */
static bool pull_pays(const shm_team *t, const coll_args *a, size_t width) {
  size_t most = a->count;
  if (!t->reach.peek || (a->counts && a->collective == LWCC_ALLTOALL)) return false;
  if (a->collective == LWCC_BROADCAST)
    return most >= PULL_BROADCAST / width && (t->crowded || most < PULL_BROADCAST_END / width);
  if (a->collective != LWCC_ALLGATHER && a->collective != LWCC_ALLTOALL) return false;
  for (int r = 0; a->counts && r < t->p; r++)
    if (r == 0 || a->counts[r] > most) most = a->counts[r];
  return most >= PULL_BLOCK / width;
}

/* The same on every rank: nothing but the arguments that ranks share, p and cores. */
static shm_kernel staged_kernel(const shm_team *t, const coll_args *a, size_t width) {
  if (pull_pays(t, a, width)) return SHM_PULL;
  if (a->collective != LWCC_ALLREDUCE) {
    return t->p == 2 && shm_move_fits_place(t, a, width) ? SHM_SWAP : SHM_MOVE;
  }
  size_t nbytes = a->count * width;
  if (t->p == 2 && nbytes <= SHM_SWAP_REDUCE) return SHM_SWAP;
  if (t->crowded && nbytes <= (t->p >= MANY_RANKS ? CLAIM_BYTES_MANY : CLAIM_BYTES)) return SHM_CLAIM;
  return SHM_OWN;
}

/* Whether registered buffers are worth a fold. */
static bool fold_pays(const shm_team *t, const coll_args *a, size_t width) {
  return a->collective == LWCC_ALLREDUCE && (t->p != 2 || t->crowded || a->count > SWAP_ANYWAY / width);
}

static bool reduces(const coll_args *a) {
  return a->collective == LWCC_ALLREDUCE || a->collective == LWCC_REDUCESCATTER;
}

static void prepare_reduction(shm_call *c) {
  const coll_args *a = &c->a;
  c->fold = reduce_fold(a->dtype, a->op);
  c->prescale = a->op != LWCC_SUM && a->prescale != 1.0;
  c->scale = c->prescale ? a->postscale : a->prescale * a->postscale;
  c->from = c->prescale ? a->out : a->in;
  reduce_fold_fn wide = c->scale != 1.0 && a->op == LWCC_SUM ? shm_wide_sum(a->dtype) : NULL;
  if (wide) c->fold = wide;
}

static void begin_staged(shm_call *c) {
  c->kernel = c->staged;
  if (c->kernel == SHM_SWAP) {
    shm_swap_begin(c);
  } else if (c->kernel == SHM_MOVE) {
    shm_move_begin(c);
  } else if (c->kernel == SHM_PULL) {
    shm_pull_begin(c);
  } else {
    shm_pipe_begin(c);
  }
}

shm_call *shm_start(shm_team *t, const coll_args *a) {
  shm_call *c = &t->c;
  if (t->poison) return c;
  c->a = *a;
  c->width = coll_dtype_bytes(a->dtype);
  c->staged = staged_kernel(t, a, c->width);
  c->stage = 0;
  if (reduces(a)) prepare_reduction(c);
  if (c->staged != SHM_MOVE) t->call++;
  c->agreeing = t->reach.find && fold_pays(t, a, c->width);
  if (c->agreeing && !c->prescale && shm_fold_begin(c)) return c;
  begin_staged(c);
  return c;
}

void shm_fall_back(shm_call *c) {
  begin_staged(c);
}

int shm_step(shm_call *c, bool *progress_out) {
  if (c->team->poison)
    return os_fail(c->team->poison, "shm: index %d: an earlier collective of this team failed", c->team->me);
  int st = shm_advance(c);
  shm_settle(c->team); /* the caller may sleep next */
  *progress_out = st != SHM_IDLE;
  if (st == SHM_DONE) return LWCC_OK;
  if (st >= 0) return LWCC_PENDING;
  return c->team->poison = st;
}

const char *shm_kernel_name(const shm_team *t, const coll_args *a, bool registered) {
  static const char *const names[] = {"swap", "own", "claim", "fold", "move", "pull"};
  size_t width = coll_dtype_bytes(a->dtype);
  if (registered && fold_pays(t, a, width)) return names[SHM_FOLD];
  return names[staged_kernel(t, a, width)];
}
