/* Calls an MPI whose header is not known at build time. Of the two families of MPI one passes objects as pointers
 * (Open MPI), the other as int (MPICH): in a register, and in a slot of the stack, an int is the lower half of the word
 * that this file passes. For the same reason a blocking call may be given the request that only its other form takes:
 * an argument more than a function reads is of no consequence on the machines that LWCC runs on. */
#include "exec/mpi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/reduce.h"
#include "exec/wire.h"
#include "os/mem.h"
#include "os/status.h"
#include "plan/ir.h"

typedef mpi_handle H;
typedef int (*reduce_call)(const void *, void *, int, H, H, H, H *);
typedef int (*bcast_call)(void *, int, H, int, H, H *);
typedef int (*equal_call)(const void *, int, H, void *, int, H, H, H *);
typedef int (*gatherv_call)(const void *, int, H, void *, const int *, const int *, H, H, H *);
typedef int (*scatterv_call)(const void *, void *, const int *, H, H, H, H *);
typedef int (*alltoallv_call)(const void *, const int *, const int *, H, void *, const int *, const int *, H, H, H *);
typedef int (*barrier_call)(H, H *);
typedef void (*user_function)(void *, void *, int *, void *);

enum { STATUS_BYTES = 256, TEXT_BYTES = 1024 }; /* more than any MPI_Status, MPI_MAX_ERROR_STRING */

/* Collectives: both forms; [0] non-blocking, [1] blocking. */
#define FORMS(X)                                        \
  X(reduce_call, allreduce, "allreduce")                \
  X(bcast_call, bcast, "bcast")                         \
  X(equal_call, allgather, "allgather")                 \
  X(gatherv_call, allgatherv, "allgatherv")             \
  X(reduce_call, scatter_block, "reduce_scatter_block") \
  X(scatterv_call, scatter, "reduce_scatter")           \
  X(equal_call, alltoall, "alltoall")                   \
  X(alltoallv_call, alltoallv, "alltoallv")             \
  X(barrier_call, barrier, "barrier")

static struct {
  bool used;
  lwcc_mpi given;
#define X(type, name, text) type name[2];
  FORMS(X)
#undef X
  int (*test)(H *, int *, void *);
  int (*op_create)(user_function, int, H *);
  int (*op_free)(H *);
  int (*comm_group)(H, H *);
  int (*group_incl)(H, int, const int *, H *);
  int (*group_free)(H *);
  int (*comm_create_group)(H, H, int, H *);
  int (*comm_free)(H *);
  int (*error_string)(int, char *, int *);
  int (*finalized)(int *);
  H own_ops[LWCC_DTYPES][6]; /* of the types that MPI has no arithmetic for */
} mpi;

/* ---- operations of our own: MPI hands over no context, so each pair of type and operation has its function ---- */

static void fold(int dtype, int op, const void *in, void *inout, const int *len) {
  const void *const src[] = {in, inout};
  reduce_fold(dtype, op)(2, src, 1, &inout, (size_t)*len, 1.0);
}

#define PAIRS(X)      \
  X(BOOL, SUM)        \
  X(BOOL, MIN)        \
  X(BOOL, MAX)        \
  X(BOOL, PRODUCT)    \
  X(FLOAT16, SUM)     \
  X(FLOAT16, MIN)     \
  X(FLOAT16, MAX)     \
  X(FLOAT16, PRODUCT) \
  X(BFLOAT16, SUM)    \
  X(BFLOAT16, MIN)    \
  X(BFLOAT16, MAX)    \
  X(BFLOAT16, PRODUCT)

#define X(D, O)                                                               \
  static void fold_##D##_##O(void *in, void *inout, int *len, void *unused) { \
    (void)unused;                                                             \
    fold(LWCC_##D, LWCC_##O, in, inout, len);                                 \
  }
PAIRS(X)
#undef X

static int make_ops(void) {
  int failed = 0;
#define X(D, O) failed |= mpi.op_create(fold_##D##_##O, 1, &mpi.own_ops[LWCC_##D][LWCC_##O]);
  PAIRS(X)
#undef X
  return failed ? os_fail(LWCC_ERR_SYSTEM, "MPI_Op_create failed: has MPI been finalized?") : LWCC_OK;
}

/* ---- finding the library ---- */

static bool find(void *object, const char *name, void *place) {
  void *found = dlsym(object, name);
  memcpy(place, &found, sizeof found);
  return found;
}

/* "I" + text, or text with a capital. */
static bool find_form(void *object, const char *text, bool blocking, void *place) {
  char name[64];
  snprintf(name, sizeof name, "MPI_%s%s", blocking ? "" : "I", text);
  if (blocking) name[4] = (char)(name[4] - 'a' + 'A');
  return find(object, name, place);
}

