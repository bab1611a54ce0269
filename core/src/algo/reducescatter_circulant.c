/* Circulant reduce-scatter: the first half of allreduce_circulant, where the idea is told.
 * Rounds ceil(log2 p); sends and reduces (p-1)/p n; any p; commutative ops. Source: J. L. Traff 2024. */
#include "lwcc/plan.h"

static int distance(int size, int k) { /* ceil(size / 2^k) */
  return ((size - 1) >> k) + 1;
}

static void build(lwcc_plan *p, int me, int size) {
  for (int k = 0; distance(size, k) > 1; k++) {
    int s = distance(size, k + 1), n = distance(size, k) - s;
    lwcc_plan_send_range(p, lwcc_mod(me + s, size), me + s, n);
    lwcc_plan_recv_reduce_range(p, lwcc_mod(me - s, size), me, n);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_reducescatter_circulant = {
    .collective = LWCC_REDUCESCATTER,
    .min_ranks = 2,
    .build = build,
    .about = "circulant: ceil(log2 p) rounds, (p-1)/p n sent, any p (Traff 2024)",
};
