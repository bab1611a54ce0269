#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coord/engine.h"
#include "os/clock.h"
#include "os/cpu.h"
#include "os/log.h"
#include "os/status.h"

enum { YIELDS = 20, LOOK_EVERY = 64 }; /* yields before a wait for a named request sleeps; turns between looks */
#define SHUTDOWN_NS UINT64_C(1000000000)
#define NAP_NS INT64_C(500000)

bool engine_turn(engine *e) {
  bool any = order_drain(e);
  any |= channel_progress(e->ch) > 0;
  for (pset *ps = atomic_load_explicit(&e->sets, memory_order_acquire); ps; ps = ps->next) {
    if (ps->me < 0) continue;
    any |= order_coordinate(e, ps);
    any |= lane_turn(e, ps);
    any |= raw_turn(e, ps);
  }
  return any;
}

/* ---- stalls ---- */

static uint64_t sooner(uint64_t a, uint64_t b) { /* 0: never */
  return !a || (b && b < a) ? b : a;
}

/* Look at what is pending too long; sets when to look next. */
static void look_for_stalls(engine *e) {
  uint64_t now = clock_ns(), next = 0;
  bool busy = e->running || atomic_load_explicit(&e->q.outstanding, memory_order_relaxed);
  if (now >= e->count_at_ns) {
    for (pset *ps = atomic_load_explicit(&e->sets, memory_order_acquire); ps; ps = ps->next)
      next = sooner(next, ps->co ? coordinator_stall(ps->co) : 0);
    e->count_at_ns = next;
  }
  if (busy && e->watch_at_ns && now >= e->watch_at_ns) engine_watch(e);
  if (!busy || now >= e->watch_at_ns) e->watch_at_ns = busy ? now + LOOK_NS : 0;
  e->stall_at_ns = sooner(sooner(e->count_at_ns, e->watch_at_ns), e->left_ns && e->running ? now + SHUTDOWN_NS : 0);
}

/* ---- sleeping ---- */

static void each_shm(engine *e, bool asleep) {
  for (pset *ps = atomic_load_explicit(&e->sets, memory_order_acquire); ps; ps = ps->next)
    if (ps->named_shm && ps->op) shm_set_asleep(ps->named_shm, asleep);
}

static void arm(engine *e) {
  e->armed = true;
  channel_prepare_sleep(e->ch);
  each_shm(e, true);
}

static void disarm(engine *e) {
  if (!e->armed) return;
  e->armed = false;
  channel_woken(e->ch);
  each_shm(e, false);
}

void engine_lock(engine *e) {
  if (pthread_mutex_trylock(&e->lock) != 0) {
    atomic_fetch_add_explicit(&e->wanted, 1, memory_order_relaxed);
    pthread_mutex_lock(&e->lock);
    atomic_fetch_sub_explicit(&e->wanted, 1, memory_order_relaxed);
  }
  disarm(e);
}

/* Leave the driving: the peers must ring again, and the background thread takes over what is left. */
void engine_unlock(engine *e) {
  e->driven++;
  if (!e->napping && e->size > 1) arm(e); /* nobody rings for a rank that is alone */
  bool more = (!e->napping && engine_turn(e)) || atomic_load_explicit(&e->q.outstanding, memory_order_relaxed) ||
              e->running || !channel_idle(e->ch);
  pthread_mutex_unlock(&e->lock);
  if (more && e->started) channel_wake(e->ch);
}

void engine_kick(engine *e) {
  if (atomic_load(&e->sleeping)) channel_wake(e->ch);
}

/* Until somebody rings; or, while callers drive one call after another, for a nap: a ring for each of their messages,
 * and this thread's getting up for it, would cost more than the call. */
static void sleep_until_work(engine *e) {
  e->napping = e->driven != e->seen;
  e->seen = e->driven;
  if (e->napping)
    disarm(e);
  else
    arm(e);
  atomic_store(&e->sleeping, true);
  look_for_stalls(e); /* before the turn, which sends what it decides */
  bool more = engine_turn(e) || atomic_load(&e->stop);
  uint64_t now = e->stall_at_ns ? clock_ns() : 0;
  int64_t limit = !e->stall_at_ns ? -1 : e->stall_at_ns > now ? (int64_t)(e->stall_at_ns - now) : 0;
  if (e->napping && (limit < 0 || limit > NAP_NS)) limit = NAP_NS;
  pthread_mutex_unlock(&e->lock);
  if (!more) channel_wait(e->ch, limit, true);
  /* not in line for it: who drives one call after another would have to wake us after each */
  while (pthread_mutex_trylock(&e->lock) != 0) channel_wait(e->ch, NAP_NS, false);
  atomic_store(&e->sleeping, false);
  e->napping = false;
  disarm(e);
}

