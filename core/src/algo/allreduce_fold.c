/* Fold allreduce: rank c sums chunk c over all ranks and leaves the result with all.
 * One round; in shared memory every input is read once and every output written once. Over a wire each fold becomes
 * messages to its owner and back, as in allreduce_direct. Any p. Source: ours; the least memory traffic possible. */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  (void)me; /* every rank lists the same folds */
  for (int c = 0; c < size; c++) lwcc_plan_fold(p, c, c);
  lwcc_plan_end_round(p);
}

const lwcc_algo lwcc_algo_allreduce_fold = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .build = build,
    .about = "fold: p folds in one round, 2(p-1)/p n sent over a wire, any p; made for shared memory",
};
