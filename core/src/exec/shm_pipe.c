/* own and claim: allreduce through slots, in place.
 *
 * Each chunk goes through three stages: `in`, my contribution is copied to my slot; `red`, when all have arrived, the
 * terms are folded and the result is written over every contribution, in the contributors' slots; `out`, when all of
 * the chunk is done, I copy my slot out. So a cache line goes from its contributor to the one who folds it and back,
 * and each finds it where it is to write next.
 *
 * own:   rank r folds slice r of each chunk; its own term never leaves its buffer.
 * claim: whole chunks are contributed, and whoever runs takes the tiles that are left: a rank that is off its core
 *        holds up nobody. */
#include "exec/shm_area.h"

enum { TILE_BYTES = 4 << 10, TILE_BYTES_LARGE = 16 << 10, LARGE_CLAIM = 64 << 10, LINE_BYTES = 64 };
enum { DEEP_BYTES = 8 << 20, DEEP_CHUNK = 128 << 10 }; /* with a core each: post ahead, from here */

typedef struct {
  size_t first, len; /* of a chunk, in elements of the buffer */
  size_t lo, hi;     /* the slice that stays in my buffer, relative to first; claim: empty */
} span;

static span span_of(const shm_call *c, uint64_t k) {
  span s = {.first = k * c->chunk};
  s.len = shm_min(c->a.count - s.first, c->chunk);
  if (c->kernel == SHM_CLAIM) return s;
  size_t p = (size_t)c->team->p, me = (size_t)c->team->me;
  size_t q = s.len / p & ~(LINE_BYTES / c->width - 1);
  s.lo = me * q;
  s.hi = me == p - 1 ? s.len : s.lo + q;
  return s;
}

/* Always the same few slots, so that they stay in the cache; a slot needs no rest between calls. */
static uint32_t slot_of(const shm_call *c, uint64_t k) {
  return (uint32_t)k % c->ring;
}

static uint32_t tiles_of(const shm_call *c, size_t len) {
  return (uint32_t)((len + c->tile - 1) / c->tile);
}

void shm_pipe_begin(shm_call *c) {
  shm_team *t = c->team;
  size_t nbytes = c->a.count * c->width;
  bool deep = t->crowded || nbytes > DEEP_BYTES;
  c->chunk = (!t->crowded && deep ? DEEP_CHUNK : SHM_SLOT_BYTES) / c->width;
  c->ring = deep ? SHM_SLOTS : 2;
  c->tile = (nbytes >= LARGE_CLAIM ? TILE_BYTES_LARGE : TILE_BYTES) / c->width;
  c->chunks = (c->a.count + c->chunk - 1) / c->chunk;
  c->in = c->red = c->out = 0;
  c->ahead = t->crowded ? SHM_SLOTS - 1 : deep;
  c->nontemporal = t->crowded && nbytes >= t->nontemporal_bytes / (size_t)t->p;
  /* release: pairs with shm_state in shm_fold_step. No ring: the post of the first chunk rings. */
  atomic_store_explicit(&t->head->rank[t->me].state, 4 * t->call + SHM_STAGED, memory_order_release);
}

static void contribute(shm_call *c) {
  shm_team *t = c->team;
  uint32_t j = slot_of(c, c->in);
  span s = span_of(c, c->in);
  size_t w = c->width;
  const char *from = c->from + s.first * w;
  char *slot = shm_slot(t, t->me, j);
  if (c->prescale)
    reduce_scale(c->a.dtype, (char *)c->a.out + s.first * w, (const char *)c->a.in + s.first * w, s.len, c->a.prescale);
  if (s.lo) reduce_copy(slot, from, s.lo * w, 0);
  if (s.hi < s.len) reduce_copy(slot + s.hi * w, from + s.hi * w, (s.len - s.hi) * w, 0);
  shm_post(t, &t->head->slot[j].arrived);
  c->in++;
}

