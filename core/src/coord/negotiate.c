#include "coord/negotiate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord/tally.h"
#include "os/clock.h"
#include "os/mem.h"
#include "os/status.h"

int coordinator_create(pset *ps, coordinator **out) {
  void *memory, *last;
  TRY(mem_zeroed((size_t)ps->size, sizeof(last_ask) + sizeof(bool), &last));
  int st = mem_zeroed(1, sizeof(coordinator), &memory);
  if (st < 0) {
    free(last);
    return st;
  }
  coordinator *co = memory;
  co->ps = ps;
  co->last = last;
  co->joined = (bool *)(co->last + ps->size);
  co->ready_tail = &co->ready;
  co->limits = (coordinator_limits){.fusion_nbytes = 64u << 20, .capacity = 4096};
  *out = co;
  return LWCC_OK;
}

void coordinator_limit(coordinator *co, const coordinator_limits *limits) {
  co->limits = *limits;
}

static void forget_asked(coordinator *co, tally *t) {
  if (t->since_ns) co->waiting--;
  t->since_ns = t->warn_at_ns = 0;
  t->nasked = t->nnew = 0;
  t->ready = false;
  t->priority = 0;
  t->next_ready = NULL;
  memset(t->asked, ASKED_NOT, (size_t)co->ps->size);
  for (int i = 0; i < co->ps->size; i++) {
    if (t->fresh[i]) signature_free(t->fresh[i]);
    free(t->fresh[i]);
    t->fresh[i] = NULL;
  }
}

static void unlink_age(coordinator *co, tally *t) {
  *(t->older ? &t->older->newer : &co->oldest) = t->newer;
  *(t->newer ? &t->newer->older : &co->newest) = t->older;
}

static void link_newest(coordinator *co, tally *t) {
  t->older = co->newest;
  t->newer = NULL;
  *(co->newest ? &co->newest->newer : &co->oldest) = t;
  co->newest = t;
}

void tally_unlist(coordinator *co, tally *t) {
  if (t->id && !t->once) names_remove(&co->by_id, &t->by_id), co->known--;
  names_remove(&co->by_name, &t->by_name);
  t->once = true;
}

static void free_tally(coordinator *co, tally *t) {
  co->freed++;
  forget_asked(co, t);
  unlink_age(co, t);
  tally_unlist(co, t);
  signature_free(&t->agreed);
  free(t->values);
  free(t->fresh);
  free(t->asked);
  free(t);
}

static void free_group(name_node *node, void *arg) {
  coordinator *co = arg;
  names_remove(&co->groups, node);
  free(OWNER(group, node, node));
}

void coordinator_free(coordinator *co) {
  if (!co) return;
  while (co->oldest) free_tally(co, co->oldest);
  names_each(&co->groups, free_group, co);
  names_free(&co->groups);
  names_free(&co->by_name);
  names_free(&co->by_id);
  bytes_free(&co->log);
  free(co->last);
  free(co);
}

void coordinator_reset(coordinator *co) {
  for (tally *t = co->oldest, *next; t; t = next) {
    next = t->newer;
    t->id ? forget_asked(co, t) : free_tally(co, t);
  }
  names_each(&co->groups, free_group, co);
  co->ready = NULL;
  co->ready_tail = &co->ready;
}

void coordinator_leave(coordinator *co, const char *text) {
  os_copy_text(co->left, sizeof co->left, text);
  names_each(&co->groups, free_group, co);
  co->ready = NULL;
  co->ready_tail = &co->ready;
  for (tally *t = co->oldest, *next; t; t = next) {
    next = t->newer;
    if (t->since_ns) tally_fail(co, t, LWCC_ERR_SHUTDOWN, text);
  }
}

bytes *coordinator_log(coordinator *co) {
  return &co->log;
}

void tally_settled(coordinator *co, tally *t) {
  if (t->once) {
    bytes_u8(&co->log, ENTRY_EVICT);
    bytes_u32(&co->log, t->id);
  }
  if (t->once || !t->id) {
    free_tally(co, t);
    return;
  }
  forget_asked(co, t);
  unlink_age(co, t);
  link_newest(co, t);
}

void tally_fail(coordinator *co, tally *t, int status, const char *text) {
  int32_t code = status;
  bytes_u8(&co->log, ENTRY_ERROR);
  bytes_u8(&co->log, (uint8_t)t->collective);
  bytes_put(&co->log, &code, sizeof code);
  bytes_text(&co->log, t->name);
  bytes_text(&co->log, text);
  bytes_u32(&co->log, (uint32_t)co->ps->size);
  bytes_put(&co->log, t->asked, (size_t)co->ps->size);
  tally_settled(co, t);
}

tally *tally_find(const coordinator *co, int collective, const char *name) {
  for (name_node *n = names_first(&co->by_name, name_hash(name, (uint64_t)collective)); n; n = names_next(n)) {
    tally *t = OWNER(tally, by_name, n);
    if (t->collective == collective && strcmp(t->name, name) == 0) return t;
  }
  return NULL;
}

