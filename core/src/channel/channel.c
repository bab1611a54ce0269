/* PATH 8/9: messages become frames (16 bytes of header, then the payload) on the byte pipes of the links.
 *
 * A link in memory is tried on every turn, which costs a load or two. A socket is tried only after the kernel reported
 * it (edge-triggered, so unread data of a receive that is not yet posted never keeps us awake). The death of a peer is
 * noted where it is met and settled at one place, at the end of a turn, so that no callback runs inside a send. */
#include "channel/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/mem.h"
#include "os/status.h"

enum { SMALL = 1024, BUDGET = 512 << 10, CONTROL_MAX = 16 << 20, EVENTS = 64, POLL_EVERY_NS = 20000000 };
static const uint64_t watch_bit = UINT64_C(1) << 63;

typedef struct {
  uint32_t magic, tag;
  uint64_t nbytes;
} frame_header;

typedef struct control_msg {
  chan_io io; /* first member; buf points to bytes */
  uint8_t bytes[];
} control_msg;

typedef struct { /* one direction of one class */
  chan_io *head, **tail;
  frame_header header; /* of the message under way */
  size_t header_done;
  bool ready; /* sockets: the kernel reported it and no call has blocked since */
} lane;

typedef struct {
  transport_link *link; /* NULL at the own rank, and once lost */
  lane out[LINK_CLASSES], in[LINK_CLASSES];
  uint8_t *msg; /* the control message that is arriving; room for msg_room bytes */
  size_t msg_room, msg_done;
  int failure; /* < 0: noted, with text */
  bool lost;   /* settled */
  char text[256];
} peer_state;

typedef struct {
  void (*fn)(void *arg);
  void *arg;
} watch;

struct channel {
  int rank, size;
  uint32_t magic;
  channel_events events;
  int epoll_fd, wake_fd;
  int nsockets; /* live links that need the kernel's report */
  unsigned turns;
  uint64_t polled_ns;
  atomic_bool poll_due; /* relaxed: the engine lock orders it */
  atomic_int woken;     /* 1: wake_fd is signalled; acq_rel: channel_wake pairs with channel_wait */
  int failures;         /* noted, not yet settled */
  watch *watches;
  size_t nwatches;
  peer_state peers[];
};

static void note_failure(channel *ch, int peer, int code, const char *text) {
  peer_state *p = &ch->peers[peer];
  if (p->failure) return;
  p->failure = code;
  os_copy_text(p->text, sizeof p->text, text);
  ch->failures++;
}

static void lane_append(lane *l, chan_io *io) {
  io->next = NULL;
  *l->tail = io;
  l->tail = &io->next;
}

static void lane_finish_head(lane *l, int status) {
  chan_io *io = l->head;
  l->head = io->next;
  if (!l->head) l->tail = &l->head;
  l->header_done = 0;
  io->status = status; /* last: from here on the owner may reuse it */
}

/* Count n bytes that went over the pipe, header first. */
static void lane_advance(lane *l, size_t n) {
  chan_io *io = l->head;
  size_t h = sizeof l->header - l->header_done;
  if (h > n) h = n;
  l->header_done += h;
  io->done += n - h;
}

static bool lane_complete(const lane *l) {
  return l->header_done == sizeof l->header && l->head->done == l->head->nbytes;
}

/* One call of the transport for the head of the lane; a small message goes with its header. */
static ssize_t send_part(channel *ch, peer_state *p, int cls, size_t most) {
  lane *l = &p->out[cls];
  chan_io *io = l->head;
  const transport_ops *ops = p->link->ops;
  if (l->header_done == sizeof l->header) {
    size_t left = io->nbytes - io->done;
    return ops->send(p->link, cls, (uint8_t *)io->buf + io->done, left < most ? left : most);
  }
  uint8_t block[sizeof l->header + SMALL];
  size_t n = sizeof l->header;
  frame_header h = {.magic = ch->magic + (uint32_t)cls, .tag = io->tag, .nbytes = io->nbytes};
  memcpy(block, &h, sizeof h);
  if (io->nbytes > 0 && io->nbytes <= SMALL) {
    memcpy(block + n, io->buf, io->nbytes);
    n += io->nbytes;
  }
  return ops->send(p->link, cls, block + l->header_done, n - l->header_done);
}

