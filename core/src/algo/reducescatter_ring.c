/* Ring reduce-scatter: each chunk starts behind its owner and collects a term at every rank.
 * Rounds p-1; sends and reduces (p-1)/p n; any p. Source: Patarasuk and Yuan 2009. */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  for (int k = 1; k < size; k++) {
    lwcc_plan_send(p, lwcc_mod(me + 1, size), lwcc_mod(me - k, size), 1);
    lwcc_plan_recv_reduce(p, lwcc_mod(me - 1, size), lwcc_mod(me - k - 1, size), 1);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_reducescatter_ring = {
    .collective = LWCC_REDUCESCATTER,
    .min_ranks = 2,
    .build = build,
    .about = "ring: p-1 rounds, (p-1)/p n sent, any p; large n (Patarasuk, Yuan 2009)",
};