static int find_functions(void *object) {
  const struct {
    const char *name;
    void *place;
  } plain[] = {{"MPI_Test", &mpi.test},
               {"MPI_Op_create", &mpi.op_create},
               {"MPI_Op_free", &mpi.op_free},
               {"MPI_Comm_group", &mpi.comm_group},
               {"MPI_Group_incl", &mpi.group_incl},
               {"MPI_Group_free", &mpi.group_free},
               {"MPI_Comm_create_group", &mpi.comm_create_group},
               {"MPI_Comm_free", &mpi.comm_free},
               {"MPI_Finalized", &mpi.finalized},
               {"MPI_Error_string", &mpi.error_string}};
  for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
    if (!find(object, plain[i].name, plain[i].place))
      return os_fail(LWCC_ERR_UNSUPPORTED, "the MPI that mpi4py loaded has no %s", plain[i].name);
#define X(type, name, text)                                                                          \
  if (!find_form(object, text, false, &mpi.name[0]) || !find_form(object, text, true, &mpi.name[1])) \
    return os_fail(LWCC_ERR_UNSUPPORTED, "the MPI that mpi4py loaded lacks MPI_I" text " (MPI 3.1 is needed)");
  FORMS(X)
#undef X
  return LWCC_OK;
}

/* The script may have finalized MPI before it left us; then its objects are gone. */
static bool finalized(void) {
  int yes = 0;
  return mpi.finalized(&yes) || yes;
}

static void stop_using(void) {
  if (mpi.used && !finalized())
    for (int d = 0; d < LWCC_DTYPES; d++)
      for (int o = 0; o < 6; o++)
        if (mpi.own_ops[d][o]) mpi.op_free(&mpi.own_ops[d][o]);
  memset(mpi.own_ops, 0, sizeof mpi.own_ops);
  mpi.used = false;
}

int mpi_use(const lwcc_mpi *given) {
  stop_using();
  if (!given) return LWCC_OK;
  if (given->most < 1 || given->most > INT32_MAX)
    return os_fail(LWCC_ERR_INVALID, "lwcc_use_mpi: %lld elements for one call; expected 1 to 2^31 - 1",
                   (long long)given->most);
  void *object = dlopen(given->library, RTLD_NOW | RTLD_NOLOAD);
  if (!object) return os_fail(LWCC_ERR_INVALID, "lwcc_use_mpi: %.300s is not loaded", given->library);
  TRY(find_functions(object)); /* object stays open: the functions must stay */
  mpi.given = *given;
  TRY(make_ops());
  mpi.used = true;
  return LWCC_OK;
}

bool mpi_used(void) {
  return mpi.used;
}

static int failed(int code, const char *what) {
  char text[TEXT_BYTES] = "";
  int length = 0;
  if (mpi.error_string(code, text, &length)) text[0] = 0;
  return os_fail(LWCC_ERR_SYSTEM, "MPI_%s failed with code %d: %.300s", what, code, text);
}

#define MPI_TRY(call, what)                  \
  do {                                       \
    int code_ = (call);                      \
    if (code_) return failed(code_, (what)); \
  } while (0)

/* ---- communicators ---- */

int mpi_team_open(exec_team *team, bool world) {
  H all = 0, mine = 0, comm = 0;
  bool raw = team->cls == LINK_RAW;
  team->engine = LWCC_ENGINE_MPI;
  team->blocking = raw ? mpi.given.multiple : mpi.given.blocking;
  team->comm = mpi.given.world[raw];
  if (world) return LWCC_OK;
  MPI_TRY(mpi.comm_group(team->comm, &all), "Comm_group");
  MPI_TRY(mpi.group_incl(all, team->size, team->ranks, &mine), "Group_incl");
  MPI_TRY(mpi.comm_create_group(team->comm, mine, 1, &comm), "Comm_create_group");
  mpi.group_free(&mine);
  mpi.group_free(&all);
  team->comm = comm;
  return LWCC_OK;
}

void mpi_team_close(exec_team *team) {
  bool world = team->comm == mpi.given.world[0] || team->comm == mpi.given.world[1];
  if (team->engine == LWCC_ENGINE_MPI && team->comm && !world && mpi.used && !finalized()) mpi.comm_free(&team->comm);
  team->comm = 0;
}

/* ---- one collective: rounds over at most `most` elements; nearly always there is one ---- */

static size_t block(const size_t *counts, size_t each, int i) {
  return counts ? counts[i] : each;
}

