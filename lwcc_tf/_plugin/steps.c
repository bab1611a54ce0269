#include "_plugin/steps.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { SETS = 1024, REMEMBERED = 64 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
/* all guarded by mu */
static step_entry *first;
static int64_t failures[SETS]; /* by process set; sets that share a place share the count, on every rank alike */
static struct {
  int64_t step;
  char text[STEPS_TEXT];
} failed[REMEMBERED]; /* the latest steps that failed, a ring */
static uint64_t nfailed;
static int32_t under_way, most;

static int64_t *failures_of(int32_t set) {
  return &failures[(uint32_t)set % SETS];
}

/* The text of a step that has failed, or NULL. */
static const char *failure_of(int64_t step) {
  uint64_t n = nfailed < REMEMBERED ? nfailed : REMEMBERED;
  for (uint64_t i = 0; i < n; i++)
    if (failed[i].step == step) return failed[i].text;
  return NULL;
}

static void unlink_entry(step_entry *e) {
  if (e->prev) e->prev->next = e->next;
  if (e->next) e->next->prev = e->prev;
  if (first == e) first = e->next;
  e->listed = false;
  under_way--;
}

int64_t steps_enter(step_entry *e, char *why) {
  pthread_mutex_lock(&mu);
  const char *text = failure_of(e->step);
  int64_t count = text ? -1 : *failures_of(e->set);
  if (text) {
    memcpy(why, text, STEPS_TEXT);
  } else {
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

step_entry *steps_fail(const step_entry *e, const char *text) {
  step_entry *taken = NULL;
  pthread_mutex_lock(&mu);
  ++*failures_of(e->set);
  failed[nfailed % REMEMBERED].step = e->step;
  memcpy(failed[nfailed++ % REMEMBERED].text, text, STEPS_TEXT);
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