static tally *find_id(const coordinator *co, uint32_t id) {
  for (name_node *n = names_first(&co->by_id, id_hash(id)); n; n = names_next(n))
    if (OWNER(tally, by_id, n)->id == id) return OWNER(tally, by_id, n);
  return NULL;
}

static int make_tally(coordinator *co, int collective, const char *name, tally **out) {
  size_t n = strlen(name) + 1;
  void *memory = NULL, *fresh = NULL, *asked = NULL;
  int st = mem_zeroed(1, sizeof(tally) + n, &memory);
  if (st >= 0) st = mem_zeroed((size_t)co->ps->size, sizeof(signature *), &fresh);
  if (st >= 0) st = mem_zeroed((size_t)co->ps->size, 1, &asked);
  tally *t = memory;
  if (st >= 0) st = names_add(&co->by_name, &t->by_name, name_hash(name, (uint64_t)collective));
  if (st < 0) {
    free(memory);
    free(fresh);
    free(asked);
    return st;
  }
  t->collective = collective;
  t->fresh = fresh;
  t->asked = asked;
  memcpy(t->name, name, n);
  link_newest(co, t);
  *out = t;
  return LWCC_OK;
}

void tally_asked(const coordinator *co, const tally *t, int i, signature *out) {
  int size = co->ps->size;
  if (t->fresh[i]) {
    *out = *t->fresh[i];
    return;
  }
  *out = t->agreed;
  if (t->collective == LWCC_ALLGATHER) out->shape[0] = t->values[i];
  if (t->collective != LWCC_ALLTOALL) return;
  out->splits = t->values + (size_t)i * (size_t)size;
  out->nsplits = size;
  out->shape[0] = 0;
  for (int d = 0; d < size; d++) out->shape[0] += out->splits[d];
}

int tally_first(const coordinator *co, const tally *t) {
  int i = 0;
  while (i < co->ps->size - 1 && !t->asked[i]) i++;
  return i;
}

static bool agree(coordinator *co, tally *t, char *text, size_t cap) {
  signature first, other;
  int k = tally_first(co, t);
  char a[384], b[384];
  tally_asked(co, t, k, &first);
  for (int i = k + 1; i < co->ps->size; i++) {
    if (!t->asked[i]) continue;
    tally_asked(co, t, i, &other);
    if (signature_agree(&first, &other)) continue;
    signature_print(&other, a, sizeof a);
    signature_print(&first, b, sizeof b);
    snprintf(text, cap, "\"%s\": the ranks disagree: rank %d: %s; rank %d: %s", t->name, co->ps->ranks[i], a,
             co->ps->ranks[k], b);
    return false;
  }
  return true;
}

/* The numbers that differ by rank, 0 for those that have joined; NULL for the collectives that have none. */
static int collect_values(coordinator *co, tally *t, int64_t **out, uint32_t *n_out) {
  size_t p = (size_t)co->ps->size;
  *n_out = t->collective == LWCC_ALLGATHER ? (uint32_t)p : t->collective == LWCC_ALLTOALL ? (uint32_t)(p * p) : 0;
  *out = NULL;
  if (!*n_out) return LWCC_OK;
  void *memory;
  TRY(mem_zeroed(*n_out, sizeof(int64_t), &memory));
  int64_t *v = *out = memory;
  for (size_t i = 0; i < p; i++) {
    signature s;
    if (!t->asked[i]) continue;
    tally_asked(co, t, (int)i, &s);
    if (t->collective == LWCC_ALLGATHER) v[i] = s.ndim ? s.shape[0] : 1;
    for (size_t d = 0; d < p && t->collective == LWCC_ALLTOALL; d++)
      v[i * p + d] = s.nsplits ? s.splits[d] : s.shape[0] / (int64_t)p;
  }
  return LWCC_OK;
}

/* Few steps a call: of names that are being asked for there may be far more than the capacity. They count as used. */
static void evict_some(coordinator *co) {
  tally *t = co->oldest;
  for (int steps = 0; t && steps < 8 && co->known > co->limits.capacity; steps++) {
    tally *next = t->newer;
    if (!t->id || t->nasked || t->ready) {
      unlink_age(co, t);
      link_newest(co, t);
    } else {
      bytes_u8(&co->log, ENTRY_EVICT);
      bytes_u32(&co->log, t->id);
      free_tally(co, t);
    }
    t = next;
  }
}

static int accept(coordinator *co, tally *t, int64_t *values, uint32_t n) {
  signature first;
  int k = tally_first(co, t);
  tally_asked(co, t, k, &first);
  int st = t->fresh[k] ? signature_copy(&t->agreed, &first) : LWCC_OK;
  if (t->id && !t->once) names_remove(&co->by_id, &t->by_id), co->known--;
  free(t->values);
  t->values = values;
  t->id = ++co->next_id;
  if (st >= 0 && !t->once) {
    st = names_add(&co->by_id, &t->by_id, id_hash(t->id));
    co->known++;
  }
  if (st < 0) return st;
  bytes_u8(&co->log, t->once ? ENTRY_PART : ENTRY_NEW);
  bytes_u32(&co->log, t->id);
  bytes_u8(&co->log, (uint8_t)t->collective);
  bytes_text(&co->log, t->name);
  bytes_u32(&co->log, n);
  bytes_put(&co->log, values, n * sizeof *values);
  if (t->once) part_log(co, t);
  return LWCC_OK;
}

