/* Binomial broadcast: whoever has the data passes it on to a rank half as far away each time.
 * Rank r's subtree spans as many ranks as r's lowest set bit says; its parent is r without that bit. Far subtrees are
 * the deepest and go first. Rounds ceil(log2 p); the root sends ceil(log2 p) n; any p. Source: classic. */
#include "lwcc/plan.h"

static int one_chunk(int size) {
  (void)size;
  return 1;
}

static void build(lwcc_plan *p, int me, int size) {
  int span = 1;
  while (span < size && !(me & span)) span *= 2;
  if (me > 0) lwcc_plan_recv_copy(p, me - span, 0, 1);
  lwcc_plan_end_round(p);
  for (int far = span / 2; far >= 1; far /= 2) {
    if (me + far < size) lwcc_plan_send(p, me + far, 0, 1);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_broadcast_binomial = {
    .collective = LWCC_BROADCAST,
    .min_ranks = 2,
    .chunks = one_chunk,
    .build = build,
    .about = "binomial tree: ceil(log2 p) rounds, the root sends ceil(log2 p) n, any p; small n",
};
