/* Adaptive summation (Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021): two gradients
 * a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum where they are orthogonal, their mean where
 * they are parallel. More than two: a binary tree in rank order, neighbours first; an odd one out goes up unchanged. So
 * any number of ranks will do, and every rank that has all terms computes the same bits. */
#ifndef EXEC_ADASUM_H
#define EXEC_ADASUM_H
#include <stdbool.h>

#include "exec/coll.h"

bool adasum_serves(int dtype); /* the floating types */
/* a->out = prescale * postscale * adaptive sum of the n terms in all, each a->count elements. Accumulates in float, dot
 * products in double. LWCC_ERR_SYSTEM: no memory. Any thread. */
int adasum_combine(const coll_args *a, const void *all, int n);
#endif
