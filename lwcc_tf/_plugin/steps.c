#include "_plugin/steps.h"

#include <pthread.h>
#include <stddef.h>

enum { SETS = 1024, REMEMBERED = 64 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
/* all guarded by mu */
static step_entry *first;
static int64_t failures[SETS];     /* by process set; sets that share a place share the count, on every rank alike */
static int64_t failed[REMEMBERED]; /* the latest steps that failed, a ring */
static uint64_t nfailed;
static int32_t under_way, most;

static int64_t *failures_of(int32_t set) {
  return &failures[(uint32_t)set % SETS];
}

static bool has_failed(int64_t step) {
  uint64_t n = nfailed < REMEMBERED ? nfailed : REMEMBERED;
  for (uint64_t i = 0; i < n; i++)
    if (failed[i] == step) return true;
  return false;
}

static void unlink_entry(step_entry *e) {
  if (e->prev) e->prev->next = e->next;
  if (e->next) e->next->prev = e->prev;
  if (first == e) first = e->next;
  e->listed = false;
  under_way--;
}

int64_t steps_enter(step_entry *e) {
  pthread_mutex_lock(&mu);
  int64_t count = has_failed(e->step) ? -1 : *failures_of(e->set);
  if (count >= 0) {
    e->listed = true;
    e->prev = NULL;
    e->next = first;
    if (first) first->prev = e;
    first = e;
    if (++under_way > most) most = under_way;
  }
  pthread_mutex_unlock(&mu);
  return count;
}

bool steps_leave(step_entry *e) {
  pthread_mutex_lock(&mu);
  bool mine = e->listed;
  if (mine) unlink_entry(e);
  pthread_mutex_unlock(&mu);
  return mine;
}

step_entry *steps_fail(const step_entry *e) {
  step_entry *taken = NULL;
  pthread_mutex_lock(&mu);
  ++*failures_of(e->set);
  failed[nfailed++ % REMEMBERED] = e->step;
  for (step_entry *at = first, *next; at; at = next) {
    next = at->next;
    if (at->step != e->step) continue;
    unlink_entry(at);
    atomic_fetch_add_explicit(&at->holders, 1, memory_order_relaxed); /* under the lock: its end still holds it */
    at->next = taken;
    taken = at;
  }
  pthread_mutex_unlock(&mu);
  return taken;
}

int64_t steps_failures(int32_t set) {
  pthread_mutex_lock(&mu);
  int64_t count = *failures_of(set);
  pthread_mutex_unlock(&mu);
  return count;
}

int32_t steps_most(void) {
  pthread_mutex_lock(&mu);
  int32_t n = most;
  most = under_way;
  pthread_mutex_unlock(&mu);
  return n;
}
