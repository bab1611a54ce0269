/* From ready tallies to RUN buckets: groups, priority, fusion with look-ahead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord/tally.h"
#include "exec/coll.h"
#include "os/mem.h"
#include "os/status.h"

enum { LANE_DEPTH = 2 }; /* buckets that wait in the lane; what becomes ready meanwhile is fused */

static void append_atom(coordinator *co, tally *t) {
  t->next_ready = NULL;
  *co->ready_tail = t;
  co->ready_tail = &t->next_ready;
}

static group *find_group(const coordinator *co, const signature *s) {
  for (name_node *n = names_first(&co->groups, s->group); n; n = names_next(n))
    if (OWNER(group, node, n)->size == s->group_size) return OWNER(group, node, n);
  return NULL;
}

static group *make_group(coordinator *co, const signature *s) {
  void *memory;
  group *g = find_group(co, s);
  if (g || mem_zeroed(1, sizeof(group), &memory) < 0) return g;
  g = memory;
  g->size = s->group_size;
  g->tail = &g->first;
  if (names_add(&co->groups, &g->node, s->group) < 0) {
    free(g);
    return NULL;
  }
  return g;
}

static void end_group(coordinator *co, group *g) {
  names_remove(&co->groups, &g->node);
  free(g);
}

void groups_ask(coordinator *co, const signature *s) {
  group *g = s->group_size ? make_group(co, s) : NULL;
  if (g) g->asked++;
}

static void fail_member(coordinator *co, tally *t, const group *g) {
  char text[TEXT_CAP];
  snprintf(text, sizeof text, "\"%s\" is in a group that failed: %.700s", t->name, g->text);
  tally_fail(co, t, g->status, text);
}

static void fail_ready(coordinator *co, group *g, int status, const char *text) {
  if (!g->status) {
    g->status = status;
    os_copy_text(g->text, sizeof g->text, text);
  }
  for (tally *t = g->first, *next; t; t = next) {
    next = t->next_ready;
    fail_member(co, t, g);
  }
  g->first = NULL;
  g->tail = &g->first;
}

static bool same_group(const signature *a, const signature *b) {
  return a->group == b->group && a->group_size == b->group_size;
}

/* The first of the ranks that have t in the group of s; size of the set: none has. */
static int first_in_group(const coordinator *co, const tally *t, const signature *s) {
  int i = 0;
  while (i < co->ps->size && !(t->asked[i] && same_group(asked_for(t, i), s))) i++;
  return i;
}

void groups_fail(coordinator *co, const tally *t, int status, const char *text) {
  for (int i = 0; i < co->ps->size; i++) {
    const signature *s = asked_for(t, i);
    if (!t->asked[i] || !s->group_size || first_in_group(co, t, s) < i) continue;
    group *g = make_group(co, s);
    if (!g) continue;
    fail_ready(co, g, status, text);
    if (++g->n == g->size) end_group(co, g);
  }
}

/* ---- groups that never become whole ---- */

static void describe_torn(const coordinator *co, const tally *t, char *out, size_t cap) {
  int has = 0, lacks = 0;
  while (has < co->ps->size - 1 && !t->asked[has]) has++;
  while (lacks < co->ps->size - 1 && t->asked[lacks]) lacks++;
  snprintf(out, cap, "the ranks disagree about its members: rank %d asks for \"%.400s\", rank %d does not",
           co->ps->ranks[has], t->name, co->ps->ranks[lacks]);
}

static void settle_group(name_node *node, void *arg) {
  coordinator *co = arg;
  group *g = OWNER(group, node, node);
  bool all_asked = g->asked == (uint32_t)g->size * (uint32_t)co->ps->size;
  const signature key = {.group = node->hash, .group_size = g->size};
  char text[TEXT_CAP];
  if (g->status != LWCC_ERR_MISMATCH && !all_asked) return;
  for (tally *t = co->oldest, *next; t; t = next) {
    next = t->newer;
    if (!t->since_ns || t->ready || first_in_group(co, t, &key) == co->ps->size) continue;
    describe_torn(co, t, text, sizeof text);
    fail_ready(co, g, LWCC_ERR_MISMATCH, text);
    fail_member(co, t, g);
  }
  end_group(co, g);
}

