/* Two processes of one node: a byte ring per class and direction in shared memory, and a Unix socket.
 * The socket carries no data. A byte on it ends the peer's sleep; its end of file is the peer's death, which the kernel
 * reports whatever killed it. */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/shm_ring.h"
#include "transport/transport.h"

enum { AWAKE = 0, ASLEEP = 1, WANTS_ROOM = 2, PIECE_BYTES = 32 << 10 }; /* WANTS_ROOM: besides ASLEEP */

static const uint64_t capacity[LINK_CLASSES] = {64 << 10, 256 << 10, 256 << 10, 32 << 10, 32 << 10};

typedef struct {                       /* the first page; then the bytes of side 0's rings, then those of side 1's */
  shm_ring_head head[2][LINK_CLASSES]; /* [writer's side][class] */
  struct {
    alignas(64) _Atomic uint32_t state; /* of this side's sleep */
  } sleep[2];
} shared_head;

typedef struct {
  transport_link base;
  shared_head *shared;
  int side, fd;
  int lost;             /* end of file was seen */
  int sent, took, full; /* since the last flush: bytes were sent, taken; the last send to some class met a full ring */
  shm_ring out[LINK_CLASSES], in[LINK_CLASSES];
} shm_link;

static shm_link *self(transport_link *l) {
  return (shm_link *)l;
}

static ssize_t broken_counter(const shm_link *s) {
  return os_fail(LWCC_ERR_PEER_LOST, "shm: rank %d wrote an impossible ring counter", s->base.peer);
}

static int gone(const shm_link *s) {
  return os_fail(LWCC_ERR_PEER_LOST, "shm: the process of rank %d is gone", s->base.peer);
}

static ssize_t write_one(transport_link *l, int cls, void *buf, size_t n) {
  shm_link *s = self(l);
  if (s->lost) return gone(s);
  if (n > PIECE_BYTES) n = PIECE_BYTES; /* published in pieces, so that the peer copies while we do */
  ssize_t moved = shm_ring_write(&s->out[cls], buf, n);
  if (moved < 0) return broken_counter(s);
  if (moved > 0) s->sent = 1;
  if ((size_t)moved < n) {
    s->full |= 1 << cls;
  } else {
    s->full &= ~(1 << cls);
  }
  return moved;
}

static ssize_t read_one(transport_link *l, int cls, void *buf, size_t n) {
  shm_link *s = self(l);
  if (n > PIECE_BYTES) n = PIECE_BYTES;
  ssize_t moved = shm_ring_read(&s->in[cls], buf, n);
  if (moved < 0) return broken_counter(s);
  if (moved > 0) s->took = 1;
  if (moved == 0 && s->lost) return gone(s); /* what a dead peer sent before is still delivered */
  return moved;
}

static ssize_t shm_send(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, write_one);
}
static ssize_t shm_recv(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, read_one);
}

static int shm_fd(const transport_link *l, int cls) {
  (void)cls;
  return ((const shm_link *)l)->fd;
}

/* Sleeper and ringer change the same word by read-modify-write, so one of them comes second: either the ringer sees
 * ASLEEP, or the sleeper, who looks at the rings once more, sees what the ringer did before. */
static void shm_set_asleep(transport_link *l, int asleep) {
  shm_link *s = self(l);
  uint32_t state = !asleep ? AWAKE : s->full ? ASLEEP | WANTS_ROOM : ASLEEP;
  /* acq_rel: pairs with the read-modify-writes in shm_flush */
  atomic_exchange_explicit(&s->shared->sleep[s->side].state, state, memory_order_acq_rel);
}

static void shm_flush(transport_link *l) {
  shm_link *s = self(l);
  _Atomic uint32_t *state = &s->shared->sleep[!s->side].state;
  if (!s->sent && !s->took) return;
  uint32_t cares = (s->sent ? ASLEEP : 0) | (s->took ? WANTS_ROOM : 0);
  s->sent = s->took = 0;
  /* acq_rel, also the exchange below: pairs with shm_set_asleep */
  if (!(atomic_fetch_add_explicit(state, 0, memory_order_acq_rel) & cares)) return;
  if (atomic_exchange_explicit(state, AWAKE, memory_order_acq_rel) != AWAKE)
    sock_send(s->fd, "", 1); /* full: it has bytes enough to wake up; closed: check will tell */
}

static void shm_ring_peer(transport_link *l) {
  shm_link *s = self(l);
  s->sent = 1;
  shm_flush(l);
}

static int shm_check(transport_link *l) {
  shm_link *s = self(l);
  char bytes[64];
  ssize_t n = 1;
  while (!s->lost && n > 0) n = sock_recv(s->fd, bytes, sizeof bytes);
  if (n < 0) s->lost = 1;
  return s->lost ? gone(s) : LWCC_OK;
}

static void shm_close(transport_link *l) {
  close(self(l)->fd);
  free(l);
}

static const transport_ops shm_ops = {.name = "shm",
                                      .in_memory = 1,
                                      .send = shm_send,
                                      .recv = shm_recv,
                                      .fd = shm_fd,
                                      .set_asleep = shm_set_asleep,
                                      .flush = shm_flush,
                                      .ring = shm_ring_peer,
                                      .check = shm_check,
                                      .close = shm_close};

size_t transport_shm_bytes(void) {
  size_t n = MEM_PAGE;
  for (int c = 0; c < LINK_CLASSES; c++) n += 2 * capacity[c];
  return n;
}

int transport_shm_open(int peer, void *rings, int side, int unix_fd, transport_link **out) {
  _Static_assert(sizeof(shared_head) <= MEM_PAGE, "the heads must fit into the first page");
  shm_link *s;
  TRY(sock_nonblocking(unix_fd));
  TRY(mem_zeroed(1, sizeof *s, (void **)&s));
  s->base = (transport_link){.ops = &shm_ops, .peer = peer};
  s->shared = rings;
  s->side = side;
  s->fd = unix_fd;
  uint8_t *bytes = (uint8_t *)rings + MEM_PAGE;
  for (int w = 0; w < 2; w++) {
    for (int c = 0; c < LINK_CLASSES; c++) {
      shm_ring_open(w == side ? &s->out[c] : &s->in[c], &s->shared->head[w][c], bytes, capacity[c]);
      bytes += capacity[c];
    }
  }
  *out = &s->base;
  return LWCC_OK;
}
