/* The only door in, and the only door out: requests, their tickets, the queue to the driving thread.
 * A request is recycled, never freed before the queue is; its ticket carries a count, so that an old ticket is known.
 */
#ifndef COORD_QUEUE_H
#define COORD_QUEUE_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "coord/message.h"
#include "coord/names.h"

typedef struct request {
  struct request *next;       /* queue, free list or bucket */
  name_node node;             /* pending names; guarded by queue.mu */
  _Atomic lwcc_ticket ticket; /* written under queue.mu; relaxed: queue_lookup compares, its caller owns the ticket */
  _Atomic int status;         /* release in request_complete: pairs with the acquire in queue_status */
  _Atomic uint32_t done;      /* futex word; seq_cst with waiters: a waiter is woken or sees done */
  _Atomic uint32_t waiters;
  atomic_bool released; /* written under queue.mu; relaxed, as ticket */
  bool finished;        /* guarded by queue.mu */
  bool refused;         /* allocate gave no memory; driving thread */
  bool in_lane;         /* ordered to run; driving thread */
  bool stand_in;        /* of no submitter: this rank has joined (stand_in.h); in no table, and freed when done */
  uint32_t looks;       /* queue_look's, while it waits to be ordered; guarded by queue.mu */
  int set;
  char name[NAME_CAP];
  signature sig; /* op is the user's; AVERAGE is resolved when it runs */
  int32_t priority;
  const void *input;
  void *output;
  void *(*allocate)(void *user, int64_t first_dim, size_t nbytes);
  void (*on_done)(void *user, int status, const char *text);
  void *user;
  uint64_t submitted_ns;
  /* results; written by the driving thread before status */
  void *owned;   /* the library's output, until taken */
  void *scratch; /* a stand-in's input */
  size_t nbytes;
  int64_t first_dim;
  int64_t *rows; /* owned: rows received from each rank */
  int32_t nrows;
  int32_t contributors; /* ranks that had asked */
  char text[TEXT_CAP];
} request;

typedef struct queue {
  pthread_mutex_t mu;
  request *head, **tail;          /* submitted, not yet drained; guarded by mu */
  request *free;                  /* guarded by mu */
  name_table pending;             /* by set and name; guarded by mu */
  _Atomic(request *) *blocks[64]; /* blocks[i]: table of 1024 pointers; release when made, acquire when looked up */
  uint32_t made;                  /* requests ever made; guarded by mu */
  _Atomic uint32_t
      outstanding;    /* submitted, not finished; seq_cst with engine.sleeping: submit, then look whether it sleeps */
  _Atomic int closed; /* < 0: no more submissions; the text is closed_text (written before, under mu) */
  char closed_text[TEXT_CAP];
} queue;

int queue_init(queue *q);
void queue_destroy(queue *q); /* frees all requests */

/* Submit n requests as one unit. fill(i, r) writes name, sig, pointers; it may fail. Any thread. */
typedef int (*request_fill)(void *arg, int index, request *r);
int queue_submit(queue *q, int n, request_fill fill, void *arg, lwcc_ticket *tickets_out);
/* Take all that was submitted, in order. Driving thread. */
request *queue_drain(queue *q);
/* The pending request of that name, or NULL. Driving thread. */
request *queue_find(queue *q, int set, int collective, const char *name);
/* Finish: the name is free again, waiters wake, the callback runs. text may be NULL if status is LWCC_OK. Driving
 * thread. r may be recycled at once. */
void request_complete(queue *q, request *r, int status, const char *text);
/* Every pending request (of the set; -1: of all) ends with status; waiting_only spares those in a lane. Returns how
 * many. Driving thread; nothing of them may run any more. */
uint32_t queue_fail_all(queue *q, int set, bool waiting_only, int status, const char *text);
/* Counts a look at each pending request of the set that is in no lane and no JOIN, which may wait for long; the most
 * looks at one of them, and its name (NAME_CAP bytes). 0: there is none. Driving thread. */
uint32_t queue_look(queue *q, int set, char *name_out);
/* From now on queue_submit fails so. Any thread. */
void queue_close(queue *q, int status, const char *text);

/* Any thread. NULL (with text) for a ticket that was never given or was released. */
request *queue_lookup(queue *q, lwcc_ticket t);
int request_status(const request *r); /* acquire */
/* Sleep until done or the deadline (0: none). */
void request_sleep(request *r, uint64_t deadline_ns);
void queue_release(queue *q, request *r);
#endif
