/* Scatter-allgather broadcast: the root deals one chunk to each rank down a binomial tree, then all gather.
 * Rounds 2 ceil(log2 p); the root sends 2(p-1)/p n; any p; large n. Source: van de Geijn's scatter and allgather
 * (Barnett et al. 1994), the gather being circulant (Traff 2024; see allreduce_circulant). */
#include "lwcc/plan.h"

static int distance(int size, int k) { /* ceil(size / 2^k) */
  return ((size - 1) >> k) + 1;
}

static int least(int a, int b) {
  return a < b ? a : b;
}

static void build(lwcc_plan *p, int me, int size) {
  int span = 1; /* my subtree: chunks and ranks me .. me + span - 1 */
  while (span < size && !(me & span)) span *= 2;
  if (me > 0) lwcc_plan_recv_copy(p, me - span, me, least(span, size - me));
  lwcc_plan_end_round(p);
  for (int far = span / 2; far >= 1; far /= 2) {
    if (me + far < size) lwcc_plan_send(p, me + far, me + far, least(far, size - me - far));
    lwcc_plan_end_round(p);
  }
  int k = 0;
  while (distance(size, k) > 1) k++;
  while (k-- > 0) { /* I hold chunks me .. me + s - 1, at least */
    int s = distance(size, k + 1), n = distance(size, k) - s;
    lwcc_plan_send_range(p, lwcc_mod(me - s, size), me, n);
    lwcc_plan_recv_copy_range(p, lwcc_mod(me + s, size), me + s, n);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_broadcast_scatter_allgather = {
    .collective = LWCC_BROADCAST,
    .min_ranks = 2,
    .build = build,
    .about = "scatter + allgather: 2 ceil(log2 p) rounds, 2(p-1)/p n sent, any p; large n (van de Geijn)",
};
