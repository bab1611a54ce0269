/* The inside of a shared area, for the shm_*.c files: its layout, a rank's handle on it, waking.
 *
 * Every word that ranks share has a 128-byte line of its own (or shares it with what travels along), and only grows;
 * ranks compare with the value that the calls so far must have given it, wrap-safe, so nothing is ever reset.
 *
 * A rank writes contributions only into its own slots. Others touch a slot between `arrived` (all ranks have
 * contributed) and `done` (all work on it is finished), never afterwards: so any mix of kernels, lengths and types may
 * follow one another without a barrier. */
#ifndef EXEC_SHM_AREA_H
#define EXEC_SHM_AREA_H
#include <stdatomic.h>

#include "exec/reduce.h"
#include "exec/shm.h"

enum {
  SHM_LINE = 128,
  SHM_SLOTS = 4,                              /* per rank */
  SHM_SLOT_BYTES = 256 << 10,                 /* the most that a chunk has */
  SHM_SWAP_REDUCE = 16 << 10,                 /* swap up to here: allreduce, */
  SHM_SWAP_MOVE = 32 << 10,                   /* and the others */
  SHM_PLACE_BYTES = SHM_SWAP_MOVE + (4 << 10) /* one of the two places of swap, with its head */
};

typedef struct {
  _Alignas(SHM_LINE) _Atomic uint32_t v;
} shm_word;

typedef struct {
  shm_word arrived, /* contributions */
      claim,        /* tiles taken */
      done;         /* slices or tiles reduced; moves: readers finished */
} shm_slot_state;

typedef struct { /* registered buffers of one rank's call */
  uint64_t in_offset, out_offset;
  uint32_t in_region, out_region;
} shm_where;

typedef struct { /* of a place of swap; what is longer than `data` follows */
  /* swaps of the pair, with the one that the data is of. In the place and not in the rank's state, because the reader,
   * who has the line then, writes it next; and so a few bytes arrive with the word that announces them. */
  _Alignas(SHM_LINE) _Atomic uint32_t swaps;
  _Alignas(16) char data[SHM_LINE - 16];
} shm_place;

enum { SHM_REGISTERED = 0, SHM_STAGED = 1, SHM_FOLDED = 2 }; /* how far a rank is in a call, see shm_rank.state */

typedef struct {
  /* 4 * call + REGISTERED (where is valid), STAGED (its data is or will be in its slot) or FOLDED */
  _Alignas(SHM_LINE) _Atomic uint32_t state;
  /* By call & 1, because a rank may be one call behind in tiles that others did. Handed over by state, but not in its
   * line, which the next change of state takes away from who reads it; written only when it changes. */
  _Alignas(SHM_LINE) shm_where where[2];
  shm_word asleep; /* its engine sleeps: ring */
  /* alltoall with counts: chunks that this rank needs; handed over by `arrived` of the slot */
  _Alignas(SHM_LINE) uint64_t need[SHM_SLOTS];
} shm_rank;

typedef struct {
  shm_word bell, sleepers;   /* futex word; sleeping ranks of both kinds */
  shm_word tiles, tile_done; /* of registered folds */
  shm_slot_state slot[SHM_SLOTS];
  shm_rank rank[];
} shm_head;

typedef enum { SHM_SWAP, SHM_OWN, SHM_CLAIM, SHM_FOLD, SHM_MOVE, SHM_PULL } shm_kernel;
enum { SHM_IDLE = 0, SHM_MOVED = 1, SHM_DONE = 2 }; /* results of a step; negative: a failure */

struct shm_call {
  shm_team *team;
  coll_args a;
  shm_kernel kernel, staged; /* what runs; what runs if the buffers are not registered everywhere */
  size_t width;              /* bytes of an element */
  reduce_fold_fn fold;
  double scale;     /* of the fold */
  bool prescale;    /* contributions are scaled on their way in (an op that does not commute with scaling) */
  const char *from; /* where allreduce finds its own contribution */
  /* pipelined kernels: chunks, and the next one to contribute, to reduce, to take out */
  uint64_t chunks, in, red, out;
  size_t chunk, tile;                       /* elements */
  uint32_t ring;                            /* slots in use */
  uint32_t ahead;                           /* chunks to contribute before the first result */
  int stage, seen;                          /* swap, fold, pull */
  int failed;                               /* pull: before the first step */
  bool nontemporal, chunks_known, agreeing; /* agreeing: the peer may wait for my state */
};

struct shm_team {
  shm_head *head;
  char *memory; /* of the slots */
  int p, me;
  bool crowded;             /* more ranks than cores */
  uint32_t spin;            /* pauses before the first yield */
  size_t nontemporal_bytes; /* crowded: p * payload from which results bypass the cache */
  int poison;               /* the status that ended an earlier call */
  /* The same numbers on every rank: */
  uint32_t call, seq, swaps, tiles; /* allreduces and swaps; chunks; swaps; tiles of folds */
  uint32_t arrived[SHM_SLOTS], claimed[SHM_SLOTS], done[SHM_SLOTS];
  bool unsettled; /* published, and nobody rung yet */
#if defined(__SANITIZE_THREAD__)
  atomic_uint fence;
#endif
  bool unread; /* the last swap did not wait for the peer */
  shm_reach reach;
  shm_where where[2]; /* what my line says */
  const void **src;   /* p of each */
  void **dst;
  char **reg_in, **reg_out;
  void *aside; /* pull: a copy of an input */
  size_t aside_nbytes;
  struct shm_call c;
};

