/* PATH 7/9: a collective finds its algorithm and its memory, and runs. */
#include "exec/exec.h"

#include <stdlib.h>
#include <string.h>

#include "exec/guest.h"
#include "exec/mpi.h"
#include "exec/select.h"
#include "exec/wire.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/status.h"

enum { SMALL = 16 << 10 }; /* bytes of payload that do not queue behind larger ones */

int exec_room(char **buffer, size_t *room, size_t nbytes) {
  void *p = NULL;
  if (nbytes <= *room) return LWCC_OK;
  if (posix_memalign(&p, 64, nbytes) != 0)
    return os_fail(LWCC_ERR_SYSTEM, "no memory for %zu bytes of scratch", nbytes);
  free(*buffer);
  *buffer = p;
  *room = nbytes;
  return LWCC_OK;
}

static size_t sum(const size_t *counts, size_t each, int n) {
  size_t total = 0;
  if (!counts) return each * (size_t)n;
  for (int i = 0; i < n; i++) total += counts[i];
  return total;
}

/* Element offsets of the plan's chunks. Even cuts fall on cache lines, where there is enough to cut. */
static void cut_evenly(size_t *bounds, size_t count, size_t width, int n) {
  size_t unit = count >= (size_t)n * (64 / width) * 4 ? 64 / width : 1, units = count / unit;
  for (int i = 0; i < n; i++) bounds[i] = units * (size_t)i / (size_t)n * unit;
  bounds[n] = count;
}

static void cut_blocks(size_t *bounds, const size_t *counts, size_t each, int n) {
  bounds[0] = 0;
  for (int i = 0; i < n; i++) bounds[i + 1] = bounds[i] + (counts ? counts[i] : each);
}

static int cut(exec_op *op) {
  const coll_args *a = &op->a;
  int n = op->plan->nchunks;
  size_t need = 2 * ((size_t)n + 1);
  if (need > op->bounds_room) {
    size_t *more = realloc(op->bounds, need * sizeof *more);
    if (!more) return os_fail(LWCC_ERR_SYSTEM, "no memory for %d chunks", n);
    op->bounds = more;
    op->bounds_room = need;
  }
  op->input_bounds = op->bounds;
  if (a->collective == LWCC_ALLREDUCE || a->collective == LWCC_BROADCAST) {
    cut_evenly(op->bounds, a->count, op->width, n);
  } else if (a->collective == LWCC_ALLTOALL) {
    op->input_bounds = op->bounds + n + 1;
    cut_blocks(op->bounds, a->recv_counts, a->count, n);
    cut_blocks(op->input_bounds, a->counts, a->count, n);
  } else {
    cut_blocks(op->bounds, a->counts, a->count, n);
  }
  return LWCC_OK;
}

static void load(exec_op *op, char *dst, const void *src, size_t count) {
  const coll_args *a = &op->a;
  if (a->prescale != 1.0)
    reduce_scale(a->dtype, dst, src, count, a->prescale);
  else if (dst != src && count)
    memmove(dst, src, count * op->width); /* allgather in place: uneven blocks may overlap */
}

size_t exec_total(const coll_args *a, int size) {
  return sum(a->counts, a->count, size);
}

/* An alltoall in place reads from a copy. */
int exec_set_aside(exec_op *op) {
  size_t n = exec_total(&op->a, op->team->size) * op->width;
  TRY(exec_room(&op->work, &op->work_nbytes, n));
  reduce_copy(op->work, op->a.in, n, 0);
  op->a.in = op->work;
  return LWCC_OK;
}

/* Where D lies, and what it holds at the beginning. */
static int place(exec_op *op) {
  const coll_args *a = &op->a;
  int me = op->team->me;
  size_t total = op->bounds[op->plan->nchunks];
  op->data = a->out;
  switch (a->collective) {
    case LWCC_ALLREDUCE:
      load(op, op->data, a->in, a->count);
      break;
    case LWCC_BROADCAST:
      if (me == a->root) load(op, op->data, a->in, a->count);
      break;
    case LWCC_ALLGATHER:
      load(op, op->data + op->bounds[me] * op->width, a->in, op->bounds[me + 1] - op->bounds[me]);
      break;
    case LWCC_REDUCESCATTER:
      TRY(exec_room(&op->work, &op->work_nbytes, total * op->width));
      op->data = op->work;
      load(op, op->data, a->in, total);
      break;
    default:
      break;
  }
  op->input = op->data;
  if (a->collective != LWCC_ALLTOALL) return LWCC_OK;
  if (a->in == a->out) TRY(exec_set_aside(op));
  op->input = op->a.in;
  return LWCC_OK;
}

static void unload(exec_op *op) {
  const coll_args *a = &op->a;
  int me = a->collective == LWCC_REDUCESCATTER ? op->team->me : 0; /* other plans may have fewer chunks than ranks */
  char *mine = op->data + op->bounds[me] * op->width;
  size_t n = op->bounds[me + 1] - op->bounds[me];
  if (a->collective == LWCC_REDUCESCATTER && a->postscale != 1.0)
    reduce_scale(a->dtype, a->out, mine, n, a->postscale);
  else if (a->collective == LWCC_REDUCESCATTER)
    reduce_copy(a->out, mine, n * op->width, 0);
  else if (a->collective == LWCC_ALLREDUCE && a->postscale != 1.0)
    reduce_scale(a->dtype, a->out, a->out, a->count, a->postscale);
}

