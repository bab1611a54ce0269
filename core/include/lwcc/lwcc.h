/* LWCC, the whole public C API. This file is the manual.
 *
 * One process is one rank. A process calls lwcc_open, hands its endpoint text to the other ranks by any means (the
 * Python package uses the rendezvous store), and calls lwcc_join with everybody's. From then on it may
 *   - submit named requests (lwcc_submit): matched by name over the ranks in any order, checked, fused, run by the
 *     coordination thread, waited for by ticket;
 *   - run raw collectives (lwcc_raw_*): unnamed, blocking, in program order, as in MPI.
 * Every function may be called from any thread unless it says otherwise. Functions that return int return an
 * lwcc_status: negative = failed, and lwcc_error() then gives this thread's text, which says who, what, seen, expected.
 *
 * The marked region is plain C without macros, because cffi reads it as the cdef of the Python module. */
#ifndef LWCC_LWCC_H
#define LWCC_LWCC_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)
/* cdef: begin */
typedef enum {
  LWCC_OK = 0,
  LWCC_PENDING = 1,
  LWCC_ERR_INVALID = -1,     /* an argument of this call is wrong; nothing was submitted */
  LWCC_ERR_MISMATCH = -2,    /* the ranks disagree about a tensor; arrives on every rank; the job can go on */
  LWCC_ERR_PEER_LOST = -3,   /* a rank died; every pending and later call fails so */
  LWCC_ERR_TIMEOUT = -4,     /* stalled past the limit, or a wait's own limit was reached */
  LWCC_ERR_SHUTDOWN = -5,    /* not initialised, shut down, or a peer has left in good order */
  LWCC_ERR_SYSTEM = -6,      /* the operating system refused: memory, descriptors, sockets */
  LWCC_ERR_PROTOCOL = -7,    /* bytes that no healthy peer sends */
  LWCC_ERR_UNSUPPORTED = -8, /* valid, but not for this type, size or build */
  LWCC_ERR_PLAN = -9         /* a plan was refused; the text names rank, step and chunk */
} lwcc_status;

typedef enum {
  LWCC_UINT8 = 0,
  LWCC_INT8 = 1,
  LWCC_UINT16 = 2,
  LWCC_INT16 = 3,
  LWCC_UINT32 = 4,
  LWCC_INT32 = 5,
  LWCC_UINT64 = 6,
  LWCC_INT64 = 7,
  LWCC_BOOL = 8,
  LWCC_FLOAT16 = 9,
  LWCC_BFLOAT16 = 10,
  LWCC_FLOAT32 = 11,
  LWCC_FLOAT64 = 12,
  LWCC_DTYPES = 13
} lwcc_dtype;

typedef enum { /* the numbers of Horovod's constants */
               LWCC_AVERAGE = 0,
               LWCC_SUM = 1,
               LWCC_ADASUM = 2,
               LWCC_MIN = 3,
               LWCC_MAX = 4,
               LWCC_PRODUCT = 5
} lwcc_op;

typedef enum {
  LWCC_ALLREDUCE = 0,
  LWCC_BROADCAST = 1,
  LWCC_ALLGATHER = 2,
  LWCC_REDUCESCATTER = 3,
  LWCC_ALLTOALL = 4,
  LWCC_BARRIER = 5,
  LWCC_COLLECTIVES = 6
} lwcc_collective;

typedef uint64_t lwcc_ticket; /* 0 is never a ticket */

/* ---- life ---- */
typedef struct {
  int32_t rank, size;
  const uint8_t *secret; /* 32 bytes shared by the job; borrowed for the call */
  uint64_t generation;   /* which incarnation of the world; a message of another is dropped */
} lwcc_job;
/* Create this rank's listening sockets and write its endpoint text (printable, no newline, at most cap - 1 bytes). */
int lwcc_open(const lwcc_job *job, char *endpoint_out, size_t cap);
/* Connect to every rank (endpoints[size], in rank order; borrowed), map the node's memory, start the coordination
 * thread. Collective. Fails with LWCC_ERR_TIMEOUT naming the ranks that did not arrive. A second open+join after
 * lwcc_shutdown works. For size 1 endpoints may be NULL. */
int lwcc_join(const char *const *endpoints, double timeout_s);
/* Leave in good order: tell the peers, fail what is pending with LWCC_ERR_SHUTDOWN, end the thread, free all. Bounded:
 * never waits for a dead or slow peer longer than a second. In a forked child: frees nothing, closes nothing. */
