/* The small calls of lwcc.h: texts, registered memory, counters. */
#include <stdlib.h>
#include <string.h>

#include "api/ctx.h"
#include "os/clock.h"
#include "os/mem.h"
#include "os/status.h"
#include "transport/transport.h"

int64_t lwcc_ucx_describe(char *out, size_t cap) {
  return transport_ucx_describe(out, cap);
}

const char *lwcc_error(void) {
  return os_error();
}

const char *lwcc_version(void) {
  return "0.1.0";
}

const char *lwcc_status_name(int status) {
  switch ((lwcc_status)status) {
    case LWCC_OK:
      return "OK";
    case LWCC_PENDING:
      return "PENDING";
    case LWCC_ERR_INVALID:
      return "INVALID";
    case LWCC_ERR_MISMATCH:
      return "MISMATCH";
    case LWCC_ERR_PEER_LOST:
      return "PEER_LOST";
    case LWCC_ERR_TIMEOUT:
      return "TIMEOUT";
    case LWCC_ERR_SHUTDOWN:
      return "SHUTDOWN";
    case LWCC_ERR_SYSTEM:
      return "SYSTEM";
    case LWCC_ERR_PROTOCOL:
      return "PROTOCOL";
    case LWCC_ERR_UNSUPPORTED:
      return "UNSUPPORTED";
    case LWCC_ERR_PLAN:
      return "PLAN";
  }
  return "UNKNOWN";
}

int32_t lwcc_lost_rank(void) {
  engine *e = ctx_engine();
  return e ? atomic_load(&e->lost_rank) : -1;
}

void lwcc_free_output(void *output) {
  free(output);
}

/* Without a node, or where another engine carries the data, registered memory is plain memory. */
static void *plain(size_t nbytes) {
  void *p = NULL;
  size_t rounded;
  if (!mem_round_up(nbytes ? nbytes : 1, 64, &rounded) || posix_memalign(&p, 64, rounded) != 0) {
    os_fail(LWCC_ERR_SYSTEM, "lwcc_alloc: no memory for %zu bytes", nbytes);
    return NULL;
  }
  memset(p, 0, rounded);
  return p;
}

void *lwcc_alloc(size_t nbytes) {
  engine *e = ctx_engine();
  if (!e) return NULL;
  if (!e->nd || e->stats.engine != LWCC_ENGINE_OWN) return plain(nbytes); /* other engines gain nothing by it */
  engine_lock(e);
  void *p = ctx_alive(e) < 0 ? NULL : node_alloc(e->nd, nbytes ? nbytes : 1, engine_drive_progress, e);
  engine_unlock(e);
  return p;
}

int32_t lwcc_is_registered(const void *p, size_t nbytes) {
  engine *e = ctx_engine();
  uint32_t region;
  uint64_t offset;
  return e && e->nd && node_find(e->nd, p, nbytes, &region, &offset);
}

void lwcc_free(void *p) {
  if (!p) return;
  engine *e = ctx_engine();
  if (!e) return;
  if (!lwcc_is_registered(p, 1)) {
    free(p);
    return;
  }
  engine_lock(e);
  node_free(e->nd, p);
  engine_unlock(e);
}

int lwcc_get_stats(lwcc_stats *out) {
  engine *e = ctx_engine();
  if (!e) return LWCC_ERR_SHUTDOWN;
  engine_lock(e);
  *out = e->stats;
  for (pset *ps = atomic_load(&e->sets); ps; ps = ps->next)
    out->raw_calls += atomic_load_explicit(&ps->raw_calls, memory_order_relaxed);
  if (e->running) out->busy_ns += clock_ns() - e->busy_since_ns;
  engine_unlock(e);
  out->waited_ns = atomic_load_explicit(&e->waited_ns, memory_order_relaxed);
  return LWCC_OK;
}