/* All functions below: the thread that steps the team. */
void shm_wake(shm_team *t);                                    /* somebody sleeps: ring all */
int shm_not_mapped(const shm_team *t, int r, uint32_t region); /* fails: index r names a region that I lack */

static inline bool shm_reached(uint32_t seen, uint32_t target) {
  return (int32_t)(seen - target) >= 0;
}
/* acquire: pairs with the writes in shm_post and shm_publish. seq_cst, so that a sleeper's last look is ordered after
 * its announcement, as a poster's look at sleepers is after its post. */
static inline uint32_t shm_get(const shm_word *w) {
  return atomic_load_explicit(&w->v, memory_order_seq_cst);
}
static inline uint32_t shm_state(const shm_team *t, int r) {
  return atomic_load_explicit(&t->head->rank[r].state, memory_order_seq_cst);
}
static inline void shm_ring(shm_team *t) {
  if (__builtin_expect(shm_get(&t->head->sleepers) != 0, 0)) shm_wake(t);
}
/* release: pairs with the acquire in shm_get. */
static inline void shm_post(shm_team *t, shm_word *w) {
  atomic_fetch_add_explicit(&w->v, 1, memory_order_seq_cst);
  shm_ring(t);
}
/* Sleepers are looked for by shm_settle, not here: a locked store would wait until the line has come, which takes as
 * long as the partner's word that this rank is about to look for. release: pairs with the acquire in shm_state. */
static inline void shm_publish(shm_team *t, uint32_t phase) {
  atomic_store_explicit(&t->head->rank[t->me].state, 4 * t->call + phase, memory_order_release);
  t->unsettled = true;
}
/* Order what was published before the look at sleepers; done before a rank returns, sleeps, or waits for long. */
static inline void shm_settle(shm_team *t) {
  if (!t->unsettled) return;
  t->unsettled = false;
#if defined(__SANITIZE_THREAD__)
  atomic_fetch_add_explicit(&t->fence, 1, memory_order_seq_cst); /* the sanitizer knows no fences */
#else
  atomic_thread_fence(memory_order_seq_cst);
#endif
  shm_ring(t);
}
static inline char *shm_slot(const shm_team *t, int r, uint32_t j) {
  return t->memory + (size_t)r * (SHM_SLOTS * SHM_SLOT_BYTES + SHM_PLACE_BYTES) + (size_t)j * SHM_SLOT_BYTES;
}
static inline uint32_t shm_index(const shm_team *t, uint64_t chunk) {
  return (t->seq + (uint32_t)chunk) % SHM_SLOTS;
}
/* Who contributes and who reads: in a broadcast only the root does, and only the others do. */
static inline bool shm_gives(const shm_call *c) {
  return c->a.collective != LWCC_BROADCAST || c->a.root == c->team->me;
}
static inline bool shm_takes(const shm_call *c) {
  return c->a.collective != LWCC_BROADCAST || c->a.root != c->team->me;
}
static inline size_t shm_min(size_t a, size_t b) {
  return a < b ? a : b;
}

/* For sums with a scale: the fold that does not wrap before it scales; NULL: reduce_fold's serves. Any thread. */
reduce_fold_fn shm_wide_sum(int dtype);

/* The kernels: begin (never waits) and step. */
void shm_swap_begin(shm_call *c);
int shm_swap_step(shm_call *c);
void shm_pipe_begin(shm_call *c); /* own and claim */
int shm_pipe_step(shm_call *c);
bool shm_fold_begin(shm_call *c); /* false: this rank's buffers are not registered */
int shm_fold_step(shm_call *c);
void shm_fall_back(shm_call *c);  /* some rank is not registered: go on with c->staged */
void shm_pull_begin(shm_call *c); /* needs reach.peek */
int shm_pull_step(shm_call *c);
void shm_move_begin(shm_call *c);
int shm_move_step(shm_call *c);
bool shm_move_fits_place(const shm_team *t, const coll_args *a, size_t width); /* p = 2 */
static inline int shm_kernel_step(shm_call *c) {
  switch (c->kernel) {
    case SHM_SWAP:
      return shm_swap_step(c);
    case SHM_OWN:
    case SHM_CLAIM:
      return shm_pipe_step(c);
    case SHM_FOLD:
      return shm_fold_step(c);
    case SHM_MOVE:
      return shm_move_step(c);
    case SHM_PULL:
      return shm_pull_step(c);
  }
  return SHM_IDLE;
}
static inline int shm_advance(shm_call *c) {
  int st = shm_kernel_step(c);
  if (st == SHM_DONE) shm_settle(c->team);
  return st;
}
#endif
