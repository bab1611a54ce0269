/* What the coordinator knows of one name. Between negotiate.c, part.c, ready.c and stall.c only. */
#ifndef COORD_TALLY_H
#define COORD_TALLY_H
#include "coord/negotiate.h"
#include "coord/pset.h"

enum { ASKED_NOT = 0, ASKED_READY = 1, ASKED_NEW = 2 };

typedef struct tally {
  name_node by_name, by_id;
  struct tally *older, *newer; /* in the list of all, by when they ran last */
  struct tally *next_ready;
  uint32_t id; /* 0: no answer yet */
  bool ready;  /* in co->ready or held in a group */
  bool once;   /* some ranks have joined and take no part: in neither table, its id is evicted as soon as it has run */
  int collective, nasked, nnew;
  signature agreed;  /* valid if id != 0; allgather's first dimension and alltoall's splits are in values */
  int64_t *values;   /* owned; as cached.values */
  signature **fresh; /* [size]: owned: of ranks that sent a REQUEST this time */
  uint64_t since_ns; /* first asked, by coordinator_now; 0: nobody has */
  uint64_t warn_at_ns;
  int32_t priority;
  uint8_t *asked; /* [size] */
  char name[];
} tally;

typedef struct group { /* found by signature.group and its size */
  name_node node;
  int size, n;    /* members, of these decided (ready or failed) */
  uint32_t asked; /* members, counted for each rank that asked */
  tally *first, **tail;
  int status; /* < 0: a member failed, with text; members that become ready later fail at once */
  char text[TEXT_CAP];
} group;

typedef struct {
  char name[NAME_CAP]; /* the last thing this rank asked for */
  uint64_t at_ns;
} last_ask;

struct coordinator {
  pset *ps;
  coordinator_limits limits;
  name_table by_name, by_id, groups;
  tally *oldest, *newest;
  tally *ready, **ready_tail; /* in order of readiness; the members of a group side by side */
  uint32_t next_id, known;
  int waiting;                /* tallies with since_ns */
  uint64_t seen_ns, still_ns; /* coordinator_now's: the last look at the clock; how long the process stood still */
  bytes log;
  last_ask *last; /* [size] */
  bool *joined;   /* [size] */
  int njoined;
  uint64_t freed; /* tallies, ever */
  char left[256]; /* why nothing can run any more; "": it can */
};

uint64_t coordinator_now(coordinator *co, uint64_t clock_ns); /* stall.c: a clock that stops with the process */
/* negotiate.c */
void tally_fail(coordinator *co, tally *t, int status, const char *text);   /* ERROR on every rank; t may be freed */
tally *tally_find(const coordinator *co, int collective, const char *name); /* NULL: unknown */
void tally_settled(coordinator *co, tally *t);                              /* it ran: count anew; t may be freed */
void tally_unlist(coordinator *co, tally *t);                               /* asks for its name will start another */
/* What rank index i, which has asked, asks for: its REQUEST, or what was agreed with its own rows. out borrows splits.
 */
void tally_asked(const coordinator *co, const tally *t, int i, signature *out);
int tally_first(const coordinator *co, const tally *t); /* the lowest index that has asked */
int tally_decide(coordinator *co, tally *t);            /* everybody has asked or joined: it gets ready, or fails */
/* What the rank of this index asked for; of a group it is right about, of shape[0] and splits only if it is fresh. */
static inline const signature *asked_for(const tally *t, int index) {
  return t->fresh[index] ? t->fresh[index] : &t->agreed;
}
/* part.c */
bool part_complete(const coordinator *co, const tally *t);
int part_join(coordinator *co, tally *t, int from); /* rank index from has joined; t: the tally of JOIN; may be freed */
bool part_forbidden(const coordinator *co, const tally *t, char *text, size_t cap); /* cannot do without the joined */
void part_log(coordinator *co, const tally *t);                                     /* what a PART says beyond NEW */
/* ready.c */
void ready_add(coordinator *co, tally *t);
void groups_ask(coordinator *co, const signature *sig); /* one more rank asks for one more member */
/* t fails: so do the groups that the ranks have it in. t itself is left to the caller. */
void groups_fail(coordinator *co, const tally *t, int status, const char *text);
/* At the end of a frame, which holds a rank's group as a whole: fail what can't be completed any more, because the
 * ranks disagree about a group's members. */
void groups_settle(coordinator *co);
#endif
