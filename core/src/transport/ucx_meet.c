/* How UCX links begin. The ranks of each pair have an authenticated connection, over which they tell each other, in
 * three exchanges of all pairs: the worker's address; whether an endpoint with error handling could be made; whether
 * one without could, where it could not (shared memory knows no peer's death: the connection's end tells it). Who fails
 * tells so in the next exchange, and who hears of a failure passes it on, so that all ranks end with the same text.
 * Last, a note goes over every new link both ways: a firewall shows now, and not in the first collective. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "os/clock.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/ucx_link.h"

enum { ADDRESS_MAX = 64 << 10, WHY = 960 };

typedef struct {
  uint32_t bad;         /* this rank cannot: why */
  uint32_t unreachable; /* the pair's endpoint could not be made */
  uint64_t tag, nbytes; /* first exchange: for messages to the sender; of the address that follows */
  char why[WHY];
} ucx_word;

typedef struct {
  const transport_ucx_meeting *m;
  ucx_worker *worker;
  ucx_link **links;  /* [size] */
  void **addresses;  /* [size] */
  ucx_word *heard;   /* [size] */
  bool *unreachable; /* [size] */
  bool bad;
  char why[WHY];
} meeting;

static bool paired(const meeting *t, int i) {
  return t->m->sockets[i] >= 0;
}

/* The first complaint counts, here and in what a rank hears. */
static void complain(meeting *t, int rank, const char *why) {
  if (t->bad) return;
  t->bad = true;
  if (rank == t->m->rank) {
    snprintf(t->why, sizeof t->why, "rank %d: %.900s", rank, why);
  } else {
    os_copy_text(t->why, sizeof t->why, why);
  }
}

static int tell(const meeting *t, int i, bool first) {
  ucx_word w = {.bad = t->bad, .unreachable = t->unreachable[i]};
  bool with_address = first && !t->bad;
  memcpy(w.why, t->why, sizeof w.why);
  if (with_address) {
    w.tag = t->links[i]->tag_in;
    w.nbytes = t->worker->address_nbytes;
  }
  TRY(sock_send_all(t->m->sockets[i], &w, sizeof w, -1, t->m->deadline_ns));
  if (!with_address) return LWCC_OK;
  return sock_send_all(t->m->sockets[i], t->worker->address, w.nbytes, -1, t->m->deadline_ns);
}

static int hear(meeting *t, int i, bool first) {
  ucx_word *w = &t->heard[i];
  TRY(sock_recv_all(t->m->sockets[i], w, sizeof *w, NULL, t->m->deadline_ns));
  w->why[WHY - 1] = '\0';
  if (!first || w->bad) return LWCC_OK;
  if (w->nbytes == 0 || w->nbytes > ADDRESS_MAX)
    return os_fail(LWCC_ERR_PROTOCOL, "ucx: rank %d announced an address of %llu bytes", i,
                   (unsigned long long)w->nbytes);
  TRY(mem_zeroed(1, w->nbytes, &t->addresses[i]));
  return sock_recv_all(t->m->sockets[i], t->addresses[i], w->nbytes, NULL, t->m->deadline_ns);
}

static void say_who(int i, int code) {
  char why[200];
  os_copy_text(why, sizeof why, os_error());
  os_fail(code, "ucx: rank %d at the start: %s", i, why);
}

/* All say, then all listen: what one says fits into a connection's buffers. */
static int exchange(meeting *t, bool first) {
  int code = LWCC_OK;
  for (int i = 0; i < t->m->size && code >= 0; i++)
    if (paired(t, i) && (code = tell(t, i, first)) < 0) say_who(i, code);
  for (int i = 0; i < t->m->size && code >= 0; i++)
    if (paired(t, i) && (code = hear(t, i, first)) < 0) say_who(i, code);
  for (int i = 0; i < t->m->size && code >= 0; i++)
    if (paired(t, i) && t->heard[i].bad) complain(t, i, t->heard[i].why);
  return code;
}

static int open_each(meeting *t) {
  size_t peers = 0;
  for (int i = 0; i < t->m->size; i++) peers += paired(t, i);
  TRY(ucx_worker_open(peers, &t->worker));
  for (int i = 0; i < t->m->size; i++)
    if (paired(t, i)) TRY(ucx_link_open(t->worker, i, t->m->sockets[i], &t->links[i]));
  return LWCC_OK;
}

