/* Making and freeing an engine, and its process sets. */
#include "coord/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord/fuse.h"
#include "exec/guest.h"
#include "exec/mpi.h"
#include "os/env.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/status.h"

enum { SPINS = 20000 }; /* idle turns: who yields to another program's work gets its core back much later */

typedef struct { /* how a team of this set reaches registered memory */
  engine *e;
  int local_of[]; /* node index of each team index */
} reach_arg;

static bool reach_find(void *arg, const void *p, size_t n, uint32_t *region_out, uint64_t *offset_out) {
  return node_find(((reach_arg *)arg)->e->nd, p, n, region_out, offset_out);
}

static void *reach_map(void *arg, int index, uint32_t region, uint64_t offset, size_t n) {
  reach_arg *a = arg;
  return node_map(a->e->nd, a->local_of[index], region, offset, n);
}

static int reach_peek(void *arg, int index, void *to, uint64_t address, size_t n) {
  reach_arg *a = arg;
  return node_peek(a->e->nd, a->local_of[index], to, address, n);
}

static void reach_ring(void *arg, int index) {
  reach_arg *a = arg;
  int rank = node_ranks(a->e->nd)[a->local_of[index]];
  if (rank != a->e->rank) channel_ring(a->e->ch, rank);
}

static int local_index(const node *nd, int rank) {
  for (int i = 0; i < node_size(nd); i++)
    if (node_ranks(nd)[i] == rank) return i;
  return -1;
}

static int make_reach(engine *e, pset *ps) {
  void *memory;
  TRY(mem_zeroed(1, sizeof(reach_arg) + (size_t)ps->size * sizeof(int), &memory));
  reach_arg *a = memory;
  a->e = e;
  for (int i = 0; i < ps->size; i++) a->local_of[i] = local_index(e->nd, ps->ranks[i]);
  ps->reach = a;
  return LWCC_OK;
}

static int open_foreign(const engine *e, pset *ps) {
  ps->named.set = ps->raw.set = ps->id;
  if (guest_used()) ps->named.engine = ps->raw.engine = LWCC_ENGINE_GUEST;
  if (!mpi_used() || ps->me < 0 || e->size == 1) return LWCC_OK;
  TRY(mpi_team_open(&ps->named, ps->id == 0));
  return mpi_team_open(&ps->raw, ps->id == 0);
}

/* What `lwcc bench p2p` has found of the wire, if the launcher says it. */
static void price(wire_cost *cost) {
  const char *text = env_text(ENV_COST);
  double v[4] = {0, 0, 0, -1};
  int end = 0, n = sscanf(text, "%lf,%lf,%lf%n,%lf%n", &v[0], &v[1], &v[2], &end, &v[3], &end);
  if (!*text) return;
  if (n < 3 || text[end] || !(v[0] >= 0 && v[1] >= 0 && v[2] >= 0)) {
    LOG(WARN, "LWCC_COST=%.60s is ignored; expected three numbers of seconds, such as 15e-6,4e-10,5e-11", text);
    return;
  }
  *cost = (wire_cost){v[0], v[1], v[2], v[3] >= 0 ? v[3] : v[0] / 3};
}

static int find_nodes(const engine *e, pset *ps) {
  ps->nodes = calloc((size_t)ps->size, sizeof *ps->nodes);
  if (!ps->nodes) return os_fail(LWCC_ERR_SYSTEM, "no memory for %d ranks", ps->size);
  for (int i = 0; i < ps->size; i++) {
    const rank_identity *id = &e->ids[ps->ranks[i]];
    if (!id->shares) ps->nodes[i] = i;
    while (e->ids[ps->ranks[ps->nodes[i]]].node != id->node) ps->nodes[i]++;
  }
  return LWCC_OK;
}

/* area: zeroed shared memory for two teams; NULL: the set has none. */
static int open_teams(engine *e, pset *ps, void *area) {
  TRY(find_nodes(e, ps));
  ps->named = (exec_team){.size = ps->size,
                          .me = ps->me,
                          .ranks = ps->ranks,
                          .nodes = ps->nodes,
                          .ch = e->ch,
                          .cls = LINK_NAMED,
                          .cost = area ? (wire_cost){1e-6, 0.2e-9, 0.05e-9, 0.3e-6} : e->cost};
  ps->raw = ps->named;
  ps->raw.cls = LINK_RAW;
  TRY(open_foreign(e, ps));
  if (!area || ps->me < 0) return LWCC_OK;
  bool own = ps->named.engine == LWCC_ENGINE_OWN; /* another engine's benchmark starts each call from our barrier */
  TRY(make_reach(e, ps));
  shm_reach reach = {.arg = ps->reach,
                     .find = reach_find,
                     .map = reach_map,
                     .peek = node_peeks(e->nd) ? reach_peek : NULL,
                     .ring = reach_ring};
  if (own) TRY(shm_team_open(area, ps->size, ps->me, e->cores, &reach, &ps->named_shm));
  reach.ring = NULL; /* a raw call is waited for by its caller, on the area's own bell */
  TRY(shm_team_open((char *)area + shm_area_bytes(ps->size), ps->size, ps->me, e->cores, &reach, &ps->raw_shm));
  ps->named.shm = ps->named_shm;
  ps->raw.shm = own ? ps->raw_shm : NULL;
  return LWCC_OK;
}

