/* Two threads of one process, for tests: small rings under a mutex, with seeded mischief and a planned fault. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/shm_ring.h"
#include "transport/transport.h"

enum { RING_BYTES = 16 << 10 };

typedef struct {
  pthread_mutex_t mu; /* guards all below */
  int users, broken;
  int asleep[2], fds[2];               /* fds: -1 once that side has closed */
  uint64_t random, fault_after, moved; /* bytes */
  shm_ring_head head[2][LINK_CLASSES]; /* [writer][class] */
  uint8_t bytes[2][LINK_CLASSES][RING_BYTES];
} mem_pipe;

typedef struct {
  transport_link base;
  mem_pipe *pipe;
  int side, fd; /* fd: Unix socket that rings */
  shm_ring out[LINK_CLASSES], in[LINK_CLASSES];
} mem_link;

static mem_link *self(transport_link *l) {
  return (mem_link *)l;
}

/* How many of n bytes this call may move: all, or with mischief some or none. */
static size_t allowed(mem_pipe *p, size_t n) {
  if (p->random == 0) return n;
  p->random ^= p->random << 13;
  p->random ^= p->random >> 7;
  p->random ^= p->random << 17;
  return p->random % 5 == 0 ? 0 : 1 + p->random % n;
}

static ssize_t move(mem_link *m, shm_ring *ring, void *buf, size_t n) {
  mem_pipe *p = m->pipe;
  pthread_mutex_lock(&p->mu);
  int sending = ring >= m->out && ring < m->out + LINK_CLASSES;
  size_t k = allowed(p, n);
  /* Nothing moved by mischief alone, and who sleeps now would miss it: let the own descriptor report again. */
  if (n && k == 0 && p->fds[!m->side] >= 0) sock_send(p->fds[!m->side], "", 1);
  ssize_t moved = k == 0 ? 0 : sending ? (p->broken ? 0 : shm_ring_write(ring, buf, k)) : shm_ring_read(ring, buf, k);
  if (sending) p->moved += (uint64_t)moved;
  if (p->fault_after && p->moved >= p->fault_after) p->broken = 1;
  int lost = p->broken && moved == 0 && k > 0;
  pthread_mutex_unlock(&p->mu);
  return lost ? os_fail(LWCC_ERR_PEER_LOST, "mem: the link to rank %d broke", m->base.peer) : moved;
}

static ssize_t write_one(transport_link *l, int cls, void *buf, size_t n) {
  return move(self(l), &self(l)->out[cls], buf, n);
}
static ssize_t read_one(transport_link *l, int cls, void *buf, size_t n) {
  return move(self(l), &self(l)->in[cls], buf, n);
}

static ssize_t mem_send(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, write_one);
}
static ssize_t mem_recv(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, read_one);
}

static int mem_fd(const transport_link *l, int cls) {
  (void)cls;
  return ((const mem_link *)l)->fd;
}

static void mem_set_asleep(transport_link *l, int asleep) {
  mem_pipe *p = self(l)->pipe;
  pthread_mutex_lock(&p->mu);
  p->asleep[self(l)->side] = asleep;
  pthread_mutex_unlock(&p->mu);
}

static void mem_flush(transport_link *l) {
  mem_link *m = self(l);
  pthread_mutex_lock(&m->pipe->mu);
  int ring = m->pipe->asleep[!m->side];
  m->pipe->asleep[!m->side] = 0;
  pthread_mutex_unlock(&m->pipe->mu);
  if (ring) sock_send(m->fd, "", 1);
}

static int mem_check(transport_link *l) {
  char bytes[64];
  mem_link *m = self(l);
  while (sock_recv(m->fd, bytes, sizeof bytes) > 0) continue;
  pthread_mutex_lock(&m->pipe->mu);
  int broken = m->pipe->broken;
  pthread_mutex_unlock(&m->pipe->mu);
  return broken ? os_fail(LWCC_ERR_PEER_LOST, "mem: the link to rank %d broke", l->peer) : LWCC_OK;
}

static void mem_close(transport_link *l) {
  mem_link *m = self(l);
  mem_pipe *p = m->pipe;
  pthread_mutex_lock(&p->mu);
  p->broken = 1;
  p->fds[m->side] = -1;
  int last = --p->users == 0;
  pthread_mutex_unlock(&p->mu);
  close(m->fd);
  free(m);
  if (!last) return;
  pthread_mutex_destroy(&p->mu);
  free(p);
}

static const transport_ops mem_ops = {.name = "mem",
                                      .in_memory = 1,
                                      .send = mem_send,
                                      .recv = mem_recv,
                                      .fd = mem_fd,
                                      .set_asleep = mem_set_asleep,
                                      .flush = mem_flush,
                                      .check = mem_check,
                                      .close = mem_close};

int transport_mem_pair(uint64_t seed, uint64_t fault_after, transport_link **a_out, transport_link **b_out) {
  mem_pipe *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
  mem_link *m[2] = {calloc(1, sizeof *m[0]), calloc(1, sizeof *m[1])};
  int fds[2];
  if (!p || !m[0] || !m[1] || sock_pair(fds) < 0) {
    free(p);
    free(m[0]);
    free(m[1]);
    return os_fail(LWCC_ERR_SYSTEM, "mem: no memory or descriptors for a link");
  }
  memset(p, 0, sizeof *p);
  pthread_mutex_init(&p->mu, NULL);
  p->users = 2;
  p->random = seed;
  p->fault_after = fault_after;
  for (int i = 0; i < 2; i++) {
    m[i]->base = (transport_link){.ops = &mem_ops, .peer = !i};
    m[i]->pipe = p;
    m[i]->side = i;
    m[i]->fd = p->fds[i] = fds[i];
    for (int c = 0; c < LINK_CLASSES; c++) {
      shm_ring_open(&m[i]->out[c], &p->head[i][c], p->bytes[i][c], RING_BYTES);
      shm_ring_open(&m[i]->in[c], &p->head[!i][c], p->bytes[!i][c], RING_BYTES);
    }
  }
  *a_out = &m[0]->base;
  *b_out = &m[1]->base;
  return LWCC_OK;
}
