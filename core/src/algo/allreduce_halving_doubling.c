/* Halving-doubling: partners at halving distance swap halves of what they still sum, then gather back the same way.
 * Rounds 2 log2 q (q: largest power of two <= p), plus 2 if p != q, where ranks from q on hand their terms to rank - q
 * and get the result back. Sends 2(q-1)/q n, reduces (q-1)/q n (n more at the fold); any p. Source: Rabenseifner 2004.
 */
#include "lwcc/plan.h"

static int largest_power(int size) {
  int q = 1;
  while (2 * q <= size) q *= 2;
  return q;
}

static void build(lwcc_plan *p, int me, int size) {
  int q = largest_power(size);
  if (me >= q) { /* a guest: fold in, get the result */
    lwcc_plan_send(p, me - q, 0, q);
    lwcc_plan_end_round(p);
    lwcc_plan_recv_copy(p, me - q, 0, q);
    lwcc_plan_end_round(p);
    return;
  }
  int guest = me + q;
  if (guest < size) lwcc_plan_recv_reduce(p, guest, 0, q);
  lwcc_plan_end_round(p);
  for (int n = q / 2; n >= 1; n /= 2) { /* I sum the n chunks whose numbers share my upper bits */
    int partner = me ^ n;
    lwcc_plan_send(p, partner, partner & -n, n);
    lwcc_plan_recv_reduce(p, partner, me & -n, n);
    lwcc_plan_end_round(p);
  }
  for (int n = 1; n < q; n *= 2) {
    int partner = me ^ n;
    lwcc_plan_send(p, partner, me & -n, n);
    lwcc_plan_recv_copy(p, partner, partner & -n, n);
    lwcc_plan_end_round(p);
  }
  if (guest < size) lwcc_plan_send(p, guest, 0, q);
  lwcc_plan_end_round(p);
}

const lwcc_algo lwcc_algo_allreduce_halving_doubling = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .chunks = largest_power,
    .build = build,
    .about = "halving-doubling: 2 log2 p rounds (+2 if p is no power of two), 2(p-1)/p n sent (Rabenseifner 2004)",
};
