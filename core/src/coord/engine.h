/* All of one rank's coordination. One per process in real life; several per process in tests, ranks being threads.
 *
 * Threads: submitters and waiters touch the queue only. Whoever holds `lock` drives: takes turns of the loop. The
 * background thread drives when no caller does; when there is nothing to do it sleeps in channel_wait without the lock.
 * A caller that waits drives if the lock is free, and leaves the rest to the background thread. */
#ifndef COORD_ENGINE_H
#define COORD_ENGINE_H
#include "channel/bootstrap.h"
#include "channel/channel.h"
#include "channel/node.h"
#include "coord/negotiate.h"
#include "coord/pset.h"
#include "coord/queue.h"
#include "coord/timeline.h"
#include "os/thread.h"

typedef struct {
  int rank, size;
  const rank_identity *ids; /* [size]; copied */
  coordinator_limits limits;
} engine_parts;

typedef struct engine {
  int rank, size, cores; /* cores: that this node's ranks may use */
  bool polled;           /* what runs rings no bell (MPI): whoever drives must look again and again */
  bool guest;            /* what runs needs this core for threads of its own (gloo): nobody spins while it does */
  bool crowded;          /* more ranks than cores: nobody spins */
  int64_t spins;         /* idle turns before a waiting caller yields */
  wire_cost cost;        /* of the wire; api/calibrate.c measures it */
  queue q;
  channel *ch;
  node *nd;
  rank_identity *ids;
  coordinator_limits limits;
  _Atomic(pset *) sets; /* release when added, acquire when searched; never unlinked before the end */
  pthread_mutex_t lock;
  pthread_t thread;
  atomic_int wanted;    /* who waits for lock in engine_lock; relaxed: a hint for who drives and has nothing to do */
  atomic_bool stop;     /* seq_cst with sleeping, through engine_kick */
  atomic_bool sleeping; /* seq_cst: a submitter pushes, then looks; the sleeper sets, then looks for work */
  bool armed;           /* guarded by lock: the peers have been told to ring */
  bool napping;    /* guarded by lock: nobody arms; the background thread looks in by itself, see sleep_until_work */
  unsigned driven; /* guarded by lock: how often callers have left the driving */
  unsigned seen;   /* guarded by lock: driven at the background thread's last look */
  bool started, leaving;
  _Atomic int failed; /* < 0: the job is over; release after failed_text: pairs with the acquire in engine_failed */
  _Atomic int32_t lost_rank;
  char failed_text[TEXT_CAP];
  uint64_t stall_at_ns; /* next look at what is stalled; 0: not needed */
  uint64_t count_at_ns; /* of these the next coordinator_stall; 0: at once */
  uint64_t watch_at_ns; /* next engine_watch; 0: nothing is under way */
  unsigned turns;
  bool *has_left;      /* owned: [size]: said BYE */
  int32_t *left_after; /* owned: [size]: and who had left before, as it saw; -1: nobody. Written before a pset's left */
  int first_left;      /* as this rank saw; -1: nobody */
  uint64_t left_ns;    /* when the first peer left in good order; 0: none has. Guarded by lock */
  uint64_t busy_since_ns;
  int running;                /* operations that run, of lanes and raw */
  timeline *trace;            /* guarded by lock; NULL: none */
  lwcc_stats stats;           /* guarded by lock, except waited_ns; raw_calls is the sets' */
  _Atomic uint64_t waited_ns; /* a relaxed counter */
} engine;

/* engine.c. First create, then channel_create with engine_events, then bind. *out is set also on failure: free it. */
int engine_create(const engine_parts *parts, engine **out);
channel_events engine_events(engine *e);
int engine_bind(engine *e, channel *ch, node *nd);   /* ch, nd (may be NULL): given, also on failure. Makes set 0 */
pset *engine_set(const engine *e, int id);           /* NULL: unknown. Any thread */
int engine_add_set(engine *e, pset *ps, void *area); /* driving thread; ps: given on success */
void engine_drive_progress(void *arg);               /* arg: engine; for node_alloc */
void engine_free(engine *e);                         /* after engine_shutdown, or without engine_start */

/* loop.c */
int engine_start(engine *e);     /* the background thread */
void engine_shutdown(engine *e); /* say BYE, flush for at most a second, end the thread, fail what is pending */
bool engine_turn(engine *e);     /* true: something was done. Driving thread */
void engine_kick(engine *e);     /* after a submission: wake the background thread if it sleeps. Any thread */
/* Wait for r, driving if possible. deadline_ns 0: none. LWCC_PENDING at the deadline. Any thread but the background
 * one. */
int engine_wait(engine *e, request *r, uint64_t deadline_ns);
/* The same for who holds the lock, which is released; a wait that yields so often before it sleeps. */
int engine_wait_locked(engine *e, request *r, int yields);
void engine_lock(engine *e); /* become the driver */
void engine_unlock(engine *e);
/* The job is over for this rank: everything pending and later fails so. Driving thread. */
void engine_fail(engine *e, int status, const char *text);
int engine_failed(const engine *e); /* 0, or the status (text: failed_text). Any thread */

/* order.c: this rank's side of the negotiation. Driving thread. */
bool order_drain(engine *e);
bool order_coordinate(engine *e, pset *ps);
void order_control(engine *e, int peer, const void *msg, size_t nbytes);
void order_lost(engine *e, int peer, int status, const char *text);
void order_bye(engine *e); /* to all, after the news of the lost rank, if there is one */
/* "rank 1 (host a, pid 7) has left (lwcc shutdown)", of a rank that has. Any thread that has seen it in a pset's left
 */
void order_left_text(const engine *e, int peer, char *out, size_t cap);
void order_announce(engine *e, pset *ps, request *r); /* READY or REQUEST */

/* obey.c: entries of the order log. LWCC_ERR_PROTOCOL on nonsense. Driving thread. */
int order_obey(engine *e, pset *ps, reader *r);

/* watch.c: a look at what may be stuck, every LOOK_NS while there is anything. Driving thread. */
void engine_watch(engine *e);

/* lane.c: running collectives. Driving thread. */
int lane_append(pset *ps, bucket *b);
bool lane_turn(engine *e, pset *ps);
void lane_abandon(engine *e, pset *ps); /* the requests of its buckets are failed by the caller */
/* A raw collective of this set over a wire, from beginning to end. Any thread but the background one; the calls of a
 * set run one after the other, those of different sets side by side. */
int raw_run(engine *e, pset *ps, const coll_args *a, const char *algorithm);
bool raw_turn(engine *e, pset *ps);
void raw_abandon(engine *e, pset *ps, int status, const char *text);
#endif
