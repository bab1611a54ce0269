/* Between bootstrap, share and node only. */
#ifndef CHANNEL_NODE_BUILD_H
#define CHANNEL_NODE_BUILD_H
#include <stdbool.h>
#include <stdint.h>

#include "channel/node.h"

typedef struct {
  int size, me;
  const int *ranks; /* [size]; copied by node_create */
  int *service;     /* [size] Unix sockets, -1 at me. share_agree borrows them; given to node_create */
  int crowd;        /* ranks on this kernel */
  uint64_t deadline_ns;
  /* set by share_agree */
  uint8_t *segment;
  size_t segment_nbytes;
  int cores;
  bool peeks; /* every rank of the node may read the memory of every other */
} node_parts;

/* Make one segment, prove that every rank of the node sees it, and agree. *shared_out is the same on all ranks; if
 * false, why holds the reason. Blocks until parts->deadline_ns. Caller's thread. */
int share_agree(node_parts *parts, bool *shared_out, char *why, size_t cap);
uint8_t *share_rings(const node_parts *parts, int index); /* the rings of the pair (me, index) */
int share_pid(const node_parts *parts, int index);
uint8_t *share_area(const node_parts *parts, size_t *nbytes_out);
/* size 1: no segment, no sockets. Takes parts->segment and the service sockets, also on failure. */
int node_create(const node_parts *parts, node **out);
#endif
