#include "os/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/env.h"
#include "os/log.h"
#include "os/status.h"

static const int flags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

static int tcp_address(const char *address, int port, struct sockaddr_in *out) {
  memset(out, 0, sizeof *out);
  out->sin_family = AF_INET;
  out->sin_port = htons((uint16_t)port);
  if (inet_pton(AF_INET, address, &out->sin_addr) == 1) return LWCC_OK;
  return os_fail(LWCC_ERR_INVALID, "tcp: \"%s\" is not an IPv4 address", address);
}

static int unix_address(const char *name, struct sockaddr_un *out, socklen_t *length_out) {
  size_t n = strlen(name);
  memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  if (n + 1 > sizeof out->sun_path) return os_fail(LWCC_ERR_INVALID, "unix: name of %zu bytes is too long", n);
  memcpy(out->sun_path + 1, name, n); /* a leading zero byte: abstract */
  *length_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
  return LWCC_OK;
}

static int fail_close(int fd, const char *what, const char *whom) {
  int err = errno;
  if (fd >= 0) close(fd);
  return os_fail(LWCC_ERR_SYSTEM, "%s %s failed (%s)", what, whom, strerror(err));
}

int sock_listen_tcp(const char *address, int *fd_out, int *port_out) {
  struct sockaddr_in a;
  socklen_t n = sizeof a;
  TRY(tcp_address(address, 0, &a));
  int fd = socket(AF_INET, flags, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, (struct sockaddr *)&a, &n) != 0)
    return fail_close(fd, "tcp: listening on", address);
  *fd_out = fd;
  *port_out = ntohs(a.sin_port);
  return LWCC_OK;
}

int sock_listen_unix(const char *name, int *fd_out) {
  struct sockaddr_un a;
  socklen_t n = 0;
  TRY(unix_address(name, &a, &n));
  int fd = socket(AF_UNIX, flags, 0);
  if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) != 0 || listen(fd, SOMAXCONN) != 0)
    return fail_close(fd, "unix: listening on", name);
  *fd_out = fd;
  return LWCC_OK;
}

int sock_connect_tcp(const char *address, int port, int *fd_out) {
  struct sockaddr_in a;
  TRY(tcp_address(address, port, &a));
  int fd = socket(AF_INET, flags, 0);
  if (fd < 0 || (connect(fd, (struct sockaddr *)&a, sizeof a) != 0 && errno != EINPROGRESS))
    return fail_close(fd, "tcp: connecting to", address);
  *fd_out = fd;
  return LWCC_OK;
}

int sock_connect_unix(const char *name, int *fd_out) {
  struct sockaddr_un a;
  socklen_t n = 0;
  TRY(unix_address(name, &a, &n));
  int fd = socket(AF_UNIX, flags, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&a, n) != 0) return fail_close(fd, "unix: connecting to", name);
  *fd_out = fd;
  return LWCC_OK;
}

int sock_connected(int fd) {
  int err = 0;
  socklen_t n = sizeof err;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n) != 0) err = errno;
  return err ? os_fail(LWCC_ERR_SYSTEM, "connecting failed (%s)", strerror(err)) : LWCC_OK;
}

int sock_accept(int listener, int *fd_out) {
  int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) {
    *fd_out = fd;
    return LWCC_OK;
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    return os_fail(LWCC_ERR_SYSTEM, "accepting a connection failed (%s); see ulimit -n", strerror(errno));
  return LWCC_PENDING; /* also a connection that was gone again before it was accepted */
}

int sock_pair(int fds_out[2]) {
  if (socketpair(AF_UNIX, flags, 0, fds_out) == 0) return LWCC_OK;
  return os_fail(LWCC_ERR_SYSTEM, "unix: socketpair failed (%s)", strerror(errno));
}

int sock_nonblocking(int fd) {
  int f = fcntl(fd, F_GETFL);
  if (f >= 0 && fcntl(fd, F_SETFL, f | O_NONBLOCK) == 0) return LWCC_OK;
  return os_fail(LWCC_ERR_SYSTEM, "fcntl on descriptor %d failed (%s)", fd, strerror(errno));
}

void sock_tune_tcp(int fd) { /* each is a wish: a Unix socket in its place works too */
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const char *wish = env_text(ENV_CONGESTION);
  if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, wish, (socklen_t)strlen(wish)) == 0) return;
  if (errno == ENOENT) LOG(WARN, "LWCC_CONGESTION: this kernel has no %s; using reno", wish);
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

