/* One UCX worker carries all UCX links of a job. It is driven by one thread at a time, and sleeps armed. */
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "os/mem.h"
#include "os/status.h"
#include "transport/ucx_link.h"

enum { ARM_TRIES = 1000 };

void ucx_progress(ucx_worker *w) {
  if (w->armed) return;
  w->ucx->ucp_worker_progress(w->handle);
  w->turn++;
}

void ucx_nudge(ucx_worker *w) {
  if (w->armed) w->ucx->ucp_worker_signal(w->handle);
}

static void disarm(ucx_worker *w) {
  if (!w->armed) return;
  w->armed = false;
  epoll_ctl(w->bell, EPOLL_CTL_DEL, w->fd, NULL);
}

/* UCX refuses while it has something to do, so what came before is in the slots afterwards, and what comes later rings.
 * While it is in no state to sleep (a peer that does not take what is under way), the sleep ends at once. */
static void arm(ucx_worker *w) {
  if (w->armed) return;
  ucx_status st = UCX_BUSY;
  struct epoll_event e = {.events = EPOLLIN};
  for (int i = 1; i <= ARM_TRIES && (st = w->ucx->ucp_worker_arm(w->handle)) == UCX_BUSY; i++) {
    ucx_progress(w);
    if (i % 16 == 0) sched_yield();
  }
  w->armed = true;
  epoll_ctl(w->bell, EPOLL_CTL_ADD, w->fd, &e);
  if (st != UCX_DONE) ucx_nudge(w);
}

void ucx_sleep(ucx_worker *w, bool asleep) {
  asleep ? arm(w) : disarm(w);
}

static void rung(void *arg) {
  ucx_worker *w = arg;
  disarm(w);
  ucx_progress(w);
  for (ucx_link *s = w->links; s; s = s->next)
    if (!s->closed) ucx_link_serve(s);
}

static int worker_start(ucx_worker *w, size_t peers) {
  const ucx_worker_params params = {.mask = UCX_SET_THREADS, .threads = UCX_ONE_THREAD_AT_A_TIME};
  TRY(ucx_load(&w->ucx));
  TRY(ucx_context(w->ucx, peers, &w->context));
  ucx_status st = w->ucx->ucp_worker_create(w->context, &params, &w->handle);
  if (st == UCX_DONE) st = w->ucx->ucp_worker_get_efd(w->handle, &w->fd);
  if (st == UCX_DONE) st = w->ucx->ucp_worker_get_address(w->handle, &w->address, &w->address_nbytes);
  w->bell = epoll_create1(EPOLL_CLOEXEC);
  if (st == UCX_DONE && w->bell >= 0) return LWCC_OK;
  return os_fail(LWCC_ERR_UNSUPPORTED, "ucx: no worker (%s); see UCX_TLS, UCX_NET_DEVICES and ulimit -n",
                 w->ucx->ucs_status_string(st));
}

int ucx_worker_open(size_t peers, ucx_worker **out) {
  ucx_worker *w;
  TRY(mem_zeroed(1, sizeof *w, (void **)&w));
  w->bell = -1;
  int code = worker_start(w, peers);
  if (code < 0) {
    ucx_worker_free(w);
    return code;
  }
  w->rung = (transport_bell){.fd = w->bell, .fn = rung, .arg = w};
  *out = w;
  return LWCC_OK;
}

/* The slots go last: until the worker's end, a dead peer's message may still be written into one. */
void ucx_worker_free(ucx_worker *w) {
  disarm(w); /* also for a forked child that shares the bell: it never rings again */
  if (w->address) w->ucx->ucp_worker_release_address(w->handle, w->address);
  if (w->handle) w->ucx->ucp_worker_destroy(w->handle);
  if (w->context) w->ucx->ucp_cleanup(w->context);
  if (w->bell >= 0) close(w->bell);
  for (ucx_link *s = w->links, *next; s; s = next) {
    next = s->next;
    free(s->slots);
    free(s);
  }
  free(w);
}
