/* Waiting for the other ranks. With a core for each rank: spin long, because ending a sleep costs the partner tens of
 * microseconds. With more ranks than cores: yield at once, since whoever is awaited needs this core. In the end sleep
 * on the area's bell; a poster that sees sleepers rings it. */
#include <sched.h>

#include "exec/shm_area.h"
#include "os/cpu.h"
#include "os/futex.h"
#include "os/status.h"

enum { PATIENCE = 16, YIELDS = 20, POLL_ROUNDS = 1024, SLEEP_NS = 50 * 1000 * 1000 };

typedef struct {
  shm_team *team;
  uint32_t round; /* idle rounds since something moved */
  bool counted;   /* in sleepers */
  int (*aborted)(void *arg);
  void *arg;
} waiter;

/* One idle round; bell: read before the look that found nothing to do. */
static int idle(waiter *w, uint32_t bell) {
  uint32_t k = w->round++, spin = w->team->spin;
  if (k >= PATIENCE || k >= spin) shm_settle(w->team);
  if (k < spin) {
    cpu_pause();
  } else if (k < spin + YIELDS) {
    sched_yield();
  } else if (!w->counted) { /* the caller looks once more before it sleeps */
    /* seq_cst: pairs with the look at sleepers in shm_ring */
    atomic_fetch_add_explicit(&w->team->head->sleepers.v, 1, memory_order_seq_cst);
    w->counted = true;
    return LWCC_OK;
  } else {
    futex_wait(&w->team->head->bell.v, bell, SLEEP_NS);
    return w->aborted ? w->aborted(w->arg) : LWCC_OK;
  }
  return w->aborted && k % POLL_ROUNDS == POLL_ROUNDS - 1 ? w->aborted(w->arg) : LWCC_OK;
}

static void moved(waiter *w) {
  w->round = 0;
  if (!w->counted) return;
  atomic_fetch_sub_explicit(&w->team->head->sleepers.v, 1, memory_order_seq_cst);
  w->counted = false;
}

int shm_run(shm_team *t, const coll_args *a, int (*aborted)(void *arg), void *arg) {
  waiter w = {.team = t, .aborted = aborted, .arg = arg};
  if (t->poison)
    return os_fail(t->poison, "shm: index %d: an earlier collective of this team failed; it takes no more", t->me);
  shm_call *c = shm_start(t, a);
  int st;
  for (;;) {
    uint32_t bell = shm_get(&t->head->bell);
    st = shm_advance(c);
    if (st == SHM_IDLE) {
      st = idle(&w, bell);
      if (st != LWCC_OK) break;
      continue;
    }
    if (st != SHM_MOVED) break;
    moved(&w);
  }
  moved(&w);
  if (st == SHM_DONE) return LWCC_OK;
  return t->poison = st;
}
