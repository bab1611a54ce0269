/* What a plan costs: each rank's own rounds, bytes and additions, the busiest rank counting. */
#include "plan/ir.h"

typedef struct {
  int rounds, messages;
  double sent, reduced; /* chunks */
} rank_cost;

/* A fold over a wire is two messages deep: the terms to the owner, the result back. */
static rank_cost one_rank(const lwcc_plan *p) {
  rank_cost c = {.rounds = p->nrounds};
  for (int round = 0, i = 0; round < p->nrounds; round++) {
    bool folds = false;
    for (; i < p->round_end[round]; i++) {
      const plan_step *s = &p->steps[i];
      bool mine = s->kind == STEP_FOLD && s->peer == p->rank;
      folds |= s->kind == STEP_FOLD;
      if (s->kind == STEP_SEND) c.sent += s->n, c.messages++;
      if (s->kind == STEP_RECV_REDUCE || s->kind == STEP_REDUCE) c.reduced += s->n;
      if (s->kind == STEP_FOLD) c.sent += mine ? p->size - 1 : 1, c.messages += mine ? p->size - 1 : 1;
      if (mine) c.reduced += p->size - 1;
    }
    c.rounds += folds;
  }
  return c;
}

plan_cost_t plan_cost(const lwcc_plan *const *plans, int size) {
  plan_cost_t worst = {0};
  for (int r = 0; r < size; r++) {
    rank_cost c = one_rank(plans[r]);
    double sent = c.sent / plans[r]->nchunks, reduced = c.reduced / plans[r]->nchunks;
    if (c.rounds > worst.rounds) worst.rounds = c.rounds;
    if (sent > worst.bytes) worst.bytes = sent;
    if (reduced > worst.reduced) worst.reduced = reduced;
    if (c.messages > worst.messages) worst.messages = c.messages;
  }
  return worst;
}

double plan_seconds(const plan_cost_t *c, size_t nbytes, const wire_cost *w) {
  int more = c->messages > c->rounds ? c->messages - c->rounds : 0;
  return c->rounds * w->alpha_s + more * w->overhead_s +
         (c->bytes * w->beta_s_per_byte + c->reduced * w->gamma_s_per_byte) * (double)nbytes;
}
