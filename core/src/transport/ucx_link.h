/* The inside of the UCX transport, for transport_ucx.c and ucx_meet.c only. Driving thread, or the one that joins. */
#ifndef TRANSPORT_UCX_LINK_H
#define TRANSPORT_UCX_LINK_H
#include <stdbool.h>

#include "transport/transport.h"
#include "transport/ucx.h"

/* A tag: 40 bits that the receiver chose at random, 16 of a count, 8 of the kind: a class, or a note. */
enum { SLOTS = 8, NOTES = 16, NOTE_KIND = LINK_CLASSES, TAG_COUNT_SHIFT = 8 };
#define TAG_COUNT (UINT64_C(0xffff) << TAG_COUNT_SHIFT)

/* What one end tells the other about itself. Each note holds all, the latest counts; a message's tag has the count of
 * its class, so that two who answer each other need no notes. */
typedef struct {
  uint32_t taken[LINK_CLASSES]; /* messages out of the slots of each class, modulo 2^32, as sent */
  uint32_t sent[LINK_CLASSES];
  uint32_t leaves; /* sends nothing more */
  uint32_t heard;  /* has everything that the other, who leaves, has sent */
} ucx_note;

typedef struct { /* messages to the peer, of one class */
  uint8_t *bytes;
  void *requests[SLOTS]; /* NULL: complete */
  uint32_t filled;       /* bytes in the open slot */
  uint32_t sent, done;   /* messages given to UCX; those whose slot it needs no longer */
  uint32_t taken;        /* by the peer, as it says: it has SLOTS receives posted beyond these */
} ucx_out;

typedef struct { /* messages from the peer: the receives of all slots are posted, in order */
  uint8_t *bytes;
  void *requests[SLOTS];
  uint32_t taken, told; /* messages that were read to their end; told to the peer */
  size_t nbytes, at;    /* of the message being read; 0: none */
} ucx_in;

typedef struct ucx_worker ucx_worker;

typedef struct ucx_link {
  transport_link base; /* first member */
  ucx_worker *worker;
  struct ucx_link *next;
  void *endpoint;
  int fd; /* TCP, authenticated; carries nothing after the start: its end is the peer's */
  int errors;
  uint64_t tag_out, tag_in; /* without count and kind */
  ucx_out out[LINK_CLASSES];
  ucx_in in[LINK_CLASSES];
  ucx_note note_in, notes[NOTES], peer; /* being received; being sent; the peer's latest */
  void *note_request, *notes_sent[NOTES];
  uint32_t nnotes;
  bool greeted;      /* a note has come */
  bool lost, closed; /* lost: nothing comes any more */
  bool leaves, heard;
  unsigned seen[2][LINK_CLASSES];
  uint8_t *slots;
  char why[160];
} ucx_link;

struct ucx_worker {
  const ucx_library *ucx;
  void *context, *handle, *address;
  size_t address_nbytes;
  int fd, bell; /* UCX's descriptor; an epoll set that has it while we sleep */
  bool armed;   /* nothing may be progressed until disarmed: UCX would not ring for what comes after it */
  int users;    /* links not yet closed */
  unsigned turn;
  uint64_t linger_until_ns;
  transport_bell rung;
  ucx_link *links;
};

int ucx_worker_open(size_t peers, ucx_worker **out);
void ucx_worker_free(ucx_worker *w);        /* all links are closed, or have no endpoint yet */
void ucx_progress(ucx_worker *w);           /* once; nothing while armed */
void ucx_sleep(ucx_worker *w, bool asleep); /* arm it or not */
void ucx_nudge(ucx_worker *w); /* something was begun that needs progress: who sleeps on the armed worker wakes */
/* An unconnected link, with its receives posted. Takes fd on success. */
int ucx_link_open(ucx_worker *w, int peer, int fd, ucx_link **out);
/* UCX_DONE, UCX_UNREACHABLE, or another status < 0. */
ucx_status ucx_link_connect(ucx_link *s, const void *address, int errors);
int ucx_link_say(ucx_link *s); /* a note */
/* Progress once, and take what has come for this link: LWCC_OK or LWCC_ERR_PEER_LOST. */
int ucx_link_serve(ucx_link *s);
#endif
