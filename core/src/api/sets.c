/* Process sets are made together by all ranks, through named requests of the world; or by their members alone, who hand
 * one another a text. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ctx.h"
#include "exec/shm.h"
#include "os/mem.h"
#include "os/status.h"

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* one at a time per rank */
/* Above the numbers of sets made so far, also before a shutdown: what still names one of those, as a traced graph does,
 * shall not meet other ranks under it. Guarded by making. */
static int64_t fresh;

/* Run one named request of the world, blocking. */
static int together(lwcc_request *r) {
  lwcc_ticket t;
  r->prescale = r->postscale = 1.0;
  int st = lwcc_run(r, 1, -1.0, &t);
  lwcc_release(t);
  return st;
}

static int reduce_numbers(const char *name, int op, int64_t *values, int64_t n) {
  lwcc_request r = {.name = name,
                    .collective = LWCC_ALLREDUCE,
                    .dtype = LWCC_INT64,
                    .op = op,
                    .ndim = 1,
                    .shape = &n,
                    .input = values,
                    .output = values};
  return together(&r);
}

typedef struct { /* a set in the making */
  engine *e;
  int n, *ranks;   /* ascending */
  char text[2048]; /* "0,2,3" */
} proposal;

typedef struct {
  uint64_t ok, offset;
  uint32_t region, pad;
} area_handle;

static bool one_node(const proposal *p) {
  const node *nd = p->e->nd;
  int found = 0;
  if (!nd || node_size(nd) < 2) return false;
  for (int i = 0; i < node_size(nd); i++)
    for (int k = 0; k < p->n; k++) found += node_ranks(nd)[i] == p->ranks[k];
  return found == p->n;
}

/* The set's first rank makes the area; everybody hears where it is. NULL: none. Owner of the memory: the first rank. */
static int share_area(const proposal *p, void **area_out, uint8_t **own_out) {
  const node *nd = p->e->nd;
  const size_t size = 2 * shm_area_bytes(p->n);
  area_handle h = {0};
  char name[NAME_CAP];
  bool same = one_node(p);
  *area_out = *own_out = NULL;
  if (same && p->e->rank == p->ranks[0]) {
    *own_out = lwcc_alloc(size);
    h.ok = *own_out && node_find(nd, *own_out, size, &h.region, &h.offset);
  }
  snprintf(name, sizeof name, "lwcc.set_area.%.400s", p->text);
  int64_t nbytes = sizeof h;
  lwcc_request r = {.name = name,
                    .collective = LWCC_BROADCAST,
                    .dtype = LWCC_UINT8,
                    .root = p->ranks[0],
                    .ndim = 1,
                    .shape = &nbytes,
                    .input = &h,
                    .output = &h};
  TRY(together(&r));
  for (int i = 0; same && h.ok && i < node_size(nd); i++)
    if (node_ranks(nd)[i] == p->ranks[0]) *area_out = node_map(nd, i, h.region, h.offset, size);
  if (*own_out) *area_out = *own_out;
  bool member = false;
  for (int i = 0; i < p->n; i++) member |= p->ranks[i] == p->e->rank;
  int64_t fine = !member || *area_out;
  snprintf(name, sizeof name, "lwcc.set_mapped.%.400s", p->text);
  TRY(reduce_numbers(name, LWCC_MIN, &fine, 1));
  if (!fine) *area_out = NULL;
  return LWCC_OK;
}

static int install(const proposal *p, int id, void *area, uint8_t *own) {
  pset *ps;
  TRY(pset_create(id, p->ranks, p->n, p->e->rank, &ps));
  ps->area = own;
  engine_lock(p->e);
  while (p->e->polled && !channel_idle(p->e->ch)) engine_turn(p->e); /* an MPI blocks until all members come */
  int st = engine_add_set(p->e, ps, area);
  engine_unlock(p->e);
  return st;
}