/* One rank alone: copy and scale. */
static int run_alone(exec_op *op) {
  const coll_args *a = &op->a;
  size_t n =
      a->collective == LWCC_ALLREDUCE || a->collective == LWCC_BROADCAST ? a->count : sum(a->counts, a->count, 1);
  if (a->collective == LWCC_BARRIER) return LWCC_OK;
  load(op, a->out, a->in, n);
  if (a->postscale != 1.0) reduce_scale(a->dtype, a->out, a->out, n, a->postscale);
  return LWCC_OK;
}

static int take_op(exec_team *team, exec_op **out) {
  exec_cache *cache;
  void *memory;
  TRY(select_cache(team, &cache));
  *out = cache->spare;
  cache->spare = NULL;
  if (*out) return LWCC_OK;
  TRY(mem_zeroed(1, sizeof(exec_op), &memory));
  *out = memory;
  (*out)->team = team;
  return LWCC_OK;
}

static int begin_shared(exec_op *op) {
  const coll_args *a = &op->a;
  if (a->collective == LWCC_ALLTOALL && a->in == a->out && a->counts) TRY(exec_set_aside(op));
  op->shm = shm_start(op->team->shm, a);
  return LWCC_OK;
}

/* By another library. A forced algorithm is one of ours. */
static int begin_foreign(exec_op *op, const char *algorithm) {
  bool mpi = op->team->engine == LWCC_ENGINE_MPI;
  op->name = mpi ? "mpi" : "guest";
  if (algorithm && algorithm[0])
    return os_fail(LWCC_ERR_UNSUPPORTED, "algorithm %s is LWCC's own, but the engine is %s", algorithm, op->name);
  TRY(narrow_begin(op));
  op->width = coll_dtype_bytes(op->a.dtype);
  return mpi ? mpi_begin(op) : guest_begin(op);
}

static int begin(exec_op *op, const char *algorithm) {
  const coll_args *a = &op->a;
  op->plan = NULL;
  op->shm = NULL;
  op->width = coll_dtype_bytes(a->dtype);
  op->name = "alone";
  if (op->team->size == 1) return run_alone(op);
  if (op->team->engine != LWCC_ENGINE_OWN) return begin_foreign(op, algorithm);
  TRY(select_plan(op->team, a, algorithm, &op->plan, &op->name));
  LOG(TRACE, "exec: %s %s, %zu elements", collective_name(a->collective), op->name, a->count);
  if (!op->plan) return begin_shared(op);
  TRY(narrow_begin(op));
  op->width = coll_dtype_bytes(a->dtype);
  op->rotation = a->collective == LWCC_BROADCAST ? a->root : 0;
  op->fold =
      a->collective == LWCC_ALLREDUCE || a->collective == LWCC_REDUCESCATTER ? reduce_fold(a->dtype, a->op) : NULL;
  op->cls = op->team->cls + (select_payload(op->team, a) <= SMALL && a->collective != LWCC_ALLTOALL ? LINK_SMALL : 0);
  TRY(cut(op));
  TRY(place(op));
  return wire_begin(op);
}

int exec_start(exec_team *team, const coll_args *args, const char *algorithm, uint32_t tag, exec_op **out) {
  exec_op *op;
  TRY(take_op(team, &op));
  op->a = *args;
  op->tag = tag;
  op->narrow_dtype = -1;
  int st = begin(op, algorithm);
  if (st < 0) {
    exec_free(op);
    return st;
  }
  *out = op;
  return LWCC_OK;
}

int exec_step(exec_op *op, bool *progress_out) {
  int st = op->team->size == 1                     ? LWCC_OK
           : op->team->engine == LWCC_ENGINE_MPI   ? mpi_step(op)
           : op->team->engine == LWCC_ENGINE_GUEST ? guest_step(op)
           : op->shm                               ? shm_step(op->shm, progress_out)
                                                   : wire_step(op, progress_out);
  if (st != LWCC_OK) return st;
  if (op->plan) unload(op);
  narrow_end(op);
  return LWCC_OK;
}

static void destroy(exec_op *op) {
  free(op->bounds);
  wire_free(op);
  mpi_free(op);
  free(op->work);
  free(op->wide);
  free(op);
}

void exec_free(exec_op *op) {
  exec_cache *cache = op->team->cache;
  if (op->mpi.busy || guest_cancel(op)) return; /* another library may still write to its memory */
  wire_cancel(op);
  if (!cache || cache->spare)
    destroy(op);
  else
    cache->spare = op;
}

const char *exec_algorithm(const exec_op *op) {
  return op->name;
}

void exec_team_close(exec_team *team) {
  exec_cache *cache = team->cache;
  if (!cache) return;
  for (int i = 0; i < algo_table_length; i++) {
    for (int r = 0; cache->plans[i].parts && r < team->size; r++) plan_free(cache->plans[i].parts[r]);
    free(cache->plans[i].parts);
  }
  free(cache->plans);
  if (cache->spare) destroy(cache->spare);
  free(cache);
  team->cache = NULL;
}
