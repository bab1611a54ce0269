/* Bruck allgather in its circulant form: the blocks that I hold double each round, in place, without a final rotation.
 * At distance s I hold chunks me .. me + s - 1 and get up to s more from the rank s ahead; distances are ceil(p / 2^k).
 * Rounds ceil(log2 p); sends (p-1)/p n (n: all blocks together); any p. Source: Bruck et al. 1997, Traff 2024. */
#include "lwcc/plan.h"

static int distance(int size, int k) { /* ceil(size / 2^k) */
  return ((size - 1) >> k) + 1;
}

static void build(lwcc_plan *p, int me, int size) {
  int k = 0;
  while (distance(size, k) > 1) k++;
  while (k-- > 0) {
    int s = distance(size, k + 1), n = distance(size, k) - s;
    lwcc_plan_send_range(p, lwcc_mod(me - s, size), me, n);
    lwcc_plan_recv_copy_range(p, lwcc_mod(me + s, size), me + s, n);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_allgather_bruck = {
    .collective = LWCC_ALLGATHER,
    .min_ranks = 2,
    .build = build,
    .about =
        "Bruck, circulant form: ceil(log2 p) rounds, (p-1)/p n sent, any p; small and medium n (Bruck et al. 1997)",
};
