/* One rank's address and identity as a line of key=value words, and what such lines say about nodes. */
#ifndef CHANNEL_ENDPOINT_H
#define CHANNEL_ENDPOINT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/connect.h"

enum { ENDPOINT_VERSION = 1, ENDPOINT_ALIKE = 3, ENDPOINT_SETTING = 96 };

typedef struct {
  int version, rank, pid;
  bool share; /* may share memory (LWCC_TRANSPORT is not tcp or ucx) */
  bool ucx;   /* reaches other nodes by UCX: the same on all ranks */
  uint64_t netns;
  char host[64], boot[64], node[64];            /* node: LWCC_NODE, "" if unset */
  char alike[ENDPOINT_ALIKE][ENDPOINT_SETTING]; /* settings that must not differ: a hash, a colon, the text's start */
  connect_target target;
} endpoint;

/* Returns what snprintf returns. Pure. */
int endpoint_print(const endpoint *e, char *out, size_t cap);
/* LWCC_ERR_INVALID names the rank and what is wrong with its text. Unknown keys are skipped. Pure. */
int endpoint_parse(const char *text, int rank, endpoint *out);
/* Note this process's settings that all ranks must share. Any thread */
void endpoint_note_settings(endpoint *out);
/* LWCC_ERR_MISMATCH names the variable, both ranks and what each has. Pure. */
int endpoint_check_settings(const endpoint *e, int size);
/* One kernel and one network namespace: the condition for Unix sockets and shared memory. Pure. */
bool endpoint_same_system(const endpoint *a, const endpoint *b);
/* group_out[i] = the lowest rank of i's node; the same on every rank, as all see the same lines. Pure. */
void endpoint_group(const endpoint *e, int size, int *group_out);
#endif
