/* The inside of a channel, for channel.c and frame.c only. */
#ifndef CHANNEL_FRAME_H
#define CHANNEL_FRAME_H
#include <stdatomic.h>

#include "channel/channel.h"

enum { CONTROL_MAX = 256 << 20 }; /* bytes of a control message */

typedef struct {
  uint32_t magic, tag;
  uint64_t nbytes;
} frame_header;

typedef struct control_msg {
  chan_io io; /* first member; buf points to bytes */
  uint8_t bytes[];
} control_msg;

typedef struct { /* one direction of one class */
  chan_io *head, **tail;
  frame_header header; /* of the message under way */
  size_t header_done;
  chan_io *parking; /* == head: a message that nobody waits for yet is arriving; owned */
  chan_io *parked;  /* owned: such messages, complete, oldest first */
  bool ended;       /* of a departed peer: nothing moves here any more */
  bool ready;       /* sockets: the kernel reported it and no call has blocked since */
} lane;

typedef struct {
  transport_link *link; /* NULL at the own rank, and once lost */
  lane out[LINK_CLASSES], in[LINK_CLASSES];
  uint8_t *msg; /* the control message that is arriving; room for msg_room bytes */
  size_t msg_room, msg_done;
  int failure;   /* < 0: noted, with text */
  bool lost;     /* settled */
  bool departed; /* left in good order: its pipes end one by one, when they are empty */
  char text[256];
} peer_state;

typedef struct {
  void (*fn)(void *arg);
  void *arg;
} watch;

struct channel {
  int rank, size;
  uint32_t magic;
  channel_events events;
  int epoll_fd, wake_fd;
  int data_fd;      /* epoll set of the data sockets */
  int nsockets;     /* live links that need the kernel's report */
  int awaited;      /* lanes of data sockets that had something to move in the last turn, and what came since */
  unsigned classes; /* of these lanes, as bits */
  bool shared;      /* they were of several classes */
  bool asleep;      /* peers have to ring */
  bool data_due;    /* data_fd has reported something */
  bool data_armed;
  unsigned turns;
  uint64_t polled_ns;
  atomic_bool poll_due; /* relaxed: the engine lock orders it */
  atomic_int woken;     /* 1: wake_fd is signalled; acq_rel: channel_wake pairs with channel_wait */
  int failures;         /* noted, not yet settled */
  bool mixed;           /* messages of several streams share a pipe */
  watch *watches;
  size_t nwatches;
  peer_state peers[];
};

/* Driving thread, all of them; none calls on_lost. Each moves what can be moved for one peer, true if something was. */
bool frame_pump_out(channel *ch, int peer, int cls);
bool frame_pump_in(channel *ch, int peer); /* all classes; calls on_control */
/* Take the head of the lane off, finished with status. */
void frame_finish_head(lane *l, int status);
void frame_fail_lane(lane *l, int status); /* fail all that waits in the lane */
/* Keep the peer's first failure; channel_progress settles it. */
void frame_note_failure(channel *ch, int peer, int code, const char *text);
#endif
