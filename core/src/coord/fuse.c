#include "coord/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "coord/engine.h"
#include "exec/reduce.h"
#include "os/mem.h"
#include "os/status.h"

enum { LINE = 64 };

static size_t member_nbytes(const bucket *b, int i) {
  const signature *s = &b->members[i].r->sig;
  return signature_count(s) * coll_dtype_bytes(s->dtype);
}

static bool neighbours(const bucket *b) {
  for (int i = 0; i < b->n; i++) {
    const request *r = b->members[i].r;
    if (r->input != r->output) return false;
    if (i && (const char *)r->output != (const char *)b->members[i - 1].r->output + member_nbytes(b, i - 1))
      return false;
  }
  return true;
}

void fuse_free(engine *e, pset *ps) {
  if (ps->fusion && e->nd && node_find(e->nd, ps->fusion, 1, &(uint32_t){0}, &(uint64_t){0}))
    node_free(e->nd, ps->fusion);
  else
    free(ps->fusion);
  ps->fusion = NULL;
  ps->fusion_nbytes = 0;
}

/* Registered memory if there is a node, so that the executor needs no copy of its own. Grows, and is kept. */
static int reserve(engine *e, pset *ps, size_t nbytes) {
  if (nbytes <= ps->fusion_nbytes) return LWCC_OK;
  size_t room = ps->fusion_nbytes ? ps->fusion_nbytes * 2 : (size_t)1 << 20;
  while (room < nbytes) room *= 2;
  fuse_free(e, ps);
  bool own = ps->named.engine == LWCC_ENGINE_OWN; /* others gain nothing, and a rank within MPI would map too late */
  if (own && e->nd && node_size(e->nd) > 1) ps->fusion = node_alloc(e->nd, room, engine_drive_progress, e);
  if (!ps->fusion && posix_memalign(&ps->fusion, MEM_PAGE, room) != 0) {
    ps->fusion = NULL;
    return os_fail(LWCC_ERR_SYSTEM, "no memory for a fused bucket of %zu bytes", room);
  }
  ps->fusion_nbytes = room;
  int failed = engine_failed(e); /* while node_alloc waited for the peers */
  if (failed) return os_fail(failed, "%s", e->failed_text);
  return LWCC_OK;
}

int fuse_pack(engine *e, pset *ps, const bucket *b, coll_args *args, bool *packed_out) {
  size_t total = 0;
  for (int i = 0; i < b->n; i++)
    if (!mem_add(total, member_nbytes(b, i), &total)) return os_fail(LWCC_ERR_SYSTEM, "a bucket beyond all memory");
  args->count = total / coll_dtype_bytes(args->dtype);
  *packed_out = b->n > 1 && !neighbours(b);
  e->stats.bytes += total;
  e->stats.allreduces[total < 2 ? 0 : total > (size_t)1 << 46 ? 47 : 64 - __builtin_clzll(total - 1)]++;
  if (b->n > 1) e->stats.fused += (uint64_t)b->n;
  if (!*packed_out) {
    if (b->n > 1) e->stats.fused_in_place += (uint64_t)b->n;
    args->in = b->members[0].r->input;
    args->out = b->members[0].r->output;
    return LWCC_OK;
  }
  TRY(reserve(e, ps, total));
  char *at = ps->fusion;
  for (int i = 0; i < b->n; i++) {
    reduce_copy(at, b->members[i].r->input, member_nbytes(b, i), 0);
    at += member_nbytes(b, i);
  }
  args->in = args->out = ps->fusion;
  return LWCC_OK;
}

void fuse_unpack(const pset *ps, const bucket *b) {
  const char *at = ps->fusion;
  for (int i = 0; i < b->n; i++) {
    reduce_copy(b->members[i].r->output, at, member_nbytes(b, i), 0);
    at += member_nbytes(b, i);
  }
}