static bool pump_out(channel *ch, int peer, int cls) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->out[cls];
  size_t moved = 0;
  while (l->head && !p->failure && l->ready && moved < BUDGET) {
    ssize_t n = send_part(ch, p, cls, BUDGET - moved);
    if (n < 0) note_failure(ch, peer, (int)n, os_error());
    if (n <= 0) {
      l->ready = p->link->ops->in_memory;
      break;
    }
    moved += (size_t)n;
    lane_advance(l, (size_t)n);
    if (!lane_complete(l)) continue;
    chan_io *io = l->head;
    lane_finish_head(l, LWCC_OK);
    if (cls == LINK_CONTROL) free(io);
  }
  return moved > 0;
}

static int check_header(const channel *ch, int peer, int cls, const frame_header *h) {
  uint32_t magic = ch->magic + (uint32_t)cls;
  if (h->magic != magic)
    return os_fail(LWCC_ERR_PROTOCOL, "channel: rank %d sent a frame of mark %08x, expected %08x", peer, h->magic,
                   magic);
  if (cls == LINK_CONTROL) {
    if (h->nbytes <= CONTROL_MAX) return LWCC_OK;
    return os_fail(LWCC_ERR_PROTOCOL, "channel: rank %d announced a control message of %llu bytes, at most %d expected",
                   peer, (unsigned long long)h->nbytes, CONTROL_MAX);
  }
  const chan_io *io = ch->peers[peer].in[cls].head;
  if (h->tag == io->tag && h->nbytes == io->nbytes) return LWCC_OK;
  return os_fail(LWCC_ERR_PROTOCOL, "channel: rank %d sent %llu bytes with tag %u, expected %zu bytes with tag %u",
                 peer, (unsigned long long)h->nbytes, h->tag, io->nbytes, io->tag);
}

/* One call of the transport for the receive at the head; a small message is read with its header. */
static ssize_t recv_part(channel *ch, int peer, int cls, size_t most) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[cls];
  chan_io *io = l->head;
  const transport_ops *ops = p->link->ops;
  if (l->header_done == sizeof l->header) {
    size_t left = io->nbytes - io->done;
    return ops->recv(p->link, cls, (uint8_t *)io->buf + io->done, left < most ? left : most);
  }
  uint8_t block[sizeof l->header + SMALL];
  size_t missing = sizeof l->header - l->header_done, small = io->nbytes <= SMALL ? io->nbytes : 0;
  ssize_t n = ops->recv(p->link, cls, block, missing + small);
  if (n <= 0) return n;
  size_t h = (size_t)n < missing ? (size_t)n : missing;
  memcpy((uint8_t *)&l->header + l->header_done, block, h);
  if (h < missing) return n;
  TRY(check_header(ch, peer, cls, &l->header));
  if ((size_t)n > missing) memcpy(io->buf, block + missing, (size_t)n - missing);
  return n;
}

static bool pump_data(channel *ch, int peer, int cls) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[cls];
  size_t moved = 0;
  while (l->head && l->ready && moved < BUDGET) {
    ssize_t n = recv_part(ch, peer, cls, BUDGET - moved);
    if (n < 0) note_failure(ch, peer, (int)n, os_error());
    if (n <= 0) {
      l->ready = n == 0 && p->link->ops->in_memory;
      break;
    }
    moved += (size_t)n;
    lane_advance(l, (size_t)n);
    if (lane_complete(l)) lane_finish_head(l, LWCC_OK);
  }
  return moved > 0;
}

