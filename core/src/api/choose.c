/* Algorithms by choice: what a set uses, plugins, and the facts that an algorithm may ask for. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "api/ctx.h"
#include "lwcc/plan.h"
#include "os/status.h"
#include "plan/defined.h"

/* Everybody's choice, in rank order, or an error on every rank. */
static int compare(const pset *ps, int collective, const char (*names)[ALGORITHM_CAP]) {
  for (int i = 1; i < ps->size; i++)
    if (strncmp(names[i], names[0], ALGORITHM_CAP) != 0)
      return os_fail(LWCC_ERR_MISMATCH, "the ranks disagree about the %s algorithm: rank %d: %.63s; rank %d: %.63s",
                     collective_name(collective), ps->ranks[i], names[i], ps->ranks[0], names[0]);
  return LWCC_OK;
}

static int agree(const pset *ps, int collective, const char *choice) {
  static const char *const names[] = {"lwcc.use.allreduce",     "lwcc.use.broadcast", "lwcc.use.allgather",
                                      "lwcc.use.reducescatter", "lwcc.use.alltoall",  "lwcc.use.barrier"};
  char mine[ALGORITHM_CAP] = "";
  int64_t shape[] = {1, ALGORITHM_CAP};
  lwcc_request r = {.name = names[collective],
                    .collective = LWCC_ALLGATHER,
                    .dtype = LWCC_UINT8,
                    .process_set = ps->id,
                    .ndim = 2,
                    .shape = shape,
                    .input = mine,
                    .prescale = 1.0,
                    .postscale = 1.0};
  lwcc_ticket t;
  lwcc_result result;
  os_copy_text(mine, sizeof mine, choice ? choice : "none");
  int st = lwcc_run(&r, 1, -1.0, &t);
  if (st >= 0) st = lwcc_get_result(t, &result);
  if (st >= 0) st = compare(ps, collective, result.output);
  lwcc_release(t);
  return st;
}

int lwcc_use(int32_t set, int32_t collective, const char *name) {
  pset *ps;
  if (!ctx_member(set, &ps)) return lwcc_initialized() ? LWCC_ERR_INVALID : LWCC_ERR_SHUTDOWN;
  if (collective < 0 || collective >= LWCC_COLLECTIVES)
    return os_fail(LWCC_ERR_INVALID, "lwcc_use: no collective has the number %d", collective);
  const char *choice = NULL;
  if (ps->size == 1) return LWCC_OK;
  if (name && name[0]) TRY(algo_resolve(collective, name, ps->size, &choice));
  TRY(agree(ps, collective, choice));
  ps->chosen[collective] = choice;
  return LWCC_OK;
}

int lwcc_get_place(int32_t rank, int32_t *node_out, int32_t *local_rank_out) {
  engine *e = ctx_engine();
  if (!e) return LWCC_ERR_SHUTDOWN;
  if (rank < 0 || rank >= e->size)
    return os_fail(LWCC_ERR_INVALID, "lwcc_get_place: rank %d; expected 0 to %d", rank, e->size - 1);
  *node_out = e->ids[rank].node;
  *local_rank_out = e->ids[rank].local_rank;
  return LWCC_OK;
}

/* A plugin takes the verbs from us, but a module of Python is loaded so that nobody sees its symbols: load it again,
 * for everybody to see. */
static void show_verbs(void) {
  Dl_info here;
  if (dladdr((const void *)(uintptr_t)&lwcc_plan_send, &here) && here.dli_fname)
    dlopen(here.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

int lwcc_plugin_load(const char *path) {
  show_verbs();
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return os_fail(LWCC_ERR_INVALID, "plugin: %s", dlerror());
  const lwcc_plugin_entry *entry = dlsym(handle, LWCC_PLUGIN_SYMBOL_NAME);
  int st = LWCC_OK;
  if (!entry)
    st = os_fail(LWCC_ERR_INVALID,
                 "plugin %s: it has no symbol %s; build it with `lwcc plugin build`, or again for "
                 "this version of lwcc",
                 path, LWCC_PLUGIN_SYMBOL_NAME);
  for (; st >= 0 && entry->name; entry++) st = defined_add_plugin(entry->name, entry->algo);
  return st; /* what was taken stays, so the object does too */
}
