/* Pairwise alltoall: in round k I send to the rank k ahead and receive from the rank k behind.
 * Rounds p-1; sends (p-1)/p n; any p. Source: classic. */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  lwcc_plan_copy(p, me, me);
  for (int k = 1; k < size; k++) {
    int to = lwcc_mod(me + k, size), from = lwcc_mod(me - k, size);
    lwcc_plan_send(p, to, to, 1);
    lwcc_plan_recv_copy(p, from, from, 1);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_alltoall_pairwise = {
    .collective = LWCC_ALLTOALL,
    .min_ranks = 2,
    .build = build,
    .about = "pairwise: p-1 rounds, (p-1)/p n sent, any p",
};
