/* Algorithms that come while the process runs: descriptors of plugins, and plans of a caller, proved when they come.
 * All functions: any thread. Nothing is ever taken out, so that names and plans stay good until the process ends. */
#ifndef PLAN_DEFINED_H
#define PLAN_DEFINED_H
#include "plan/ir.h"

enum { DEFINED_NAME_CAP = 48, DEFINED_UNIQUE_CAP = 64 };

typedef struct defined_algo {
  struct defined_algo *older;
  int collective;
  const lwcc_algo *algo; /* of a plugin, borrowed for good; NULL: plans of exactly size ranks */
  int size;
  lwcc_plan **plans;               /* [size] */
  char unique[DEFINED_UNIQUE_CAP]; /* "mine#5f3e21bb": with a fingerprint of all plans, so that ranks with other plans
                                      under the same name disagree where they negotiate */
  char name[DEFINED_NAME_CAP];
} defined_algo;

/* Keep plans[size], which are proved, under a name. plans: given on success; the same plans again give the old entry
 * (and are freed). LWCC_ERR_INVALID: the name. */
int defined_add(const char *name, lwcc_plan **plans, int size, const defined_algo **out);
/* Make a plugin's algorithm known. LWCC_ERR_INVALID: a senseless descriptor, or the name is taken. */
int defined_add_plugin(const char *name, const lwcc_algo *algo);
/* The plans for `size` ranks under that name (the latest) or unique name; NULL: none. */
const defined_algo *defined_find(int collective, const char *name, int size);
const defined_algo *defined_plugin(int collective, const char *name); /* NULL: none */
const defined_algo *defined_plugin_at(int collective, int index);     /* NULL past the end; the latest first */

/* What runs under this name for so many ranks: "shm", a built-in name, or a unique name of defined plans; a plugin's
 * are built and proved when they are first wanted. *out lives on. LWCC_ERR_INVALID lists the known names. */
int algo_resolve(int collective, const char *name, int size, const char **out);
int algo_unknown(int collective, const char *name, int size); /* LWCC_ERR_INVALID with the known names */
#endif
