/* One list for the process, newest first; entries are pushed whole and never change. */
#include "plan/defined.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/status.h"
#include "plan/codec.h"

static defined_algo *newest; /* release in push: pairs with the acquire in first */

static const defined_algo *first(void) {
  return __atomic_load_n(&newest, __ATOMIC_ACQUIRE);
}

static void push(defined_algo *d) {
  d->older = __atomic_load_n(&newest, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(&newest, &d->older, d, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) continue;
}

const defined_algo *defined_find(int collective, const char *name, int size) {
  for (const defined_algo *d = first(); d; d = d->older)
    if (!d->algo && d->collective == collective && d->size == size &&
        (strcmp(d->name, name) == 0 || strcmp(d->unique, name) == 0))
      return d;
  return NULL;
}

const defined_algo *defined_plugin_at(int collective, int index) {
  for (const defined_algo *d = first(); d; d = d->older)
    if (d->algo && d->collective == collective && index-- == 0) return d;
  return NULL;
}

const defined_algo *defined_plugin(int collective, const char *name) {
  const defined_algo *d;
  for (int i = 0; (d = defined_plugin_at(collective, i)); i++)
    if (strcmp(d->name, name) == 0) return d;
  return NULL;
}

static int make(const char *name, int collective, defined_algo **out) {
  if (!name || !name[0] || strlen(name) >= DEFINED_NAME_CAP || strpbrk(name, "#=,"))
    return os_fail(LWCC_ERR_INVALID, "%s algorithm \"%.60s\": a name has 1 to %d bytes, and no #, = or comma",
                   collective_name(collective), name ? name : "", DEFINED_NAME_CAP - 1);
  defined_algo *d = calloc(1, sizeof *d);
  if (!d) return os_fail(LWCC_ERR_SYSTEM, "no memory for the algorithm \"%s\"", name);
  os_copy_text(d->name, sizeof d->name, name);
  d->collective = collective;
  *out = d;
  return LWCC_OK;
}

/* FNV-1a over the bytes of all plans, folded to 32 bits. */
static int fingerprint(lwcc_plan *const *plans, int size, uint32_t *out) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (int r = 0; r < size; r++) {
    size_t nbytes = plan_encode(plans[r], NULL, 0);
    uint8_t *bytes = malloc(nbytes);
    if (!bytes) return os_fail(LWCC_ERR_SYSTEM, "no memory for %zu bytes of a plan", nbytes);
    plan_encode(plans[r], bytes, nbytes);
    for (size_t i = 0; i < nbytes; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    free(bytes);
  }
  *out = (uint32_t)(hash ^ hash >> 32);
  return LWCC_OK;
}

static void free_plans(lwcc_plan **plans, int size) {
  for (int r = 0; plans && r < size; r++) plan_free(plans[r]);
  free(plans);
}

int defined_add(const char *name, lwcc_plan **plans, int size, const defined_algo **out) {
  defined_algo *d;
  uint32_t mark = 0;
  TRY(fingerprint(plans, size, &mark));
  TRY(make(name, plans[0]->collective, &d));
  snprintf(d->unique, sizeof d->unique, "%s#%08x", name, mark);
  const defined_algo *known = defined_find(d->collective, d->unique, size);
  if (known && known == defined_find(d->collective, name, size)) {
    free(d);
    free_plans(plans, size);
    *out = known;
    return LWCC_OK;
  }
  d->size = size;
  d->plans = plans;
  push(d);
  *out = d;
  return LWCC_OK;
}

int defined_add_plugin(const char *name, const lwcc_algo *algo) {
  defined_algo *d;
  if (!algo || algo->collective < 0 || algo->collective >= LWCC_COLLECTIVES || !algo->build || !algo->about)
    return os_fail(LWCC_ERR_INVALID, "plugin algorithm \"%.60s\": its descriptor lacks a collective, build or about",
                   name ? name : "");
  TRY(make(name, algo->collective, &d));
  if (defined_plugin(algo->collective, name) || algo_find(algo->collective, name) || strcmp(name, "shm") == 0) {
    free(d);
    return os_fail(LWCC_ERR_INVALID, "plugin: %s has an algorithm \"%s\" already; give it another name",
                   collective_name(algo->collective), name);
  }
  d->algo = algo;
  push(d);
  return LWCC_OK;
}

static int define_plugin(const defined_algo *plugin, int size, const defined_algo **out) {
  lwcc_plan **plans = calloc((size_t)size, sizeof *plans);
  if (!plans) return os_fail(LWCC_ERR_SYSTEM, "no memory for the plans of %d ranks", size);
  int st = LWCC_OK;
  for (int r = 0; r < size && st >= 0; r++) st = plan_build(plugin->algo, r, size, &plans[r]);
  if (st >= 0) st = plan_verify((const lwcc_plan *const *)plans, size);
  if (st >= 0) st = defined_add(plugin->name, plans, size, out);
  if (st < 0) free_plans(plans, size);
  return st;
}

int algo_unknown(int collective, const char *name, int size) {
  char known[640] = "shm";
  const algo_entry *e;
  const defined_algo *d = first();
  for (int i = 0; (e = algo_at(collective, i)); i++)
    snprintf(known + strlen(known), sizeof known - strlen(known), ", %s", e->name);
  for (; d; d = d->older)
    if (d->collective == collective && (d->algo || d->size == size))
      snprintf(known + strlen(known), sizeof known - strlen(known), ", %s", d->algo ? d->name : d->unique);
  return os_fail(LWCC_ERR_INVALID, "no %s algorithm \"%.80s\" for %d ranks; known: %s", collective_name(collective),
                 name, size, known);
}

int algo_resolve(int collective, const char *name, int size, const char **out) {
  const algo_entry *e = algo_find(collective, name);
  const defined_algo *d = e ? NULL : defined_find(collective, name, size), *plugin;
  if (strcmp(name, "shm") == 0 || e) {
    *out = e ? e->name : "shm";
    return LWCC_OK;
  }
  if (!d && (plugin = defined_plugin(collective, name))) TRY(define_plugin(plugin, size, &d));
  if (!d) return algo_unknown(collective, name, size);
  *out = d->unique;
  return LWCC_OK;
}
