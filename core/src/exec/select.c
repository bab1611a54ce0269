#include "exec/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/env.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/status.h"
#include "plan/defined.h"

int select_cache(exec_team *team, exec_cache **out) {
  if (!team->cache) {
    void *cache, *plans;
    TRY(mem_zeroed((size_t)algo_table_length, sizeof(cached_plan), &plans));
    int st = mem_zeroed(1, sizeof(exec_cache), &cache);
    if (st < 0) {
      free(plans);
      return st;
    }
    team->cache = cache;
    team->cache->plans = plans;
    for (int i = 0; i < algo_table_length; i++) team->cache->plans[i].entry = &algo_table[i];
  }
  *out = team->cache;
  return LWCC_OK;
}

/* The plan of a rank; this rank plays another's part in a broadcast, where the plan's rank 0 is the root. */
static int part(const exec_team *team, cached_plan *c, int rank, const lwcc_plan **out) {
  if (!c->parts) {
    void *memory;
    TRY(mem_zeroed((size_t)team->size, sizeof(lwcc_plan *), &memory));
    c->parts = memory;
  }
  if (!c->parts[rank]) TRY(plan_build_on(c->entry->algo, rank, team->size, team->nodes, &c->parts[rank]));
  *out = c->parts[rank];
  return LWCC_OK;
}

/* Price an algorithm by the plans of all ranks; once per team. */
static int price(const exec_team *team, cached_plan *c) {
  void *memory;
  c->priced = true;
  TRY(mem_zeroed((size_t)team->size, sizeof(lwcc_plan *), &memory));
  lwcc_plan **plans = memory;
  int st = LWCC_OK;
  for (int r = 0; r < team->size && st >= 0; r++)
    st = plan_build_on(c->entry->algo, r, team->size, team->nodes, &plans[r]);
  c->refused = st < 0;
  if (st >= 0) c->cost = plan_cost((const lwcc_plan *const *)plans, team->size, team->nodes);
  for (int r = 0; r < team->size; r++) plan_free(plans[r]);
  free(plans);
  return st == LWCC_ERR_SYSTEM ? st : LWCC_OK;
}

/* What all ranks know alike; the blocks of an alltoall are each rank's own, so they have no say. */
size_t select_payload(const exec_team *team, const coll_args *a) {
  size_t count = a->counts ? 0 : a->count;
  if (a->collective == LWCC_ALLTOALL) return 0;
  for (int i = 0; a->counts && i < team->size; i++) count += a->counts[i];
  if (!a->counts && a->collective != LWCC_ALLREDUCE && a->collective != LWCC_BROADCAST) count *= (size_t)team->size;
  return count * coll_dtype_bytes(a->dtype);
}

static int cheapest(exec_team *team, const coll_args *a, int *index_out) {
  size_t nbytes = select_payload(team, a);
  int size_class = nbytes ? 63 - __builtin_clzll(nbytes) : 0, best = -1;
  double best_s = 0;
  exec_cache *cache = team->cache;
  if (cache->choice[a->collective][size_class].known) {
    *index_out = cache->choice[a->collective][size_class].index;
    return LWCC_OK;
  }
  for (int i = 0; i < algo_table_length; i++) {
    cached_plan *c = &cache->plans[i];
    if (c->entry->algo->collective != a->collective) continue;
    if (!c->priced) TRY(price(team, c));
    if (c->refused) continue;
    double s = plan_seconds(&c->cost, (size_t)1 << size_class, &team->cost);
    LOG(DEBUG, "select: %s %s for 2^%d bytes, %d ranks: %.1f us", collective_name(a->collective), c->entry->name,
        size_class, team->size, s * 1e6);
    if (best < 0 || s < best_s) best = i, best_s = s;
  }
  if (best < 0)
    return os_fail(LWCC_ERR_UNSUPPORTED, "no %s algorithm serves %d ranks", collective_name(a->collective), team->size);
  LOG(DEBUG, "select: %s for %s of 2^%d bytes", cache->plans[best].entry->name, collective_name(a->collective),
      size_class);
  cache->choice[a->collective][size_class].known = true;
  cache->choice[a->collective][size_class].index = best;
  *index_out = best;
  return LWCC_OK;
}

/* "allreduce=recursive_doubling@16384,allreduce=ring": the first name for this collective that serves so many bytes. */
static bool from_list(const char *s, int collective, size_t nbytes, char name_out[64]) {
  const char *want = collective_name(collective);
  while (*s) {
    size_t n = strcspn(s, ","), key = strcspn(s, "=,");
    bool found = key < n && key == strlen(want) && strncmp(s, want, key) == 0;
    const char *name = s + key + 1, *end = s + n, *at = found ? memchr(name, '@', (size_t)(end - name)) : NULL;
    char *digits_end = NULL;
    if (at && strtoull(at + 1, &digits_end, 10) < nbytes && digits_end == end) found = false;
    if (digits_end == end) end = at;
    if (found && memchr(name, ':', (size_t)(end - name)))
      return false; /* a file's: lwcc_use's, for the sets it serves */
    if (found) snprintf(name_out, 64, "%.*s", (int)(end - name), name);
    if (found) return true;
    s += s[n] ? n + 1 : n;
  }
  return false;
}

/* LWCC_ALGORITHM's name for this call, or false. Plugins too are lwcc_use's. */
static bool from_environment(int collective, size_t nbytes, char name_out[64]) {
  return from_list(env_text(ENV_ALGORITHM), collective, nbytes, name_out) && !defined_plugin(collective, name_out);
}

/* By what `lwcc tune` has found, else by the model. */
static int best(exec_team *team, const coll_args *a, int *index_out) {
  char name[64];
  const algo_entry *e = NULL;
  if (from_list(env_text(ENV_TUNED), a->collective, select_payload(team, a), name)) e = algo_find(a->collective, name);
  if (!e || team->size < e->algo->min_ranks || (e->algo->power_of_two && (team->size & (team->size - 1))))
    return cheapest(team, a, index_out);
  *index_out = (int)(e - algo_table);
  return LWCC_OK;
}

int select_plan(exec_team *team, const coll_args *a, const char *forced, const lwcc_plan **plan_out,
                const char **name_out) {
  char wished[64];
  exec_cache *cache;
  int index = -1;
  TRY(select_cache(team, &cache));
  if ((!forced || !forced[0]) && from_environment(a->collective, select_payload(team, a), wished)) forced = wished;
  bool named = forced && forced[0] && strcmp(forced, "shm") != 0;
  *plan_out = NULL;
  *name_out = "shm";
  if (!named && team->shm) return LWCC_OK;
  if (!named && forced && forced[0])
    return os_fail(LWCC_ERR_UNSUPPORTED, "algorithm shm: the %d ranks do not share one node's memory", team->size);
  int turn = a->collective == LWCC_BROADCAST ? a->root : 0, rank = (team->me - turn + team->size) % team->size;
  if (named) {
    const algo_entry *e = algo_find(a->collective, forced);
    const defined_algo *d = e ? NULL : defined_find(a->collective, forced, team->size);
    if (!e && !d) return algo_unknown(a->collective, forced, team->size);
    if (d) {
      *plan_out = d->plans[rank];
      *name_out = d->unique;
      return LWCC_OK;
    }
    index = (int)(e - algo_table);
  } else {
    TRY(best(team, a, &index));
  }
  TRY(part(team, &cache->plans[index], rank, plan_out));
  *name_out = cache->plans[index].entry->name;
  return LWCC_OK;
}
