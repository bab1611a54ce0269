/* From endpoint texts to a connected job. Collective; runs on the caller's thread before the engine exists. */
#ifndef CHANNEL_BOOTSTRAP_H
#define CHANNEL_BOOTSTRAP_H
#include "channel/channel.h"
#include "channel/node.h"
#include "lwcc/lwcc.h"

typedef struct bootstrap bootstrap; /* listening sockets and this rank's identity */

typedef struct {
  int local_rank, local_size, cross_rank, cross_size;
  int node;    /* the lowest rank there */
  bool shares; /* its ranks may share memory; the same on all ranks, also if a node then finds that it cannot */
  char host[64];
  int pid;
} rank_identity;

int bootstrap_open(const lwcc_job *job, bootstrap **out);
/* Before bootstrap_endpoint, in place of LWCC_NODE and LWCC_TRANSPORT (one of its choices); NULL: unchanged. */
void bootstrap_override(bootstrap *b, const char *node_name, const char *transport);
int bootstrap_endpoint(const bootstrap *b, char *out, size_t cap);
/* Connect all pairs (shm within a node, tcp or ucx across: LWCC_TRANSPORT), authenticate by per-pair tokens
 * derived from the secret, agree with every rank of the node whether its memory is shared. ids_out[size] given by
 * caller. links_out[size]: links_out[rank] == NULL. Unauthenticated connections are dropped and never fail the join. */
int bootstrap_join(bootstrap *b, const char *const *endpoints, double timeout_s, transport_link **links_out,
                   node **node_out, rank_identity *ids_out);
void bootstrap_close(bootstrap *b); /* the listening sockets; not the links */
/* The node serves region messages of its peers on the pairs' Unix sockets: attach it to the channel's wait set. */
int node_attach(node *nd, channel *ch);
void node_close(node *nd);
#endif