static int refuse(coordinator *co, tally *t, int status, const char *text) {
  groups_fail(co, t, status, text);
  tally_fail(co, t, status, text);
  return LWCC_OK;
}

int tally_decide(coordinator *co, tally *t) {
  char text[TEXT_CAP];
  bool part = t->nasked < co->ps->size;
  if (t->nnew || part) {
    int64_t *values;
    uint32_t n;
    if (!agree(co, t, text, sizeof text) || (part && part_forbidden(co, t, text, sizeof text)))
      return refuse(co, t, LWCC_ERR_MISMATCH, text);
    TRY(collect_values(co, t, &values, &n));
    if (n && !signature_rows_fit(asked_for(t, tally_first(co, t)), values, n)) {
      free(values);
      snprintf(text, sizeof text, "\"%s\": too large: the rows of all ranks together", t->name);
      return refuse(co, t, LWCC_ERR_INVALID, text);
    }
    if (part) tally_unlist(co, t);
    TRY(accept(co, t, values, n));
  }
  ready_add(co, t);
  evict_some(co);
  return LWCC_OK;
}

static int mark(coordinator *co, tally *t, int from, int kind) {
  if (t->asked[from]) return os_fail(LWCC_ERR_PROTOCOL, "rank %d asked twice for \"%s\"", co->ps->ranks[from], t->name);
  uint64_t now = coordinator_now(co, clock_ns());
  if (!t->since_ns) {
    t->since_ns = now;
    t->warn_at_ns = now + co->limits.warn_ns;
    co->waiting++;
  }
  t->asked[from] = (uint8_t)kind;
  t->nasked++;
  groups_ask(co, asked_for(t, from));
  os_copy_text(co->last[from].name, sizeof co->last[from].name, t->name);
  co->last[from].at_ns = now;
  if (co->left[0]) {
    tally_fail(co, t, LWCC_ERR_SHUTDOWN, co->left);
    return LWCC_OK;
  }
  if (t->collective == JOIN) return part_join(co, t, from);
  return part_complete(co, t) ? tally_decide(co, t) : LWCC_OK;
}

/* Splits are one number of rows for each rank, or none. What cannot be is refused here, as it is used for indexing. */
static bool splits_fit(const signature *s, int size) {
  int64_t rows = 0;
  if (!s->nsplits) return true;
  if (s->collective != LWCC_ALLTOALL || s->nsplits != size || s->ndim < 1) return false;
  for (int d = 0; d < size; d++)
    if (s->splits[d] < 0 || __builtin_add_overflow(rows, s->splits[d], &rows)) return false;
  return rows == s->shape[0];
}

static int take_request(coordinator *co, int from, reader *r) {
  char name[NAME_CAP];
  signature s;
  read_text(r, name, sizeof name);
  int32_t priority = (int32_t)read_u32(r);
  signature_read(r, &s);
  r->bad |= !splits_fit(&s, co->ps->size) || (s.collective == JOIN && strcmp(name, JOIN_NAME) != 0);
  tally *t = r->bad ? NULL : tally_find(co, s.collective, name);
  int st = r->bad ? LWCC_ERR_PROTOCOL : LWCC_OK;
  if (!r->bad && !t) st = make_tally(co, s.collective, name, &t);
  void *memory = NULL;
  if (st >= 0 && !t->fresh[from]) st = mem_zeroed(1, sizeof(signature), &memory);
  if (st < 0 || !memory) {
    signature_free(&s);
    return st < 0 ? st : os_fail(LWCC_ERR_PROTOCOL, "rank %d asked twice for \"%s\"", co->ps->ranks[from], name);
  }
  t->fresh[from] = memory;
  *t->fresh[from] = s;
  t->nnew++;
  if (priority > t->priority) t->priority = priority;
  return mark(co, t, from, ASKED_NEW);
}

int coordinator_take(coordinator *co, int from, reader *r) {
  while (r->at < r->end && !r->bad) {
    uint8_t kind = read_u8(r);
    int st = LWCC_OK;
    if (kind == ENTRY_READY) {
      tally *t = find_id(co, read_u32(r)); /* unknown: evicted; the rank asks again when it reads that */
      if (t) st = mark(co, t, from, ASKED_READY);
    } else if (kind == ENTRY_REQUEST) {
      st = take_request(co, from, r);
    } else {
      r->bad = true;
    }
    if (st < 0 && st != LWCC_ERR_PROTOCOL) return st;
    if (st < 0) r->bad = true;
  }
  if (r->bad) return os_fail(LWCC_ERR_PROTOCOL, "rank %d sent a malformed negotiation frame", co->ps->ranks[from]);
  groups_settle(co);
  return LWCC_OK;
}
