/* What a rank does for each entry of the order log. */
#include <stdlib.h>
#include <string.h>

#include "coord/engine.h"
#include "coord/stand_in.h"
#include "os/mem.h"
#include "os/status.h"

/* Are these numbers of rows possible, and mine what I asked for? They become lengths. */
static bool values_fit(const pset *ps, const answer *a, size_t n) {
  const signature *s = a->sig;
  const int64_t *v = a->values;
  size_t size = (size_t)ps->size, me = (size_t)ps->me;
  if (!signature_rows_fit(s, v, n)) return false;
  if (s->collective == LWCC_ALLGATHER) return v[me] == (s->ndim ? s->shape[0] : !a->absent);
  for (size_t d = 0; d < size && n; d++)
    if (v[me * size + d] != (s->nsplits ? s->splits[d] : s->shape[0] / (int64_t)size)) return false;
  return true;
}

typedef struct { /* a NEW or PART entry */
  answer a;      /* sig: this rank's request's, or that of its stand-in */
  char name[NAME_CAP];
  int collective;
  uint32_t nvalues;
  bool part;
  signature sig; /* of the stand-in; what it owns is freed by the caller */
} agreement;

static int malformed(const agreement *g) {
  return os_fail(LWCC_ERR_PROTOCOL, "malformed %s entry", g->part ? "PART" : "NEW");
}

/* The values are the caller's to free, also on failure. */
static int read_agreement(const pset *ps, reader *r, agreement *g) {
  g->a.id = read_u32(r);
  g->collective = read_u8(r);
  read_text(r, g->name, sizeof g->name);
  g->nvalues = read_u32(r);
  size_t size = (size_t)ps->size;
  size_t n = g->collective == LWCC_ALLGATHER ? size : g->collective == LWCC_ALLTOALL ? size * size : 0;
  if (r->bad || g->nvalues != n) return malformed(g);
  void *values = NULL;
  if (n) TRY(mem_zeroed(n, sizeof(int64_t), &values));
  g->a.values = values;
  if (n) read_into(r, values, n * sizeof(int64_t));
  g->a.name = g->name;
  g->a.contributors = ps->size;
  if (!g->part) return r->bad ? malformed(g) : LWCC_OK;
  g->a.contributors = 0;
  for (int i = 0; i < ps->size; i++) {
    uint8_t asked = read_u8(r);
    g->a.contributors += asked != 0;
    if (i == ps->me) g->a.absent = !asked;
  }
  signature_read(r, &g->sig);
  bool senseless = g->sig.op < LWCC_AVERAGE || g->sig.op > LWCC_PRODUCT || g->sig.collective != g->collective ||
                   g->collective >= LWCC_COLLECTIVES || !g->a.contributors || g->sig.nsplits ||
                   (g->collective == LWCC_BROADCAST && pset_index(ps, g->sig.root) < 0) ||
                   (g->collective == LWCC_REDUCESCATTER && !g->sig.ndim);
  return r->bad || senseless ? malformed(g) : LWCC_OK;
}

static int no_answer(const agreement *g) {
  return os_fail(LWCC_ERR_PROTOCOL, "%s for \"%s\" does not answer what was asked", g->part ? "PART" : "NEW", g->name);
}

/* This rank has joined. A request of that name that it has made since is counted anew by the coordinator, but a READY
 * for the old answer means nothing any more. */
static int absent_from(engine *e, pset *ps, agreement *g) {
  cached *c, *old = cached_by_name(ps, g->collective, g->name);
  request *again = old ? old->pending : NULL;
  g->a.sig = &g->sig;
  if (cached_by_id(ps, g->a.id) || !values_fit(ps, &g->a, g->nvalues)) return no_answer(g);
  int st = cached_store(ps, &g->a, &c);
  g->a.values = NULL;
  if (st >= 0 && again) order_announce(e, ps, again);
  return st;
}

static int present_at(engine *e, pset *ps, agreement *g) {
  request *q = queue_find(&e->q, ps->id, g->collective, g->name);
  cached *c;
  if (!q) /* failed here meanwhile, because a member of the set has left */
    return atomic_load(&ps->left) >= 0 ? LWCC_OK : os_fail(LWCC_ERR_PROTOCOL, "\"%s\" was not asked for", g->name);
  g->a.sig = &q->sig;
  if (q->in_lane || cached_by_id(ps, g->a.id) || !values_fit(ps, &g->a, g->nvalues)) return no_answer(g);
  int st = cached_store(ps, &g->a, &c);
  g->a.values = NULL;
  if (st >= 0) c->pending = q;
  return st;
}

static int obey_new(engine *e, pset *ps, reader *r, bool part) {
  agreement g = {.part = part};
  int st = read_agreement(ps, r, &g);
  if (st >= 0) st = g.a.absent ? absent_from(e, ps, &g) : present_at(e, ps, &g);
  free(g.a.values);
  signature_free(&g.sig);
  return st;
}

/* May it share a bucket with the first one? */
static bool fits_bucket(const bucket *b, const cached *c) {
  if (b->n == 0) return true;
  const signature *first = &b->members[0].r->sig;
  const request *r = c->pending;
  return c->contributors == b->members[0].answer->contributors && r->sig.collective == LWCC_ALLREDUCE &&
         first->collective == LWCC_ALLREDUCE && r->sig.dtype == first->dtype;
}

