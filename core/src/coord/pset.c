#include "coord/pset.h"

#include <stdlib.h>
#include <string.h>

#include "coord/negotiate.h"
#include "exec/mpi.h"
#include "os/mem.h"
#include "os/status.h"

int pset_create(int id, const int *ranks, int n, int my_rank, pset **out) {
  void *memory;
  TRY(mem_zeroed(1, sizeof(pset), &memory));
  pset *ps = memory;
  ps->id = id;
  ps->size = n;
  ps->me = -1;
  atomic_init(&ps->left, -1);
  ps->lane_tail = &ps->lane;
  ps->ranks = calloc((size_t)n, sizeof *ps->ranks);
  ps->counts = calloc(2 * (size_t)n, sizeof *ps->counts);
  if (!ps->ranks || !ps->counts) {
    pset_free(ps);
    return os_fail(LWCC_ERR_SYSTEM, "no memory for a process set of %d ranks", n);
  }
  for (int i = 0; i < n; i++) {
    ps->ranks[i] = ranks[i];
    if (ranks[i] == my_rank) ps->me = i;
  }
  if (ps->me == 0) {
    int st = coordinator_create(ps, &ps->co);
    if (st < 0) {
      pset_free(ps);
      return st;
    }
  }
  *out = ps;
  return LWCC_OK;
}

static void free_cached(name_node *node, void *arg) {
  cached *c = OWNER(cached, by_id, node);
  (void)arg;
  c->dropped = true;
  if (c->users) return;
  signature_free(&c->sig);
  free(c->values);
  free(c);
}

void pset_free(pset *ps) {
  free(ps->nodes);
  names_each(&ps->by_id, free_cached, NULL);
  names_free(&ps->by_name);
  names_free(&ps->by_id);
  bytes_free(&ps->out);
  coordinator_free(ps->co);
  if (ps->named_shm) shm_team_close(ps->named_shm);
  if (ps->raw_shm) shm_team_close(ps->raw_shm);
  mpi_team_close(&ps->named);
  mpi_team_close(&ps->raw);
  exec_team_close(&ps->named);
  exec_team_close(&ps->raw);
  free(ps->ranks);
  free(ps->counts);
  free(ps);
}

int pset_index(const pset *ps, int rank) {
  for (int i = 0; i < ps->size; i++)
    if (ps->ranks[i] == rank) return i;
  return -1;
}

cached *cached_by_name(const pset *ps, int collective, const char *name) {
  for (name_node *n = names_first(&ps->by_name, name_hash(name, (uint64_t)collective)); n; n = names_next(n)) {
    cached *c = OWNER(cached, by_name, n);
    if (c->sig.collective == collective && strcmp(c->name, name) == 0) return c;
  }
  return NULL;
}

cached *cached_by_id(const pset *ps, uint32_t id) {
  for (name_node *n = names_first(&ps->by_id, id_hash(id)); n; n = names_next(n)) {
    cached *c = OWNER(cached, by_id, n);
    if (c->id == id) return c;
  }
  return NULL;
}

void cached_drop(pset *ps, cached *c) {
  names_remove(&ps->by_name, &c->by_name);
  names_remove(&ps->by_id, &c->by_id);
  free_cached(&c->by_id, NULL);
}

void cached_unuse(cached *c) {
  c->users--;
  if (c->dropped) free_cached(&c->by_id, NULL);
}

int cached_store(pset *ps, const answer *a, cached **out) {
  int collective = a->sig->collective;
  cached *old = cached_by_name(ps, collective, a->name);
  if (old) cached_drop(ps, old);
  size_t n = strlen(a->name) + 1;
  void *memory = NULL;
  int st = mem_zeroed(1, sizeof(cached) + n, &memory);
  cached *c = memory;
  if (st >= 0) st = signature_copy(&c->sig, a->sig);
  if (st >= 0) st = names_add(&ps->by_id, &c->by_id, id_hash(a->id));
  if (st < 0) {
    if (c) signature_free(&c->sig);
    free(memory);
    free(a->values);
    return st;
  }
  memcpy(c->name, a->name, n);
  c->id = a->id;
  c->values = a->values;
  c->absent = a->absent;
  c->contributors = a->contributors;
  if (!c->absent) st = names_add(&ps->by_name, &c->by_name, name_hash(a->name, (uint64_t)collective));
  if (st < 0) {
    cached_drop(ps, c);
    return st;
  }
  *out = c;
  return LWCC_OK;
}
