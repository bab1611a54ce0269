/* Authenticated connections between all ranks: the higher rank connects, the lower accepts, both prove the secret. */
#ifndef CHANNEL_CONNECT_H
#define CHANNEL_CONNECT_H
#include <stdint.h>

#include "lwcc/lwcc.h"
#include "transport/transport.h"

/* The sockets of a pair: TCP by class, or two Unix sockets. */
enum { SOCKET_TCP = 0, SOCKET_RING = LINK_CLASSES, SOCKET_SERVICE, SOCKET_KINDS };
enum { WANT_TCP = (1 << SOCKET_RING) - 1, WANT_UNIX = 1 << SOCKET_RING | 1 << SOCKET_SERVICE };

typedef struct {
  char address[16], unix_name[64];
  int port;
} connect_target;

typedef struct {
  lwcc_job job;
  int tcp_listener, unix_listener;
  const connect_target *targets; /* [size] */
  const unsigned *want;          /* [size]: bits of socket kinds */
  int (*fds)[SOCKET_KINDS];      /* [size]: filled in; -1 = none. Owner: caller, also on failure */
  uint64_t deadline_ns;
  double timeout_s; /* for the text */
} connect_spec;

/* Blocks until every wanted socket is there. LWCC_ERR_TIMEOUT names the ranks that are missing. A connection that does
 * not prove the secret within a few seconds is dropped and changes nothing. Caller's thread. */
int connect_all(const connect_spec *spec);
#endif
