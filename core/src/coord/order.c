/* PATH 5/9: drain what was submitted, say it to the coordinator, obey the log it sends back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coord/engine.h"
#include "os/clock.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/status.h"

void order_announce(engine *e, pset *ps, request *r) {
  cached *c = cached_by_name(ps, r->sig.collective, r->name);
  if (c && signature_same(&c->sig, &r->sig)) {
    c->pending = r;
    bytes_u8(&ps->out, ENTRY_READY);
    bytes_u32(&ps->out, c->id);
    e->stats.cache_hits++;
    return;
  }
  bytes_u8(&ps->out, ENTRY_REQUEST);
  bytes_text(&ps->out, r->name);
  bytes_u32(&ps->out, (uint32_t)r->priority);
  signature_put(&ps->out, &r->sig);
  e->stats.negotiated++;
}

static void fail_set(engine *e, pset *ps, const char *text) {
  for (size_t i = 0; ps->by_name.slots && i <= ps->by_name.mask; i++)
    for (name_node *n = ps->by_name.slots[i]; n; n = n->next) OWNER(cached, by_name, n)->pending = NULL;
  ps->out.n = 0;
  e->stats.failed += queue_fail_all(&e->q, ps->id, true, LWCC_ERR_SHUTDOWN, text);
}

static void fail_headless(engine *e, pset *ps) {
  char text[TEXT_CAP];
  order_left_text(e, ps->ranks[0], text, sizeof text);
  fail_set(e, ps, text);
}

bool order_drain(engine *e) {
  request *r = queue_drain(&e->q);
  bool any = r != NULL, headless = false;
  for (request *next; r; r = next) {
    next = r->next;
    r->next = NULL;
    e->stats.requests++;
    pset *ps = engine_set(e, r->set);
    order_announce(e, ps, r);
    headless |= ps->headless;
  }
  for (pset *ps = headless ? atomic_load(&e->sets) : NULL; ps; ps = ps->next)
    if (ps->headless) fail_headless(e, ps);
  return any;
}

static void fail_protocol(engine *e, const char *what, int peer) {
  char text[TEXT_CAP];
  snprintf(text, sizeof text, "rank %d: %s: %.800s", peer, what, os_error());
  engine_fail(e, LWCC_ERR_PROTOCOL, text);
}

/* ---- sending ---- */

static void send_frame(engine *e, int peer, int set, const bytes *entries) {
  bytes frame = {0};
  int st;
  bytes_u32(&frame, (uint32_t)set);
  bytes_put(&frame, entries->data, entries->n);
  if (frame.failed || entries->failed)
    engine_fail(e, LWCC_ERR_SYSTEM, "no memory for a negotiation message");
  else if ((st = channel_control(e->ch, peer, frame.data, frame.n)) == LWCC_ERR_INVALID || st == LWCC_ERR_SYSTEM)
    engine_fail(e, LWCC_ERR_SYSTEM, os_error()); /* the peer would wait for it; of a lost one on_lost tells */
  bytes_free(&frame);
}

bool order_coordinate(engine *e, pset *ps) {
  bool any = ps->out.n > 0;
  if (ps->out.n && !ps->co) {
    send_frame(e, ps->ranks[0], ps->id, &ps->out);
    ps->out.n = 0;
  }
  if (!ps->co) return any;
  if (ps->out.n) {
    reader r = {.at = ps->out.data, .end = ps->out.data + ps->out.n};
    if (coordinator_take(ps->co, ps->me, &r) < 0) fail_protocol(e, "own request", e->rank);
    ps->out.n = 0;
  }
  coordinator_emit(ps->co, ps->lane_length);
  bytes *log = coordinator_log(ps->co);
  if (!log->n) return any;
  for (int i = 1; i < ps->size; i++) send_frame(e, ps->ranks[i], ps->id, log);
  reader r = {.at = log->data, .end = log->data + log->n};
  if (order_obey(e, ps, &r) < 0) fail_protocol(e, "own order log", e->rank);
  log->n = 0;
  return true;
}

/* ---- what peers say ---- */

/* A member has left in good order. What was ordered before may still be on its way to us from the coordinator, so the
 * coordinator decides what fails; only its own leaving is decided here, as its last order came before its BYE. */
static void leave_set(engine *e, pset *ps, int peer) {
  char text[TEXT_CAP];
  if (atomic_load(&ps->left) < 0) atomic_store(&ps->left, peer);
  order_left_text(e, peer, text, sizeof text);
  if (ps->co) coordinator_leave(ps->co, text);
  if (peer != ps->ranks[0]) return;
  ps->headless = true;
  fail_headless(e, ps);
}