/* The longest block, known alike on all ranks: it decides the number of rounds. */
static size_t longest(const coll_args *a, int size) {
  size_t most = a->counts ? 0 : a->count;
  if (a->collective == LWCC_ALLTOALL && a->counts) return a->longest;
  for (int i = 0; a->counts && i < size; i++)
    if (a->counts[i] > most) most = a->counts[i];
  return most;
}

static bool whole(const coll_args *a) {
  return a->collective == LWCC_ALLREDUCE || a->collective == LWCC_BROADCAST || a->collective == LWCC_BARRIER;
}

static int begin_round(exec_op *op) {
  mpi_call *m = &op->mpi;
  size_t most = (size_t)mpi.given.most / (whole(&op->a) ? 1 : (size_t)op->team->size);
  if (!most) most = 1;
  m->n = m->longest - m->at < most ? m->longest - m->at : most;
  return LWCC_OK;
}

/* Counts and offsets of this round's part of every block; packed: side by side without gaps. */
static void vectors(const exec_op *op, const size_t *counts, int *n_out, int *at_out) {
  const mpi_call *m = &op->mpi;
  int at = 0;
  for (int i = 0; i < op->team->size; i++) {
    size_t all = block(counts, op->a.count, i), rest = all > m->at ? all - m->at : 0;
    n_out[i] = (int)(rest < m->n ? rest : m->n);
    at_out[i] = at;
    at += n_out[i];
  }
}

/* Copy this round's part of every block between its place and the staging. */
static void stage(const exec_op *op, const size_t *counts, char *blocks, bool out) {
  const int *n = op->mpi.counts + (out ? 2 * op->team->size : 0), *at = n + op->team->size;
  size_t start = 0, width = op->width;
  for (int i = 0; i < op->team->size; i++) {
    char *place = blocks + (start + op->mpi.at) * width, *staged = op->mpi.staging[out] + (size_t)at[i] * width;
    if (n[i]) reduce_copy(out ? place : staged, out ? staged : place, (size_t)n[i] * width, 0);
    start += block(counts, op->a.count, i);
  }
}

static H operation(const coll_args *a) {
  H own = mpi.own_ops[a->dtype][a->op];
  return own ? own : mpi.given.ops[a->op];
}

static int call_whole(exec_op *op) {
  const coll_args *a = &op->a;
  mpi_call *m = &op->mpi;
  int b = op->team->blocking, n = (int)m->n;
  H type = mpi.given.types[a->dtype], comm = op->team->comm;
  char *out = (char *)a->out + m->at * op->width;
  const char *in =
      a->in == a->out ? (const char *)(uintptr_t)mpi.given.in_place : (const char *)a->in + m->at * op->width;
  if (a->collective == LWCC_BARRIER) return mpi.barrier[b](comm, &m->request);
  if (a->collective == LWCC_BROADCAST) return mpi.bcast[b](out, n, type, a->root, comm, &m->request);
  return mpi.allreduce[b](in, out, n, type, operation(a), comm, &m->request);
}

/* All blocks equally long, and all in one round: MPI's simple forms. */
static int call_equal(exec_op *op) {
  const coll_args *a = &op->a;
  mpi_call *m = &op->mpi;
  int b = op->team->blocking, n = (int)m->n;
  H type = mpi.given.types[a->dtype], comm = op->team->comm;
  const void *in = a->in == a->out ? (const void *)(uintptr_t)mpi.given.in_place : a->in;
  if (a->collective == LWCC_ALLGATHER) return mpi.allgather[b](in, n, type, a->out, n, type, comm, &m->request);
  if (a->collective == LWCC_ALLTOALL) return mpi.alltoall[b](in, n, type, a->out, n, type, comm, &m->request);
  return mpi.scatter_block[b](in, a->out, n, type, operation(a), comm, &m->request);
}

/* Blocks of any length, or in several rounds: through staging then, unless this rank's side is one block. */
static int call_blocks(exec_op *op) {
  const coll_args *a = &op->a;
  mpi_call *m = &op->mpi;
  int p = op->team->size, me = op->team->me, b = op->team->blocking, *n = m->counts, *got = n + 2 * p;
  bool direct = m->n == m->longest;
  const size_t *arriving = a->collective == LWCC_ALLTOALL ? a->recv_counts : a->counts;
  H type = mpi.given.types[a->dtype], comm = op->team->comm;
  vectors(op, a->counts, n, n + p);
  vectors(op, arriving, got, got + p);
  if (!direct && a->collective != LWCC_ALLGATHER) stage(op, a->counts, (char *)(uintptr_t)a->in, false);
  const void *in = direct ? a->in : m->staging[0];
  void *out = direct ? a->out : m->staging[1];
  if (a->collective == LWCC_ALLTOALL)
    return mpi.alltoallv[b](in, n, n + p, type, out, got, got + p, type, comm, &m->request);
  if (a->collective == LWCC_REDUCESCATTER)
    return mpi.scatter[b](in, (char *)a->out + m->at * op->width, n, type, operation(a), comm, &m->request);
  in =
      direct && a->in == a->out ? (const void *)(uintptr_t)mpi.given.in_place : (const char *)a->in + m->at * op->width;
  return mpi.allgatherv[b](in, n[me], type, out, got, got + p, type, comm, &m->request);
}

