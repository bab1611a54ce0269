/* Sockets, all non-blocking and close-on-exec. TCP is IPv4; Unix names are abstract, so nothing stays in a filesystem.
 * A forked child shares the parent's sockets: it must neither use nor shut them down. Any thread. */
#ifndef OS_SOCK_H
#define OS_SOCK_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

int sock_listen_tcp(const char *address, int *fd_out, int *port_out); /* port: chosen by the kernel */
int sock_listen_unix(const char *name, int *fd_out);
/* Begin to connect; when it polls writable, sock_connected tells how it went. */
int sock_connect_tcp(const char *address, int port, int *fd_out);
int sock_connect_unix(const char *name, int *fd_out);
int sock_connected(int fd);                 /* LWCC_OK or LWCC_ERR_SYSTEM with text */
int sock_accept(int listener, int *fd_out); /* LWCC_PENDING: nobody waits */
int sock_pair(int fds_out[2]);              /* connected Unix stream sockets */
int sock_nonblocking(int fd);
/* For collectives: no delay, and a congestion control that two local flows share well (LWCC_CONGESTION, else reno). */
void sock_tune_tcp(int fd);
/* Have the kernel ask a silent peer's kernel for a sign of life, and end the connection after limit_s seconds without
 * one (at least 1; 0: never). For connections that the peer always reads: one that it leaves full ends too. */
void sock_watch_tcp(int fd, double limit_s);
/* The address to give to other ranks: LWCC_IFACE (name or subnet), else LWCC_ADDRESS, else loopback.
 * LWCC_ERR_INVALID lists what this host has. */
int sock_own_address(char *out, size_t cap);

/* Bytes moved, 0: would block, or LWCC_ERR_PEER_LOST with a text that says closed or broken. n > 0. */
ssize_t sock_send(int fd, const void *buf, size_t n);
ssize_t sock_recv(int fd, void *buf, size_t n);
/* The same for n parts at once. */
ssize_t sock_sendv(int fd, const struct iovec *parts, int n);
ssize_t sock_recvv(int fd, const struct iovec *parts, int n);
/* The same, with one descriptor beside the bytes. fd_out: -1 if none came; owner: caller. */
ssize_t sock_send_fd(int fd, const void *buf, size_t n, int passed);
ssize_t sock_recv_fd(int fd, void *buf, size_t n, int *fd_out);
/* Exactly n bytes before the deadline, or LWCC_ERR_TIMEOUT, LWCC_ERR_PEER_LOST. These block. passed: -1 = none. */
int sock_send_all(int fd, const void *buf, size_t n, int passed, uint64_t deadline_ns);
int sock_recv_all(int fd, void *buf, size_t n, int *fd_out, uint64_t deadline_ns);
#endif
