/* The coordinator of a process set: which requests are on every rank, and in which order they run.
 *
 * a) Each rank says READY(id) for a name whose answer it remembers, REQUEST(name, signature) otherwise.
 * b) A tally counts who has asked. When everybody has: if all said READY, it is ready; otherwise the signatures are
 *    compared. Agreement gives NEW(id, name), and it is ready. Disagreement gives ERROR(name), on every rank.
 * c) A ready request of a group waits until the whole group is ready. If one member fails, the group fails; so it does
 *    when all ranks have asked for their groups and these have not the same members.
 * d) Ready requests become RUN buckets while the lane has few buckets waiting, so that those which become ready
 *    meanwhile are fused. Priority orders them; look-ahead passes those that do not fit.
 * e) A rank that has joined (JOIN, a request like another) counts as one that has asked for all, with neutral elements.
 *    What runs without it is said as PART, is never fused with what runs with all, and is forgotten after its RUN.
 * f) NEW, PART, RUN, ERROR, EVICT and JOINED form one log, sent to every rank in the same order. The log is the order
 * of execution. Ids are never reused. Ids that nobody waits for are evicted least recently used first, when there are
 * too many. Driving thread only. */
#ifndef COORD_NEGOTIATE_H
#define COORD_NEGOTIATE_H
#include "coord/bytes.h"
#include "coord/message.h"
#include "coord/names.h"

enum { LOOK_NS = 500000000 }; /* how often one looks for stalls while something is pending */
struct pset;
typedef struct coordinator coordinator;

typedef struct {
  uint64_t fusion_nbytes;     /* most of one fused bucket; 0: no fusion */
  uint32_t capacity;          /* most ids remembered */
  uint64_t warn_ns, abort_ns; /* 0 = never */
} coordinator_limits;

int coordinator_create(struct pset *ps, coordinator **out);
void coordinator_free(coordinator *co); /* NULL is fine */
void coordinator_limit(coordinator *co, const coordinator_limits *limits);
/* The entries of one frame from rank index `from`. LWCC_ERR_PROTOCOL on nonsense. */
int coordinator_take(coordinator *co, int from, reader *entries);
/* Make buckets of what is ready, if fewer than a few wait in this rank's lane. */
void coordinator_emit(coordinator *co, int lane_length);
/* The log since the last call: entries to be sent to all and obeyed here; co keeps the memory. */
bytes *coordinator_log(coordinator *co);
/* Report what has been pending too long, fail what is past the limit. Returns when to look again (0: nothing pending).
 * Time in which this process stood still (SIGSTOP, a suspended machine) does not count. */
uint64_t coordinator_stall(coordinator *co);
/* A member has left in good order: what is pending fails on every rank, and so does all that is asked from now on. */
void coordinator_leave(coordinator *co, const char *text);
/* Forget everything that is being counted (all requests of the set have failed). */
void coordinator_reset(coordinator *co);
#endif
