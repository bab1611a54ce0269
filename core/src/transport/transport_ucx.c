/* Two processes over UCX: tagged messages of a few fixed sizes, copied in and out of slots.
 * The receiver has a receive posted for every slot, and the sender sends no more than that, so memory is bounded, and
 * nothing waits in UCX for a receive. What was taken is told in notes. An endpoint's failure and the end of the pair's
 * TCP connection both mean the peer's end; UCX over shared memory knows only the second. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/hmac.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/ucx_link.h"

enum { DRAIN_TRIES = 1000 };
static const uint32_t slot_nbytes[LINK_CLASSES] = {8 << 10, 64 << 10, 64 << 10, 4 << 10, 4 << 10};
static const double linger_s = 0.5; /* for all links of a worker together */
static const ucx_request_params plain = {0}, tracked = {.mask = UCX_ALWAYS_A_REQUEST};

static ucx_link *self(transport_link *l) {
  return (ucx_link *)l;
}

static int gone(const ucx_link *s) {
  return os_fail(LWCC_ERR_PEER_LOST, "ucx: rank %d: %s", s->base.peer, s->why);
}

static void give_up(ucx_link *s, const char *why) {
  if (s->lost) return;
  s->lost = true;
  os_copy_text(s->why, sizeof s->why, why);
}

static void failed(ucx_link *s, ucx_status st) {
  give_up(s, s->worker->ucx->ucs_status_string(st));
}

static void on_error(void *arg, void *endpoint, ucx_status st) {
  (void)endpoint;
  failed(arg, st);
}

/* ---- notes ---- */

int ucx_link_say(ucx_link *s) {
  const ucx_library *ucx = s->worker->ucx;
  uint32_t i = s->nnotes % NOTES;
  if (s->lost) return gone(s);
  if (s->notes_sent[i]) {
    if (ucx->ucp_request_check_status(s->notes_sent[i]) == UCX_RUNNING) return LWCC_OK; /* a later one will say it */
    ucx->ucp_request_free(s->notes_sent[i]);
    s->notes_sent[i] = NULL;
  }
  ucx_note *n = &s->notes[i];
  *n = (ucx_note){.leaves = s->leaves, .heard = s->heard};
  for (int c = 0; c < LINK_CLASSES; c++) {
    n->taken[c] = s->in[c].told = s->in[c].taken;
    n->sent[c] = s->out[c].sent;
  }
  void *r = ucx->ucp_tag_send_nbx(s->endpoint, n, sizeof *n, s->tag_out | NOTE_KIND, &plain);
  ucx_status st = ucx_request_status(r);
  if (st < 0) failed(s, st);
  if (st < 0) return gone(s);
  s->notes_sent[i] = r;
  s->nnotes++;
  if (r) ucx_nudge(s->worker);
  return LWCC_OK;
}

static void *post_receive(ucx_link *s, int kind, void *buf, size_t nbytes) {
  ucx_worker *w = s->worker;
  void *r = w->ucx->ucp_tag_recv_nbx(w->handle, buf, nbytes, s->tag_in | (uint64_t)kind, ~TAG_COUNT, &tracked);
  ucx_status st = ucx_request_status(r);
  if (st < 0) failed(s, st);
  return st < 0 ? NULL : r;
}

/* Whether it has come, or never will. */
static bool arrived(ucx_link *s, void **request, ucx_arrival *out) {
  const ucx_library *ucx = s->worker->ucx;
  if (!*request) return false;
  ucx_status st = ucx->ucp_tag_recv_request_test(*request, out);
  if (st == UCX_RUNNING) return false;
  ucx->ucp_request_free(*request);
  *request = NULL;
  if (st < 0) failed(s, st);
  return st == UCX_DONE;
}

/* The peer says that it has taken so many more than we knew. That comes from another process: it is checked, not
 * trusted. < 0: it said so before what we know by now. */
static void take_count(ucx_link *s, ucx_out *p, int32_t more) {
  if (more > 0 && (uint32_t)more > p->sent - p->taken) give_up(s, "it sent impossible counts");
  if (more > 0) p->taken += (uint32_t)more;
}

