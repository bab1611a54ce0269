/* PATH 8/9: messages become frames (16 bytes of header, then the payload) on the byte pipes of the links.
 *
 * A link in memory is tried on every turn, which costs a load or two. So are the data sockets with something to move,
 * if they are few: one call, where asking the kernel first would take two. Other sockets are tried only after the
 * kernel reported them (edge-triggered, so unread data of a receive that is not yet posted never keeps us awake). The
 * data sockets have an epoll set of their own, part of the other only while nobody drives: else each packet would wake
 * the sleeping thread, although the driver takes it. The death of a peer is noted where it is met and settled at one
 * place, at the end of a turn, so that no callback runs inside a send. */
#include "channel/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "channel/frame.h"
#include "channel/park.h"
#include "os/clock.h"
#include "os/mem.h"
#include "os/status.h"

enum { EVENTS = 64, POLL_EVERY_NS = 20000000, FEW = 4, ASK_EVERY = 16 };
static const uint64_t watch_bit = UINT64_C(1) << 63, data_mark = UINT64_MAX;

static void lane_append(lane *l, chan_io *io) {
  io->next = NULL;
  *l->tail = io;
  l->tail = &io->next;
}

static int set_of(const channel *ch, const transport_link *l, int cls) {
  return l->ops->in_memory || cls == LINK_CONTROL ? ch->epoll_fd : ch->data_fd;
}

static void drop_link(channel *ch, peer_state *p, int status) {
  transport_link *link = p->link;
  p->link = NULL;
  for (int c = 0; c < LINK_CLASSES; c++) {
    /* by hand: a forked child may hold the descriptor, and then close() does not take it out of the set */
    epoll_ctl(set_of(ch, link, c), EPOLL_CTL_DEL, link->ops->fd(link, c), NULL);
    frame_fail_lane(&p->out[c], status);
    frame_fail_lane(&p->in[c], status);
    park_free(&p->in[c]);
  }
  if (!link->ops->in_memory) ch->nsockets--;
  link->ops->close(link);
}

/* The one place where a peer is given up: what it sent before its end is still delivered, then everybody is told. */
static void settle_failures(channel *ch) {
  for (int i = 0; i < ch->size && ch->failures > 0; i++) {
    peer_state *p = &ch->peers[i];
    if (!p->failure || p->lost) continue;
    ch->failures--;
    for (int c = 0; c < LINK_CLASSES; c++) p->in[c].ready = true;
    for (int rounds = 0; rounds < 64 && p->failure == LWCC_ERR_PEER_LOST && frame_pump_in(ch, i); rounds++) continue;
    if (p->departed) { /* that was among what it sent */
      p->failure = 0;
      continue;
    }
    p->lost = true;
    drop_link(ch, p, p->failure);
    ch->events.on_lost(ch->events.arg, i, p->failure, p->text);
  }
}

static void take_event(channel *ch, const struct epoll_event *e) {
  if (e->data.u64 == data_mark) {
    ch->data_due = true;
    return;
  }
  if (e->data.u64 & watch_bit) {
    const watch *w = &ch->watches[e->data.u64 & ~watch_bit];
    w->fn(w->arg);
    return;
  }
  int peer = (int)(e->data.u64 / LINK_CLASSES), cls = (int)(e->data.u64 % LINK_CLASSES);
  peer_state *p = &ch->peers[peer];
  if (!p->link) return; /* settled in this very turn */
  p->in[cls].ready = p->out[cls].ready = true;
  int code = p->link->ops->check(p->link);
  if (code < 0 && !p->departed) frame_note_failure(ch, peer, code, os_error());
}

static int take_events(channel *ch, int set) {
  struct epoll_event events[EVENTS];
  int n = epoll_wait(set, events, EVENTS, 0);
  for (int i = 0; i < n; i++) take_event(ch, &events[i]);
  return n;
}

