/* Direct two-shot allreduce: rank c gets everybody's chunk c, sums it, and sends it to everybody.
 * Rounds p (a chunk takes one addition a round); messages depend on each other only two deep. Sends 2(p-1)/p n, reduces
 * (p-1)/p n; any p; small p, low latency. Source: the transpose algorithm, e.g. Rabenseifner 2004. */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  for (int k = 1; k < size; k++) {
    int to = lwcc_mod(me + k, size);
    lwcc_plan_send(p, to, to, 1);
    lwcc_plan_recv_reduce(p, lwcc_mod(me - k, size), me, 1);
    lwcc_plan_end_round(p);
  }
  for (int k = 1; k < size; k++) { /* side by side: no one waits for a third rank */
    int from = lwcc_mod(me - k, size);
    lwcc_plan_send(p, lwcc_mod(me + k, size), me, 1);
    lwcc_plan_recv_copy(p, from, from, 1);
  }
  lwcc_plan_end_round(p);
}

const lwcc_algo lwcc_algo_allreduce_direct = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .build = build,
    .about = "direct two-shot: p rounds, 2(p-1)/p n sent, any p; small p and low latency",
};