void sock_watch_tcp(int fd, double limit_s) {
  if (limit_s <= 0) return;
  if (limit_s < 1) limit_s = 1;
  int on = 1, count = 8, limit_ms = (int)(limit_s * 1000), idle = (int)(limit_s / 2), again = (int)(limit_s / 8);
  if (idle < 1) idle = 1;
  if (again < 1) again = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &again, sizeof again);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  /* bounds both: probes without an answer, and data that nobody acknowledges */
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

static ssize_t moved(ssize_t n, const char *what) {
  if (n > 0) return n;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  if (n == 0) return os_fail(LWCC_ERR_PEER_LOST, "%s: the peer closed the connection", what);
  if (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH)
    return os_fail(LWCC_ERR_PEER_LOST, "%s: its host gives no sign of life (%s; LWCC_PEER_TIMEOUT)", what,
                   strerror(errno));
  return os_fail(LWCC_ERR_PEER_LOST, "%s: the connection broke (%s)", what, strerror(errno));
}

ssize_t sock_send(int fd, const void *buf, size_t n) {
  return moved(send(fd, buf, n, MSG_NOSIGNAL), "send");
}
ssize_t sock_recv(int fd, void *buf, size_t n) {
  return moved(recv(fd, buf, n, 0), "receive");
}

ssize_t sock_sendv(int fd, const struct iovec *parts, int n) {
  if (n == 1) return sock_send(fd, parts->iov_base, parts->iov_len);
  struct msghdr m = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)n}; /* only read from */
  return moved(sendmsg(fd, &m, MSG_NOSIGNAL), "send");
}
ssize_t sock_recvv(int fd, const struct iovec *parts, int n) {
  if (n == 1) return sock_recv(fd, parts->iov_base, parts->iov_len);
  return moved(readv(fd, parts, n), "receive");
}

ssize_t sock_send_fd(int fd, const void *buf, size_t n, int passed) {
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } room;
  struct iovec v = {.iov_base = (void *)(uintptr_t)buf, .iov_len = n};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  memset(&room, 0, sizeof room);
  m.msg_control = room.bytes;
  m.msg_controllen = sizeof room.bytes;
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &passed, sizeof passed);
  return moved(sendmsg(fd, &m, MSG_NOSIGNAL), "send");
}

ssize_t sock_recv_fd(int fd, void *buf, size_t n, int *fd_out) {
  union {
    char bytes[CMSG_SPACE(4 * sizeof(int))];
    struct cmsghdr align;
  } room;
  struct iovec v = {.iov_base = buf, .iov_len = n};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room.bytes, .msg_controllen = sizeof room.bytes};
  *fd_out = -1;
  ssize_t got = moved(recvmsg(fd, &m, MSG_CMSG_CLOEXEC), "receive");
  if (got <= 0) return got;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; CMSG_LEN((i + 1) * sizeof(int)) <= c->cmsg_len; i++) {
      int passed;
      memcpy(&passed, CMSG_DATA(c) + i * sizeof passed, sizeof passed);
      if (*fd_out >= 0) close(*fd_out); /* more than one: no healthy peer does that; keep the last */
      *fd_out = passed;
    }
  }
  return got;
}

static int await(int fd, short events, uint64_t deadline_ns) {
  struct pollfd p = {.fd = fd, .events = events};
  int left = clock_left_ms(deadline_ns);
  if (poll(&p, 1, left) == 0 && left == 0) return os_fail(LWCC_ERR_TIMEOUT, "a socket was not ready in time");
  return LWCC_OK;
}

int sock_send_all(int fd, const void *buf, size_t n, int passed, uint64_t deadline_ns) {
  for (size_t done = 0; done < n;) {
    const char *p = (const char *)buf + done;
    ssize_t m = passed >= 0 && done == 0 ? sock_send_fd(fd, p, n, passed) : sock_send(fd, p, n - done);
    TRY((int)m);
    done += (size_t)m;
    if (m == 0) TRY(await(fd, POLLOUT, deadline_ns));
  }
  return LWCC_OK;
}

int sock_recv_all(int fd, void *buf, size_t n, int *fd_out, uint64_t deadline_ns) {
  if (fd_out) *fd_out = -1;
  for (size_t done = 0; done < n;) {
    char *p = (char *)buf + done;
    int passed = -1;
    ssize_t m = fd_out && done == 0 ? sock_recv_fd(fd, p, n, &passed) : sock_recv(fd, p, n - done);
    if (passed >= 0) *fd_out = passed;
    int code = m < 0 ? (int)m : m == 0 ? await(fd, POLLIN, deadline_ns) : LWCC_OK;
    if (code < 0) {
      if (fd_out && *fd_out >= 0) close(*fd_out);
      if (fd_out) *fd_out = -1;
      return code;
    }
    done += (size_t)m;
  }
  return LWCC_OK;
}
