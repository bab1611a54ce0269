/* Every algorithm of the table, at every size it serves: the proof, and a run on data by an interpreter that shares
 * nothing with the proof. */
#include "check.h"
#include "os/status.h"
#include "plan/ir.h"
#include "simulate.h"

static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 31, 32, 33, 64, 100, 128};

static bool serves(const lwcc_algo *a, int size) {
  return size >= a->min_ranks && (!a->power_of_two || (size & (size - 1)) == 0);
}

static void check_size(const algo_entry *e, int size) {
  lwcc_plan *plans[128] = {NULL};
  const char *collective = collective_name(e->algo->collective);
  if (!serves(e->algo, size)) {
    CHECK(plan_build(e->algo, 0, size, &plans[0]) == LWCC_ERR_UNSUPPORTED, "%s %s p=%d", collective, e->name, size);
    return;
  }
  for (int r = 0; r < size; r++)
    CHECK(plan_build(e->algo, r, size, &plans[r]) == LWCC_OK, "%s %s p=%d rank %d: %s", collective, e->name, size, r,
          os_error());
  const lwcc_plan *const *all = (const lwcc_plan *const *)plans;
  CHECK(plan_verify(all, size) == LWCC_OK, "%s %s p=%d: %s", collective, e->name, size, os_error());
  const int counts[] = {2 * size + 3, 1, size - 1}; /* odd pieces, fewer elements than ranks */
  for (int i = 0; i < (size > 33 ? 1 : 3); i++) {
    sim_verdict seen = sim_judge(all, size, counts[i]);
    CHECK(seen == SIM_RIGHT, "%s %s p=%d count=%d: verdict %d", collective, e->name, size, counts[i], seen);
  }
  for (int r = 0; r < size; r++) plan_free(plans[r]);
}

static int ceil_log2(int p) {
  int bits = 0;
  while ((1 << bits) < p) bits++;
  return bits;
}

static plan_cost_t cost_of(int collective, const char *name, int size) {
  lwcc_plan *plans[128] = {NULL};
  const algo_entry *e = algo_find(collective, name);
  CHECK(e != NULL, "%s", name);
  for (int r = 0; r < size; r++) CHECK(plan_build(e->algo, r, size, &plans[r]) == LWCC_OK, "%s", os_error());
  plan_cost_t c = plan_cost((const lwcc_plan *const *)plans, size, NULL);
  for (int r = 0; r < size; r++) plan_free(plans[r]);
  return c;
}

static void check_cost(int collective, const char *name, int size, plan_cost_t want) {
  plan_cost_t c = cost_of(collective, name, size);
  double off =
      (c.bytes - want.bytes) * (c.bytes - want.bytes) + (c.reduced - want.reduced) * (c.reduced - want.reduced);
  CHECK(c.rounds == want.rounds && off < 1e-18, "%s p=%d: %d rounds, %g n sent, %g n reduced; expected %d, %g, %g",
        name, size, c.rounds, c.bytes, c.reduced, want.rounds, want.bytes, want.reduced);
}

/* The formulas in the files' headers. */
static void check_costs(void) {
  for (int p = 2; p <= 128; p += p < 17 ? 1 : 37) {
    double share = (p - 1.0) / p;
    int log = ceil_log2(p);
    check_cost(LWCC_ALLREDUCE, "ring", p, (plan_cost_t){2 * (p - 1), 2 * share, share, 0, 0, 0});
    check_cost(LWCC_ALLREDUCE, "circulant", p, (plan_cost_t){2 * log, 2 * share, share, 0, 0, 0});
    check_cost(LWCC_ALLREDUCE, "direct", p, (plan_cost_t){p, 2 * share, share, 0, 0, 0});
    check_cost(LWCC_REDUCESCATTER, "circulant", p, (plan_cost_t){log, share, share, 0, 0, 0});
    check_cost(LWCC_ALLGATHER, "bruck", p, (plan_cost_t){log, share, 0, 0, 0, 0});
    check_cost(LWCC_BROADCAST, "binomial", p, (plan_cost_t){log, log, 0, 0, 0, 0});
    check_cost(LWCC_BROADCAST, "scatter_allgather", p, (plan_cost_t){2 * log, 2 * share, 0, 0, 0, 0});
    check_cost(LWCC_BARRIER, "dissemination", p, (plan_cost_t){log, 0, 0, 0, 0, 0});
  }
  check_cost(LWCC_ALLREDUCE, "recursive_doubling", 8, (plan_cost_t){3, 3, 3, 0, 0, 0});
  check_cost(LWCC_ALLREDUCE, "recursive_doubling", 7, (plan_cost_t){4, 3, 3, 0, 0, 0});
  check_cost(LWCC_ALLREDUCE, "halving_doubling", 8, (plan_cost_t){6, 1.75, 0.875, 0, 0, 0});
}

/* Two levels, over nodes of any sizes whose ranks are numbered in any order. */
static void check_layouts(void) {
  const algo_entry *e = algo_find(LWCC_ALLREDUCE, "hierarchical");
  unsigned seed = 20261130;
  for (int turn = 0; turn < 200; turn++) {
    lwcc_plan *plans[24] = {NULL};
    int nodes[24], name[24], size = 2 + turn % 22, most = 1 + turn / 22;
    for (int r = 0; r < size; r++) {
      name[r] = (int)((seed = seed * 1103515245 + 12345) >> 16) % most;
      for (nodes[r] = 0; name[nodes[r]] != name[r];) nodes[r]++;
    }
    for (int r = 0; r < size; r++)
      CHECK(plan_build_on(e->algo, r, size, nodes, &plans[r]) == LWCC_OK, "%s", os_error());
    const lwcc_plan *const *all = (const lwcc_plan *const *)plans;
    CHECK(plan_verify(all, size) == LWCC_OK, "turn %d of seed 20261130, p=%d: %s", turn, size, os_error());
    CHECK(sim_judge(all, size, 2 * size + 3) == SIM_RIGHT, "turn %d, p=%d", turn, size);
    for (int r = 0; r < size; r++) plan_free(plans[r]);
  }
}

/* Two nodes of two ranks: a ring in order of ranks crosses with 3/2 n on each link, two levels with n. */
static void check_cost_of_layouts(void) {
  const int nodes[] = {0, 0, 2, 2};
  const char *const names[] = {"hierarchical", "ring"};
  const double want[] = {1.0, 1.5};
  for (int i = 0; i < 2; i++) {
    lwcc_plan *plans[4] = {NULL};
    const lwcc_algo *algo = algo_find(LWCC_ALLREDUCE, names[i])->algo;
    for (int r = 0; r < 4; r++) CHECK(plan_build_on(algo, r, 4, nodes, &plans[r]) == LWCC_OK, "%s", os_error());
    plan_cost_t c = plan_cost((const lwcc_plan *const *)plans, 4, nodes);
    CHECK(c.bytes > want[i] - 1e-9 && c.bytes < want[i] + 1e-9, "%s: %g n, expected %g", names[i], c.bytes, want[i]);
    for (int r = 0; r < 4; r++) plan_free(plans[r]);
  }
}

int main(void) {
  for (int i = 0; i < algo_table_length; i++) {
    const algo_entry *e = &algo_table[i];
    CHECK(algo_find(e->algo->collective, e->name) == e, "%s: its file is named for another collective", e->name);
    CHECK(e->algo->about && e->algo->about[0], "%s: says nothing about itself", e->name);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) check_size(e, sizes[k]);
  }
  check_costs();
  check_layouts();
  check_cost_of_layouts();
  return check_report();
}
