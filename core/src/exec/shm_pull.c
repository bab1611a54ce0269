/* pull: broadcast, allgather and alltoall of large blocks, in which each rank copies what it needs straight from the
 * buffers of those who have it: one copy and no slots. A registered buffer is read through its mapping, any other by
 * the system (reach.peek). A rank that was read from waits until all are done, since its caller may then overwrite. */
#include <stdlib.h>

#include "exec/shm_area.h"
#include "os/mem.h"
#include "os/status.h"

enum { PULL_AGREE, PULL_COPY, PULL_WAIT };
enum { PIECE_BYTES = 512 << 10 }; /* per step */
#define NOT_REGISTERED UINT32_MAX /* as a region: the offset is an address */

static size_t given_bytes(const shm_call *c) {
  const coll_args *a = &c->a;
  if (a->collective == LWCC_ALLTOALL) return a->count * c->width * (size_t)c->team->p;
  if (a->collective == LWCC_ALLGATHER && a->counts) return a->counts[c->team->me] * c->width;
  return a->count * c->width;
}

static size_t block_elements(const shm_call *c, int r) {
  return c->a.collective == LWCC_ALLGATHER && c->a.counts ? c->a.counts[r] : c->a.count;
}

/* Where rank r's block goes in my output, in elements. */
static size_t block_first(const shm_call *c, int r) {
  const coll_args *a = &c->a;
  if (a->collective == LWCC_BROADCAST) return 0;
  if (a->collective == LWCC_ALLTOALL || !a->counts) return (size_t)r * a->count;
  size_t first = 0;
  for (int i = 0; i < r; i++) first += a->counts[i];
  return first;
}

/* Whether what the others read would be overwritten by what I copy. */
static bool in_the_way(const shm_call *c) {
  const coll_args *a = &c->a;
  const shm_team *t = c->team;
  if (a->collective == LWCC_BROADCAST) return false;
  uintptr_t in = (uintptr_t)a->in, out = (uintptr_t)a->out;
  size_t last = (size_t)t->p - 1, whole = (block_first(c, (int)last) + block_elements(c, (int)last)) * c->width;
  if (a->collective == LWCC_ALLGATHER && in == out + block_first(c, t->me) * c->width) return false;
  return in < out + whole && out < in + given_bytes(c);
}

static int set_aside(shm_call *c, size_t nbytes) {
  shm_team *t = c->team;
  if (nbytes > t->aside_nbytes) {
    void *grown;
    TRY(mem_zeroed(1, nbytes, &grown));
    free(t->aside);
    t->aside = grown;
    t->aside_nbytes = nbytes;
  }
  reduce_copy(t->aside, c->a.in, nbytes, 0);
  c->a.in = t->aside;
  return LWCC_OK;
}

static void say_where(shm_call *c) {
  shm_team *t = c->team;
  shm_where now = {.in_region = NOT_REGISTERED, .in_offset = (uintptr_t)c->a.in};
  now.out_region = now.in_region;
  if (t->reach.find) t->reach.find(t->reach.arg, c->a.in, given_bytes(c), &now.in_region, &now.in_offset);
  t->where[t->call & 1] = t->head->rank[t->me].where[t->call & 1] = now;
}

static void keep_mine(const shm_call *c) {
  const coll_args *a = &c->a;
  int me = c->team->me;
  const char *in = a->in;
  if (a->collective == LWCC_ALLTOALL) in += (size_t)me * a->count * c->width;
  reduce_copy((char *)a->out + block_first(c, me) * c->width, in, block_elements(c, me) * c->width, 0);
}

void shm_pull_begin(shm_call *c) {
  shm_team *t = c->team;
  c->failed = LWCC_OK;
  if (in_the_way(c)) c->failed = set_aside(c, given_bytes(c));
  if (shm_gives(c)) say_where(c);
  shm_publish(t, SHM_REGISTERED);
  c->stage = PULL_AGREE;
  c->seen = 1; /* how far from me, around the ring of ranks */
  c->in = 0;   /* elements of its block that I have */
}

/* The giver whose turn it is; -1: none is left. */
static int giver(const shm_call *c) {
  const shm_team *t = c->team;
  if (!shm_takes(c) || c->seen == t->p) return -1;
  return c->a.collective == LWCC_BROADCAST ? c->a.root : (t->me + c->seen) % t->p;
}

static int copy_piece(shm_call *c, int from) {
  shm_team *t = c->team;
  const shm_where *at = &t->head->rank[from].where[t->call & 1];
  size_t total = block_elements(c, from) * c->width, n = shm_min(total - c->in, PIECE_BYTES);
  size_t skip = c->in + (c->a.collective == LWCC_ALLTOALL ? (size_t)t->me * c->a.count * c->width : 0);
  char *to = (char *)c->a.out + block_first(c, from) * c->width + c->in;
  if (n && at->in_region == NOT_REGISTERED) {
    int st = t->reach.peek(t->reach.arg, from, to, at->in_offset + skip, n);
    if (st == LWCC_ERR_PEER_LOST) return SHM_IDLE;
    TRY(st);
  } else if (n) {
    const void *src = t->reach.map ? t->reach.map(t->reach.arg, from, at->in_region, at->in_offset + skip, n) : NULL;
    if (!src) return shm_not_mapped(t, from, at->in_region);
    reduce_copy(to, src, n, 0);
  }
  c->in += n;
  if (c->in < total) return SHM_MOVED;
  c->in = 0;
  c->seen = c->a.collective == LWCC_BROADCAST ? t->p : c->seen + 1;
  c->stage = PULL_AGREE;
  return SHM_MOVED;
}

static int next_giver(shm_call *c) {
  shm_team *t = c->team;
  int from = giver(c);
  if (from >= 0) {
    if (!shm_reached(shm_state(t, from), 4 * t->call)) return SHM_IDLE;
    shm_settle(t); /* work follows: a sleeper should not wait for its end */
    c->stage = PULL_COPY;
    return copy_piece(c, from);
  }
  if (shm_gives(c)) keep_mine(c);
  shm_publish(t, SHM_FOLDED);
  c->stage = PULL_WAIT;
  c->seen = 0;
  return SHM_MOVED;
}

int shm_pull_step(shm_call *c) {
  shm_team *t = c->team;
  TRY(c->failed);
  if (c->stage == PULL_AGREE) return next_giver(c);
  if (c->stage == PULL_COPY) return copy_piece(c, giver(c));
  for (; shm_gives(c) && c->seen < t->p; c->seen++)
    if (c->seen != t->me && !shm_reached(shm_state(t, c->seen), 4 * t->call + SHM_FOLDED)) return SHM_IDLE;
  return SHM_DONE;
}