/* LWCC_OK also if the pair needs another try, without error handling. */
static int connect_one(meeting *t, int i, int errors) {
  ucx_link *s = t->links[i];
  if (errors == UCX_ERRORS_NONE && t->m->other_netns[i])
    return os_fail(LWCC_ERR_UNSUPPORTED,
                   "ucx: rank %d has another network namespace, across which UCX's shared memory "
                   "loses wake-ups: set UCX_TLS=tcp",
                   i);
  s->tag_out = t->heard[i].tag ? t->heard[i].tag : s->tag_out;
  ucx_status st = ucx_link_connect(s, t->addresses[i], errors);
  t->unreachable[i] = st == UCX_UNREACHABLE;
  if (st == UCX_DONE || (t->unreachable[i] && errors == UCX_ERRORS_PEER)) return LWCC_OK;
  return os_fail(LWCC_ERR_UNSUPPORTED,
                 "ucx: no way to rank %d: %s; see UCX_TLS and UCX_NET_DEVICES; LWCC_LOG_LEVEL=debug says more", i,
                 t->worker->ucx->ucs_status_string(st));
}

static void connect_each(meeting *t, int errors) {
  for (int i = 0; i < t->m->size && !t->bad; i++) {
    bool done = errors == UCX_ERRORS_NONE && !t->unreachable[i] && !t->heard[i].unreachable;
    if (paired(t, i) && !done && connect_one(t, i, errors) < 0) complain(t, t->m->rank, os_error());
  }
}

static int come_together(meeting *t) {
  if (open_each(t) < 0) complain(t, t->m->rank, os_error());
  TRY(exchange(t, true));
  connect_each(t, UCX_ERRORS_PEER);
  TRY(exchange(t, false));
  connect_each(t, UCX_ERRORS_NONE);
  TRY(exchange(t, false));
  return t->bad ? os_fail(LWCC_ERR_UNSUPPORTED, "%s", t->why) : LWCC_OK;
}

/* How many have not yet answered; the first of them. */
static int count_silent(const meeting *t, int *first) {
  int n = 0;
  for (int i = t->m->size; i-- > 0;)
    if (paired(t, i) && !t->links[i]->greeted) n++, *first = i;
  return n;
}

static int greet(meeting *t) {
  int first = 0, n;
  for (int i = 0; i < t->m->size; i++)
    if (paired(t, i)) TRY(ucx_link_say(t->links[i]));
  while ((n = count_silent(t, &first)) > 0) {
    ucx_progress(t->worker);
    for (int i = 0; i < t->m->size; i++) {
      if (!paired(t, i)) continue;
      TRY(ucx_link_serve(t->links[i]));
      TRY(t->links[i]->base.ops->check(&t->links[i]->base));
    }
    if (clock_ns() >= t->m->deadline_ns)
      return os_fail(LWCC_ERR_TIMEOUT,
                     "rank %d: %d ranks, rank %d first, did not answer through UCX within %.3g s, "
                     "although they are there: a firewall, or a network that UCX should not use (UCX_NET_DEVICES, "
                     "UCX_TLS)",
                     t->m->rank, n, first, t->m->timeout_s);
    poll(&(struct pollfd){.fd = t->worker->fd, .events = POLLIN}, 1, 1);
  }
  return LWCC_OK;
}

static int allocate(meeting *t) {
  size_t n = (size_t)t->m->size;
  TRY(mem_zeroed(n, sizeof *t->links, (void **)&t->links));
  TRY(mem_zeroed(n, sizeof *t->addresses, (void **)&t->addresses));
  TRY(mem_zeroed(n, sizeof *t->heard, (void **)&t->heard));
  return mem_zeroed(n, sizeof *t->unreachable, (void **)&t->unreachable);
}

static void end(meeting *t, bool good, transport_link **links_out) {
  bool any = false;
  for (int i = 0; t->links && i < t->m->size; i++) {
    ucx_link *s = t->links[i];
    any |= s != NULL;
    if (s && good) {
      links_out[i] = &s->base;
      t->m->sockets[i] = -1;
    } else if (s) {
      s->fd = -1; /* the caller's again */
      s->lost = true;
      s->base.ops->close(&s->base);
    }
  }
  if (t->worker && !any) ucx_worker_free(t->worker);
  for (int i = 0; t->addresses && i < t->m->size; i++) free(t->addresses[i]);
  free(t->links);
  free(t->addresses);
  free(t->heard);
  free(t->unreachable);
}

int transport_ucx_join(const transport_ucx_meeting *m, transport_link **links_out) {
  meeting t = {.m = m};
  int code = allocate(&t);
  if (code >= 0) code = come_together(&t);
  if (code >= 0) code = greet(&t);
  end(&t, code >= 0, links_out);
  return code;
}
