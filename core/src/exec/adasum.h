/* Adaptive summation (Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021): two gradients
 * a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum where they are orthogonal, their mean where
 * they are parallel. More than two: a binary tree in rank order, neighbours first; an odd one out goes up unchanged.
 *
 * The paper halves vectors, which wants a power of two. Here a rank gets its slice of all n terms (alltoall) and
 * multiplies each with each; from the sums of these n (n + 1) / 2 products (allreduce) follows the weight of each term
 * in the tree's result; the weighted slices are gathered. So a rank sends 2 (n - 1) / n of a tensor, as a ring does,
 * keeps one more, and multiplies (n + 1) / 2 times per element: in double, rounded once, the same bits on every rank.
 */
#ifndef EXEC_ADASUM_H
#define EXEC_ADASUM_H
#include <stdbool.h>

#include "exec/coll.h"

typedef struct adasum adasum; /* one rank's part; released by free() */

bool adasum_serves(int dtype); /* the floating types */
/* Begin the allreduce `whole` of index me of n ranks. LWCC_ERR_SYSTEM: no memory. Any thread, as the next. */
int adasum_create(const coll_args *whole, int me, int n, adasum **out);
/* The next of its collectives, which has to end before this is called again; false after the last. */
bool adasum_next(adasum *x, coll_args *out);
#endif
