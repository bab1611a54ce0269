/* The ranks that can map each other's memory, and the memory they share.
 * Nothing of it has a name in the system: it vanishes with its last process. A forked child inherits the mappings and
 * may read them, but must call nothing here.
 * A region is a memfd of one rank, mapped by every rank of the node; descriptors travel over the pairs' Unix sockets.
 */
#ifndef CHANNEL_NODE_H
#define CHANNEL_NODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct node node;

int node_size(const node *nd);         /* ranks of this node; 1 = alone (or sharing is forbidden) */
int node_me(const node *nd);           /* my index among them */
const int *node_ranks(const node *nd); /* their global ranks, ascending */
int node_cores(const node *nd);        /* cores they may run on together */
int node_crowd(const node *nd);        /* ranks of the job that run on this kernel: at least node_size */
void *node_segment(const node *nd);    /* memory of index 0, node_segment_bytes, zeroed, mapped by all; NULL if alone */
size_t node_segment_bytes(const node *nd);

/* Registered memory of this rank: 64-byte aligned, zeroed. When node_alloc returns, every peer has mapped it. Waits for
 * the peers' acknowledgements by calling drive(arg) (one turn of the engine). NULL on failure. Driving thread. */
void *node_alloc(node *nd, size_t nbytes, void (*drive)(void *arg), void *arg);
void node_free(node *nd, void *p); /* the pages go back; the address range may be reused by node_alloc */
/* Where p..p+n lies in my regions: 1 and the handle, or 0. Any thread. */
bool node_find(const node *nd, const void *p, size_t n, uint32_t *region_out, uint64_t *offset_out);
/* The same bytes of local rank `index` in this process; NULL if unknown or out of range. Any thread. */
void *node_map(const node *nd, int index, uint32_t region, uint64_t offset, size_t n);
bool node_peeks(const node *nd); /* every rank of the node may read the memory of every other. Any thread */
/* Copy n bytes at `address` of local rank index's process. Fails as mem_peek. Any thread. */
int node_peek(const node *nd, int index, void *to, uint64_t address, size_t n);
#endif
