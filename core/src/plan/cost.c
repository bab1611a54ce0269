/* What a plan costs: each rank's own rounds, bytes and additions, the busiest rank counting; and for what crosses
 * nodes, the busiest node, whose ranks share a link. */
#include "plan/ir.h"

/* A message or a fold within shared memory, against one over a wire. */
static const double near_alpha_s = 2e-6, near_s_per_byte = 0.2e-9;

typedef struct {
  int rounds, near_rounds, messages;
  double sent, near, reduced; /* chunks */
} rank_cost;

static void add_step(const lwcc_plan *p, const plan_step *s, const int *nodes, rank_cost *c) {
  bool mine = s->kind == STEP_FOLD && s->peer == p->rank;
  int n = s->kind == STEP_SEND ? 1 : s->kind == STEP_FOLD ? mine ? p->size - 1 : 1 : 0; /* messages */
  bool near = nodes && s->kind == STEP_SEND && nodes[s->peer] == nodes[p->rank];
  *(near ? &c->near : &c->sent) += (double)n * s->n;
  if (!near) c->messages += n;
  if (s->kind == STEP_RECV_REDUCE || s->kind == STEP_REDUCE) c->reduced += s->n;
  if (mine) c->reduced += p->size - 1;
}

/* A fold over a wire is two messages deep: the terms to the owner, the result back. It counts a message more, so that
 * of two that cost the same, the one that adds while it receives is taken. */
static rank_cost one_rank(const lwcc_plan *p, const int *nodes) {
  rank_cost c = {0};
  for (int round = 0, i = 0; round < p->nrounds; round++) {
    bool folds = false, far = false;
    for (; i < p->round_end[round]; i++) {
      const plan_step *s = &p->steps[i];
      bool message = s->kind <= STEP_RECV_REDUCE;
      folds |= s->kind == STEP_FOLD;
      far |= !message || !nodes || nodes[s->peer] != nodes[p->rank];
      add_step(p, s, nodes, &c);
    }
    *(far ? &c.rounds : &c.near_rounds) += 1;
    c.rounds += folds;
    c.messages += folds;
  }
  return c;
}

static double node_sent(const lwcc_plan *const *plans, int size, const int *nodes, int node) {
  double sent = 0;
  for (int r = node; r < size; r++)
    if (nodes[r] == node) sent += one_rank(plans[r], nodes).sent / plans[r]->nchunks;
  return sent;
}

plan_cost_t plan_cost(const lwcc_plan *const *plans, int size, const int *nodes) {
  plan_cost_t worst = {0};
  for (int r = 0; r < size; r++) {
    rank_cost c = one_rank(plans[r], nodes);
    double each = 1.0 / plans[r]->nchunks, sent = nodes ? 0 : c.sent * each;
    if (nodes && nodes[r] == r) sent = node_sent(plans, size, nodes, r);
    if (c.rounds > worst.rounds) worst.rounds = c.rounds;
    if (c.near_rounds > worst.near_rounds) worst.near_rounds = c.near_rounds;
    if (c.messages > worst.messages) worst.messages = c.messages;
    if (sent > worst.bytes) worst.bytes = sent;
    if (c.near * each > worst.near) worst.near = c.near * each;
    if (c.reduced * each > worst.reduced) worst.reduced = c.reduced * each;
  }
  return worst;
}

double plan_seconds(const plan_cost_t *c, size_t nbytes, const wire_cost *w) {
  int more = c->messages > c->rounds ? c->messages - c->rounds : 0;
  double per_byte = c->bytes * w->beta_s_per_byte + c->reduced * w->gamma_s_per_byte + c->near * near_s_per_byte;
  return c->rounds * w->alpha_s + more * w->overhead_s + c->near_rounds * near_alpha_s + per_byte * (double)nbytes;
}
