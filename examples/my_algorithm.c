/* The ring of my_algorithm.py in C, loaded at run time:
 *
 *   lwcc plugin build examples/my_algorithm.c -o libmine.so
 *   lwcc check --plugin libmine.so allreduce=my_ring
 *   lwccrun -np 4 --plugin libmine.so --algorithm allreduce=my_ring train.py */
#include "lwcc/plan.h"

static void build(lwcc_plan *p, int me, int size) {
  int after = lwcc_mod(me + 1, size), before = lwcc_mod(me - 1, size);
  for (int k = 0; k < size - 1; k++) {
    lwcc_plan_send(p, after, lwcc_mod(me - k, size), 1);
    lwcc_plan_recv_reduce(p, before, lwcc_mod(me - k - 1, size), 1);
    lwcc_plan_end_round(p);
  }
  for (int k = 0; k < size - 1; k++) {
    lwcc_plan_send(p, after, lwcc_mod(me + 1 - k, size), 1);
    lwcc_plan_recv_copy(p, before, lwcc_mod(me - k, size), 1);
    lwcc_plan_end_round(p);
  }
}

const lwcc_algo lwcc_algo_allreduce_my_ring = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .build = build,
    .about = "my ring: 2(p-1) rounds, 2(p-1)/p n sent, any p",
};
