/* One rank's address and identity as a line of key=value words, and what such lines say about nodes. */
#ifndef CHANNEL_ENDPOINT_H
#define CHANNEL_ENDPOINT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/connect.h"

typedef struct {
  int version, rank, pid;
  bool share; /* may share memory (LWCC_TRANSPORT is not tcp) */
  uint64_t netns;
  char host[64], boot[64], node[64]; /* node: LWCC_NODE, "" if unset */
  connect_target target;
} endpoint;

enum { ENDPOINT_VERSION = 1 };

/* Returns what snprintf returns. Pure. */
int endpoint_print(const endpoint *e, char *out, size_t cap);
/* LWCC_ERR_INVALID names the rank and what is wrong with its text. Unknown keys are skipped. Pure. */
int endpoint_parse(const char *text, int rank, endpoint *out);
/* One kernel and one network namespace: the condition for Unix sockets and shared memory. Pure. */
bool endpoint_same_system(const endpoint *a, const endpoint *b);
/* group_out[i] = the lowest rank of i's node; the same on every rank, as all see the same lines. Pure. */
void endpoint_group(const endpoint *e, int size, int *group_out);
#endif
