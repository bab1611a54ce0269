/* A plan under way over the channel. Between exec.c, narrow.c, wire.c, mpi.c and
 * guest.c only. */
#ifndef EXEC_WIRE_H
#define EXEC_WIRE_H
#include "exec/exec.h"
#include "exec/reduce.h"
#include "plan/ir.h"

typedef enum {
  FLIGHT_SEND,
  FLIGHT_COPY,   /* a receive straight into its place */
  FLIGHT_STAGED, /* a receive whose place is still being sent */
  FLIGHT_REDUCE, /* a receive that is added */
  FLIGHT_TERM,   /* a receive for the fold that follows */
  FLIGHT_FOLD,   /* no message: the reduction of the terms before it */
  FLIGHT_LOCAL   /* no message: copy or reduce within this rank */
} flight_kind;

/* What one step of the plan has to do, in pieces: the i-th piece of a send meets the i-th piece of the receive. */
typedef struct {
  flight_kind kind;
  int peer;                     /* global rank */
  bool outside;                 /* reads IN, which nobody writes (alltoall) */
  size_t at, nbytes;            /* range of D; outside: of IN */
  size_t applied;               /* bytes of piece number done that are in their place already */
  size_t npieces, posted, done; /* pieces in all, given to the channel, finished; done <= posted <= done + depth */
  size_t depth;                 /* pieces under way at most */
  uint64_t before;              /* number + 1 of the flight before, with the same peer and direction; 0: none */
  const plan_step *step;        /* LOCAL */
  char *ios, *slots;            /* chan_io[depth]; receives that are not COPY: depth places for pieces */
  size_t ios_room, slots_room;
} flight;

typedef struct {         /* a collective that an MPI runs */
  uint64_t request;      /* MPI_Request, as the library writes it */
  bool busy;             /* the request is under way */
  size_t at, n, longest; /* elements of every block: done, in this round, in all */
  int *counts;           /* [4 * size] */
  char *staging[2];      /* slices of all blocks side by side: sent, received */
  size_t counts_room, staging_nbytes[2];
} mpi_call;

struct exec_op {
  exec_team *team;
  mpi_call mpi;
  struct guest_slot *guest;
  coll_args a;
  const char *name;
  shm_call *shm; /* NULL: a plan */
  const lwcc_plan *plan;
  uint32_t tag;
  int cls;              /* the team's, or that of the small */
  int rotation;         /* plan's rank r is team index (r + rotation) % size */
  char *data;           /* D of plan.h */
  const char *input;    /* IN of plan.h (alltoall); otherwise data */
  size_t width;         /* bytes of an element */
  size_t *bounds;       /* [nchunks + 1]: element offsets of D's chunks */
  size_t *input_bounds; /* of IN's chunks; == bounds unless alltoall */
  size_t bounds_room;
  reduce_fold_fn fold;
  char *work; /* D where the output cannot be */
  size_t work_nbytes;
  flight *flights; /* a ring: flight number n is flights[n % capacity] */
  size_t capacity, flights_room;
  char *sources; /* pointers of one fold */
  size_t sources_room;
  uint64_t first, end; /* numbers of the oldest unfinished flight, and of the next */
  int round;           /* the next to be opened */
  size_t upcoming;     /* its flights */
  char *wide;          /* narrow.c: 64-bit copies */
  size_t wide_nbytes;
  int narrow_dtype; /* the caller's type; -1: unchanged */
  void *narrow_out;
};

int wire_begin(exec_op *op);                    /* takes memory; posts nothing */
int wire_step(exec_op *op, bool *progress_out); /* as exec_step */
void wire_cancel(exec_op *op);                  /* take back what is still under way */
void wire_free(exec_op *op);                    /* the flights' memory */
int narrow_begin(exec_op *op);                  /* see narrow.c */
void narrow_end(exec_op *op);
int exec_set_aside(exec_op *op);                           /* the input becomes a copy in work */
size_t exec_total(const coll_args *a, int size);           /* elements of all blocks that this rank sends */
int exec_room(char **buffer, size_t *room, size_t nbytes); /* grow, contents lost; 64-byte aligned */
#endif