/* Whether all has come that the leaving peer has sent. */
static bool complete(const ucx_link *s) {
  const ucx_library *ucx = s->worker->ucx;
  ucx_arrival a;
  for (int c = 0; c < LINK_CLASSES; c++) {
    const ucx_in *p = &s->in[c];
    for (uint32_t i = p->taken; (int32_t)(s->peer.sent[c] - i) > 0; i++) {
      void *r = p->requests[i % SLOTS]; /* NULL: is being read */
      if (r && ucx->ucp_tag_recv_request_test(r, &a) == UCX_RUNNING) return false;
    }
  }
  return true;
}

static void take_note(ucx_link *s) {
  s->peer = s->note_in;
  s->greeted = true;
  for (int c = 0; c < LINK_CLASSES; c++) {
    if ((int32_t)(s->peer.sent[c] - s->in[c].taken) > SLOTS) give_up(s, "it sent impossible counts");
    take_count(s, &s->out[c], (int32_t)(s->peer.taken[c] - s->out[c].taken));
  }
}

static void take_notes(ucx_link *s) {
  ucx_arrival a;
  while (arrived(s, &s->note_request, &a)) {
    if (a.nbytes != sizeof s->note_in) give_up(s, "it sent a note of a wrong size");
    if (s->lost) return;
    take_note(s);
    s->note_request = post_receive(s, NOTE_KIND, &s->note_in, sizeof s->note_in);
  }
}

static void serve(ucx_link *s) {
  take_notes(s);
  if (s->lost || !s->peer.leaves || s->heard || !complete(s)) return;
  s->heard = true;
  ucx_link_say(s);
}

int ucx_link_serve(ucx_link *s) {
  serve(s);
  return s->lost ? gone(s) : LWCC_OK;
}

/* The worker is progressed once a turn of the channel, by the lane that asks first: the first to ask a second time. */
static void look(ucx_link *s, int direction, int cls) {
  ucx_worker *w = s->worker;
  if (s->seen[direction][cls] == w->turn) ucx_progress(w);
  s->seen[direction][cls] = w->turn;
  serve(s);
}

/* ---- messages ---- */

static int post_slot(ucx_link *s, int cls) {
  const ucx_library *ucx = s->worker->ucx;
  ucx_out *p = &s->out[cls];
  uint32_t i = p->sent % SLOTS;
  uint64_t count = (uint64_t)(uint16_t)s->in[cls].taken << TAG_COUNT_SHIFT;
  void *r = ucx->ucp_tag_send_nbx(s->endpoint, p->bytes + i * slot_nbytes[cls], p->filled,
                                  s->tag_out | count | (uint64_t)cls, &plain);
  ucx_status st = ucx_request_status(r);
  if (st < 0) failed(s, st);
  if (st < 0) return gone(s);
  s->in[cls].told = s->in[cls].taken;
  p->requests[i] = r;
  p->sent++;
  p->filled = 0;
  if (r) ucx_nudge(s->worker);
  return LWCC_OK;
}

static void retire(ucx_link *s, ucx_out *p) {
  const ucx_library *ucx = s->worker->ucx;
  for (; p->done != p->sent; p->done++) {
    void **r = &p->requests[p->done % SLOTS];
    ucx_status st = *r ? ucx->ucp_request_check_status(*r) : UCX_DONE;
    if (st == UCX_RUNNING) return;
    if (st < 0) failed(s, st);
    if (*r) ucx->ucp_request_free(*r);
    *r = NULL;
  }
}

/* Whether the open slot is ours and the peer will have a receive for it. */
static bool has_slot(ucx_link *s, ucx_out *p) {
  if (p->filled) return true;
  retire(s, p);
  return p->sent - p->done < SLOTS && p->sent - p->taken < SLOTS;
}

static ssize_t write_one(transport_link *l, int cls, void *buf, size_t n) {
  ucx_link *s = self(l);
  ucx_out *p = &s->out[cls];
  if (!s->lost && !has_slot(s, p)) {
    look(s, 1, cls);
    if (!s->lost && !has_slot(s, p)) return 0;
  }
  if (s->lost) return gone(s);
  uint32_t room = slot_nbytes[cls] - p->filled, i = p->sent % SLOTS;
  if (n > room) n = room;
  memcpy(p->bytes + i * slot_nbytes[cls] + p->filled, buf, n);
  p->filled += (uint32_t)n;
  if (p->filled == slot_nbytes[cls]) TRY(post_slot(s, cls));
  return (ssize_t)n;
}