static void fold_slice(shm_call *c, uint32_t j) {
  shm_team *t = c->team;
  span s = span_of(c, c->red);
  for (int r = 0; r < t->p; r++) t->src[r] = t->dst[r] = shm_slot(t, r, j) + s.lo * c->width;
  t->src[t->me] = c->from + (s.first + s.lo) * c->width;
  t->dst[t->me] = (char *)c->a.out + (s.first + s.lo) * c->width;
  if (s.hi > s.lo) c->fold(t->p, t->src, t->p, t->dst, s.hi - s.lo, c->scale);
  shm_post(t, &t->head->slot[j].done);
}

static void fold_tiles(shm_call *c, uint32_t j) {
  shm_team *t = c->team;
  shm_slot_state *st = &t->head->slot[j];
  size_t len = span_of(c, c->red).len;
  uint32_t end = t->claimed[j] + tiles_of(c, len), q = shm_get(&st->claim);
  while (!shm_reached(q, end)) {
    /* the claim hands nothing over: the data came with `arrived` and goes with `done` */
    if (!atomic_compare_exchange_weak(&st->claim.v, &q, q + 1)) continue;
    size_t first = (q - t->claimed[j]) * c->tile;
    for (int r = 0; r < t->p; r++) t->src[r] = t->dst[r] = shm_slot(t, r, j) + first * c->width;
    c->fold(t->p, t->src, t->p, t->dst, shm_min(len - first, c->tile), c->scale);
    shm_post(t, &st->done);
    q = shm_get(&st->claim);
  }
}

static void reduced(shm_call *c, uint32_t j, uint32_t target) {
  c->team->arrived[j] += (uint32_t)c->team->p;
  if (c->kernel == SHM_CLAIM) c->team->claimed[j] += target;
  c->red++;
}

static void take_out(shm_call *c, span s) {
  shm_team *t = c->team;
  const char *slot = shm_slot(t, t->me, slot_of(c, c->out));
  char *to = (char *)c->a.out + s.first * c->width;
  size_t w = c->width;
  if (s.lo) reduce_copy(to, slot, s.lo * w, c->nontemporal);
  if (s.hi < s.len) reduce_copy(to + s.hi * w, slot + s.hi * w, (s.len - s.hi) * w, c->nontemporal);
  c->out++;
}

static uint32_t done_target(const shm_call *c, size_t len) { /* posts to `done` that a chunk takes */
  return c->kernel == SHM_CLAIM ? tiles_of(c, len) : (uint32_t)c->team->p;
}

/* Take out what has been done, if anything; in claim others may have done all of it, before I came to reduce. */
static bool try_out(shm_call *c) {
  shm_team *t = c->team;
  bool may = c->out < (c->kernel == SHM_CLAIM ? c->in : c->red);
  uint32_t j = slot_of(c, c->out);
  if (!may) return false;
  span s = span_of(c, c->out);
  uint32_t target = done_target(c, s.len);
  if (!shm_reached(shm_get(&t->head->slot[j].done), t->done[j] + target)) return false;
  if (c->red == c->out) reduced(c, j, target);
  take_out(c, s);
  t->done[j] += target;
  return true;
}

static bool try_reduce(shm_call *c) {
  shm_team *t = c->team;
  uint32_t j = slot_of(c, c->red);
  if (c->red == c->in) return false;
  if (!shm_reached(shm_get(&t->head->slot[j].arrived), t->arrived[j] + (uint32_t)t->p)) return false;
  if (c->kernel == SHM_CLAIM) {
    fold_tiles(c, j);
  } else {
    fold_slice(c, j);
  }
  reduced(c, j, done_target(c, span_of(c, c->red).len));
  return true;
}

static bool try_in(shm_call *c) {
  shm_team *t = c->team;
  if (c->in == c->chunks || c->in >= c->out + c->ring || c->in > c->out + c->ahead) return false;
  uint32_t j = slot_of(c, c->in);
  if (!shm_reached(shm_get(&t->head->slot[j].done), t->done[j])) return false; /* readers of a move before */
  contribute(c);
  return true;
}

int shm_pipe_step(shm_call *c) {
  if (c->out == c->chunks) return SHM_DONE;
  return try_out(c) || try_reduce(c) || try_in(c) ? SHM_MOVED : SHM_IDLE;
}
