/* A transport moves bytes between two ranks: per class an ordered, reliable byte pipe each way.
 * The classes keep kinds of traffic from blocking one another: a full data pipe never delays control. */
#ifndef TRANSPORT_H
#define TRANSPORT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { LINK_CONTROL, LINK_NAMED, LINK_RAW, LINK_NAMED_SMALL, LINK_RAW_SMALL, LINK_CLASSES };
enum {
  LINK_SMALL = LINK_NAMED_SMALL - LINK_NAMED
}; /* what a small collective adds to its class: it passes the large */

typedef struct transport_link transport_link; /* one end of the connection between two ranks; first member: ops */

typedef struct { /* what rings for many links at once */
  int fd;
  void (*fn)(void *arg); /* to be called when fd polls readable. Driving thread */
  void *arg;
} transport_bell;

typedef struct {
  const char *name;
  /* 1: send and recv only look at memory, so they may be tried at any time, and data is not reported by the descriptor
   * unless set_asleep asked for it. 0: they are system calls; the caller waits for the (edge-triggered) descriptor. */
  int in_memory;
  /* Move the bytes of n parts, or of the first of them. Returns how many (0: would block), or LWCC_ERR_PEER_LOST
   * (closed or broken; the text says how). No part is empty. Driving thread only. Never blocks. */
  ssize_t (*send)(transport_link *l, int cls, const struct iovec *parts, int n);
  ssize_t (*recv)(transport_link *l, int cls, const struct iovec *parts, int n);
  /* A descriptor that polls readable when the peer rang, data came, or the peer died. The classes may share one. */
  int (*fd)(const transport_link *l, int cls);
  /* Before sleeping: tell the peer that it must ring (asleep = 1), afterwards that it need not (0). A transport whose
   * descriptor reports data by itself does nothing. After asleep = 1 the caller looks once more before it sleeps. */
  void (*set_asleep)(transport_link *l, int asleep);
  /* Ring the peer if it is asleep. Called after a batch of sends. */
  void (*flush)(transport_link *l);
  /* Ring the peer if it is asleep, whatever was sent: something in other shared memory changed. NULL: not needed. */
  void (*ring)(transport_link *l);
  /* The bell that the link shares with others; it lives as long as one of them. NULL: there is none. */
  const transport_bell *(*bell)(const transport_link *l);
  /* Eat what rang (bytes in the descriptor), and notice death: LWCC_OK or LWCC_ERR_PEER_LOST. */
  int (*check)(transport_link *l);
  void (*close)(transport_link *l); /* frees l */
} transport_ops;

/* For transports that move one part a call. */
ssize_t transport_each(transport_link *l, int cls, const struct iovec *parts, int n,
                       ssize_t (*one)(transport_link *l, int cls, void *buf, size_t nbytes));

struct transport_link {
  const transport_ops *ops;
  int peer; /* global rank, for texts */
};

/* mem: two ends within one process, for tests: ranks are threads. seed 0: no mischief; otherwise each call moves a
 * random part, and now and then nothing. fault_after > 0: the link breaks after that many bytes. */
int transport_mem_pair(uint64_t seed, uint64_t fault_after, transport_link **a_out, transport_link **b_out);
/* tcp: takes LINK_CLASSES connected stream sockets (given; made non-blocking here). */
int transport_tcp_open(int peer, const int fds[LINK_CLASSES], transport_link **out);
/* shm: rings in memory that both ends have mapped (zeroed by its creator), and a connected Unix socket (given) that
 * rings and that reports the peer's death. side: 0 for the lower rank, 1 for the higher. */
size_t transport_shm_bytes(void);
int transport_shm_open(int peer, void *rings, int side, int unix_fd, transport_link **out);
/* ucx: over the UCX library, loaded now. Collective among the ranks with a socket, an authenticated TCP connection for
 * each pair: -1 where the pair uses none; taken where a link comes out. All begin, or all fail with the text of one
 * that cannot (LWCC_ERR_UNSUPPORTED); LWCC_ERR_TIMEOUT names who did not answer through UCX. Caller's thread. */
typedef struct {
  int rank, size;
  int *sockets;            /* [size] */
  const bool *other_netns; /* [size]: on this kernel, in another network namespace */
  uint64_t deadline_ns;
  double timeout_s; /* for the text */
} transport_ucx_meeting;
int transport_ucx_join(const transport_ucx_meeting *m, transport_link **links_out);
/* What UCX offers here, for people: library, version, transports and devices. Bytes needed, or as ucx_load. Any thread.
 */
int transport_ucx_describe(char *out, size_t cap);
#endif
