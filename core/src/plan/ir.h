/* The inside of a plan, for plan, algo's table and exec. Pure data: no I/O, threads or clock. */
#ifndef PLAN_IR_H
#define PLAN_IR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lwcc/plan.h"

enum { PLAN_MAX_RANKS = 1 << 16, PLAN_MAX_CHUNKS = 1 << 16, PLAN_MAX_STEPS = 1 << 26 };
#define PLAN_VERIFY_MAX_RANKS 1024
#define PLAN_VERIFY_MAX_BYTES ((size_t)1 << 30)

typedef enum { STEP_SEND, STEP_RECV_COPY, STEP_RECV_REDUCE, STEP_COPY, STEP_REDUCE, STEP_FOLD } step_kind;

typedef struct {
  step_kind kind;
  int peer;  /* send, recv: the other rank; fold: the owner */
  int chunk; /* first chunk; copy and reduce: destination */
  int n;     /* chunks; copy, reduce and fold: 1 */
  int src;   /* copy and reduce only */
} plan_step;

const char *plan_kind_name(step_kind kind); /* "recv_reduce", the verb's name */

struct lwcc_plan {
  int collective, rank, size, nchunks;
  int nsteps, nrounds, capacity;
  plan_step *steps; /* owned; in order */
  int *round_end;   /* owned; round_end[k] = index after the last step of round k */
  int round_capacity;
  const int *nodes; /* borrowed, while it is built: the lowest rank of each rank's node; NULL: pairs */
  int status;       /* first failure of the builder, with text */
  char text[224];
};

/* All functions below: any thread; they touch their arguments only.
 *
 * An empty plan, to be filled with the verbs of plan.h, then plan_finish: LWCC_OK or the first mistake. For what does
 * not come from an lwcc_algo: decoded plans, tests, algorithms of the caller. Owner: caller, whatever plan_finish says.
 */
int plan_new(int collective, int rank, int size, int nchunks, lwcc_plan **out);
int plan_finish(lwcc_plan *p);
/* What is wrong with a step of this plan by itself (peer, chunk, kind), or NULL. */
const char *plan_step_fault(const lwcc_plan *p, const plan_step *s);

/* Build rank's plan. Unfinished last rounds are ended. LWCC_ERR_PLAN, LWCC_ERR_UNSUPPORTED (ranks). Owner: caller. */
int plan_build(const lwcc_algo *algo, int rank, int size, lwcc_plan **out);
int plan_build_on(const lwcc_algo *algo, int rank, int size, const int *nodes, lwcc_plan **out); /* nodes[size] */
void plan_free(lwcc_plan *p);                                                                    /* NULL is fine */

/* Prove plans[size] together. LWCC_OK, or LWCC_ERR_PLAN naming rank, step and chunk. */
int plan_verify(const lwcc_plan *const *plans, int size);

typedef struct {   /* of the busiest rank; bytes in units of the payload */
  int rounds;      /* that cross nodes */
  double bytes;    /* sent to other nodes by all ranks of a node together: they share its link */
  double reduced;  /* bytes added */
  int messages;    /* sent to other nodes */
  int near_rounds; /* that stay within the node */
  double near;     /* bytes sent within it */
} plan_cost_t;
typedef struct { /* what a wire takes for a message, for each more that a rank sends in a round, and for a byte */
  double alpha_s, beta_s_per_byte, gamma_s_per_byte /* adding */, overhead_s;
} wire_cost;
plan_cost_t plan_cost(const lwcc_plan *const *plans, int size, const int *nodes); /* NULL: each rank alone on one */
double plan_seconds(const plan_cost_t *c, size_t nbytes, const wire_cost *w);

/* Text picture, one line a step; returns the length needed (as snprintf). */
int64_t plan_print(const lwcc_plan *p, char *out, size_t cap);
enum { PLAN_STEP_TEXT = 96 };
/* "send chunks 2..3 to rank 1"; at most PLAN_STEP_TEXT with the end. */
void plan_step_text(const lwcc_plan *p, int step, char out[PLAN_STEP_TEXT]);

/* The generated table of src/algo (files <collective>_<name>.c). */
typedef struct {
  const char *name; /* "ring" */
  const lwcc_algo *algo;
} algo_entry;
extern const algo_entry algo_table[];
extern const int algo_table_length;
const algo_entry *algo_find(int collective, const char *name); /* NULL if unknown */
const algo_entry *algo_at(int collective, int index);          /* NULL past the end */
const char *collective_name(int collective);                   /* "allreduce" */
#endif
