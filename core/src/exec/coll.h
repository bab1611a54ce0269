/* The arguments of one collective, as every executor takes them. Sizes are checked by the api layer. */
#ifndef EXEC_COLL_H
#define EXEC_COLL_H
#include "lwcc/lwcc.h"

typedef struct {
  int collective, dtype, op; /* op: SUM, MIN, MAX, PRODUCT; AVERAGE comes here as SUM with postscale divided */
  int root;                  /* index within the team */
  const void *in;
  void *out;                  /* may equal in; otherwise they do not overlap */
  size_t count;               /* elements: allreduce, broadcast: of the buffer; others: see counts */
  const size_t *counts;       /* allgather: elements of each rank's block; reducescatter: of each rank's result block;
                                 alltoall: elements I send to each rank. NULL: every block is count elements */
  const size_t *recv_counts;  /* alltoall: elements I receive from each rank; NULL: as counts == NULL */
  size_t longest;             /* alltoall with counts: the longest block of any pair of ranks; known to all */
  double prescale, postscale; /* 1.0 = none; floating types */
} coll_args;

size_t coll_dtype_bytes(int dtype);
#endif
