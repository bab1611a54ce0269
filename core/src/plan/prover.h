/* The state of one proof; shared by verify.c (what can be seen in the plans) and prover.c (what their run shows).
 * One thread at a time. */
#ifndef PLAN_PROVER_H
#define PLAN_PROVER_H
#include "plan/ir.h"

typedef struct {
  const lwcc_plan *const *plans;
  int size, nchunks, collective;
  size_t words;     /* of one bit set: size + 1 terms */
  uint64_t *held;   /* [rank][chunk][once, many, order]: as the rank's round began */
  uint64_t *staged; /* likewise: as its round will end */
  int *writer;      /* [rank][chunk]: the last step that wrote it, or -1 */
  size_t *first;    /* [rank]: where its steps begin in partner */
  int *partner;     /* [first[rank] + step]: message: the peer's step; fold: its number */
  int *round;       /* [rank]: where it is; nrounds: finished; -1: not begun */
  int *left;        /* [rank]: steps of its round that have not happened */
  int *ready;       /* stack of ranks whose round is complete */
  int nready;
  int nfolds;
  int *fold_step; /* [fold][rank] */
  int *arrived;   /* [fold]: ranks that are in its round */
} prover;

/* LWCC_ERR_PLAN with a text that begins with rank, round, step and what the step does. */
int prover_refuse(const prover *v, int rank, int step, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Run all plans together on symbols: LWCC_OK, or the deadlock. Races and matching have been checked. */
int prover_run(prover *v);
/* Compare the values after the run with what plan.h promises. */
int prover_check_result(const prover *v);

static inline int round_begin(const lwcc_plan *p, int round) {
  return round > 0 ? p->round_end[round - 1] : 0;
}

static inline size_t value_words(const prover *v) {
  return 2 * v->words + 1;
}

static inline bool writes(const plan_step *s) {
  return s->kind != STEP_SEND;
}
#endif