int lwcc_shutdown(void);
int32_t lwcc_initialized(void); /* 1 between a successful join and shutdown, in the process that joined */
typedef struct {
  int32_t rank, size, local_rank, local_size, cross_rank, cross_size;
} lwcc_world;
int lwcc_get_world(lwcc_world *out); /* LWCC_ERR_SHUTDOWN before join */
/* The latest failure's text on this thread; never NULL; valid until this thread's next failing call. */
const char *lwcc_error(void);
const char *lwcc_status_name(int status); /* "PEER_LOST" and the like */
/* The first rank found dead, or -1. */
int32_t lwcc_lost_rank(void);
const char *lwcc_version(void);
/* What UCX offers here, a line each: the library's path, its version, then the library's own account of transports and
 * devices. Returns the length needed without the end; LWCC_ERR_UNSUPPORTED says which libraries were tried and why not.
 * Loads the library, which stays loaded. */
int64_t lwcc_ucx_describe(char *out, size_t cap);

/* ---- named requests ---- */
typedef struct {
  const char *name; /* borrowed for the call; at most 511 bytes; unique among this rank's pending requests of its set */
  int32_t collective, dtype, op;
  int32_t root;        /* broadcast: a global rank; allreduce: of no effect, but the same on all ranks */
  int32_t process_set; /* 0 = all ranks */
  int32_t ndim;
  const int64_t *shape;       /* of the input; borrowed for the call; a 0-d tensor has ndim 0 and one element */
  const void *input;          /* borrowed until the ticket is done */
  void *output;               /* as input; may equal input. NULL where the size is known late (allgather, alltoall,
                                 reducescatter): the library then allocates, see lwcc_get_result */
  const int64_t *splits;      /* alltoall: rows for each rank of the set (borrowed for the call); NULL = equal parts */
  double prescale, postscale; /* multiply before and after the reduction; 1.0 = none; floating types only */
  int32_t priority;           /* higher goes first among the ready ones */
  const char *algorithm;      /* borrowed for the call; NULL = see lwcc_use, else selected */
  /* For C users only (Python leaves them NULL). allocate: called on the driving thread when the output's size is
   * known; returns memory for nbytes that outlives the ticket, or NULL to fail the request. done: called once on the
   * driving thread when the ticket is complete; must not block and must not call lwcc_wait. */
  void *(*allocate)(void *user, int64_t first_dim, size_t nbytes);
  void (*done)(void *user, int status, const char *text);
  void *user;
} lwcc_request;
/* Submit n requests; n > 1 makes them one group: run as a unit, or all failed. Never blocks on peers. On failure no
 * request was taken. tickets_out[n] is written only on success. */
int lwcc_submit(const lwcc_request *requests, int32_t n, lwcc_ticket *tickets_out);
/* lwcc_submit, then lwcc_wait for the first: the coordination thread is not woken. tickets_out[0] is 0 if nothing was
 * submitted; else all are to be released, whatever is returned. */
int lwcc_run(const lwcc_request *requests, int32_t n, double timeout_s, lwcc_ticket *tickets_out);
/* This rank is out of data: until every rank of the set has joined, it takes part in the others' requests with neutral
 * elements (no rows in allgather and alltoall), and Average divides by the ranks that contribute. What it cannot do
 * without fails on every rank: a broadcast from it, making a process set. Raw collectives go on needing it. The ticket
 * is done when all have joined; lwcc_get_result then gives the global rank that joined last as first_dim. */
int lwcc_submit_join(int32_t process_set, lwcc_ticket *ticket_out);
int lwcc_poll(lwcc_ticket ticket); /* LWCC_OK, LWCC_PENDING or the request's failure */
/* Wait, driving the engine if nobody else does. timeout_s < 0: no limit. LWCC_ERR_TIMEOUT leaves the ticket pending. */
int lwcc_wait(lwcc_ticket ticket, double timeout_s);
/* As lwcc_wait, but leave all work to the coordination thread: for a thread that must not take time from others. */
int lwcc_sleep(lwcc_ticket ticket, double timeout_s);
typedef struct {
  void *output;            /* the request's, or the library's, which lwcc_release frees unless taken */
  size_t nbytes;           /* of output */
  int64_t first_dim;       /* of output */
  const int64_t *splits;   /* allgather, alltoall: rows received from each rank; NULL otherwise; the ticket's */
  int32_t nsplits, status; /* status as lwcc_poll */
  int32_t contributors;    /* ranks that took part with data of their own; 0 for a join */
} lwcc_result;
int lwcc_get_result(lwcc_ticket ticket, lwcc_result *out);
void *lwcc_take_output(lwcc_ticket ticket); /* the library's output becomes the caller's: lwcc_free_output */
void lwcc_free_output(void *output);
void lwcc_release(lwcc_ticket ticket); /* once per ticket, pending (ends on its own) or done; 0 is fine */