static int start(exec_op *op) {
  const coll_args *a = &op->a;
  bool direct = op->mpi.n == op->mpi.longest;
  if (!whole(a)) {
    TRY(exec_room((char **)(void *)&op->mpi.counts, &op->mpi.counts_room, 4 * (size_t)op->team->size * sizeof(int)));
    for (int i = 0; i < 2 && !direct; i++)
      TRY(exec_room(&op->mpi.staging[i], &op->mpi.staging_nbytes[i], op->mpi.n * (size_t)op->team->size * op->width));
  }
  int code = whole(a) ? call_whole(op) : direct && !a->counts ? call_equal(op) : call_blocks(op);
  if (code) return failed(code, collective_name(a->collective));
  op->mpi.busy = !op->team->blocking;
  return LWCC_OK;
}

/* An allgather in place has its own block at the beginning of the output; MPI wants it where it belongs. In several
 * rounds, the output is written while the input is read, so that the input has to be elsewhere. */
static int place_allgather(exec_op *op) {
  coll_args *a = &op->a;
  size_t before = 0, own = block(a->counts, a->count, op->team->me) * op->width;
  for (int i = 0; i < op->team->me; i++) before += block(a->counts, a->count, i) * op->width;
  if (op->mpi.n == op->mpi.longest) {
    memmove((char *)a->out + before, a->in, own);
    return LWCC_OK;
  }
  TRY(exec_room(&op->work, &op->work_nbytes, own));
  memcpy(op->work, a->in, own);
  a->in = op->work;
  return LWCC_OK;
}

int mpi_begin(exec_op *op) {
  coll_args *a = &op->a;
  op->mpi.at = 0;
  op->mpi.request = 0;
  op->mpi.longest = longest(a, op->team->size);
  TRY(begin_round(op));
  bool in_place = a->in == a->out;
  if (a->prescale != 1.0 && a->collective == LWCC_ALLREDUCE) {
    reduce_scale(a->dtype, a->out, a->in, a->count, a->prescale);
    a->in = a->out;
  } else if (in_place && a->collective == LWCC_ALLGATHER) {
    TRY(place_allgather(op));
  } else if (a->collective == LWCC_REDUCESCATTER || (in_place && a->collective == LWCC_ALLTOALL)) {
    if (in_place || a->prescale != 1.0) TRY(exec_set_aside(op));
    if (a->prescale != 1.0) reduce_scale(a->dtype, op->work, op->work, exec_total(a, op->team->size), a->prescale);
  } else if (a->collective == LWCC_BROADCAST && op->team->me == a->root && !in_place) {
    reduce_copy(a->out, a->in, a->count * op->width, 0);
  }
  return op->team->blocking ? LWCC_OK : start(op);
}

static void end_round(exec_op *op) {
  const coll_args *a = &op->a;
  if (!whole(a) && a->collective != LWCC_REDUCESCATTER && op->mpi.n < op->mpi.longest)
    stage(op, a->collective == LWCC_ALLTOALL ? a->recv_counts : a->counts, a->out, true);
  op->mpi.at += op->mpi.n;
}

static void finish(exec_op *op) {
  const coll_args *a = &op->a;
  size_t n = a->collective == LWCC_ALLREDUCE ? a->count : block(a->counts, a->count, op->team->me);
  if (a->postscale == 1.0 || (a->collective != LWCC_ALLREDUCE && a->collective != LWCC_REDUCESCATTER)) return;
  reduce_scale(a->dtype, a->out, a->out, n, a->postscale);
}

int mpi_step(exec_op *op) {
  _Alignas(16) char status[STATUS_BYTES];
  int flag = 0;
  do {
    if (!op->mpi.busy) TRY(start(op));
    if (op->mpi.busy) {
      MPI_TRY(mpi.test(&op->mpi.request, &flag, status), "Test");
      if (!flag) return LWCC_PENDING;
      op->mpi.busy = false;
    }
    end_round(op);
    TRY(begin_round(op));
  } while (op->mpi.at < op->mpi.longest);
  finish(op);
  return LWCC_OK;
}

void mpi_free(exec_op *op) {
  free(op->mpi.counts);
  free(op->mpi.staging[0]);
  free(op->mpi.staging[1]);
}