void groups_settle(coordinator *co) {
  if (co->groups.count) names_each(&co->groups, settle_group, co);
}

void ready_add(coordinator *co, tally *t) {
  t->ready = true;
  group *g = t->agreed.group_size ? make_group(co, &t->agreed) : NULL;
  if (!g) {
    append_atom(co, t);
    return;
  }
  g->n++;
  if (g->status) {
    fail_member(co, t, g);
  } else {
    t->next_ready = NULL;
    *g->tail = t;
    g->tail = &t->next_ready;
  }
  if (g->n < g->size) return;
  if (g->first) {
    *co->ready_tail = g->first;
    co->ready_tail = g->tail;
    if (g->tail == &g->first) co->ready_tail = &co->ready;
  }
  end_group(co, g);
}

static size_t tally_nbytes(const tally *t) {
  return signature_count(&t->agreed) * coll_dtype_bytes(t->agreed.dtype);
}

static bool fusable(const tally *a, const tally *b) {
  const signature *x = &a->agreed, *y = &b->agreed;
  return x->collective == LWCC_ALLREDUCE && y->collective == LWCC_ALLREDUCE && x->dtype == y->dtype && x->op == y->op &&
         x->op != LWCC_ADASUM && x->prescale == y->prescale && x->postscale == y->postscale && x->group == y->group &&
         strcmp(x->algorithm, y->algorithm) == 0;
}

static bool same_ranks(const coordinator *co, const tally *a, const tally *b) {
  for (int i = 0; i < co->ps->size && (a->once || b->once); i++)
    if (!a->asked[i] != !b->asked[i]) return false;
  return true;
}

/* The first of the ready that has the highest priority. */
static tally **most_urgent(coordinator *co) {
  tally **best = &co->ready;
  for (tally **at = &co->ready; *at; at = &(*at)->next_ready)
    if ((*at)->priority > (*best)->priority) best = at;
  return best;
}

static tally *unlink_ready(coordinator *co, tally **at) {
  tally *t = *at;
  *at = t->next_ready;
  if (co->ready_tail == &t->next_ready) co->ready_tail = at;
  t->next_ready = NULL;
  return t;
}

/* Emit one RUN: the most urgent and all that fuse with it. A group goes whole, whatever its size. */
static void emit_bucket(coordinator *co) {
  tally *first = unlink_ready(co, most_urgent(co)), *chosen = first, **tail = &first->next_ready;
  uint64_t total = tally_nbytes(first), limit = co->limits.fusion_nbytes;
  uint32_t n = 1;
  for (tally **at = &co->ready; *at;) {
    uint64_t more = tally_nbytes(*at);
    bool fits = first->agreed.group_size || (limit && total + more <= limit && more <= limit);
    if (!fits || !fusable(first, *at) || !same_ranks(co, first, *at)) {
      at = &(*at)->next_ready;
      continue;
    }
    total += more;
    n++;
    *tail = unlink_ready(co, at);
    tail = &(*tail)->next_ready;
  }
  bytes_u8(&co->log, ENTRY_RUN);
  bytes_u32(&co->log, n);
  for (tally *t = chosen; t; t = t->next_ready) bytes_u32(&co->log, t->id);
  for (tally *t = chosen, *next; t; t = next) {
    next = t->next_ready;
    tally_settled(co, t);
  }
}

void coordinator_emit(coordinator *co, int lane_length) {
  uint64_t group_now = 0;
  while (co->ready && (lane_length < LANE_DEPTH || (group_now && co->ready->agreed.group == group_now))) {
    group_now = (*most_urgent(co))->agreed.group;
    emit_bucket(co);
    lane_length++;
  }
}