/* ---- process sets: a collective call over all ranks, same arguments ---- */
int lwcc_set_add(const int32_t *ranks, int32_t n, int32_t *set_out);
int lwcc_set_remove(int32_t set);
/* A set made by its members alone: the first of them offers, hands the text (printable, at most cap - 1 bytes) to the
 * others by any means, and then every member accepts, the first one too, under one number from LWCC_SETS_OWN to 65535
 * that no other set has. It may be used when all members have accepted. */
enum { LWCC_SETS_OWN = 32768 };
int lwcc_set_offer(const int32_t *ranks, int32_t n, char *offer_out, size_t cap);
int lwcc_set_accept(int32_t set, const int32_t *ranks, int32_t n, const char *offer);
int lwcc_set_info(int32_t set, int32_t *rank_out, int32_t *size_out); /* rank -1: not a member */

/* ---- raw collectives: blocking, in program order, same order on every rank of the set; counts in elements ---- */
int lwcc_raw_allreduce(const void *input, void *output, int64_t count, int32_t dtype, int32_t op, int32_t set);
int lwcc_raw_broadcast(void *data, int64_t count, int32_t dtype, int32_t root, int32_t set);
int lwcc_raw_allgather(const void *input, void *output, int64_t count, int32_t dtype, int32_t set);
int lwcc_raw_reducescatter(const void *input, void *output, int64_t count, int32_t dtype, int32_t op, int32_t set);
int lwcc_raw_alltoall(const void *input, void *output, int64_t count, int32_t dtype, int32_t set);
int lwcc_raw_barrier(int32_t set);

/* ---- timing: raw calls in a loop, each from a barrier; seconds_out[iterations] are this rank's ---- */
enum {
  LWCC_TIME_P2P = 6, /* instead of a collective: one message from rank 0 to 1, half of a way there and back */
  LWCC_TIME_FOLD = 7 /* output = input + output, on all ranks at the same time: what memory and arithmetic allow */
};
typedef struct {
  int32_t collective, dtype, op;
  const void *input;
  void *output;
  int64_t count, iterations; /* count: as the raw call's */
} lwcc_loop;
int lwcc_time_loop(const lwcc_loop *loop, double *seconds_out);

/* ---- registered memory: 64-byte aligned, zeroed, mapped by every rank of the node ---- */
void *lwcc_alloc(size_t nbytes); /* NULL on failure (lwcc_error) or before join */
void lwcc_free(void *p);         /* NULL is fine; not while a request uses it */
int32_t lwcc_is_registered(const void *p, size_t nbytes);

/* ---- timeline ---- */
/* Write what each request does, and when, to a file that the ranks of a host share: JSON for chrome://tracing and
 * Perfetto, whole at any moment. A file that is not this job's is emptied. LWCC_TIMELINE starts one at join. marks !=
 * 0: also an instant for each collective's beginning. LWCC_ERR_INVALID: the file cannot be written. */
int lwcc_timeline_start(const char *path, int32_t marks);
int lwcc_timeline_stop(void); /* no-op without one */

/* ---- another library's collectives in the place of ours, for comparison: negotiation and fusion stay ours ---- */
typedef enum { LWCC_ENGINE_OWN = 0, LWCC_ENGINE_MPI = 1, LWCC_ENGINE_GUEST = 2 } lwcc_engine;
typedef struct {
  const char *library; /* a loaded object that is linked to the MPI; its functions are found through it */
  uint64_t world[2];   /* two communicators over all ranks, in rank order: for named and for raw calls */
  uint64_t types[13];  /* MPI_Datatype by lwcc_dtype; bool, float16 and bfloat16: unsigned of that size */
  uint64_t ops[6];     /* MPI_Op by lwcc_op; AVERAGE and ADASUM unused */
  uint64_t in_place;   /* MPI_IN_PLACE */
  int64_t most;        /* elements of one MPI call; what is longer goes in pieces; at most 2^31 - 1 */
  int32_t multiple;    /* 1: MPI_THREAD_MULTIPLE; 0: serialised, so all calls are made under the engine's lock */
  int32_t blocking;    /* 1: named requests use MPI's blocking calls too (process sets then may not overlap) */
} lwcc_mpi;
/* Between lwcc_open and lwcc_join, on all ranks alike: the MPI of these handles carries the collectives. Copied. */
int lwcc_use_mpi(const lwcc_mpi *mpi);
typedef struct {                       /* a collective that a guest has to run, in this order on all ranks of its set */
  int32_t collective, dtype, op, root; /* root: index within the set */
  int32_t set, raw;                    /* raw: 1 for a raw call; such a pair is one order of its own */
  const void *input;                   /* may equal output */
  void *output;
  int64_t count; /* elements: allreduce, broadcast: in all; others: of a block, if counts is NULL */
  const int64_t *counts, *recv_counts; /* [ranks]: as MPI's v-calls, blocks side by side; recv_counts: alltoall */
  uint64_t id;
} lwcc_guest_call;
/* Between lwcc_open and lwcc_join: a thread of this process carries the collectives, by the two calls below. */
int lwcc_use_guest(void);
int lwcc_guest_next(lwcc_guest_call *out, double timeout_s); /* blocks; LWCC_PENDING: none yet; SHUTDOWN: no more */
int lwcc_guest_done(uint64_t id, int32_t status, const char *text);

