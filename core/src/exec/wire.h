/* A plan under way over the channel. Between exec.c and wire.c only. */
#ifndef EXEC_WIRE_H
#define EXEC_WIRE_H
#include "exec/exec.h"
#include "exec/reduce.h"
#include "plan/ir.h"

typedef enum { SEND, RECV_COPY, RECV_STAGED, RECV_REDUCE, RECV_TERM } transfer_kind;

typedef struct {
  chan_io io;
  transfer_kind kind;
  char *to;     /* where the payload belongs; NULL for sends */
  size_t taken; /* bytes of it that are in place */
} transfer;

struct exec_op {
  exec_team *team;
  coll_args a;
  const char *name;
  shm_call *shm; /* NULL: a plan */
  const lwcc_plan *plan;
  uint32_t tag;
  int rotation;         /* plan's rank r is team index (r + rotation) % size */
  char *data;           /* D of plan.h */
  const char *input;    /* IN of plan.h (alltoall); otherwise data */
  size_t width;         /* bytes of an element */
  size_t *bounds;       /* [nchunks + 1]: element offsets of D's chunks */
  size_t *input_bounds; /* of IN's chunks; == bounds unless alltoall */
  reduce_fold_fn fold;
  int round;
  bool folding;        /* the second half of a round of folds: results travel */
  transfer *transfers; /* of the round */
  int ntransfers, room;
  char *scratch, *work; /* scratch: receives of the round; work: D where the output cannot be */
  size_t scratch_nbytes, work_nbytes;
  size_t bounds_room;
  lwcc_plan *turned; /* owned: the plan of a broadcast whose root is not index 0 */
  char *wide;        /* narrow.c: 64-bit copies */
  size_t wide_nbytes;
  int narrow_dtype; /* the caller's type; -1: unchanged */
  void *narrow_out;
};

int wire_begin(exec_op *op);                    /* the first round */
int wire_step(exec_op *op, bool *progress_out); /* as exec_step */
int narrow_begin(exec_op *op);                  /* see narrow.c */
void narrow_end(exec_op *op);
int exec_room(char **buffer, size_t *room, size_t nbytes); /* grow, contents lost; 64-byte aligned */
#endif
