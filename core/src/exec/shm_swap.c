/* swap: two ranks exchange what fits one place, and each computes its own result.
 * The two places change owners at each use: a rank writes the place that it read last, so its stores hit lines that it
 * already has, and there is nothing to wait for before writing. */
#include "exec/shm_area.h"

static shm_place *place(const shm_team *t, int rank) { /* that this rank writes in the current swap */
  return (shm_place *)shm_slot(t, (rank + (int)t->swaps) & 1, SHM_SLOTS);
}
static char *data(const shm_call *c, shm_place *at) { /* the same on both ranks: they share the arguments */
  bool few = !c->a.counts && c->a.count * c->width <= sizeof at->data;
  return few ? at->data : (char *)(at + 1);
}
static size_t block(const size_t *counts, size_t count, int r) {
  return counts ? counts[r] : count;
}
static size_t before(const size_t *counts, size_t count, int r) { /* elements ahead of block r, p = 2 */
  return r == 0 ? 0 : block(counts, count, 0);
}

bool shm_move_fits_place(const shm_team *t, const coll_args *a, size_t width) {
  size_t most = a->collective == LWCC_BARRIER ? 0 : a->count;
  int peer = 1 - t->me;
  if (a->collective == LWCC_ALLTOALL && a->counts) {
    most = a->counts[peer] > a->recv_counts[peer] ? a->counts[peer] : a->recv_counts[peer];
  } else if (a->counts && a->collective != LWCC_BROADCAST && a->collective != LWCC_BARRIER) {
    most = a->counts[0] > a->counts[1] ? a->counts[0] : a->counts[1];
  }
  return most <= SHM_SWAP_MOVE / width;
}

static void contribute(shm_call *c, char *to) {
  const coll_args *a = &c->a;
  const char *in = a->in;
  int me = c->team->me, peer = 1 - me;
  size_t n;
  switch (a->collective) {
    case LWCC_ALLREDUCE:
    case LWCC_REDUCESCATTER:
      n = a->collective == LWCC_ALLREDUCE ? a->count : block(a->counts, a->count, peer);
      if (a->collective == LWCC_REDUCESCATTER) in += before(a->counts, a->count, peer) * c->width;
      if (c->prescale) {
        reduce_scale(a->dtype, to, in, n, a->prescale);
      } else {
        reduce_copy(to, in, n * c->width, 0);
      }
      return;
    case LWCC_BROADCAST:
      if (a->root == me) reduce_copy(to, in, a->count * c->width, 0);
      return;
    case LWCC_ALLGATHER:
      reduce_copy(to, in, block(a->counts, a->count, me) * c->width, 0);
      return;
    case LWCC_ALLTOALL:
      in += before(a->counts, a->count, peer) * c->width;
      reduce_copy(to, in, block(a->counts, a->count, peer) * c->width, 0);
      return;
  }
}

/* out = mine op theirs, in the order of the ranks */
static void add(const shm_call *c, const char *mine, const char *theirs, size_t n) {
  const void *src[2];
  void *dst[1] = {c->a.out};
  if (c->prescale) {
    reduce_scale(c->a.dtype, c->a.out, mine, n, c->a.prescale);
    mine = c->a.out;
  }
  src[c->team->me] = mine;
  src[1 - c->team->me] = theirs;
  c->fold(2, src, 1, dst, n, c->scale);
}

static void keep(const shm_call *c, char *to, const char *from, size_t n) { /* my own block, unless in place */
  if (to != from) reduce_copy(to, from, n * c->width, 0);
}

static void collect(shm_call *c, const char *theirs) {
  const coll_args *a = &c->a;
  int me = c->team->me, peer = 1 - me;
  const char *in = a->in;
  char *out = a->out;
  const size_t *recv = a->collective == LWCC_ALLTOALL && a->counts ? a->recv_counts : a->counts;
  size_t w = c->width;
  switch (a->collective) {
    case LWCC_ALLREDUCE:
      add(c, in, theirs, a->count);
      return;
    case LWCC_REDUCESCATTER:
      add(c, in + before(a->counts, a->count, me) * w, theirs, block(a->counts, a->count, me));
      return;
    case LWCC_BROADCAST:
      if (a->root == me) {
        keep(c, out, in, a->count);
      } else {
        reduce_copy(out, theirs, a->count * w, 0);
      }
      return;
    case LWCC_ALLGATHER:
    case LWCC_ALLTOALL:
      if (a->collective == LWCC_ALLTOALL) in += before(a->counts, a->count, me) * w;
      keep(c, out + before(recv, a->count, me) * w, in, block(recv, a->count, me));
      reduce_copy(out + before(recv, a->count, peer) * w, theirs, block(recv, a->count, peer) * w, 0);
      return;
  }
}

enum { SWAP_ENTER, SWAP_WAIT };

static bool enter(shm_call *c) {
  shm_team *t = c->team;
  shm_place *mine = place(t, t->me);
  /* If I did not wait in the last swap, the peer has yet to write its word here, and still reads my data elsewhere.
   * acquire: pairs with the release below */
  if (t->unread && !shm_reached(atomic_load_explicit(&mine->swaps, memory_order_acquire), t->swaps)) return false;
  t->unread = false;
  contribute(c, data(c, mine));
  /* release: pairs with the acquire in shm_swap_step */
  atomic_store_explicit(&mine->swaps, t->swaps + 1, memory_order_release);
  if (c->agreeing) {
    shm_publish(t, SHM_STAGED);
  } else {
    t->unsettled = true;
  }
  c->stage = SWAP_WAIT;
  return true;
}

void shm_swap_begin(shm_call *c) {
  c->stage = SWAP_ENTER;
  enter(c);
}

int shm_swap_step(shm_call *c) {
  shm_team *t = c->team;
  if (c->stage == SWAP_ENTER) return enter(c) ? SHM_MOVED : SHM_IDLE;
  /* crowded: shm_fold's ranks must never be two calls apart */
  bool wait = c->a.collective != LWCC_BROADCAST || c->a.root != t->me || t->crowded;
  shm_place *theirs = place(t, 1 - t->me);
  /* seq_cst: also a sleeper's last look, see shm_get */
  if (wait && !shm_reached(atomic_load_explicit(&theirs->swaps, memory_order_seq_cst), t->swaps + 1)) return SHM_IDLE;
  collect(c, data(c, theirs));
  t->swaps++;
  t->unread = !wait;
  return SHM_DONE;
}