/* NULL: a member is not waiting for this. Takes what waits. */
static bucket *collect_members(pset *ps, bucket *b, const uint8_t *ids, uint32_t n, uint32_t *bad_out) {
  for (uint32_t i = 0; i < n; i++) {
    memcpy(bad_out, ids + i * sizeof(uint32_t), sizeof(uint32_t));
    cached *c = cached_by_id(ps, *bad_out);
    if (c && c->absent && !c->users) c->pending = stand_in_make(c);
    if (!c || !c->pending || !fits_bucket(b, c)) {
      for (int k = 0; k < b->n; k++)
        if (!stand_in_free(b->members[k].r)) b->members[k].answer->pending = b->members[k].r;
      if (c && c->pending && stand_in_free(c->pending)) c->pending = NULL;
      return NULL;
    }
    b->members[b->n].r = c->pending;
    b->members[b->n++].answer = c;
    c->pending = NULL; /* at once: no id comes twice */
  }
  return b;
}

static int obey_run(pset *ps, reader *r) {
  uint32_t n = read_u32(r), bad = 0;
  if (r->bad || !n || n > (size_t)(r->end - r->at) / sizeof(uint32_t))
    return os_fail(LWCC_ERR_PROTOCOL, "malformed RUN entry");
  void *memory;
  TRY(mem_zeroed(1, sizeof(bucket) + n * sizeof(((bucket *)0)->members[0]), &memory));
  const uint8_t *ids = r->at;
  r->at += n * sizeof(uint32_t);
  bucket *b = collect_members(ps, memory, ids, n, &bad);
  if (!b) {
    free(memory);
    return atomic_load(&ps->left) >= 0 ? LWCC_OK : os_fail(LWCC_ERR_PROTOCOL, "RUN for id %u, not asked for", bad);
  }
  for (int i = 0; i < b->n; i++) {
    b->members[i].r->in_lane = true;
    b->members[i].answer->users++;
  }
  return lane_append(ps, b);
}

static int obey_error(engine *e, pset *ps, reader *r) {
  char name[NAME_CAP], text[TEXT_CAP];
  int32_t status;
  int collective = read_u8(r);
  read_into(r, &status, sizeof status);
  read_text(r, name, sizeof name);
  read_text(r, text, sizeof text);
  uint32_t n = read_u32(r);
  if (r->bad || status >= 0 || n != (uint32_t)ps->size || n > (size_t)(r->end - r->at))
    return os_fail(LWCC_ERR_PROTOCOL, "malformed ERROR entry");
  bool asked = r->at[ps->me];
  r->at += n;
  request *q = asked ? queue_find(&e->q, ps->id, collective, name) : NULL;
  if (!q || q->in_lane) return LWCC_OK;
  cached *c = cached_by_name(ps, collective, name);
  if (c) c->pending = NULL;
  e->stats.failed++;
  if (e->trace) timeline_request(e->trace, q, 0, status);
  request_complete(&e->q, q, status, text);
  return LWCC_OK;
}

static int obey_joined(engine *e, pset *ps, reader *r) {
  uint32_t last = read_u32(r);
  if (r->bad || last >= (uint32_t)ps->size) return os_fail(LWCC_ERR_PROTOCOL, "malformed JOINED entry");
  request *q = queue_find(&e->q, ps->id, JOIN, JOIN_NAME);
  if (!q) return atomic_load(&ps->left) >= 0 ? LWCC_OK : os_fail(LWCC_ERR_PROTOCOL, "JOINED, not asked for");
  q->first_dim = ps->ranks[last];
  e->stats.completed++;
  if (e->trace) timeline_request(e->trace, q, 0, LWCC_OK);
  request_complete(&e->q, q, LWCC_OK, NULL);
  return LWCC_OK;
}

static int obey_evict(engine *e, pset *ps, reader *r) {
  cached *c = cached_by_id(ps, read_u32(r));
  if (!c) return LWCC_OK;
  request *again = c->pending;
  cached_drop(ps, c);
  if (again) order_announce(e, ps, again); /* our READY met the eviction on the way */
  return LWCC_OK;
}

int order_obey(engine *e, pset *ps, reader *r) {
  while (r->at < r->end) {
    switch (read_u8(r)) {
      case ENTRY_NEW:
        TRY(obey_new(e, ps, r, false));
        break;
      case ENTRY_PART:
        TRY(obey_new(e, ps, r, true));
        break;
      case ENTRY_JOINED:
        TRY(obey_joined(e, ps, r));
        break;
      case ENTRY_RUN:
        TRY(obey_run(ps, r));
        break;
      case ENTRY_ERROR:
        TRY(obey_error(e, ps, r));
        break;
      case ENTRY_EVICT:
        TRY(obey_evict(e, ps, r));
        break;
      default:
        return os_fail(LWCC_ERR_PROTOCOL, "unknown entry");
    }
    if (engine_failed(e)) return LWCC_OK;
  }
  return r->bad ? os_fail(LWCC_ERR_PROTOCOL, "truncated entry") : LWCC_OK;
}
