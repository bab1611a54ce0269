/* move: broadcast, allgather, reducescatter, alltoall and barrier through slots.
 * Chunk k of a call is the k-th piece of every block. Each contributor writes its pieces to its slot and posts
 * `arrived`; each reader takes what is for it and posts `done`, which frees the slots for the chunk SHM_SLOTS later. */
#include "exec/shm_area.h"

enum { PIECE_ALIGN = 64, AHEAD_ALONE = 1, LEAST_PIECE = 32 << 10 };

typedef struct {
  size_t first, n; /* elements */
} piece;

/* Piece k of block r; first counts from the start of the buffer that holds the blocks. */
static piece piece_of(const shm_call *c, const size_t *counts, int r, uint64_t k) {
  size_t block = counts ? counts[r] : c->a.count, first = (size_t)r * c->a.count;
  if (counts) {
    first = 0;
    for (int i = 0; i < r; i++) first += counts[i];
  }
  size_t skip = shm_min(block, k * c->chunk);
  return (piece){.first = first + skip, .n = shm_min(block - skip, c->chunk)};
}

static const size_t *received(const coll_args *a) {
  return a->collective == LWCC_ALLTOALL && a->counts ? a->recv_counts : a->counts;
}

static size_t largest_block(const coll_args *a, int p) {
  size_t most = a->collective == LWCC_BARRIER ? 0 : a->count;
  if (!a->counts || a->collective == LWCC_BROADCAST || a->collective == LWCC_BARRIER) return most;
  most = 0;
  for (int r = 0; r < p; r++) {
    if (a->counts[r] > most) most = a->counts[r];
    if (received(a)[r] > most) most = received(a)[r];
  }
  return most;
}

static bool scatters(const coll_args *a) { /* a slot holds a piece for each rank */
  return a->collective == LWCC_ALLTOALL || a->collective == LWCC_REDUCESCATTER;
}

static void copy(const shm_call *c, void *to, const void *from, size_t n) {
  if (n && to != from) reduce_copy(to, from, n * c->width, 0);
}

static void keep_mine(shm_call *c) { /* my own block never passes a slot */
  const coll_args *a = &c->a;
  const char *in = a->in;
  char *out = a->out;
  int me = c->team->me;
  size_t whole = c->chunk;
  c->chunk = SIZE_MAX;
  if (a->collective == LWCC_BROADCAST && a->root == me) copy(c, out, in, a->count);
  if (a->collective == LWCC_ALLGATHER || a->collective == LWCC_ALLTOALL) {
    piece to = piece_of(c, received(a), me, 0);
    if (a->collective == LWCC_ALLTOALL) in += piece_of(c, a->counts, me, 0).first * c->width;
    copy(c, out + to.first * c->width, in, to.n);
  }
  c->chunk = whole;
}

void shm_move_begin(shm_call *c) {
  shm_team *t = c->team;
  const coll_args *a = &c->a;
  size_t room = SHM_SLOT_BYTES, most = largest_block(a, t->p);
  if (scatters(a)) room = SHM_SLOT_BYTES / (size_t)t->p & ~(size_t)(PIECE_ALIGN - 1);
  c->chunk = room / c->width;
  c->chunks_known = a->collective != LWCC_ALLTOALL || !a->counts;
  c->chunks = (most + c->chunk - 1) / c->chunk;
  if (a->collective == LWCC_BARRIER || !c->chunks_known) c->chunks += c->chunks == 0;
  c->in = c->out = 0;
  c->ahead = t->crowded ? SHM_SLOTS - 1 : AHEAD_ALONE;
  keep_mine(c);
}

static void give_piece(shm_call *c, char *to, int r, uint64_t k) {
  const coll_args *a = &c->a;
  piece from = piece_of(c, a->counts, r, k);
  const char *in = (const char *)a->in + from.first * c->width;
  if (a->collective == LWCC_REDUCESCATTER && c->prescale) {
    reduce_scale(a->dtype, to, in, from.n, a->prescale);
  } else {
    copy(c, to, in, from.n);
  }
}

