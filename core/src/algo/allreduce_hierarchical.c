/* Two levels: within each node the ranks sum a slice each, the holders of a slice run a circulant allreduce across the
 * nodes, then each hands its slice to its node. As many slices as the smallest node has ranks, so all of them use the
 * network at once; the others of a larger node only give and take.
 * Across m nodes: 2 ceil(log2 m) rounds, 2(m-1)/m n sent by a node in all; any number of ranks on any node.
 * Source: multi-leader designs, e.g. Bayatpour et al., DPML, 2017. */
#include <stdbool.h>

#include "lwcc/plan.h"

typedef void verb(lwcc_plan *p, int peer, int chunk, int n);

typedef struct {
  lwcc_plan *p;
  int size, nodes, slices; /* slices: also leaders of each node */
  int node, place, mates;  /* mine */
} layout;

static int mates_of(const layout *l, int first) {
  int n = 0;
  for (int r = first; r < l->size; r++) n += lwcc_plan_node(l->p, r) == first;
  return n;
}

/* The rank at a place of the k-th node. */
static int rank_at(const layout *l, int k, int place) {
  int first = 0;
  while (lwcc_plan_node(l->p, first) != first || k-- > 0) first++;
  for (int r = first;; r++)
    if (lwcc_plan_node(l->p, r) == first && place-- == 0) return r;
}

static layout look(lwcc_plan *p, int me, int size) {
  layout l = {.p = p, .size = size, .slices = size};
  int mine = lwcc_plan_node(p, me);
  for (int r = 0; r < size; r++) {
    l.place += r < me && lwcc_plan_node(p, r) == mine;
    if (lwcc_plan_node(p, r) != r) continue;
    int n = mates_of(&l, r);
    if (n < l.slices) l.slices = n;
    if (r == mine) l.node = l.nodes;
    l.nodes++;
  }
  l.mates = mates_of(&l, mine);
  return l;
}

/* Slice s is cut into a part for each node; part l->nodes is its end. */
static int chunk_of(const layout *l, int s, int part) {
  int begin = s * l->size / l->slices, end = (s + 1) * l->size / l->slices;
  return begin + part * (end - begin) / l->nodes;
}

typedef struct {
  int slice, part, n; /* n parts from this one on, the first after the last */
} share;

static void move(const layout *l, verb *what, int peer, share m) {
  int begin = lwcc_mod(m.part, l->nodes), end = begin + m.n < l->nodes ? begin + m.n : l->nodes;
  what(l->p, peer, chunk_of(l, m.slice, begin), chunk_of(l, m.slice, end) - chunk_of(l, m.slice, begin));
  if (end - begin < m.n) move(l, what, peer, (share){m.slice, 0, m.n - (end - begin)});
}

/* Slices to their holders, or from them. */
static void within(const layout *l, bool back) {
  for (int t = 1; t < l->mates; t++) {
    int to = (l->place + t) % l->mates, from = lwcc_mod(l->place - t, l->mates);
    int give = back ? l->place : to, take = back ? from : l->place;
    if (give < l->slices) move(l, lwcc_plan_send, rank_at(l, l->node, to), (share){give, 0, l->nodes});
    if (take < l->slices)
      move(l, back ? lwcc_plan_recv_copy : lwcc_plan_recv_reduce, rank_at(l, l->node, from),
           (share){take, 0, l->nodes});
    lwcc_plan_end_round(l->p);
  }
}

static int distance(int size, int k) { /* ceil(size / 2^k) */
  return ((size - 1) >> k) + 1;
}

static void across(const layout *l, int k, bool back) {
  int s = distance(l->nodes, k + 1), n = distance(l->nodes, k) - s;
  int ahead = rank_at(l, (l->node + s) % l->nodes, l->place);
  int behind = rank_at(l, lwcc_mod(l->node - s, l->nodes), l->place);
  move(l, lwcc_plan_send, back ? behind : ahead, (share){l->place, back ? l->node : l->node + s, n});
  if (back)
    move(l, lwcc_plan_recv_copy, ahead, (share){l->place, l->node + s, n});
  else
    move(l, lwcc_plan_recv_reduce, behind, (share){l->place, l->node, n});
  lwcc_plan_end_round(l->p);
}

static void build(lwcc_plan *p, int me, int size) {
  const layout l = look(p, me, size);
  int k = 0;
  within(&l, false);
  for (; l.place < l.slices && distance(l.nodes, k) > 1; k++) across(&l, k, false);
  while (k-- > 0) across(&l, k, true);
  within(&l, true);
}

const lwcc_algo lwcc_algo_allreduce_hierarchical = {
    .collective = LWCC_ALLREDUCE,
    .min_ranks = 2,
    .build = build,
    .about = "two levels: sums within nodes, circulant across them, each local rank its slice; several ranks a node",
};
