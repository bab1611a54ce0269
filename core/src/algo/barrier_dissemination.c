/* Dissemination barrier: in round k I tell the rank 2^k ahead what I know and hear from the one 2^k behind.
 * Rounds ceil(log2 p), no data, any p. Source: Hensgen, Finkel, Manber 1988. */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  for (int far = 1; far < size; far *= 2) {
    lwcc_plan_send(p, lwcc_mod(me + far, size), 0, 0);
    lwcc_plan_recv_copy(p, lwcc_mod(me - far, size), 0, 0);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_barrier_dissemination = {
    .collective = LWCC_BARRIER,
    .min_ranks = 2,
    .build = build,
    .about = "dissemination: ceil(log2 p) rounds, no data, any p (Hensgen, Finkel, Manber 1988)",
};