int engine_add_set(engine *e, pset *ps, void *area) {
  TRY(open_teams(e, ps, area));
  if (ps->id) channel_mix(e->ch);
  if (ps->co) coordinator_limit(ps->co, &e->limits);
  pset **tail = NULL;
  pset *first = atomic_load_explicit(&e->sets, memory_order_acquire);
  if (!first) {
    atomic_store_explicit(&e->sets, ps, memory_order_release);
    return LWCC_OK;
  }
  for (tail = &first->next; *tail; tail = &(*tail)->next) continue;
  __atomic_store_n(tail, ps, __ATOMIC_RELEASE); /* pairs with the acquire in engine_set */
  return LWCC_OK;
}

pset *engine_set(const engine *e, int id) {
  pset *ps = atomic_load_explicit(&e->sets, memory_order_acquire);
  while (ps && ps->id != id) ps = __atomic_load_n(&ps->next, __ATOMIC_ACQUIRE);
  return ps;
}

static int add_world(engine *e) {
  pset *ps;
  void *area = NULL;
  int *ranks = calloc((size_t)e->size, sizeof *ranks);
  if (!ranks) return os_fail(LWCC_ERR_SYSTEM, "no memory for %d ranks", e->size);
  for (int i = 0; i < e->size; i++) ranks[i] = i;
  int st = pset_create(0, ranks, e->size, e->rank, &ps);
  free(ranks);
  if (st < 0) return st;
  if (e->nd && node_size(e->nd) == e->size && e->size > 1 && node_segment(e->nd) &&
      node_segment_bytes(e->nd) >= 2 * shm_area_bytes(e->size))
    area = node_segment(e->nd);
  st = engine_add_set(e, ps, area);
  if (st < 0) pset_free(ps);
  return st;
}

static void set_waits(engine *e) {
  int64_t spin = env_int(ENV_SPIN);
  e->cores = e->nd ? node_cores(e->nd) : 1;
  e->crowded = e->nd && node_crowd(e->nd) > e->cores;
  e->spins = spin >= 0 ? spin * 20 : e->crowded ? 0 : SPINS;
}

int engine_create(const engine_parts *parts, engine **out) {
  void *memory;
  TRY(mem_zeroed(1, sizeof(engine), &memory));
  engine *e = memory;
  e->rank = parts->rank;
  e->size = parts->size;
  e->limits = parts->limits;
  atomic_init(&e->lost_rank, -1);
  pthread_mutex_init(&e->lock, NULL);
  queue_init(&e->q);
  e->ids = calloc((size_t)e->size, sizeof *e->ids);
  e->has_left = calloc((size_t)e->size, sizeof *e->has_left);
  e->left_after = calloc((size_t)e->size, sizeof *e->left_after);
  e->first_left = -1;
  *out = e;
  if (!e->ids || !e->has_left || !e->left_after) return os_fail(LWCC_ERR_SYSTEM, "no memory for %d ranks", e->size);
  memcpy(e->ids, parts->ids, (size_t)e->size * sizeof *e->ids);
  return LWCC_OK;
}

int engine_bind(engine *e, channel *ch, node *nd) {
  e->ch = ch;
  e->nd = nd;
  e->cost = (wire_cost){15e-6, 0.4e-9, 0.05e-9, 5e-6};
  price(&e->cost);
  set_waits(e);
  if (nd) TRY(node_attach(nd, ch));
  TRY(add_world(e));
  e->stats.shared_memory = engine_set(e, 0)->named_shm != NULL;
  e->stats.engine = engine_set(e, 0)->named.engine;
  e->polled = e->stats.engine == LWCC_ENGINE_MPI;
  e->guest = e->stats.engine == LWCC_ENGINE_GUEST;
  return LWCC_OK;
}

void engine_free(engine *e) {
  for (pset *ps = atomic_load(&e->sets); ps; ps = ps->next)
    if (ps->fusion) fuse_free(e, ps);
  if (e->ch) channel_close(e->ch);
  for (pset *ps = atomic_load(&e->sets), *next; ps; ps = next) {
    next = ps->next;
    void *reach = ps->reach;
    pset_free(ps);
    free(reach);
  }
  if (e->nd) node_close(e->nd);
  timeline_close(e->trace);
  queue_destroy(&e->q);
  pthread_mutex_destroy(&e->lock);
  free(e->has_left);
  free(e->left_after);
  free(e->ids);
  free(e);
}

static void on_control(void *arg, int peer, const void *msg, size_t nbytes) {
  order_control(arg, peer, msg, nbytes);
}

static void on_lost(void *arg, int peer, int status, const char *text) {
  order_lost(arg, peer, status, text);
}

channel_events engine_events(engine *e) {
  return (channel_events){.arg = e, .on_control = on_control, .on_lost = on_lost};
}

void engine_drive_progress(void *arg) {
  channel_progress(((engine *)arg)->ch);
}