static int control_room(peer_state *p, size_t nbytes) {
  if (nbytes <= p->msg_room) return LWCC_OK;
  uint8_t *bigger = realloc(p->msg, nbytes);
  if (!bigger) return os_fail(LWCC_ERR_SYSTEM, "channel: no memory for a control message of %zu bytes", nbytes);
  p->msg = bigger;
  p->msg_room = nbytes;
  return LWCC_OK;
}

/* One call of the transport for the control message that is arriving. */
static ssize_t control_part(channel *ch, int peer) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[LINK_CONTROL];
  const transport_ops *ops = p->link->ops;
  if (l->header_done == sizeof l->header) {
    ssize_t n = ops->recv(p->link, LINK_CONTROL, p->msg + p->msg_done, (size_t)l->header.nbytes - p->msg_done);
    if (n > 0) p->msg_done += (size_t)n;
    return n;
  }
  uint8_t *at = (uint8_t *)&l->header + l->header_done;
  ssize_t n = ops->recv(p->link, LINK_CONTROL, at, sizeof l->header - l->header_done);
  if (n <= 0) return n;
  l->header_done += (size_t)n;
  if (l->header_done < sizeof l->header) return n;
  TRY(check_header(ch, peer, LINK_CONTROL, &l->header));
  TRY(control_room(p, (size_t)l->header.nbytes));
  p->msg_done = 0;
  return n;
}

static bool pump_control(channel *ch, int peer) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[LINK_CONTROL];
  bool moved = false;
  for (int calls = 0; calls < 64 && l->ready; calls++) {
    ssize_t n = control_part(ch, peer);
    if (n < 0) note_failure(ch, peer, (int)n, os_error());
    if (n <= 0) {
      l->ready = n == 0 && p->link->ops->in_memory;
      break;
    }
    moved = true;
    if (l->header_done < sizeof l->header || p->msg_done < l->header.nbytes) continue;
    l->header_done = 0;
    ch->events.on_control(ch->events.arg, peer, p->msg, (size_t)l->header.nbytes);
  }
  return moved;
}

static bool pump_in(channel *ch, int peer) {
  bool moved = pump_control(ch, peer);
  for (int c = LINK_NAMED; c < LINK_CLASSES; c++)
    if (ch->peers[peer].in[c].head) moved |= pump_data(ch, peer, c);
  return moved;
}

static void fail_lane(lane *l, int status, bool owned) {
  while (l->head) {
    chan_io *io = l->head;
    lane_finish_head(l, status);
    if (owned) free(io);
  }
}

static void drop_link(channel *ch, peer_state *p, int status) {
  transport_link *link = p->link;
  p->link = NULL;
  for (int c = 0; c < LINK_CLASSES; c++) {
    /* by hand: a forked child may hold the descriptor, and then close() does not take it out of the set */
    epoll_ctl(ch->epoll_fd, EPOLL_CTL_DEL, link->ops->fd(link, c), NULL);
    fail_lane(&p->out[c], status, c == LINK_CONTROL);
    fail_lane(&p->in[c], status, false);
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
    for (int rounds = 0; rounds < 64 && p->failure == LWCC_ERR_PEER_LOST && pump_in(ch, i); rounds++) continue;
    p->lost = true;
    drop_link(ch, p, p->failure);
    ch->events.on_lost(ch->events.arg, i, p->failure, p->text);
  }
}

static void take_event(channel *ch, const struct epoll_event *e) {
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
  if (code < 0) note_failure(ch, peer, code, os_error());
}

/* Ask the kernel, if it is time: on every turn with sockets, else now and then, for dead peers. */
static void poll_events(channel *ch) {
  bool due = atomic_load_explicit(&ch->poll_due, memory_order_relaxed) || ch->nsockets > 0;
  if (!due && ++ch->turns % 16 != 0) return;
  if (ch->nsockets == 0) {
    uint64_t now = clock_ns();
    if (!due && now - ch->polled_ns < POLL_EVERY_NS) return;
    ch->polled_ns = now;
  }
  struct epoll_event events[EVENTS];
  int n = epoll_wait(ch->epoll_fd, events, EVENTS, 0);
  atomic_store_explicit(&ch->poll_due, n == EVENTS, memory_order_relaxed);
  for (int i = 0; i < n; i++) take_event(ch, &events[i]);
}

