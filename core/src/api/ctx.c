#include "api/ctx.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "api/calibrate.h"
#include "exec/guest.h"
#include "exec/mpi.h"
#include "os/env.h"
#include "os/hmac.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/status.h"

typedef struct {
  bootstrap *listening; /* between open and join */
  engine *engine;       /* between join and shutdown */
  lwcc_job job;
  pid_t owner;    /* the process that opened */
  char token[33]; /* the same on all ranks of the job, and no other's */
  lwcc_world world;
} context;

/* init and fini, in order: listening, links and node, channel, engine with set 0, thread. Guarded by the user: open,
 * join and shutdown are not called side by side. */
static context *the_context;
static _Atomic(engine *) the_engine; /* release in join: pairs with the acquire in ctx_engine */

/* Set in a forked child: cheaper to ask than getpid, which is a system call on the way of every collective. relaxed:
 * written before the child has a second thread. */
static atomic_bool inherited;

static void in_child(void) {
  if (the_context) atomic_store_explicit(&inherited, true, memory_order_relaxed);
}

static bool mine(void) {
  return !atomic_load_explicit(&inherited, memory_order_relaxed);
}

static int watch_forks(void) {
  static bool watching; /* as lwcc_open: one thread */
  int e = watching ? 0 : pthread_atfork(NULL, NULL, in_child);
  watching = true;
  return e ? os_fail(LWCC_ERR_SYSTEM, "lwcc_open: pthread_atfork: %s", strerror(e)) : LWCC_OK;
}

static int not_here(void) {
  return os_fail(LWCC_ERR_SHUTDOWN,
                 "this is process %d, forked from an initialised one (%d); a forked child cannot use lwcc",
                 (int)getpid(), (int)the_context->owner);
}

engine *ctx_engine(void) {
  engine *e = atomic_load_explicit(&the_engine, memory_order_acquire);
  if (!e) {
    os_fail(LWCC_ERR_SHUTDOWN, "lwcc is not initialised, or has been shut down; call init() first");
    return NULL;
  }
  if (!mine()) {
    not_here();
    return NULL;
  }
  return e;
}

engine *ctx_member(int set, pset **set_out) {
  engine *e = ctx_engine();
  pset *ps = e ? engine_set(e, set) : NULL;
  if (e && !ps) os_fail(LWCC_ERR_INVALID, "there is no process set %d", set);
  if (ps && ps->me < 0) os_fail(LWCC_ERR_INVALID, "rank %d is no member of process set %d", e->rank, set);
  *set_out = ps;
  return ps && ps->me >= 0 ? e : NULL;
}

int ctx_alive(const engine *e) {
  int failed = engine_failed(e);
  return failed < 0 ? os_fail(failed, "%s", e->failed_text) : LWCC_OK;
}

static void make_token(context *c) {
  uint8_t mac[HMAC_BYTES];
  char text[64];
  int n = snprintf(text, sizeof text, "timeline %llu", (unsigned long long)c->job.generation);
  hmac_sha256(c->job.secret ? c->job.secret : (const uint8_t *)"", c->job.secret ? 32 : 0, text, (size_t)n, mac);
  for (int i = 0; i < 16; i++) snprintf(c->token + (ptrdiff_t)2 * i, 3, "%02x", mac[i]);
}

int lwcc_open(const lwcc_job *job, char *endpoint_out, size_t cap) {
  if (the_context) return os_fail(LWCC_ERR_INVALID, "lwcc_open: already open; call lwcc_shutdown first");
  if (job->size < 1 || job->size > RANKS_MAX || job->rank < 0 || job->rank >= job->size)
    return os_fail(LWCC_ERR_INVALID, "lwcc_open: rank %d of %d ranks; expected 0 <= rank < size <= %d", job->rank,
                   job->size, RANKS_MAX);
  TRY(watch_forks());
  void *memory;
  TRY(mem_zeroed(1, sizeof(context), &memory));
  context *c = memory;
  c->job = *job;
  c->owner = getpid();
  log_set_rank(job->rank);
  make_token(c);
  int st = bootstrap_open(job, &c->listening);
  if (st >= 0) {
    st = bootstrap_endpoint(c->listening, endpoint_out, cap);
    if (st < 0) bootstrap_close(c->listening);
  }
  if (st < 0) {
    free(c);
    return st;
  }
  the_context = c;
  return LWCC_OK;
}

static coordinator_limits limits_from_env(void) {
  int64_t capacity = env_int(ENV_CACHE_CAPACITY);
  return (coordinator_limits){.fusion_nbytes = (uint64_t)env_int(ENV_FUSION_THRESHOLD),
                              .capacity = capacity > 0 ? (uint32_t)capacity : 4096,
                              .warn_ns = (uint64_t)(env_real(ENV_STALL_WARN) * 1e9),
                              .abort_ns = (uint64_t)(env_real(ENV_STALL_ABORT) * 1e9)};
}

static void close_links(transport_link **links, int size) {
  for (int i = 0; i < size; i++)
    if (links[i]) links[i]->ops->close(links[i]);
}