static int take_slot(ucx_link *s, int cls) {
  ucx_in *p = &s->in[cls];
  uint32_t i = p->taken % SLOTS;
  p->requests[i] = s->lost ? NULL : post_receive(s, cls, p->bytes + i * slot_nbytes[cls], slot_nbytes[cls]);
  p->nbytes = p->at = 0;
  p->taken++;
  if (s->lost || p->taken - p->told < SLOTS / 2) return LWCC_OK;
  return ucx_link_say(s);
}

/* Whether there is something to read. */
static bool has_message(ucx_link *s, int cls) {
  ucx_in *p = &s->in[cls];
  ucx_arrival a;
  if (p->nbytes) return true;
  if (!arrived(s, &p->requests[p->taken % SLOTS], &a)) return false;
  if (a.nbytes == 0) give_up(s, "it sent an empty message");
  take_count(s, &s->out[cls], (int16_t)((a.tag >> TAG_COUNT_SHIFT) - s->out[cls].taken));
  p->nbytes = a.nbytes;
  return a.nbytes > 0;
}

static ssize_t read_one(transport_link *l, int cls, void *buf, size_t n) {
  ucx_link *s = self(l);
  ucx_in *p = &s->in[cls];
  if (!has_message(s, cls)) {
    look(s, 0, cls);
    if (!has_message(s, cls)) return s->lost ? gone(s) : 0; /* what came before the end is still delivered */
  }
  if (n > p->nbytes - p->at) n = p->nbytes - p->at;
  memcpy(buf, p->bytes + p->taken % SLOTS * slot_nbytes[cls] + p->at, n);
  p->at += n;
  if (p->at == p->nbytes) take_slot(s, cls); /* a failure shows again in the next call */
  return (ssize_t)n;
}

static ssize_t link_send(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, write_one);
}
static ssize_t link_recv(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, read_one);
}

static void link_flush(transport_link *l) {
  for (int c = 0; c < LINK_CLASSES && !self(l)->lost; c++)
    if (self(l)->out[c].filled) post_slot(self(l), c); /* as in read_one */
}

static int link_fd(const transport_link *l, int cls) {
  (void)cls;
  return ((const ucx_link *)l)->fd;
}

static const transport_bell *link_bell(const transport_link *l) {
  return &((const ucx_link *)l)->worker->rung;
}

static void link_set_asleep(transport_link *l, int asleep) {
  ucx_sleep(self(l)->worker, asleep);
}

/* ---- the end ---- */

static int link_check(transport_link *l) {
  ucx_link *s = self(l);
  char drop[64];
  ssize_t n = 1;
  while (!s->lost && n > 0) n = sock_recv(s->fd, drop, sizeof drop);
  if (n < 0) {
    char why[sizeof s->why];
    os_copy_text(why, sizeof why, os_error());
    ucx_sleep(s->worker, false);
    for (int i = 0; i < DRAIN_TRIES && s->worker->ucx->ucp_worker_progress(s->worker->handle); i++) continue;
    give_up(s, why);
  }
  return s->lost ? gone(s) : LWCC_OK;
}

/* Who tears its side down takes what is under way with it. So say that we leave, and wait until the peer has it all,
 * unless it has taken all already: it needs no call of its application for that. Meanwhile serve the others, who may be
 * leaving too. */
static void leave(ucx_link *s) {
  ucx_worker *w = s->worker;
  if (!w->linger_until_ns) w->linger_until_ns = clock_deadline(linger_s);
  ucx_sleep(w, false);
  link_flush(&s->base);
  bool taken = true;
  for (int c = 0; c < LINK_CLASSES; c++) taken &= s->out[c].taken == s->out[c].sent;
  if (taken) return;
  s->leaves = true;
  ucx_link_say(s);
  while (!s->lost && !s->peer.heard && clock_ns() < w->linger_until_ns) {
    unsigned turn = w->ucx->ucp_worker_progress(w->handle);
    for (ucx_link *o = w->links; o; o = o->next)
      if (!o->closed) serve(o);
    if (turn == 0) poll(&(struct pollfd){.fd = s->fd, .events = POLLIN}, 1, 1);
    link_check(&s->base);
  }
}