/* Ask the kernel, if it is time: on every turn with sockets, unless a few are awaited, which are tried unasked, or this
 * is the last look of who is going to sleep, whom what stands there then wakes; else now and then, for dead peers.
 * true: something was reported. Also a ring without a message counts, because it has used up the sender's duty to ring:
 * who was about to sleep has to say anew that it sleeps. */
static bool poll_events(channel *ch) {
  bool ask = ch->nsockets > 0 && !ch->asleep && (ch->awaited == 0 || ch->awaited > FEW);
  bool due = ask || atomic_load_explicit(&ch->poll_due, memory_order_relaxed);
  bool any = false;
  if (!due && ++ch->turns % ASK_EVERY != 0) return false;
  if (ch->nsockets == 0) {
    uint64_t now = clock_ns();
    if (!due && now - ch->polled_ns < POLL_EVERY_NS) return false;
    ch->polled_ns = now;
  }
  int n = take_events(ch, ch->epoll_fd);
  atomic_store_explicit(&ch->poll_due, n == EVENTS, memory_order_relaxed);
  any = n > 0;
  if (ch->data_due || ch->awaited > FEW) ch->data_due = take_events(ch, ch->data_fd) == EVENTS;
  return any;
}

/* A lane of a data socket that has something to move: the first few are tried unasked. */
static void await(channel *ch, lane *l, int cls) {
  if (ch->awaited++ < FEW) l->ready = true;
  ch->classes |= 1u << cls;
}

static bool progress_peer(channel *ch, int peer) {
  peer_state *p = &ch->peers[peer];
  for (int c = LINK_NAMED; c < LINK_CLASSES && !p->link->ops->in_memory; c++) {
    if (p->in[c].head) await(ch, &p->in[c], c);
    if (p->out[c].head) await(ch, &p->out[c], c);
  }
  bool here = frame_pump_in(ch, peer);
  for (int i = LINK_CLASSES; i > 0; i--) { /* control, then the small first */
    int c = i % LINK_CLASSES;
    if (p->out[c].head) here |= frame_pump_out(ch, peer, c);
  }
  if (here) p->link->ops->flush(p->link);
  return here;
}

int channel_progress(channel *ch) {
  bool moved = poll_events(ch);
  ch->awaited = 0;
  ch->shared = (ch->classes & (ch->classes - 1)) != 0;
  ch->classes = 0;
  for (int i = 0; i < ch->size; i++)
    if (ch->peers[i].link && !ch->peers[i].failure) moved |= progress_peer(ch, i);
  if (ch->failures > 0) {
    settle_failures(ch);
    moved = true;
  }
  return moved;
}

/* Let the data sockets end a sleep, or not. */
static void arm_data(channel *ch, bool on) {
  struct epoll_event e = {.events = EPOLLIN, .data.u64 = data_mark};
  if (on == ch->data_armed) return;
  ch->data_armed = on;
  epoll_ctl(ch->epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, ch->data_fd, &e);
}

static void post(channel *ch, int peer, int cls, chan_io *io, bool sending) {
  peer_state *p = &ch->peers[peer];
  lane *l = sending ? &p->out[cls] : &p->in[cls];
  io->done = 0;
  io->status = LWCC_PENDING;
  if (!sending && l->parked) {
    int st = park_take(l, io);
    if (st > 0) return;
    if (st < 0) frame_note_failure(ch, peer, st, os_error());
  }
  io->status = p->lost ? p->failure : LWCC_PENDING;
  if (l->ended) io->status = LWCC_ERR_PEER_LOST;
  if (p->lost || l->ended) return;
  bool first = !l->head;
  lane_append(l, io);
  ch->awaited += first && cls != LINK_CONTROL && !p->link->ops->in_memory;
  if (ch->asleep && cls != LINK_CONTROL) arm_data(ch, true);
  if (sending && first && frame_pump_out(ch, peer, cls)) p->link->ops->flush(p->link);
}