static void contribute(shm_call *c, char *slot) {
  const coll_args *a = &c->a;
  int me = c->team->me, p = c->team->p;
  if (scatters(a)) {
    for (int i = 1; i < p + (a->collective == LWCC_REDUCESCATTER && c->prescale); i++) {
      int r = (me + i) % p; /* myself last, and only if my term has to be scaled */
      give_piece(c, slot + (size_t)r * c->chunk * c->width, r, c->in);
    }
  } else if (a->collective == LWCC_ALLGATHER) {
    size_t skip = c->in * c->chunk, block = a->counts ? a->counts[me] : a->count;
    if (skip < block) copy(c, slot, (const char *)a->in + skip * c->width, shm_min(block - skip, c->chunk));
  } else if (a->collective == LWCC_BROADCAST) {
    size_t skip = c->in * c->chunk;
    copy(c, slot, (const char *)a->in + skip * c->width, shm_min(a->count - skip, c->chunk));
  }
}

static void reduce_piece(shm_call *c, uint32_t j) {
  shm_team *t = c->team;
  const coll_args *a = &c->a;
  piece mine = piece_of(c, a->counts, t->me, c->out);
  size_t at = (size_t)t->me * c->chunk * c->width;
  void *dst[1] = {(char *)a->out + c->out * c->chunk * c->width};
  if (!mine.n) return;
  for (int r = 0; r < t->p; r++) t->src[r] = shm_slot(t, r, j) + at;
  if (!c->prescale) t->src[t->me] = (const char *)a->in + mine.first * c->width;
  c->fold(t->p, t->src, 1, dst, mine.n, c->scale);
}

static void collect(shm_call *c, uint32_t j) {
  shm_team *t = c->team;
  const coll_args *a = &c->a;
  if (a->collective == LWCC_REDUCESCATTER) {
    reduce_piece(c, j);
  } else if (a->collective == LWCC_BROADCAST) {
    size_t skip = c->out * c->chunk;
    copy(c, (char *)a->out + skip * c->width, shm_slot(t, a->root, j), shm_min(a->count - skip, c->chunk));
  } else if (a->collective != LWCC_BARRIER) {
    size_t at = scatters(a) ? (size_t)t->me * c->chunk * c->width : 0;
    for (int i = 1; i < t->p; i++) {
      int r = (t->me + i) % t->p;
      piece to = piece_of(c, received(a), r, c->out);
      copy(c, (char *)a->out + to.first * c->width, shm_slot(t, r, j) + at, to.n);
    }
  }
}

static bool try_in(shm_call *c) {
  shm_team *t = c->team;
  if (c->in == c->chunks || c->in >= c->out + SHM_SLOTS || c->in > c->out + c->ahead) return false;
  uint32_t j = shm_index(t, c->in);
  if (shm_gives(c)) {
    if (!shm_reached(shm_get(&t->head->slot[j].done), t->done[j])) return false;
    contribute(c, shm_slot(t, t->me, j));
    if (!c->chunks_known) t->head->rank[t->me].need[j] = c->chunks;
    shm_post(t, &t->head->slot[j].arrived);
  }
  c->in++;
  return true;
}

static bool try_out(shm_call *c) {
  shm_team *t = c->team;
  uint32_t j = shm_index(t, c->out), p = (uint32_t)t->p;
  bool broadcast = c->a.collective == LWCC_BROADCAST;
  uint32_t givers = broadcast ? 1 : p;
  if (c->out == c->in) return false;
  if (shm_takes(c)) {
    if (!shm_reached(shm_get(&t->head->slot[j].arrived), t->arrived[j] + givers)) return false;
    if (!c->chunks_known)
      for (int r = 0; r < t->p; r++)
        if (t->head->rank[r].need[j] > c->chunks) c->chunks = t->head->rank[r].need[j];
    c->chunks_known = true;
    collect(c, j);
    shm_post(t, &t->head->slot[j].done);
  }
  t->arrived[j] += givers;
  t->done[j] += broadcast ? p - 1 : p;
  c->out++;
  return true;
}

int shm_move_step(shm_call *c) {
  if (c->out == c->chunks) {
    c->team->seq += (uint32_t)c->chunks;
    return SHM_DONE;
  }
  return try_out(c) || try_in(c) ? SHM_MOVED : SHM_IDLE;
}
