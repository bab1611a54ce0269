/* The part of lwcc.h that looks at plans; needs no context. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lwcc/lwcc.h"
#include "os/status.h"
#include "plan/ir.h"

static int find(int32_t collective, const char *name, const algo_entry **out) {
  if (collective < 0 || collective >= LWCC_COLLECTIVES)
    return os_fail(LWCC_ERR_INVALID, "no collective has the number %d", collective);
  const algo_entry *e = name ? algo_find(collective, name) : NULL;
  if (e) {
    *out = e;
    return LWCC_OK;
  }
  char known[400] = "";
  for (int i = 0; (e = algo_at(collective, i)); i++) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", e->name);
  }
  return os_fail(LWCC_ERR_INVALID, "%s has no algorithm \"%s\"; known: %s", collective_name(collective),
                 name ? name : "(null)", known);
}

int32_t lwcc_algorithm_count(int32_t collective) {
  int32_t n = 0;
  while (algo_at(collective, n)) n++;
  return n;
}

const char *lwcc_algorithm_name(int32_t collective, int32_t index) {
  const algo_entry *e = algo_at(collective, index);
  return e ? e->name : NULL;
}

const char *lwcc_algorithm_about(int32_t collective, const char *name) {
  const algo_entry *e = NULL;
  return find(collective, name, &e) < 0 ? NULL : e->algo->about;
}

static int verify_all(const lwcc_algo *algo, lwcc_plan **plans, int32_t size) {
  for (int r = 0; r < size; r++) TRY(plan_build(algo, r, size, &plans[r]));
  return plan_verify((const lwcc_plan *const *)plans, size);
}

int lwcc_algorithm_verify(int32_t collective, const char *name, int32_t size) {
  const algo_entry *e = NULL;
  TRY(find(collective, name, &e));
  if (size < 1 || size > PLAN_VERIFY_MAX_RANKS)
    return os_fail(LWCC_ERR_UNSUPPORTED, "%s %s: %d ranks, the proof serves 1 to %d", collective_name(collective), name,
                   size, PLAN_VERIFY_MAX_RANKS);
  lwcc_plan **plans = calloc((size_t)size, sizeof *plans);
  if (!plans) return os_fail(LWCC_ERR_SYSTEM, "no memory for the plans of %d ranks", size);
  int status = verify_all(e->algo, plans, size);
  for (int r = 0; r < size; r++) plan_free(plans[r]);
  free(plans);
  return status;
}

int64_t lwcc_algorithm_print(int32_t collective, const char *name, int32_t rank, int32_t size, char *out, size_t cap) {
  const algo_entry *e = NULL;
  lwcc_plan *p;
  TRY(find(collective, name, &e));
  TRY(plan_build(e->algo, rank, size, &p));
  int64_t nbytes = plan_print(p, out, cap);
  plan_free(p);
  return nbytes;
}