void channel_send(channel *ch, int peer, int cls, chan_io *io) {
  post(ch, peer, cls, io, true);
}
void channel_recv(channel *ch, int peer, int cls, chan_io *io) {
  post(ch, peer, cls, io, false);
}

void channel_cancel(channel *ch, int peer, int cls, chan_io *io) {
  peer_state *p = &ch->peers[peer];
  for (int i = 0; i < 2 && io->status == LWCC_PENDING; i++) {
    int st = park_cancel(i ? &p->out[cls] : &p->in[cls], io);
    if (st < 0) frame_note_failure(ch, peer, st, os_error());
  }
}

int channel_control(channel *ch, int peer, const void *msg, size_t nbytes) {
  if (nbytes > CONTROL_MAX)
    return os_fail(LWCC_ERR_INVALID, "channel: control message of %zu bytes, at most %d", nbytes, CONTROL_MAX);
  if (ch->peers[peer].lost) return os_fail(LWCC_ERR_PEER_LOST, "%s", ch->peers[peer].text);
  if (ch->peers[peer].departed) return os_fail(LWCC_ERR_SHUTDOWN, "rank %d has left", peer);
  control_msg *m = malloc(sizeof *m + nbytes);
  if (!m) return os_fail(LWCC_ERR_SYSTEM, "channel: no memory for a control message of %zu bytes", nbytes);
  m->io = (chan_io){.buf = m->bytes, .nbytes = nbytes, .owned = true};
  if (nbytes) memcpy(m->bytes, msg, nbytes);
  post(ch, peer, LINK_CONTROL, &m->io, true);
  return LWCC_OK;
}

bool channel_idle(const channel *ch) {
  for (int i = 0; i < ch->size; i++)
    for (int c = 0; c < LINK_CLASSES; c++)
      if (ch->peers[i].out[c].head) return false;
  return true;
}

int channel_lost(const channel *ch, int peer) {
  return ch->peers[peer].lost;
}

void channel_depart(channel *ch, int peer) {
  ch->peers[peer].departed = true;
}

void channel_mix(channel *ch) {
  ch->mixed = true;
}

void channel_ring(channel *ch, int peer) {
  transport_link *l = ch->peers[peer].link;
  if (l && l->ops->ring) l->ops->ring(l);
}

int channel_watch(channel *ch, int fd, void (*fn)(void *arg), void *arg) {
  watch *more = realloc(ch->watches, (ch->nwatches + 1) * sizeof *more);
  if (!more) return os_fail(LWCC_ERR_SYSTEM, "channel: no memory");
  ch->watches = more;
  ch->watches[ch->nwatches] = (watch){.fn = fn, .arg = arg};
  struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u64 = watch_bit | ch->nwatches};
  if (epoll_ctl(ch->epoll_fd, EPOLL_CTL_ADD, fd, &e) != 0)
    return os_fail(LWCC_ERR_SYSTEM, "channel: epoll_ctl failed (%s)", strerror(errno));
  ch->nwatches++;
  return LWCC_OK;
}

static bool awaits_data(const channel *ch) {
  for (int i = 0; i < ch->size && ch->nsockets > 0; i++)
    for (int c = LINK_NAMED; c < LINK_CLASSES; c++)
      if (ch->peers[i].in[c].head || ch->peers[i].out[c].head) return true;
  return false;
}

static void set_asleep(channel *ch, int asleep) {
  ch->asleep = asleep;
  arm_data(ch, asleep && awaits_data(ch));
  for (int i = 0; i < ch->size; i++) {
    transport_link *l = ch->peers[i].link;
    if (l) l->ops->set_asleep(l, asleep);
  }
}

void channel_prepare_sleep(channel *ch) {
  set_asleep(ch, 1);
}

void channel_woken(channel *ch) {
  set_asleep(ch, 0);
}