static void *background(void *arg) {
  engine *e = arg;
  int64_t idle = 0;
  log_set_rank(e->rank);
  pthread_mutex_lock(&e->lock);
  while (!atomic_load(&e->stop)) {
    if (engine_turn(e)) {
      idle = 0;
      if (++e->turns % LOOK_EVERY == 0) look_for_stalls(e);
      continue;
    }
    if (e->running && !e->guest &&
        (idle++ < YIELDS || e->polled)) { /* a collective is under way: the peers are at work too */
      if (idle % LOOK_EVERY == 0) look_for_stalls(e);
      pthread_mutex_unlock(&e->lock);
      sched_yield();
      pthread_mutex_lock(&e->lock);
      disarm(e);
      continue;
    }
    idle = 0;
    sleep_until_work(e);
  }
  pthread_mutex_unlock(&e->lock);
  return NULL;
}

/* ---- waiting ---- */

static bool expired(uint64_t deadline_ns) {
  return deadline_ns && clock_ns() >= deadline_ns;
}

/* Turn until r is done (true), or waiting any longer should sleep (false): the background thread drives then, or who
 * wants the lock to begin something else. */
static bool drive(engine *e, request *r, uint64_t deadline_ns, int yields) {
  int64_t idle = 0;
  while (request_status(r) == LWCC_PENDING) {
    if (engine_turn(e)) {
      idle = 0;
      continue;
    }
    if (e->guest && e->running) return false;
    if (idle++ < e->spins)
      cpu_pause();
    else if (idle < e->spins + yields || (e->polled && e->running))
      sched_yield();
    else
      return false;
    if (atomic_load_explicit(&e->wanted, memory_order_relaxed)) return false;
    if (idle % LOOK_EVERY == 0 && expired(deadline_ns)) return false;
  }
  return true;
}

static int drive_or_sleep(engine *e, request *r, uint64_t deadline_ns, int yields) {
  bool done = drive(e, r, deadline_ns, yields);
  engine_unlock(e);
  if (!done) request_sleep(r, deadline_ns);
  return request_status(r);
}

int engine_wait(engine *e, request *r, uint64_t deadline_ns) {
  if (request_status(r) != LWCC_PENDING) return request_status(r);
  uint64_t began = clock_ns();
  if (pthread_mutex_trylock(&e->lock) == 0) {
    disarm(e);
    drive_or_sleep(e, r, deadline_ns, YIELDS);
  } else {
    engine_kick(e); /* who holds the lock may have looked for work before r came, and be on its way to sleep */
    request_sleep(r, deadline_ns);
  }
  atomic_fetch_add_explicit(&e->waited_ns, clock_ns() - began, memory_order_relaxed);
  return request_status(r);
}

int engine_wait_locked(engine *e, request *r, int yields) {
  return drive_or_sleep(e, r, 0, yields);
}

/* ---- failure ---- */

int engine_failed(const engine *e) {
  return atomic_load_explicit(&e->failed, memory_order_acquire);
}

void engine_fail(engine *e, int status, const char *text) {
  if (engine_failed(e)) return;
  os_copy_text(e->failed_text, sizeof e->failed_text, text);
  atomic_store_explicit(&e->failed, status, memory_order_release);
  queue_close(&e->q, status, text);
  if (!e->leaving) LOG(DEBUG, "the job has failed: %s", text);
  for (pset *ps = atomic_load_explicit(&e->sets, memory_order_acquire); ps; ps = ps->next) {
    lane_abandon(e, ps);
    raw_abandon(e, ps, status, text);
    ps->out.n = 0;
    for (size_t i = 0; ps->by_name.slots && i <= ps->by_name.mask; i++)
      for (name_node *n = ps->by_name.slots[i]; n; n = n->next) OWNER(cached, by_name, n)->pending = NULL;
    if (ps->co) coordinator_reset(ps->co);
    if (ps->raw_shm) shm_interrupt(ps->raw_shm);
  }
  e->stats.failed += queue_fail_all(&e->q, -1, false, status, text);
}

/* ---- life ---- */

int engine_start(engine *e) {
  TRY(thread_create(&e->thread, "lwcc", background, e));
  e->started = true;
  return LWCC_OK;
}

static void say_bye(engine *e) {
  uint64_t until = clock_ns() + SHUTDOWN_NS;
  order_bye(e);
  while (!channel_idle(e->ch) && clock_ns() < until)
    if (!channel_progress(e->ch)) sched_yield();
}

void engine_shutdown(engine *e) {
  pthread_mutex_lock(&e->lock);
  disarm(e);
  e->leaving = true;
  engine_fail(e, LWCC_ERR_SHUTDOWN, "lwcc has been shut down on this rank");
  say_bye(e);
  atomic_store(&e->stop, true);
  pthread_mutex_unlock(&e->lock);
  if (!e->started) return;
  channel_wake(e->ch);
  thread_join(e->thread);
  e->started = false;
}