/* A receive that is not cancelled, because its message is half here, keeps its slot until the worker's end. */
static void abandon(ucx_link *s, void *request) {
  const ucx_library *ucx = s->worker->ucx;
  if (!request) return;
  if (ucx->ucp_request_check_status(request) == UCX_RUNNING) ucx->ucp_request_cancel(s->worker->handle, request);
  ucx->ucp_request_free(request);
}

static void disconnect(ucx_link *s) {
  static const ucx_request_params force = {.mask = UCX_SET_FLAGS, .flags = UCX_CLOSE_BY_FORCE};
  ucx_worker *w = s->worker;
  if (s->endpoint && s->errors == UCX_ERRORS_PEER) {
    void *r = w->ucx->ucp_ep_close_nbx(s->endpoint, &force);
    bool real = r && ucx_request_status(r) == UCX_DONE;
    for (int i = 0; i < DRAIN_TRIES && real && w->ucx->ucp_request_check_status(r) == UCX_RUNNING; i++)
      w->ucx->ucp_worker_progress(w->handle);
    if (real) w->ucx->ucp_request_free(r);
  }
  s->endpoint = NULL; /* one without error handling ends with the worker */
}

static void link_close(transport_link *l) {
  ucx_link *s = self(l);
  ucx_worker *w = s->worker;
  if (s->endpoint && !s->lost) leave(s);
  ucx_sleep(w, false);
  disconnect(s);
  abandon(s, s->note_request);
  for (int i = 0; i < NOTES; i++) abandon(s, s->notes_sent[i]);
  for (int c = 0; c < LINK_CLASSES; c++)
    for (int i = 0; i < SLOTS; i++) {
      abandon(s, s->in[c].requests[i]);
      abandon(s, s->out[c].requests[i]);
    }
  close(s->fd);
  s->closed = true;
  if (--w->users == 0) ucx_worker_free(w);
}

static const transport_ops ucx_ops = {.name = "ucx",
                                      .in_memory = 1,
                                      .send = link_send,
                                      .recv = link_recv,
                                      .fd = link_fd,
                                      .set_asleep = link_set_asleep,
                                      .flush = link_flush,
                                      .bell = link_bell,
                                      .check = link_check,
                                      .close = link_close};

/* ---- the beginning ---- */

int ucx_link_open(ucx_worker *w, int peer, int fd, ucx_link **out) {
  ucx_link *s;
  size_t nbytes = 0;
  for (int c = 0; c < LINK_CLASSES; c++) nbytes += 2 * SLOTS * (size_t)slot_nbytes[c];
  TRY(mem_zeroed(1, sizeof *s, (void **)&s));
  *s = (ucx_link){.base = {.ops = &ucx_ops, .peer = peer}, .worker = w, .fd = fd, .next = w->links};
  if (mem_zeroed(1, nbytes, (void **)&s->slots) < 0 || hmac_random(&s->tag_in, sizeof s->tag_in) < 0) {
    free(s->slots);
    free(s);
    return LWCC_ERR_SYSTEM;
  }
  w->links = s;
  w->users++;
  s->tag_in &= ~(TAG_COUNT | 0xff);
  uint8_t *at = s->slots;
  s->note_request = post_receive(s, NOTE_KIND, &s->note_in, sizeof s->note_in);
  for (int c = 0; c < LINK_CLASSES; c++, at += (size_t)2 * SLOTS * slot_nbytes[c - 1]) {
    s->out[c].bytes = at;
    s->in[c].bytes = at + (size_t)SLOTS * slot_nbytes[c];
    for (int i = 0; i < SLOTS; i++)
      s->in[c].requests[i] = post_receive(s, c, s->in[c].bytes + (size_t)i * slot_nbytes[c], slot_nbytes[c]);
  }
  *out = s;
  return s->lost ? gone(s) : LWCC_OK;
}

ucx_status ucx_link_connect(ucx_link *s, const void *address, int errors) {
  const ucx_endpoint_params params = {.mask = UCX_SET_ADDRESS | UCX_SET_ERRORS | UCX_SET_ON_ERROR,
                                      .address = address,
                                      .errors = errors,
                                      .on_error = on_error,
                                      .arg = s};
  disconnect(s);
  ucx_status st = s->worker->ucx->ucp_ep_create(s->worker->handle, &params, &s->endpoint);
  if (st != UCX_DONE) s->endpoint = NULL;
  s->errors = errors;
  return st;
}
