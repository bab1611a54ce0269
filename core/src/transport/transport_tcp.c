/* Two processes anywhere: a TCP socket per class, so that a full bulk stream never delays control. */
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/transport.h"

typedef struct {
  transport_link base;
  int fds[LINK_CLASSES];
} tcp_link;

static int fd_of(const transport_link *l, int cls) {
  return ((const tcp_link *)l)->fds[cls];
}

static ssize_t told(const transport_link *l, ssize_t n) {
  if (n >= 0) return n;
  char why[200];
  os_copy_text(why, sizeof why, os_error());
  return os_fail((int)n, "tcp: rank %d: %s", l->peer, why);
}

static ssize_t tcp_send(transport_link *l, int cls, const struct iovec *parts, int n) {
  return told(l, sock_sendv(fd_of(l, cls), parts, n));
}

static ssize_t tcp_recv(transport_link *l, int cls, const struct iovec *parts, int n) {
  return told(l, sock_recvv(fd_of(l, cls), parts, n));
}

/* Sockets report data and death by themselves, and the kernel sends at once. */
static void tcp_set_asleep(transport_link *l, int asleep) {
  (void)l;
  (void)asleep;
}
static void tcp_flush(transport_link *l) {
  (void)l;
}
static int tcp_check(transport_link *l) {
  (void)l;
  return LWCC_OK;
}

/* Closing a socket that holds unread data throws away what is still to be sent. So first let the peer's kernel have it
 * all, reading and dropping meanwhile; not longer than the deadline. */
static void settle(int fd, uint64_t deadline_ns) {
  char drop[4096];
  int unsent = 0;
  shutdown(fd, SHUT_WR);
  for (;;) {
    while (sock_recv(fd, drop, sizeof drop) > 0) continue;
    if (ioctl(fd, SIOCOUTQ, &unsent) != 0 || !unsent || clock_ns() >= deadline_ns) return;
    poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 1);
  }
}

static void tcp_close(transport_link *l) {
  uint64_t deadline = clock_deadline(0.5);
  for (int c = 0; c < LINK_CLASSES; c++) {
    settle(fd_of(l, c), deadline);
    close(fd_of(l, c));
  }
  free(l);
}

static const transport_ops tcp_ops = {.name = "tcp",
                                      .in_memory = 0,
                                      .send = tcp_send,
                                      .recv = tcp_recv,
                                      .fd = fd_of,
                                      .set_asleep = tcp_set_asleep,
                                      .flush = tcp_flush,
                                      .check = tcp_check,
                                      .close = tcp_close};

int transport_tcp_open(int peer, const int fds[LINK_CLASSES], transport_link **out) {
  tcp_link *t;
  for (int c = 0; c < LINK_CLASSES; c++) TRY(sock_nonblocking(fds[c]));
  TRY(mem_zeroed(1, sizeof *t, (void **)&t));
  t->base = (transport_link){.ops = &tcp_ops, .peer = peer};
  for (int c = 0; c < LINK_CLASSES; c++) {
    t->fds[c] = fds[c];
    sock_tune_tcp(fds[c]);
  }
  *out = &t->base;
  return LWCC_OK;
}