static void take_bye(engine *e, int peer, int after) {
  if (e->left_ns == 0) e->left_ns = clock_ns();
  if (e->first_left < 0) e->first_left = peer;
  e->left_after[peer] = after;
  e->has_left[peer] = true;
  channel_depart(e->ch, peer);
  for (pset *ps = atomic_load(&e->sets); ps; ps = ps->next)
    if (pset_index(ps, peer) >= 0) leave_set(e, ps, peer);
}

static void give_up(engine *e, int lost, const char *text) {
  int32_t none = -1;
  atomic_compare_exchange_strong(&e->lost_rank, &none, lost);
  engine_fail(e, LWCC_ERR_PEER_LOST, text);
}

/* What concerns every set. */
static void take_news(engine *e, int peer, reader *r) {
  char text[TEXT_CAP];
  int kind = read_u8(r);
  uint32_t lost = read_u32(r);
  if (kind == ENTRY_BYE && !r->bad && (lost == NOBODY || lost < (uint32_t)e->size)) {
    take_bye(e, peer, (int)(int32_t)lost);
    return;
  }
  read_text(r, text, sizeof text);
  if (kind != ENTRY_LOST || r->bad || lost >= (uint32_t)e->size) {
    os_fail(LWCC_ERR_PROTOCOL, "unknown news");
    fail_protocol(e, "negotiation", peer);
  } else if (!e->has_left[lost] && (int)lost != e->rank) {
    give_up(e, (int)lost, text);
  }
}

void order_control(engine *e, int peer, const void *msg, size_t nbytes) {
  reader r = {.at = msg, .end = (const uint8_t *)msg + nbytes};
  uint32_t set = read_u32(&r);
  if (engine_failed(e)) return;
  if (set == MESSAGE_ALL) {
    take_news(e, peer, &r);
    return;
  }
  pset *ps = set <= INT32_MAX ? engine_set(e, (int)set) : NULL;
  int from = ps ? pset_index(ps, peer) : -1, st;
  if (from < 0)
    st = os_fail(LWCC_ERR_PROTOCOL, "message for process set %u", set);
  else if (ps->co)
    st = coordinator_take(ps->co, from, &r);
  else
    st = from == 0 ? order_obey(e, ps, &r)
                   : os_fail(LWCC_ERR_PROTOCOL, "an order that does not come from the coordinator");
  if (st < 0) fail_protocol(e, "negotiation", peer);
}

/* BYE, or with a text LOST, which does not go to the lost rank itself. */
static void tell_all(engine *e, entry_kind kind, int rank, const char *text) {
  bytes entry = {0};
  bytes_u8(&entry, (uint8_t)kind);
  bytes_u32(&entry, (uint32_t)rank);
  if (text) bytes_text(&entry, text);
  for (int i = 0; i < e->size; i++)
    if (i != e->rank && !(text && i == rank) && !channel_lost(e->ch, i)) send_frame(e, i, -1, &entry);
  bytes_free(&entry);
}

/* Tell the others, so that nobody takes a survivor's leaving for the cause. */
void order_lost(engine *e, int peer, int status, const char *why) {
  char text[TEXT_CAP];
  if (e->has_left[peer] || e->leaving || engine_failed(e)) return;
  snprintf(text, sizeof text, "rank %d (host %s, pid %d) is gone: %.700s", peer, e->ids[peer].host, e->ids[peer].pid,
           why);
  tell_all(e, ENTRY_LOST, peer, text);
  if (status == LWCC_ERR_PROTOCOL)
    engine_fail(e, status, text);
  else
    give_up(e, peer, text);
}

void order_left_text(const engine *e, int peer, char *out, size_t cap) {
  char before[32] = "";
  if (e->left_after[peer] >= 0) snprintf(before, sizeof before, " after rank %d", e->left_after[peer]);
  snprintf(out, cap, "rank %d (host %s, pid %d) has left (lwcc shutdown)%s and takes part in nothing any more", peer,
           e->ids[peer].host, e->ids[peer].pid, before);
}

/* The news of a lost rank may still be on its way to others, from who saw it: this rank's BYE must not come first. */
void order_bye(engine *e) {
  int lost = atomic_load(&e->lost_rank);
  if (engine_failed(e) == LWCC_ERR_PEER_LOST && lost >= 0) tell_all(e, ENTRY_LOST, lost, e->failed_text);
  tell_all(e, ENTRY_BYE, e->first_left, NULL);
}