/* Polling the epoll descriptor tells that there are events and leaves them to whoever drives. */
void channel_wait(channel *ch, int64_t timeout_ns, bool peers) {
  struct pollfd p[2] = {{.fd = ch->wake_fd, .events = POLLIN}, {.fd = ch->epoll_fd, .events = POLLIN}};
  struct timespec t = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
  ppoll(p, peers ? 2 : 1, timeout_ns < 0 ? NULL : &t, NULL);
  eventfd_t count;
  if (p[0].revents && eventfd_read(ch->wake_fd, &count) == 0) {
    /* acq_rel: pairs with channel_wake. After the read: a wake between the two found woken set and wrote nothing, but
     * our caller looks for work after this. */
    atomic_exchange_explicit(&ch->woken, 0, memory_order_acq_rel);
  }
  atomic_store_explicit(&ch->poll_due, true, memory_order_relaxed);
}

void channel_wake(channel *ch) {
  /* acq_rel: pairs with channel_wait */
  if (atomic_exchange_explicit(&ch->woken, 1, memory_order_acq_rel) == 0) eventfd_write(ch->wake_fd, 1);
}

/* Once for all links that share it. */
static int watch_bell(channel *ch, const transport_bell *b) {
  for (size_t i = 0; i < ch->nwatches; i++)
    if (ch->watches[i].arg == b->arg) return LWCC_OK;
  return channel_watch(ch, b->fd, b->fn, b->arg);
}

static int add_link(channel *ch, int peer, transport_link *link) {
  ch->peers[peer].link = link;
  if (link->ops->bell) TRY(watch_bell(ch, link->ops->bell(link)));
  if (!link->ops->in_memory) ch->nsockets++;
  for (int c = 0; c < LINK_CLASSES; c++) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    if (!link->ops->in_memory) e.events |= EPOLLOUT;
    e.data.u64 = (uint64_t)peer * LINK_CLASSES + (uint64_t)c;
    if (epoll_ctl(set_of(ch, link, c), EPOLL_CTL_ADD, link->ops->fd(link, c), &e) != 0 && errno != EEXIST)
      return os_fail(LWCC_ERR_SYSTEM, "channel: epoll_ctl failed (%s)", strerror(errno));
  }
  return LWCC_OK;
}

int channel_create(int rank, int size, uint64_t generation, transport_link **links, const channel_events *ev,
                   channel **out) {
  channel *ch;
  TRY(mem_zeroed(1, sizeof *ch + (size_t)size * sizeof ch->peers[0], (void **)&ch));
  ch->rank = rank;
  ch->size = size;
  ch->magic = (uint32_t)((generation + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
  ch->events = *ev;
  ch->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  ch->data_fd = epoll_create1(EPOLL_CLOEXEC);
  ch->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int code = LWCC_OK;
  if (ch->epoll_fd < 0 || ch->data_fd < 0 || ch->wake_fd < 0)
    code = os_fail(LWCC_ERR_SYSTEM, "channel: no descriptors (%s); see ulimit -n", strerror(errno));
  for (int i = 0; i < size; i++) {
    peer_state *p = &ch->peers[i];
    for (int c = 0; c < LINK_CLASSES; c++) {
      p->out[c] = (lane){.tail = &p->out[c].head, .ready = true};
      p->in[c] = (lane){.tail = &p->in[c].head, .ready = true};
    }
    if (links[i] && code == LWCC_OK) code = add_link(ch, i, links[i]);
    p->link = links[i];
  }
  if (code == LWCC_OK) {
    *out = ch;
  } else {
    channel_close(ch);
  }
  return code;
}

void channel_close(channel *ch) {
  for (int i = 0; i < ch->size; i++) {
    peer_state *p = &ch->peers[i];
    if (p->link) drop_link(ch, p, LWCC_ERR_SHUTDOWN);
    free(p->msg);
  }
  if (ch->epoll_fd >= 0) close(ch->epoll_fd);
  if (ch->data_fd >= 0) close(ch->data_fd);
  if (ch->wake_fd >= 0) close(ch->wake_fd);
  free(ch->watches);
  free(ch);
}
