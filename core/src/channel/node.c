/* Registered memory. Blocks are cut from regions of at least 64 MiB of address space (pages are taken when touched), so
 * that neighbours in time are neighbours in memory and the peers map seldom. A region stays until node_close; a freed
 * block gives its pages back. The tables only grow, so node_find and node_map read them without a lock. */
#include "channel/node.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "channel/bootstrap.h"
#include "channel/node_build.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"

enum { REGIONS = 256, REGION_BYTES = 64 << 20 };
typedef enum { OP_MAP = 1, OP_MAPPED, OP_REFUSED } region_op;

typedef struct {
  uint32_t op, region;
  uint64_t nbytes;
} region_msg;

typedef struct {
  _Atomic(uint8_t *) base; /* release after nbytes; pairs with the acquires in node_find and node_map */
  size_t nbytes;
} region;

typedef struct block { /* of one region, in order of offset, without gaps */
  struct block *next;
  size_t offset, nbytes;
  bool used;
} block;

typedef struct {
  int pid;
  int fd;         /* service socket; -1: me, or the peer is gone */
  region_msg msg; /* arriving */
  size_t got;
  int passed;        /* the descriptor that came with it, or -1 */
  uint32_t answered; /* regions of mine, in order, that this peer has mapped or refused */
  region regions[REGIONS];
} member;

struct node {
  int size, me, cores, crowd;
  int *ranks;
  uint8_t *segment, *area;
  size_t segment_nbytes, area_nbytes;
  uint32_t nregions; /* mine */
  bool peeks;
  bool refused; /* a peer could not map my latest region */
  block *blocks[REGIONS];
  member members[];
};

int node_size(const node *nd) {
  return nd->size;
}
int node_me(const node *nd) {
  return nd->me;
}
const int *node_ranks(const node *nd) {
  return nd->ranks;
}
int node_cores(const node *nd) {
  return nd->cores;
}
int node_crowd(const node *nd) {
  return nd->crowd;
}
void *node_segment(const node *nd) {
  return nd->area;
}
size_t node_segment_bytes(const node *nd) {
  return nd->area_nbytes;
}

int node_create(const node_parts *parts, node **out) {
  node *nd;
  size_t n = (size_t)parts->size;
  TRY(mem_zeroed(1, sizeof *nd + n * sizeof nd->members[0], (void **)&nd));
  nd->size = parts->size;
  nd->me = parts->me;
  nd->cores = parts->cores;
  nd->crowd = parts->crowd;
  nd->segment = parts->segment;
  nd->segment_nbytes = parts->segment_nbytes;
  nd->peeks = parts->segment && parts->peeks;
  nd->area = share_area(parts, &nd->area_nbytes);
  for (int i = 0; i < nd->size; i++) {
    nd->members[i].fd = parts->service ? parts->service[i] : -1;
    nd->members[i].passed = -1;
    if (nd->peeks) nd->members[i].pid = share_pid(parts, i);
  }
  int code = mem_zeroed(n, sizeof *nd->ranks, (void **)&nd->ranks);
  if (code < 0) {
    node_close(nd);
    return code;
  }
  memcpy(nd->ranks, parts->ranks, n * sizeof *nd->ranks);
  *out = nd;
  return LWCC_OK;
}

void node_close(node *nd) {
  if (!nd) return;
  for (int i = 0; i < nd->size; i++) {
    member *m = &nd->members[i];
    if (m->fd >= 0) close(m->fd);
    if (m->passed >= 0) close(m->passed);
    for (int r = 0; r < REGIONS; r++) {
      uint8_t *base = atomic_load_explicit(&m->regions[r].base, memory_order_relaxed);
      if (base) mem_segment_unmap(base, m->regions[r].nbytes);
    }
  }
  for (int r = 0; r < REGIONS; r++) {
    while (nd->blocks[r]) {
      block *b = nd->blocks[r];
      nd->blocks[r] = b->next;
      free(b);
    }
  }
  if (nd->segment) mem_segment_unmap(nd->segment, nd->segment_nbytes);
  free(nd->ranks);
  free(nd);
}

