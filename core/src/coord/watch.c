/* What the coordinator cannot see or say: a collective that has begun and does not move, and a coordinator that is
 * silent. Both mean a process that neither runs nor is dead: stopped, or its host hangs. Time is counted in looks, so
 * that what is stopped itself counts nothing. */
#include <stdio.h>
#include <string.h>

#include "coord/engine.h"
#include "os/log.h"
#include "os/status.h"

#define SECONDS_PER_LOOK 0.5
enum { GRACE_S = 2 }; /* how much longer than the coordinator's own limit one waits for its word */

/* Is it time to warn, now and never again? To give up? */
static bool passes(double age_s, double limit_s) {
  return limit_s > 0 && age_s >= limit_s && age_s - SECONDS_PER_LOOK < limit_s;
}

static void say_stuck(engine *e, const pset *ps) {
  char text[TEXT_CAP], what[384];
  double age_s = ps->op_looks * SECONDS_PER_LOOK, warn_s = (double)e->limits.warn_ns * 1e-9;
  double abort_s = (double)e->limits.abort_ns * 1e-9;
  const request *r = ps->lane->members[0].r;
  if (!passes(age_s, warn_s) && !passes(age_s, abort_s)) return;
  signature_print(&r->sig, what, sizeof what);
  snprintf(text, sizeof text,
           "\"%s\" (%s) runs, but has not moved for %.1f s: a rank of it is stopped, or its host hangs", r->name, what,
           age_s);
  if (passes(age_s, abort_s))
    engine_fail(e, LWCC_ERR_TIMEOUT, strcat(text, "; given up (LWCC_STALL_ABORT)"));
  else
    LOG(WARN, "stalled: %s", text);
}

static void say_silent(engine *e, const pset *ps, uint32_t looks, const char *name) {
  char text[TEXT_CAP];
  double age_s = looks * SECONDS_PER_LOOK, warn_s = (double)e->limits.warn_ns * 1e-9;
  double abort_s = (double)e->limits.abort_ns * 1e-9;
  if (warn_s > 0) warn_s += GRACE_S;
  if (abort_s > 0) abort_s += GRACE_S + abort_s / 2;
  if (!passes(age_s, warn_s) && !passes(age_s, abort_s)) return;
  snprintf(
      text, sizeof text,
      "\"%s\" waits for the word of rank %d, which coordinates, for %.1f s: it is stopped or busy, or lacks a rank",
      name, ps->ranks[0], age_s);
  if (passes(age_s, abort_s))
    engine_fail(e, LWCC_ERR_TIMEOUT, strcat(text, "; given up (LWCC_STALL_ABORT)"));
  else
    LOG(INFO, "stalled: %s", text);
}

void engine_watch(engine *e) {
  char name[NAME_CAP];
  for (pset *ps = atomic_load_explicit(&e->sets, memory_order_acquire); ps && !engine_failed(e); ps = ps->next) {
    ps->op_looks = ps->op && !ps->op_moved ? ps->op_looks + 1 : 0;
    ps->op_moved = false;
    if (ps->op_looks) say_stuck(e, ps);
    if (ps->me <= 0 || engine_failed(e)) continue; /* the coordinator counts for itself */
    uint32_t looks = queue_look(&e->q, ps->id, name);
    if (looks) say_silent(e, ps, looks, name);
  }
}