/* Takes links and nd. */
static int make_engine(const context *c, transport_link **links, node *nd, const rank_identity *ids, engine **out) {
  engine_parts parts = {.rank = c->job.rank, .size = c->job.size, .ids = ids, .limits = limits_from_env()};
  channel *ch;
  int st = engine_create(&parts, out);
  if (st < 0) {
    close_links(links, c->job.size);
    node_close(nd);
    return st;
  }
  channel_events events = engine_events(*out);
  st = channel_create(c->job.rank, c->job.size, c->job.generation, links, &events, &ch);
  if (st < 0) {
    node_close(nd);
    return st;
  }
  TRY(engine_bind(*out, ch, nd));
  return engine_start(*out);
}

static int join(context *c, const char *const *endpoints, double timeout_s, transport_link **links,
                rank_identity *ids) {
  node *nd = NULL;
  engine *e = NULL;
  TRY(bootstrap_join(c->listening, endpoints, timeout_s, links, &nd, ids));
  int st = make_engine(c, links, nd, ids, &e);
  if (st < 0) {
    if (e) engine_free(e);
    return st;
  }
  const rank_identity *me = &ids[c->job.rank];
  c->world = (lwcc_world){.rank = c->job.rank,
                          .size = c->job.size,
                          .local_rank = me->local_rank,
                          .local_size = me->local_size,
                          .cross_rank = me->cross_rank,
                          .cross_size = me->cross_size};
  c->engine = e;
  atomic_store_explicit(&the_engine, e, memory_order_release);
  if (calibrate(e) < 0) LOG(DEBUG, "%s", os_error()); /* what failed it fails the next call too, which says so */
  const char *trace = env_text(ENV_TIMELINE);
  if (*trace && strcasecmp(trace, "DYNAMIC") != 0 && lwcc_timeline_start(trace, 0) < 0) LOG(WARN, "%s", os_error());
  return LWCC_OK;
}

int lwcc_timeline_start(const char *path, int32_t marks) {
  engine *e = ctx_engine();
  timeline *t;
  if (!e) return LWCC_ERR_SHUTDOWN;
  const timeline_parts parts = {
      .path = path, .job = the_context->token, .rank = e->rank, .host = e->ids[e->rank].host, .marks = marks != 0};
  TRY(timeline_open(&parts, &t));
  engine_lock(e);
  timeline_close(e->trace);
  e->trace = t;
  engine_unlock(e);
  return LWCC_OK;
}

int lwcc_timeline_stop(void) {
  engine *e = ctx_engine();
  if (!e) return LWCC_ERR_SHUTDOWN;
  engine_lock(e);
  timeline_close(e->trace);
  e->trace = NULL;
  engine_unlock(e);
  return LWCC_OK;
}

int lwcc_join(const char *const *endpoints, double timeout_s) {
  context *c = the_context;
  if (!c || c->engine) return os_fail(LWCC_ERR_INVALID, "lwcc_join: call lwcc_open first, and join once");
  if (!mine()) return not_here();
  if (!endpoints && c->job.size > 1)
    return os_fail(LWCC_ERR_INVALID, "lwcc_join: %d ranks need %d endpoints", c->job.size, c->job.size);
  void *links, *ids;
  TRY(mem_zeroed((size_t)c->job.size, sizeof(transport_link *), &links));
  int st = mem_zeroed((size_t)c->job.size, sizeof(rank_identity), &ids);
  if (st < 0) {
    free(links);
    return st;
  }
  st = join(c, endpoints, timeout_s, links, ids);
  free(links);
  free(ids);
  if (st >= 0) {
    bootstrap_close(c->listening);
    c->listening = NULL;
  }
  return st;
}

static int may_choose(void) {
  if (the_context && !the_context->engine) return LWCC_OK;
  return os_fail(LWCC_ERR_INVALID, "the engine is chosen between lwcc_open and lwcc_join");
}

int lwcc_use_mpi(const lwcc_mpi *mpi) {
  TRY(may_choose());
  return mpi_use(mpi);
}

int lwcc_use_guest(void) {
  TRY(may_choose());
  guest_use(true);
  return LWCC_OK;
}

int lwcc_guest_next(lwcc_guest_call *out, double timeout_s) {
  return guest_next(out, timeout_s);
}

int lwcc_guest_done(uint64_t id, int32_t status, const char *text) {
  return guest_done(id, status, text ? text : "");
}

int lwcc_shutdown(void) {
  context *c = the_context;
  if (!c || !mine()) return LWCC_OK;
  atomic_store_explicit(&the_engine, NULL, memory_order_release);
  if (c->engine) {
    engine_shutdown(c->engine);
    engine_free(c->engine);
  }
  if (c->listening) bootstrap_close(c->listening);
  mpi_use(NULL);
  guest_use(false);
  the_context = NULL;
  free(c);
  return LWCC_OK;
}

int32_t lwcc_initialized(void) {
  return atomic_load_explicit(&the_engine, memory_order_acquire) && mine();
}

int lwcc_get_world(lwcc_world *out) {
  if (!ctx_engine()) return LWCC_ERR_SHUTDOWN;
  *out = the_context->world;
  return LWCC_OK;
}
