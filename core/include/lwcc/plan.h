/* All that an author of an algorithm may call; the only include of the files in src/algo.
 *
 * A plan is what ONE rank does for one collective: steps over chunks, in rounds. The buffer of the collective is cut
 * into plan->nchunks chunks of nearly equal length (chunk i of allgather, reducescatter, alltoall: the block of rank i,
 * any length). Within a round all steps run side by side: every send reads what the chunk held when the round began,
 * then the receives of the round apply. Between a pair of ranks messages match in order: the i-th send from a to b
 * belongs to the i-th receive of b from a, and both name the same chunks, because chunks differ in length (alltoall: a
 * sends chunk b of IN, b receives into chunk a of D). Rounds are this rank's own: ranks are not synchronised by them.
 * No chunk is written twice in a round. lwcc_algorithm_verify proves all this.
 *
 * What a plan must achieve, with D the data buffer:
 *   allreduce      every rank: every chunk of D holds each rank's term exactly once, added in the same order on all
 *                  ranks (a+b is b+a): the same bits
 *   broadcast      rank 0 is the root (the executor renumbers); every chunk of D is the root's
 *   allgather      before: rank r holds chunk r; after: every rank holds chunk i from rank i
 *   reducescatter  after: rank r's chunk r holds each rank's term exactly once (other chunks: anything)
 *   alltoall       chunk d of IN goes to rank d; after: chunk s of D is rank s's chunk for me
 *   barrier        no data: sends and receives of zero chunks; nobody ends before everybody has begun */
#ifndef LWCC_PLAN_H
#define LWCC_PLAN_H
#include "lwcc.h"

typedef struct lwcc_plan lwcc_plan;

#pragma GCC visibility push(default) /* for plugins */
/* Steps. chunk .. chunk + n - 1, no wrap. Errors (peer or chunk out of range, peer == rank) are kept in the plan and
 * reported when it is finished, so an author need not check. */
void lwcc_plan_send(lwcc_plan *p, int peer, int chunk, int n);        /* from D (alltoall: from IN) */
void lwcc_plan_recv_copy(lwcc_plan *p, int peer, int chunk, int n);   /* D[chunk..] = message */
void lwcc_plan_recv_reduce(lwcc_plan *p, int peer, int chunk, int n); /* D[chunk..] op= message */
void lwcc_plan_send_range(lwcc_plan *p, int peer, int chunk, int n);  /* as send, but wraps modulo nchunks */
void lwcc_plan_recv_copy_range(lwcc_plan *p, int peer, int chunk, int n);
void lwcc_plan_recv_reduce_range(lwcc_plan *p, int peer, int chunk, int n);
/* Inside a rank. Both chunks must be known to be equally long, which so far holds only for alltoall's own block:
 * lwcc_plan_copy(p, rank, rank). The proof refuses the others. */
void lwcc_plan_copy(lwcc_plan *p, int dst, int src);   /* D[dst] = D[src] (alltoall: IN[src]) */
void lwcc_plan_reduce(lwcc_plan *p, int dst, int src); /* D[dst] op= D[src] */
/* Reduce the chunk over all ranks and leave it on all ranks; every rank of the plan lists the same folds in the same
 * order. owner is the rank that computes it. Over shared memory a direct read-reduce-write; over a wire, messages. */
void lwcc_plan_fold(lwcc_plan *p, int chunk, int owner);
void lwcc_plan_end_round(lwcc_plan *p);
/* The lowest rank of the node that a rank runs on. Where no job says it (proofs, prints), ranks run in pairs. */
int lwcc_plan_node(const lwcc_plan *p, int rank);

int lwcc_mod(int a, int m); /* never negative */
#pragma GCC visibility pop

/* The descriptor that ends an algorithm's file. Its symbol is lwcc_algo_<file name>; the build finds it by that name.
 */
typedef struct {
  int collective; /* lwcc_collective */
  int min_ranks;
  int power_of_two;        /* 1: serves only 2^k ranks */
  int (*chunks)(int size); /* NULL: one chunk per rank */
  void (*build)(lwcc_plan *p, int rank, int size);
  const char *about; /* rounds, bytes, ranks, source */
} lwcc_algo;

/* A plugin is a shared object of such files and one table of their descriptors, ended by a NULL name. It links against
 * nothing: the process that loads it has the verbs. `lwcc plugin build mine.c` writes the table and compiles both; by
 * hand: LWCC_PLUGIN_TABLE = {{"mine", &lwcc_algo_allreduce_mine}, {0}}; and cc -shared -fPIC. */
typedef struct {
  const char *name;
  const lwcc_algo *algo;
} lwcc_plugin_entry;
#define LWCC_PLUGIN_SYMBOL_NAME "lwcc_plugin_v1" /* the number changes with this header's structures */
#define LWCC_PLUGIN_TABLE const lwcc_plugin_entry lwcc_plugin_v1[]
#endif
