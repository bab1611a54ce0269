/* Circulant allreduce: log-round and volume-optimal for every p.
 * Distances are ceil(p / 2^k). At distance s with s' the one before, I hold partial sums of the s' chunks from mine
 * on; the s' - s upper ones go to the rank that is s ahead, and I add what the rank s behind sends. The way back hands
 * the results out. Rounds 2 ceil(log2 p); sends 2(p-1)/p n, reduces (p-1)/p n; any p; commutative ops.
 * Source: J. L. Traff, optimal reduce-scatter and allreduce on circulant graphs, 2024. */
#include "lwcc/plan.h"

static int distance(int size, int k) { /* ceil(size / 2^k) */
  return ((size - 1) >> k) + 1;
}

static void build(lwcc_plan *p, int me, int size) {
  int k = 0;
  for (; distance(size, k) > 1; k++) {
    int s = distance(size, k + 1), n = distance(size, k) - s;
    lwcc_plan_send_range(p, lwcc_mod(me + s, size), me + s, n);
    lwcc_plan_recv_reduce_range(p, lwcc_mod(me - s, size), me, n);
    lwcc_plan_end_round(p);
  }
  while (k-- > 0) {
    int s = distance(size, k + 1), n = distance(size, k) - s;
    lwcc_plan_send_range(p, lwcc_mod(me - s, size), me, n);
    lwcc_plan_recv_copy_range(p, lwcc_mod(me + s, size), me + s, n);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_allreduce_circulant = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .build = build,
    .about = "circulant: 2 ceil(log2 p) rounds, 2(p-1)/p n sent, any p; the default of medium n (Traff 2024)",
};
