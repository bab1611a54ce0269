/* The part of lwcc.h that looks at plans; needs no context. */
#include <stdlib.h>

#include "lwcc/lwcc.h"
#include "os/status.h"
#include "plan/codec.h"
#include "plan/defined.h"

/* A built-in algorithm or a plugin's. */
static int find(int32_t collective, const char *name, const lwcc_algo **out) {
  if (collective < 0 || collective >= LWCC_COLLECTIVES)
    return os_fail(LWCC_ERR_INVALID, "no collective has the number %d", collective);
  const algo_entry *e = name ? algo_find(collective, name) : NULL;
  const defined_algo *plugin = name && !e ? defined_plugin(collective, name) : NULL;
  if (!e && !plugin) return algo_unknown(collective, name ? name : "(null)", 0);
  *out = e ? e->algo : plugin->algo;
  return LWCC_OK;
}

static int32_t built_in_count(int32_t collective) {
  int32_t n = 0;
  while (algo_at(collective, n)) n++;
  return n;
}

int32_t lwcc_algorithm_count(int32_t collective) {
  int32_t n = built_in_count(collective);
  for (int i = 0; defined_plugin_at(collective, i); i++) n++;
  return n;
}

const char *lwcc_algorithm_name(int32_t collective, int32_t index) {
  const algo_entry *e = algo_at(collective, index);
  const defined_algo *plugin = e ? NULL : defined_plugin_at(collective, index - built_in_count(collective));
  return e ? e->name : plugin ? plugin->name : NULL;
}

const char *lwcc_algorithm_about(int32_t collective, const char *name) {
  const lwcc_algo *algo = NULL;
  return find(collective, name, &algo) < 0 ? NULL : algo->about;
}

static int verify_all(const lwcc_algo *algo, lwcc_plan **plans, int32_t size) {
  for (int r = 0; r < size; r++) TRY(plan_build(algo, r, size, &plans[r]));
  return plan_verify((const lwcc_plan *const *)plans, size);
}

int lwcc_algorithm_verify(int32_t collective, const char *name, int32_t size) {
  const lwcc_algo *algo = NULL;
  TRY(find(collective, name, &algo));
  if (size < 1 || size > PLAN_VERIFY_MAX_RANKS)
    return os_fail(LWCC_ERR_UNSUPPORTED, "%s %s: %d ranks, the proof serves 1 to %d", collective_name(collective), name,
                   size, PLAN_VERIFY_MAX_RANKS);
  lwcc_plan **plans = calloc((size_t)size, sizeof *plans);
  if (!plans) return os_fail(LWCC_ERR_SYSTEM, "no memory for the plans of %d ranks", size);
  int status = verify_all(algo, plans, size);
  for (int r = 0; r < size; r++) plan_free(plans[r]);
  free(plans);
  return status;
}

static int build(int32_t collective, const char *name, int32_t rank, int32_t size, lwcc_plan **out) {
  const lwcc_algo *algo = NULL;
  TRY(find(collective, name, &algo));
  return plan_build(algo, rank, size, out);
}

int64_t lwcc_algorithm_print(int32_t collective, const char *name, int32_t rank, int32_t size, char *out, size_t cap) {
  lwcc_plan *p;
  TRY(build(collective, name, rank, size, &p));
  int64_t nbytes = plan_print(p, out, cap);
  plan_free(p);
  return nbytes;
}

int64_t lwcc_algorithm_encode(int32_t collective, const char *name, int32_t rank, int32_t size, void *out, size_t cap) {
  lwcc_plan *p;
  TRY(build(collective, name, rank, size, &p));
  size_t nbytes = plan_encode(p, out, cap);
  plan_free(p);
  return (int64_t)nbytes;
}

static int define(const lwcc_definition *d, lwcc_plan **plans, lwcc_defined *out) {
  const defined_algo *made = NULL;
  for (int r = 0; r < d->size; r++) TRY(plan_decode(d->plans[r], d->nbytes[r], &plans[r]));
  TRY(plan_verify((const lwcc_plan *const *)plans, d->size));
  plan_cost_t cost = plan_cost((const lwcc_plan *const *)plans, d->size, NULL);
  *out = (lwcc_defined){.rounds = cost.rounds, .sent = cost.bytes, .reduced = cost.reduced};
  if (!d->name) return LWCC_OK;
  TRY(defined_add(d->name, plans, d->size, &made));
  os_copy_text(out->name, sizeof out->name, made->unique);
  return LWCC_OK;
}

int lwcc_algorithm_define(const lwcc_definition *d, lwcc_defined *out) {
  if (d->size < 1 || d->size > PLAN_VERIFY_MAX_RANKS)
    return os_fail(LWCC_ERR_UNSUPPORTED, "%s: plans of %d ranks, the proof serves 1 to %d", d->name ? d->name : "plans",
                   d->size, PLAN_VERIFY_MAX_RANKS);
  lwcc_plan **plans = calloc((size_t)d->size, sizeof *plans);
  if (!plans) return os_fail(LWCC_ERR_SYSTEM, "no memory for the plans of %d ranks", d->size);
  int st = define(d, plans, out);
  if (st >= 0 && d->name) return LWCC_OK; /* they are the algorithm's now */
  for (int r = 0; r < d->size; r++) plan_free(plans[r]);
  free(plans);
  return st;
}