int channel_progress(channel *ch) {
  bool moved = false;
  poll_events(ch);
  for (int i = 0; i < ch->size; i++) {
    peer_state *p = &ch->peers[i];
    if (!p->link || p->failure) continue;
    bool here = pump_in(ch, i);
    for (int c = 0; c < LINK_CLASSES; c++)
      if (p->out[c].head) here |= pump_out(ch, i, c);
    if (here) p->link->ops->flush(p->link);
    moved |= here;
  }
  if (ch->failures > 0) {
    settle_failures(ch);
    moved = true;
  }
  return moved;
}

static void post(channel *ch, int peer, int cls, chan_io *io, bool sending) {
  peer_state *p = &ch->peers[peer];
  lane *l = sending ? &p->out[cls] : &p->in[cls];
  io->done = 0;
  io->status = p->lost ? p->failure : LWCC_PENDING;
  if (p->lost) return;
  bool first = !l->head;
  lane_append(l, io);
  if (sending && first && pump_out(ch, peer, cls)) p->link->ops->flush(p->link);
}

void channel_send(channel *ch, int peer, int cls, chan_io *io) {
  post(ch, peer, cls, io, true);
}
void channel_recv(channel *ch, int peer, int cls, chan_io *io) {
  post(ch, peer, cls, io, false);
}

int channel_control(channel *ch, int peer, const void *msg, size_t nbytes) {
  if (nbytes > CONTROL_MAX)
    return os_fail(LWCC_ERR_INVALID, "channel: control message of %zu bytes, at most %d", nbytes, CONTROL_MAX);
  if (ch->peers[peer].lost) return os_fail(LWCC_ERR_PEER_LOST, "%s", ch->peers[peer].text);
  control_msg *m = malloc(sizeof *m + nbytes);
  if (!m) return os_fail(LWCC_ERR_SYSTEM, "channel: no memory for a control message of %zu bytes", nbytes);
  m->io = (chan_io){.buf = m->bytes, .nbytes = nbytes};
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

static void set_asleep(channel *ch, int asleep) {
  for (int i = 0; i < ch->size; i++) {
    transport_link *l = ch->peers[i].link;
    if (l) l->ops->set_asleep(l, asleep);
  }
}

void channel_prepare_sleep(channel *ch) {
  set_asleep(ch, 1);
  atomic_store_explicit(&ch->poll_due, true, memory_order_relaxed);
}

void channel_woken(channel *ch) {
  set_asleep(ch, 0);
}

/* Polling the epoll descriptor tells that there are events and leaves them to whoever drives. */
void channel_wait(channel *ch, int64_t timeout_ns) {
  struct pollfd p[2] = {{.fd = ch->epoll_fd, .events = POLLIN}, {.fd = ch->wake_fd, .events = POLLIN}};
  struct timespec t = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
  ppoll(p, 2, timeout_ns < 0 ? NULL : &t, NULL);
  eventfd_t count;
  if (p[1].revents && eventfd_read(ch->wake_fd, &count) == 0) {
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

static int add_link(channel *ch, int peer, transport_link *link) {
  ch->peers[peer].link = link;
  if (!link->ops->in_memory) ch->nsockets++;
  for (int c = 0; c < LINK_CLASSES; c++) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    if (!link->ops->in_memory) e.events |= EPOLLOUT;
    e.data.u64 = (uint64_t)peer * LINK_CLASSES + (uint64_t)c;
    if (epoll_ctl(ch->epoll_fd, EPOLL_CTL_ADD, link->ops->fd(link, c), &e) != 0 && errno != EEXIST)
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
  ch->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int code = LWCC_OK;
  if (ch->epoll_fd < 0 || ch->wake_fd < 0)
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
  if (ch->wake_fd >= 0) close(ch->wake_fd);
  free(ch->watches);
  free(ch);
}
