/* Messages between the ranks of a job, over one transport link per peer.
 *
 * A message has a tag. Its upper half names a stream: per (peer, class, stream) the i-th message sent meets the i-th
 * receive posted. The rest is for checking, never for matching. Data messages wait in the pipe until a receive is
 * posted; those of another stream, which would be in its way, are then put aside. Control messages are read at once and
 * handed to on_control. All functions: driving thread only (engine lock held), except channel_wake. */
#ifndef CHANNEL_H
#define CHANNEL_H
#include <stdbool.h>

#include "transport/transport.h"

typedef struct channel channel;
enum { CHANNEL_STREAM_SHIFT = 16 }; /* tag = stream << 16 | number */

/* One data message in flight, embedded in its owner's structure, which must live until status is not LWCC_PENDING. */
typedef struct chan_io {
  struct chan_io *next; /* channel's */
  void *buf;            /* send: not written */
  size_t nbytes;        /* may be 0 */
  size_t done;          /* bytes moved so far; only grows; the owner may use the bytes below it at once */
  uint32_t tag;
  bool owned; /* the channel's own: freed at its end */
  int status; /* LWCC_PENDING until finished */
} chan_io;

typedef struct {
  void *arg;
  void (*on_control)(void *arg, int peer, const void *msg, size_t nbytes); /* msg: borrowed for the call */
  void (*on_lost)(void *arg, int peer, int status, const char *text);      /* once per peer */
} channel_events;

/* links[size], NULL at [rank] (given: closed by channel_close). */
int channel_create(int rank, int size, uint64_t generation, transport_link **links, const channel_events *ev,
                   channel **out);
void channel_close(channel *ch); /* pending ios become LWCC_ERR_SHUTDOWN */

void channel_send(channel *ch, int peer, int cls, chan_io *io); /* LINK_NAMED or LINK_RAW */
void channel_recv(channel *ch, int peer, int cls, chan_io *io);
/* Take a message back: when this returns, io and its buffer are the owner's again, whatever its state was. What is on
 * its way already goes on with memory of the channel. The stream is of no use any more. */
void channel_cancel(channel *ch, int peer, int cls, chan_io *io);
int channel_control(channel *ch, int peer, const void *msg, size_t nbytes); /* copies; queues without limit */
bool channel_idle(const channel *ch);                                       /* nothing left to send */

/* Move what can be moved; > 0: something moved. Failures of a peer go to on_lost and to its ios, never to the result.
 */
int channel_progress(channel *ch);
/* Add a descriptor to the wait set (the node's): fn(arg) runs inside channel_progress when something came
 * (edge-triggered: fn reads until it would block). */
int channel_watch(channel *ch, int fd, void (*fn)(void *arg), void *arg);
/* Sleep until channel_wake, something may be done (peers), or timeout_ns (-1: no limit). May be called WITHOUT the
 * engine lock by the one background thread. channel_prepare_sleep first (with the lock), then one more progress, then
 * this. */
void channel_prepare_sleep(channel *ch);
void channel_wait(channel *ch, int64_t timeout_ns, bool peers);
void channel_woken(channel *ch); /* with the lock, after waking or when a driver takes over: peers need not ring */
void channel_wake(channel *ch);  /* any thread */
/* The peer has said that it leaves: the end of its pipes is no failure. What it sent before stays readable, pipe by
 * pipe; ios beyond that fail. To be called from on_control. */
void channel_depart(channel *ch, int peer);
void channel_mix(channel *ch);                 /* before messages of more than one stream share a pipe */
void channel_ring(channel *ch, int peer);      /* end the peer's sleep: memory outside the links changed */
int channel_lost(const channel *ch, int peer); /* 1 if lost */
#endif
