/* fold: allreduce of buffers that every rank has mapped, in place: read each term once, write each result once.
 * Whether all are registered is agreed in the call: a rank that is publishes where, and waits for the others' word; one
 * that is not just starts to copy in (SHM_STAGED), and the registered ones then do as it does. */
#include "exec/shm_area.h"
#include "os/status.h"

enum { FOLD_TILE = 64 << 10, FOLD_TILE_SMALL = 16 << 10, FOLD_SMALL = 64 << 10, MANY_RANKS = 8, LINE_BYTES = 64 };
enum { PIECE_BYTES = 1 << 20 }; /* of a static slice, per step */
enum { FOLD_AGREE, FOLD_SLICE, FOLD_TILES, FOLD_TILES_WAIT, FOLD_WAIT };

static bool locate(shm_team *t, const coll_args *a, size_t nbytes) {
  shm_where now, *last = &t->where[t->call & 1];
  if (!t->reach.find(t->reach.arg, a->out, nbytes, &now.out_region, &now.out_offset)) return false;
  now.in_region = now.out_region;
  now.in_offset = now.out_offset;
  if (a->in != a->out && !t->reach.find(t->reach.arg, a->in, nbytes, &now.in_region, &now.in_offset)) return false;
  if (now.out_region == last->out_region && now.out_offset == last->out_offset && now.in_region == last->in_region &&
      now.in_offset == last->in_offset)
    return true;
  *last = t->head->rank[t->me].where[t->call & 1] = now;
  return true;
}

bool shm_fold_begin(shm_call *c) {
  shm_team *t = c->team;
  if (t->p == 1 || !c->a.count || !locate(t, &c->a, c->a.count * c->width)) return false;
  shm_publish(t, SHM_REGISTERED);
  c->kernel = SHM_FOLD;
  c->stage = FOLD_AGREE;
  c->seen = 0;
  return true;
}

static int map_all(shm_call *c) {
  shm_team *t = c->team;
  size_t nbytes = c->a.count * c->width;
  for (int r = 0; r < t->p; r++) {
    const shm_where *at = &t->head->rank[r].where[t->call & 1];
    bool same = at->in_region == at->out_region && at->in_offset == at->out_offset;
    t->reg_out[r] = r == t->me ? c->a.out : t->reach.map(t->reach.arg, r, at->out_region, at->out_offset, nbytes);
    t->reg_in[r] = t->reg_out[r];
    if (!same) t->reg_in[r] = t->reach.map(t->reach.arg, r, at->in_region, at->in_offset, nbytes);
    if (!t->reg_in[r] || !t->reg_out[r]) return shm_not_mapped(t, r, at->out_region);
  }
  return LWCC_OK;
}

static void begin_slices(shm_call *c) {
  size_t p = (size_t)c->team->p, me = (size_t)c->team->me;
  size_t q = c->a.count / p & ~(LINE_BYTES / c->width - 1);
  c->in = me * q; /* elements, from here to out */
  c->out = me == p - 1 ? c->a.count : c->in + q;
  c->stage = FOLD_SLICE;
}

static void begin_tiles(shm_call *c) {
  size_t nbytes = c->a.count * c->width;
  c->tile = (c->team->p >= MANY_RANKS && nbytes <= FOLD_SMALL ? FOLD_TILE_SMALL : FOLD_TILE) / c->width;
  c->chunks = (c->a.count + c->tile - 1) / c->tile;
  c->stage = FOLD_TILES;
}

static void fold_at(shm_call *c, size_t first, size_t n) {
  shm_team *t = c->team;
  for (int r = 0; r < t->p; r++) {
    t->src[r] = t->reg_in[r] + first * c->width;
    t->dst[r] = t->reg_out[r] + first * c->width;
  }
  c->fold(t->p, t->src, t->p, t->dst, n, c->scale);
}

static int slice(shm_call *c) {
  size_t n = shm_min(c->out - c->in, PIECE_BYTES / c->width);
  if (n) fold_at(c, c->in, n);
  c->in += n;
  if (c->in < c->out) return SHM_MOVED;
  shm_publish(c->team, SHM_FOLDED);
  c->stage = FOLD_WAIT;
  c->seen = 0;
  return SHM_MOVED;
}

static int agree(shm_call *c) {
  shm_team *t = c->team;
  uint32_t base = 4 * t->call;
  for (; c->seen < t->p; c->seen++) {
    if (c->seen == t->me) continue; /* others poll my line: a needless look costs a transfer */
    uint32_t s = shm_state(t, c->seen);
    if (!shm_reached(s, base)) return SHM_IDLE;
    if (s == base + SHM_STAGED) {
      shm_settle(t);
      shm_fall_back(c);
      return SHM_MOVED;
    }
  }
  TRY(map_all(c));
  shm_settle(t); /* work follows: a sleeper should not wait for its end */
  if (t->crowded) {
    begin_tiles(c);
    return SHM_MOVED;
  }
  begin_slices(c);
  return slice(c);
}

static int tile(shm_call *c) {
  shm_team *t = c->team;
  uint32_t q = shm_get(&t->head->tiles), end = t->tiles + (uint32_t)c->chunks;
  while (!shm_reached(q, end)) {
    /* the claim hands nothing over: the data came with the states and goes with tile_done */
    if (!atomic_compare_exchange_weak(&t->head->tiles.v, &q, q + 1)) continue;
    size_t first = (size_t)(q - t->tiles) * c->tile;
    fold_at(c, first, shm_min(c->a.count - first, c->tile));
    shm_post(t, &t->head->tile_done);
    return SHM_MOVED;
  }
  c->stage = FOLD_TILES_WAIT;
  return SHM_MOVED;
}

int shm_fold_step(shm_call *c) {
  shm_team *t = c->team;
  uint32_t end = t->tiles + (uint32_t)c->chunks;
  switch (c->stage) {
    case FOLD_AGREE:
      return agree(c);
    case FOLD_SLICE:
      return slice(c);
    case FOLD_TILES:
      return tile(c);
    case FOLD_TILES_WAIT:
      if (!shm_reached(shm_get(&t->head->tile_done), end)) return SHM_IDLE;
      t->tiles = end;
      return SHM_DONE;
    default:
      break;
  }
  for (; c->seen < t->p; c->seen++)
    if (c->seen != t->me && !shm_reached(shm_state(t, c->seen), 4 * t->call + SHM_FOLDED)) return SHM_IDLE;
  return SHM_DONE;
}