static int by_rank(const void *a, const void *b) {
  return *(const int *)a - *(const int *)b;
}

/* Sort the ranks and check them; write the text. */
static int check_ranks(proposal *p) {
  const int n = p->n, *ranks = p->ranks;
  qsort(p->ranks, (size_t)n, sizeof *p->ranks, by_rank);
  for (int i = 0; i < n; i++) {
    size_t at = strlen(p->text);
    if (ranks[i] < 0 || ranks[i] >= p->e->size)
      return os_fail(LWCC_ERR_INVALID, "process set: rank %d; expected 0 to %d", ranks[i], p->e->size - 1);
    if (i && ranks[i] == ranks[i - 1])
      return os_fail(LWCC_ERR_INVALID, "process set: rank %d is there twice", ranks[i]);
    snprintf(p->text + at, sizeof p->text - at, "%s%d", i ? "," : "", ranks[i]);
  }
  for (pset *ps = engine_set(p->e, 0); ps; ps = ps->next) {
    if (ps->removed || ps->size != n || memcmp(ps->ranks, ranks, (size_t)n * sizeof *ranks) != 0) continue;
    return os_fail(LWCC_ERR_INVALID, "process set: ranks %s are process set %d already", p->text, ps->id);
  }
  return LWCC_OK;
}

/* All ranks learn whether all mean the same ranks, and which number is free everywhere. */
static int agree_on_set(const proposal *p, int64_t *id) {
  int64_t mark = (int64_t)(name_hash(p->text, 0) >> 2), most[3] = {*id, mark, -mark};
  TRY(reduce_numbers("lwcc.set_add", LWCC_MAX, most, 3));
  *id = most[0];
  if (most[1] == mark && most[2] == -mark) return LWCC_OK;
  return os_fail(LWCC_ERR_MISMATCH, "process set: the ranks disagree: rank %d asks for ranks %s, another for others",
                 p->e->rank, p->text);
}

static int add(proposal *p, void *arg) {
  int32_t *set_out = arg;
  char name[NAME_CAP];
  int64_t id = fresh < LWCC_SETS_OWN / 2 ? fresh : 0; /* after so many a free number of this world has to do */
  void *area;
  uint8_t *own;
  TRY(check_ranks(p));
  for (pset *ps = engine_set(p->e, 0); ps; ps = ps->next)
    if (ps->id >= id && ps->id < LWCC_SETS_OWN) id = ps->id + 1;
  TRY(agree_on_set(p, &id));
  TRY(share_area(p, &area, &own));
  TRY(install(p, (int)id, area, own));
  fresh = id + 1;
  snprintf(name, sizeof name, "lwcc.set_ready.%.400s", p->text);
  TRY(reduce_numbers(name, LWCC_MAX, &id, 1)); /* nobody uses the set before everybody has it */
  *set_out = (int32_t)id;
  return LWCC_OK;
}

/* Run work on the sorted ranks, one at a time per rank. */
static int with_proposal(const int32_t *ranks, int32_t n, int (*work)(proposal *p, void *arg), void *arg) {
  engine *e = ctx_engine();
  void *sorted;
  if (!e) return LWCC_ERR_SHUTDOWN;
  if (n < 1 || n > e->size) return os_fail(LWCC_ERR_INVALID, "process set of %d ranks; expected 1 to %d", n, e->size);
  TRY(mem_zeroed((size_t)n, sizeof(int), &sorted));
  memcpy(sorted, ranks, (size_t)n * sizeof *ranks);
  proposal p = {.e = e, .n = n, .ranks = sorted};
  pthread_mutex_lock(&making);
  int st = work(&p, arg);
  pthread_mutex_unlock(&making);
  free(sorted);
  return st;
}

int lwcc_set_add(const int32_t *ranks, int32_t n, int32_t *set_out) {
  return with_proposal(ranks, n, add, set_out);
}

/* ---- by the members alone ---- */

typedef struct {
  char *text;
  size_t cap;
} offer_out;

