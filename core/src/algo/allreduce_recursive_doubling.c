/* Recursive doubling: in round k I swap everything with the rank that differs in bit k, and both add.
 * Rounds log2 q (q: largest power of two <= p), plus 2 if p != q, where ranks from q on hand their terms to rank - q
 * and get the result back. Sends and reduces n a round; any p. Both partners add the same two values, so the bits
 * agree for a commutative op. Source: Thakur, Rabenseifner, Gropp 2005. */
#include "lwcc/plan.h"

static int one_chunk(int size) {
  (void)size;
  return 1;
}

static void build(lwcc_plan *p, int me, int size) {
  int q = 1;
  while (2 * q <= size) q *= 2;
  if (me >= q) { /* a guest: fold in, get the result */
    lwcc_plan_send(p, me - q, 0, 1);
    lwcc_plan_end_round(p);
    lwcc_plan_recv_copy(p, me - q, 0, 1);
    lwcc_plan_end_round(p);
    return;
  }
  int guest = me + q;
  if (guest < size) lwcc_plan_recv_reduce(p, guest, 0, 1);
  lwcc_plan_end_round(p);
  for (int bit = 1; bit < q; bit *= 2) {
    lwcc_plan_send(p, me ^ bit, 0, 1);
    lwcc_plan_recv_reduce(p, me ^ bit, 0, 1);
    lwcc_plan_end_round(p);
  }
  if (guest < size) lwcc_plan_send(p, guest, 0, 1);
  lwcc_plan_end_round(p);
}

const lwcc_algo lwcc_algo_allreduce_recursive_doubling = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .chunks = one_chunk,
    .build = build,
    .about =
        "recursive doubling: log2 p rounds (+2 if p is no power of two), n sent a round; small n (Thakur et al. 2005)",
};
