#include "exec/shm_area.h"

#include <stdlib.h>
#include <unistd.h>

#include "os/env.h"
#include "os/futex.h"
#include "os/status.h"

static size_t head_bytes(int p) {
  size_t n = sizeof(shm_head) + (size_t)p * sizeof(shm_rank);
  return (n + 4095) & ~(size_t)4095;
}

size_t shm_area_bytes(int p) {
  return head_bytes(p) + (size_t)p * (SHM_SLOTS * SHM_SLOT_BYTES + SHM_PLACE_BYTES);
}

static int alloc_tables(shm_team *t) {
  size_t p = (size_t)t->p;
  t->src = calloc(p, sizeof *t->src);
  t->dst = calloc(p, sizeof *t->dst);
  t->reg_in = calloc(p, sizeof *t->reg_in);
  t->reg_out = calloc(p, sizeof *t->reg_out);
  if (t->src && t->dst && t->reg_in && t->reg_out) return LWCC_OK;
  return os_fail(LWCC_ERR_SYSTEM, "shm: no memory for a team of %d ranks", t->p);
}

enum { SPIN_PAUSES = 4000, PAUSES_PER_US = 20 }; /* a pause takes 20 to 60 ns */

static uint32_t spin_pauses(bool crowded) {
  int64_t us = env_int(ENV_SPIN);
  if (us < 0) return crowded ? 0 : SPIN_PAUSES;
  return (uint32_t)(us < UINT32_MAX / 2 / PAUSES_PER_US ? us * PAUSES_PER_US : UINT32_MAX / 2);
}

static size_t cache_bytes(void) {
  size_t most = (size_t)32 << 20; /* a larger one is shared with others */
  long n = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return n > 0 && (size_t)n < most ? (size_t)n : most;
}

int shm_team_open(void *area, int p, int me, int cores, const shm_reach *reach, shm_team **out) {
  shm_team *t = aligned_alloc(SHM_LINE, (sizeof *t + SHM_LINE - 1) / SHM_LINE * SHM_LINE);
  if (!t) return os_fail(LWCC_ERR_SYSTEM, "shm: no memory for a team of %d ranks", p);
  *t = (shm_team){.head = area, .memory = (char *)area + head_bytes(p), .p = p, .me = me, .crowded = cores < p};
  if (reach) t->reach = *reach;
  t->spin = spin_pauses(t->crowded);
  t->nontemporal_bytes = cache_bytes();
  t->c.team = t;
  int st = alloc_tables(t);
  if (st < 0) {
    shm_team_close(t);
    return st;
  }
  *out = t;
  return LWCC_OK;
}

void shm_team_close(shm_team *t) {
  if (!t) return;
  free(t->src);
  free(t->dst);
  free(t->reg_in);
  free(t->reg_out);
  free(t->aside);
  free(t);
}

void shm_wake(shm_team *t) {
  atomic_fetch_add_explicit(&t->head->bell.v, 1, memory_order_seq_cst);
  futex_wake(&t->head->bell.v);
  if (!t->reach.ring) return;
  for (int r = 0; r < t->p; r++)
    if (r != t->me && shm_get(&t->head->rank[r].asleep)) t->reach.ring(t->reach.arg, r);
}

void shm_interrupt(shm_team *t) {
  atomic_fetch_add_explicit(&t->head->bell.v, 1, memory_order_seq_cst);
  futex_wake(&t->head->bell.v);
}

void shm_set_asleep(shm_team *t, bool asleep) {
  shm_word *mine = &t->head->rank[t->me].asleep;
  /* seq_cst: pairs with the look at sleepers after a post (shm_ring), then at asleep (shm_wake) */
  if (atomic_exchange_explicit(&mine->v, asleep, memory_order_seq_cst) == (uint32_t)asleep) return;
  atomic_fetch_add_explicit(&t->head->sleepers.v, asleep ? 1u : ~0u, memory_order_seq_cst);
}

int shm_not_mapped(const shm_team *t, int r, uint32_t region) {
  return os_fail(LWCC_ERR_PROTOCOL, "shm: index %d names registered memory (region %u) that index %d has not mapped", r,
                 region, t->me);
}