static int offer(proposal *p, void *arg) {
  const offer_out *out = arg;
  area_handle h = {0};
  TRY(check_ranks(p));
  const size_t size = 2 * shm_area_bytes(p->n);
  uint8_t *own = one_node(p) ? lwcc_alloc(size) : NULL;
  h.ok = own && node_find(p->e->nd, own, size, &h.region, &h.offset);
  if (own && !h.ok) lwcc_free(own);
  int n = snprintf(out->text, out->cap, "%d %" PRIu64 " %" PRIu32 " %" PRIu64, p->e->rank, h.ok, h.region, h.offset);
  return n < (int)out->cap ? LWCC_OK : os_fail(LWCC_ERR_INVALID, "lwcc_set_offer: the text needs %d bytes", n + 1);
}

int lwcc_set_offer(const int32_t *ranks, int32_t n, char *offer_text, size_t cap) {
  offer_out out = {offer_text, cap};
  return with_proposal(ranks, n, offer, &out);
}

typedef struct {
  int32_t set;
  const char *text;
} acceptance;

static void *offered_area(const proposal *p, int rank, const area_handle *h) {
  const node *nd = p->e->nd;
  for (int i = 0; nd && i < node_size(nd); i++)
    if (node_ranks(nd)[i] == rank) return node_map(nd, i, h->region, h->offset, 2 * shm_area_bytes(p->n));
  return NULL;
}

static int accept_offer(proposal *p, void *arg) {
  const acceptance *a = arg;
  area_handle h;
  int rank;
  if (a->set < LWCC_SETS_OWN || a->set > UINT16_MAX || engine_set(p->e, a->set))
    return os_fail(LWCC_ERR_INVALID, "lwcc_set_accept: number %d; expected a new one, %d to %d", a->set, LWCC_SETS_OWN,
                   UINT16_MAX);
  TRY(check_ranks(p));
  if (sscanf(a->text, "%d %" SCNu64 " %" SCNu32 " %" SCNu64, &rank, &h.ok, &h.region, &h.offset) != 4)
    return os_fail(LWCC_ERR_INVALID, "lwcc_set_accept: \"%.60s\" is no text of lwcc_set_offer", a->text);
  void *area = h.ok ? offered_area(p, rank, &h) : NULL;
  if (h.ok && !area)
    return os_fail(LWCC_ERR_SYSTEM, "process set %s: the memory of rank %d is not mapped", p->text, rank);
  return install(p, a->set, area, rank == p->e->rank ? area : NULL);
}

int lwcc_set_accept(int32_t set, const int32_t *ranks, int32_t n, const char *offer_text) {
  acceptance a = {set, offer_text};
  return with_proposal(ranks, n, accept_offer, &a);
}

int lwcc_set_remove(int32_t set) {
  engine *e = ctx_engine();
  if (!e) return LWCC_ERR_SHUTDOWN;
  pset *ps = engine_set(e, set);
  if (set == 0) return os_fail(LWCC_ERR_INVALID, "process set 0 (all ranks) cannot be removed");
  if (!ps || ps->removed) return os_fail(LWCC_ERR_INVALID, "there is no process set %d", set);
  char name[NAME_CAP];
  int64_t id = set;
  snprintf(name, sizeof name, "lwcc.set_remove.%d", set);
  TRY(reduce_numbers(name, LWCC_MAX, &id, 1));
  ps->removed = true;
  return LWCC_OK;
}

int lwcc_set_info(int32_t set, int32_t *rank_out, int32_t *size_out) {
  engine *e = ctx_engine();
  if (!e) return LWCC_ERR_SHUTDOWN;
  pset *ps = engine_set(e, set);
  if (!ps || ps->removed) return os_fail(LWCC_ERR_INVALID, "there is no process set %d", set);
  *rank_out = ps->me;
  *size_out = ps->size;
  return LWCC_OK;
}