static void publish(region *r, void *base, size_t nbytes) {
  r->nbytes = nbytes;
  atomic_store_explicit(&r->base, base, memory_order_release); /* pairs with the acquires in node_find and node_map */
}

/* A peer that breaks the rules of this socket is treated as gone; its death shows on its link. */
static void leave(member *m) {
  if (m->fd >= 0) close(m->fd);
  m->fd = -1;
}

static void map_for_peer(member *m) {
  const region_msg *in = &m->msg;
  void *p = NULL;
  region *r = in->region < REGIONS ? &m->regions[in->region] : NULL;
  bool fresh = r && in->nbytes > 0 && !atomic_load_explicit(&r->base, memory_order_relaxed);
  bool ok = fresh && m->passed >= 0 && mem_segment_map(m->passed, (size_t)in->nbytes, &p) == LWCC_OK;
  if (ok) publish(r, p, (size_t)in->nbytes);
  region_msg reply = {.op = ok ? OP_MAPPED : OP_REFUSED, .region = in->region};
  if (sock_send(m->fd, &reply, sizeof reply) != (ssize_t)sizeof reply) leave(m);
}

static void obey(node *nd, member *m) {
  if (m->msg.op == OP_MAP) {
    map_for_peer(m);
  } else if ((m->msg.op == OP_MAPPED || m->msg.op == OP_REFUSED) && m->msg.region == m->answered) {
    m->answered++;
    nd->refused |= m->msg.op == OP_REFUSED;
  } else {
    leave(m);
  }
  if (m->passed >= 0) close(m->passed);
  m->passed = -1;
}

/* Serve the peers until nothing more is there. Driving thread. */
static void serve(void *arg) {
  node *nd = arg;
  for (int i = 0; i < nd->size; i++) {
    member *m = &nd->members[i];
    while (m->fd >= 0) {
      int passed;
      ssize_t n = sock_recv_fd(m->fd, (uint8_t *)&m->msg + m->got, sizeof m->msg - m->got, &passed);
      if (n < 0) leave(m);
      if (n <= 0) break;
      if (passed >= 0 && m->passed >= 0) close(m->passed);
      if (passed >= 0) m->passed = passed;
      m->got += (size_t)n;
      if (m->got < sizeof m->msg) continue;
      m->got = 0;
      obey(nd, m);
    }
  }
}

int node_attach(node *nd, channel *ch) {
  for (int i = 0; i < nd->size; i++)
    if (nd->members[i].fd >= 0) TRY(channel_watch(ch, nd->members[i].fd, serve, nd));
  serve(nd); /* what came before the watch */
  return LWCC_OK;
}

/* Wait until every peer has answered for my regions. */
static int await_answers(node *nd, void (*drive)(void *arg), void *arg) {
  for (int i = 0; i < nd->size; i++) {
    member *m = &nd->members[i];
    while (i != nd->me && m->answered < nd->nregions) {
      if (m->fd < 0) return os_fail(LWCC_ERR_PEER_LOST, "alloc: rank %d is gone", nd->ranks[i]);
      struct pollfd p = {.fd = m->fd, .events = POLLIN};
      poll(&p, 1, 1); /* short: drive has other work too */
      serve(nd);
      if (drive) drive(arg);
    }
  }
  if (nd->refused)
    return os_fail(LWCC_ERR_SYSTEM, "alloc: a rank of this node could not map the memory; see ulimit -v");
  return LWCC_OK;
}

/* A new region of mine, mapped by all peers; its one block is free. */
static int add_region(node *nd, size_t nbytes, void (*drive)(void *arg), void *arg) {
  uint32_t id = nd->nregions;
  int fd;
  void *p;
  block *b;
  if (id == REGIONS) return os_fail(LWCC_ERR_SYSTEM, "alloc: more than %d regions of registered memory", REGIONS);
  TRY(mem_segment_create("lwcc-region", nbytes, &fd));
  int code = mem_segment_map(fd, nbytes, &p);
  if (code >= 0) code = mem_zeroed(1, sizeof *b, (void **)&b);
  if (code < 0) {
    close(fd);
    return code;
  }
  *b = (block){.nbytes = nbytes};
  publish(&nd->members[nd->me].regions[id], p, nbytes);
  nd->nregions++;
  nd->refused = false;
  region_msg msg = {.op = OP_MAP, .region = id, .nbytes = nbytes};
  for (int i = 0; i < nd->size; i++) {
    member *m = &nd->members[i];
    if (m->fd >= 0 && sock_send_fd(m->fd, &msg, sizeof msg, fd) != (ssize_t)sizeof msg) leave(m);
  }
  close(fd);
  code = await_answers(nd, drive, arg);
  if (code < 0) {
    free(b); /* the region stays mapped and unused: some peers may know it */
    return code;
  }
  nd->blocks[id] = b;
  return LWCC_OK;
}

