/* Ring allgather: every chunk travels once around the ring.
 * Rounds p-1; sends (p-1)/p n (n: all blocks together); any p. Source: classic. */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  for (int k = 0; k < size - 1; k++) {
    lwcc_plan_send(p, lwcc_mod(me + 1, size), lwcc_mod(me - k, size), 1);
    lwcc_plan_recv_copy(p, lwcc_mod(me - 1, size), lwcc_mod(me - k - 1, size), 1);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_allgather_ring = {
    .collective = LWCC_ALLGATHER,
    .min_ranks = 2,
    .build = build,
    .about = "ring: p-1 rounds, (p-1)/p n sent, any p; large n on neighbour-friendly wires",
};
