/* Who is missing, and since when. */
#include <stdio.h>
#include <string.h>

#include "coord/tally.h"
#include "os/clock.h"
#include "os/log.h"
#include "os/status.h"

enum { REPORTS = 5 };                 /* lines at a time */
#define STILL_NS UINT64_C(2000000000) /* nobody looked for so long: the process stood still */
#define CLASH_NS UINT64_C(1000000000) /* so long may two collectives under one name each wait for the other's ranks */

uint64_t coordinator_now(coordinator *co, uint64_t clock) {
  uint64_t gap = clock - co->seen_ns;
  if (co->waiting && gap > STILL_NS) co->still_ns += gap - LOOK_NS;
  co->seen_ns = clock;
  return clock - co->still_ns;
}

static void append(char *out, size_t cap, const char *text) {
  size_t n = strlen(out);
  if (n + 1 < cap) snprintf(out + n, cap - n, "%s", text);
}

static void describe(const coordinator *co, const tally *t, uint64_t now, char *out, size_t cap) {
  char part[NAME_CAP + 128];
  signature s = t->agreed;
  for (int i = 0; i < co->ps->size; i++)
    if (t->fresh[i]) s = *t->fresh[i];
  signature_print(&s, part, sizeof part);
  snprintf(out, cap, "\"%s\" (%s) has been pending for %.1f s; asked for by rank", t->name, part,
           (double)(now - t->since_ns) * 1e-9);
  for (int i = 0; i < co->ps->size; i++) {
    if (!t->asked[i]) continue;
    snprintf(part, sizeof part, " %d", co->ps->ranks[i]);
    append(out, cap, part);
  }
  append(out, cap, "; missing:");
  for (int i = 0; i < co->ps->size; i++) {
    if (t->asked[i] || co->joined[i]) continue;
    const last_ask *l = &co->last[i];
    if (l->at_ns)
      snprintf(part, sizeof part, " rank %d (last asked for \"%.80s\" %.1f s ago)", co->ps->ranks[i], l->name,
               (double)(now - l->at_ns) * 1e-9);
    else
      snprintf(part, sizeof part, " rank %d (has asked for nothing yet)", co->ps->ranks[i]);
    append(out, cap, part);
  }
}

/* Another collective under the same name that the other ranks, and only they, ask for. */
static tally *clashing(coordinator *co, const tally *t) {
  for (int c = 0; c < LWCC_COLLECTIVES; c++) {
    tally *o = c == t->collective ? NULL : tally_find(co, c, t->name);
    if (!o || !o->since_ns || o->ready) continue;
    bool covers = true;
    for (int i = 0; i < co->ps->size; i++) covers &= !t->asked[i] != !o->asked[i];
    if (covers) return o;
  }
  return NULL;
}

static void fail_one(coordinator *co, tally *t, int status, const char *text) {
  groups_fail(co, t, status, text);
  tally_fail(co, t, status, text);
}

static void fail_clash(coordinator *co, tally *t, tally *other) {
  char text[TEXT_CAP], a[384], b[384];
  int i = tally_first(co, t), j = tally_first(co, other);
  signature_print(asked_for(t, i), a, sizeof a);
  signature_print(asked_for(other, j), b, sizeof b);
  snprintf(text, sizeof text, "\"%s\": the ranks disagree: rank %d: %s; rank %d: %s", t->name, co->ps->ranks[i], a,
           co->ps->ranks[j], b);
  fail_one(co, other, LWCC_ERR_MISMATCH, text);
  fail_one(co, t, LWCC_ERR_MISMATCH, text);
}

/* Says it of a few tensors; the others are counted. */
static void report(const coordinator *co, tally *t, uint64_t now, int *reported) {
  char text[TEXT_CAP];
  t->warn_at_ns = now + (now - t->since_ns);
  if ((*reported)++ >= REPORTS) return;
  describe(co, t, now, text, sizeof text);
  LOG(WARN, "stalled: %s", text);
}

/* true: t is gone from the count. */
static bool look_at(coordinator *co, tally *t, uint64_t now, int *reported) {
  char text[TEXT_CAP];
  uint64_t age = now - t->since_ns;
  tally *other = age > CLASH_NS ? clashing(co, t) : NULL;
  if (other) {
    fail_clash(co, t, other);
    return true;
  }
  if (co->limits.abort_ns && age > co->limits.abort_ns) {
    describe(co, t, now, text, sizeof text);
    append(text, sizeof text, "; given up (LWCC_STALL_ABORT)");
    fail_one(co, t, LWCC_ERR_TIMEOUT, text);
    return true;
  }
  if (co->limits.warn_ns && now >= t->warn_at_ns) report(co, t, now, reported);
  return false;
}

/* When t has to be looked at next. */
static uint64_t due(const coordinator *co, const tally *t, uint64_t now) {
  uint64_t next = now + LOOK_NS, clash = t->since_ns + CLASH_NS, end = t->since_ns + co->limits.abort_ns;
  if (clash > now && clash < next) next = clash + 1;
  if (co->limits.abort_ns && end < next) next = end + 1;
  if (co->limits.warn_ns && t->warn_at_ns < next) next = t->warn_at_ns;
  return next;
}

uint64_t coordinator_stall(coordinator *co) {
  bool again = co->waiting > 0;
  uint64_t now = coordinator_now(co, clock_ns());
  uint64_t next = now + LOOK_NS;
  int reported = 0;
  while (again) { /* a failure may free any tally of its group, so begin anew after each */
    again = false;
    next = now + LOOK_NS;
    for (tally *t = co->oldest, *newer; t && !again; t = newer) {
      newer = t->newer;
      if (!t->since_ns || t->ready || t->collective == JOIN) continue;
      again = look_at(co, t, now, &reported);
      if (!again && due(co, t, now) < next) next = due(co, t, now);
    }
  }
  if (reported > REPORTS) LOG(WARN, "stalled: and %d more tensors", reported - REPORTS);
  return co->waiting ? next + co->still_ns : 0;
}