/* First fit in one region; NULL: no room. */
static void *cut(node *nd, uint32_t id, size_t nbytes) {
  block *b = nd->blocks[id];
  while (b && (b->used || b->nbytes < nbytes)) b = b->next;
  if (!b) return NULL;
  if (b->nbytes > nbytes) {
    block *rest = malloc(sizeof *rest);
    if (!rest) return NULL;
    *rest = (block){.next = b->next, .offset = b->offset + nbytes, .nbytes = b->nbytes - nbytes};
    b->next = rest;
    b->nbytes = nbytes;
  }
  b->used = true;
  return atomic_load_explicit(&nd->members[nd->me].regions[id].base, memory_order_relaxed) + b->offset;
}

void *node_alloc(node *nd, size_t nbytes, void (*drive)(void *arg), void *arg) {
  size_t n;
  if (!mem_round_up(nbytes ? nbytes : 1, MEM_PAGE, &n) || n > SIZE_MAX / 4) {
    os_fail(LWCC_ERR_INVALID, "alloc: %zu bytes is more than can be addressed", nbytes);
    return NULL;
  }
  void *p = NULL;
  for (uint32_t id = 0; id < nd->nregions && !p; id++) p = cut(nd, id, n);
  if (p) return p;
  if (add_region(nd, n > REGION_BYTES ? n : REGION_BYTES, drive, arg) < 0) return NULL;
  p = cut(nd, nd->nregions - 1, n);
  if (!p) os_fail(LWCC_ERR_SYSTEM, "alloc: out of memory");
  return p;
}

static void merge_next(block *b) {
  block *n = b->next;
  if (b->used || !n || n->used) return;
  b->nbytes += n->nbytes;
  b->next = n->next;
  free(n);
}

void node_free(node *nd, void *p) {
  uint32_t id;
  uint64_t offset;
  if (!p || !node_find(nd, p, 1, &id, &offset)) return;
  block *before = NULL, *b = nd->blocks[id];
  while (b && b->offset != offset) {
    before = b;
    b = b->next;
  }
  if (!b || !b->used) return;
  mem_segment_discard(p, b->nbytes);
  b->used = false;
  merge_next(b);
  if (before) merge_next(before);
}

bool node_find(const node *nd, const void *p, size_t n, uint32_t *region_out, uint64_t *offset_out) {
  const region *mine = nd->members[nd->me].regions;
  for (uint32_t id = 0; id < REGIONS; id++) {
    /* acquire: pairs with the release in publish */
    uintptr_t base = (uintptr_t)atomic_load_explicit(&mine[id].base, memory_order_acquire);
    if (!base) return false; /* regions are numbered without gaps */
    uintptr_t at = (uintptr_t)p;
    if (at < base || at - base >= mine[id].nbytes || n > mine[id].nbytes - (at - base)) continue;
    *region_out = id;
    *offset_out = at - base;
    return true;
  }
  return false;
}

void *node_map(const node *nd, int index, uint32_t id, uint64_t offset, size_t n) {
  if (index < 0 || index >= nd->size || id >= REGIONS) return NULL;
  const region *r = &nd->members[index].regions[id];
  uint8_t *base = atomic_load_explicit(&r->base, memory_order_acquire); /* pairs with the release in publish */
  if (!base || offset > r->nbytes || n > r->nbytes - offset) return NULL;
  return base + offset;
}

bool node_peeks(const node *nd) {
  return nd->peeks;
}

int node_peek(const node *nd, int index, void *to, uint64_t address, size_t n) {
  return mem_peek(nd->members[index].pid, to, address, n);
}