/* ---- plans, for looking and proving; no context needed ---- */
int32_t lwcc_algorithm_count(int32_t collective);
const char *lwcc_algorithm_name(int32_t collective, int32_t index); /* NULL past the end */
const char *lwcc_algorithm_about(int32_t collective, const char *name);
/* Prove the algorithm for size ranks (root 0 for broadcast). LWCC_ERR_PLAN with the reason when refused,
 * LWCC_ERR_UNSUPPORTED when it does not serve that many ranks. */
int lwcc_algorithm_verify(int32_t collective, const char *name, int32_t size);
/* Write the text picture of one rank's plan; returns the length needed without the end, or a negative status. */
int64_t lwcc_algorithm_print(int32_t collective, const char *name, int32_t rank, int32_t size, char *out, size_t cap);

/* One rank's plan as bytes (plan/codec.h), to be read by other programs or given to lwcc_algorithm_define; returns the
 * bytes needed, or a negative status. */
int64_t lwcc_algorithm_encode(int32_t collective, const char *name, int32_t rank, int32_t size, void *out, size_t cap);

/* ---- algorithms of the caller: plans or plugins ---- */
typedef struct {
  const char *name; /* at most 47 bytes; NULL: prove and price only. Borrowed for the call, as all that follows */
  int32_t size;
  const void *const *plans; /* [size]: each rank's plan as bytes, all of one collective */
  const size_t *nbytes;     /* [size] */
} lwcc_definition;
typedef struct {
  int32_t rounds;
  double sent, reduced; /* by the busiest rank, in units of the payload */
  char name[64];        /* the name with the plans' fingerprint, as negotiation and messages have it */
} lwcc_defined;
/* Prove the plans; with a name they are from now on an algorithm for sets of exactly `size` ranks. A later definition
 * of the name goes first. LWCC_ERR_PLAN names rank, step and chunk; LWCC_ERR_PROTOCOL: no plans. */
int lwcc_algorithm_define(const lwcc_definition *d, lwcc_defined *out);
/* Load a shared object made with plan.h (its end says how); its algorithms are then known by name, and are proved for
 * the number of ranks that first wants them. LWCC_ERR_INVALID if it is none. */
int lwcc_plugin_load(const char *path);
/* From now on the calls of the set, named and raw, that name no algorithm use this one; NULL: selected again.
 * Collective over the set, and agreed by it: LWCC_ERR_MISMATCH on every rank if the ranks give different ones. */
int lwcc_use(int32_t set, int32_t collective, const char *name);
/* Where a rank runs: the lowest rank of its node, and its index there. */
int lwcc_get_place(int32_t rank, int32_t *node_out, int32_t *local_rank_out);

/* ---- counters since join ---- */
typedef struct {
  uint64_t requests, completed, failed;           /* named requests of this rank */
  uint64_t negotiated, cache_hits;                /* slow and fast path */
  uint64_t buckets, fused, fused_in_place, bytes; /* collectives run, members fused, of these without copy, payload */
  uint64_t busy_ns;                               /* time with at least one collective running on this rank */
  uint64_t waited_ns;                             /* time callers spent in lwcc_wait and raw calls */
  uint64_t raw_calls;
  int32_t shared_memory;   /* 1: the node path carries the world's collectives */
  int32_t engine;          /* lwcc_engine */
  uint64_t allreduces[48]; /* collectives run, by size: [k] counts those of 2^(k-1) < bytes <= 2^k; fused ones once */
} lwcc_stats;
int lwcc_get_stats(lwcc_stats *out);
/* cdef: end */
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
