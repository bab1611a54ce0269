/* A process set: its ranks, what this rank remembers of agreed answers, its lane of running collectives, and, on its
 * first rank, the coordinator's part. Driving thread only. */
#ifndef COORD_PSET_H
#define COORD_PSET_H
#include "coord/queue.h"
#include "exec/exec.h"

/* An agreed answer of one name, under the same id on every rank. */
typedef struct cached {
  name_node by_name, by_id;
  uint32_t id;
  signature sig;    /* this rank's */
  bool absent;      /* this rank has joined: a stand-in takes part; in by_id only */
  int contributors; /* ranks that have asked; fewer than the set's: it serves one time */
  int64_t *values;  /* owned: allgather: first dimension of each rank; alltoall: rows [from * size + to]; else NULL */
  int users;        /* buckets in the lane that need it */
  bool dropped;     /* forgotten; freed with its last user */
  request *pending; /* this rank's request that waits for its RUN */
  char name[];
} cached;

/* Members of one collective that the order log has put together. */
typedef struct bucket {
  struct bucket *next;
  int n;
  bool packed;             /* in the fusion buffer */
  uint64_t began_ns;       /* 0: it has not */
  struct adasum *adaptive; /* owned: of op Adasum; else NULL */
  struct {
    request *r;
    cached *answer;
  } members[];
} bucket;

typedef struct coordinator coordinator; /* negotiate.h */

typedef struct pset {
  struct pset *next;
  int id, size, me; /* me: index, or -1 if this rank is no member */
  int *ranks;       /* owned: global rank of each index, ascending */
  int *nodes;       /* owned: lowest index of each index's node; engine.c's */
  name_table by_name, by_id;
  bytes out;        /* READY and REQUEST entries since the last frame */
  coordinator *co;  /* on index 0 */
  _Atomic int left; /* seq_cst: global rank of a member that has left in good order, or -1 */
  atomic_bool removed;
  atomic_int raw_lock;        /* a raw call runs; acquire and release by its caller */
  _Atomic uint64_t raw_calls; /* relaxed; written under raw_lock */
  uint32_t tag;               /* number of the latest bucket: every member counts the same ones */
  uint32_t raw_tag;           /* guarded by the engine lock */
  bool headless;              /* the coordinator has left: every request fails */
  bool broken, raw_broken;    /* a collective ended without a member that has left: no other can run */
  /* the lane: buckets in log order; the first may be running */
  bucket *lane, **lane_tail;
  int lane_length;
  exec_op *op;
  bool op_moved;     /* since the last look of engine_watch */
  uint32_t op_looks; /* that found op where it was */
  exec_op *raw_op;   /* a raw call over a wire; started by its caller, then driven like the lane */
  request raw_call;  /* what its caller waits for */
  exec_team named, raw;
  shm_team *named_shm, *raw_shm; /* NULL: not all on one node */
  void *reach;                   /* engine.c's */
  uint8_t *area;                 /* registered memory of the two areas on the rank that made it; else NULL */
  void *fusion;                  /* buffer of fused buckets */
  size_t fusion_nbytes;
  size_t *counts; /* owned: [2 * size], arguments of the running collective */
  /* for calls that name no algorithm: one that algo_resolve gave, or NULL; seq_cst, lwcc_use with who submits */
  const char *_Atomic chosen[LWCC_COLLECTIVES];
} pset;

int pset_create(int id, const int *ranks, int n, int my_rank, pset **out);
void pset_free(pset *ps); /* the lane must be empty; closes its teams, not the fusion buffer */
/* One more raw call; without a locked instruction, since a small collective takes little longer. Under raw_lock. */
static inline void pset_count_raw(pset *ps) {
  uint64_t n = atomic_load_explicit(&ps->raw_calls, memory_order_relaxed);
  atomic_store_explicit(&ps->raw_calls, n + 1, memory_order_relaxed);
}
/* Marks the messages of the number-th collective: their stream is the set. */
static inline uint32_t pset_tag(const pset *ps, uint32_t number) {
  return (uint32_t)ps->id << CHANNEL_STREAM_SHIFT | (number & ((1u << CHANNEL_STREAM_SHIFT) - 1));
}
int pset_index(const pset *ps, int rank); /* -1: no member */
cached *cached_by_name(const pset *ps, int collective, const char *name);
cached *cached_by_id(const pset *ps, uint32_t id);
typedef struct {
  uint32_t id;
  const char *name;
  const signature *sig; /* copied */
  int64_t *values;      /* given, also on failure */
  bool absent;
  int contributors;
} answer;
/* Remember an answer, in place of the one this name had. */
int cached_store(pset *ps, const answer *a, cached **out);
void cached_drop(pset *ps, cached *c); /* freed now, or with its last user */
void cached_unuse(cached *c);
#endif
