/* Ring allreduce: chunks travel around the ring once to be summed, once to be handed out.
 * Rounds 2(p-1); sends 2(p-1)/p n, reduces (p-1)/p n; any p. Source: the classic bandwidth-optimal ring
 * (Patarasuk and Yuan 2009). */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  int next = lwcc_mod(me + 1, size), prev = lwcc_mod(me - 1, size);
  for (int k = 0; k < size - 1; k++) { /* after round k I hold k + 2 terms of chunk me - k - 1 */
    lwcc_plan_send(p, next, lwcc_mod(me - k, size), 1);
    lwcc_plan_recv_reduce(p, prev, lwcc_mod(me - k - 1, size), 1);
    lwcc_plan_end_round(p);
  }
  for (int k = 0; k < size - 1; k++) { /* chunk me + 1 is complete here; pass on what came last */
    lwcc_plan_send(p, next, lwcc_mod(me + 1 - k, size), 1);
    lwcc_plan_recv_copy(p, prev, lwcc_mod(me - k, size), 1);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_allreduce_ring = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .build = build,
    .about = "ring: 2(p-1) rounds, 2(p-1)/p n sent, any p; large n on neighbour-friendly wires (Patarasuk, Yuan 2009)",
};
