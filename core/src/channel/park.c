#include "channel/park.h"

#include <stdlib.h>
#include <string.h>

#include "os/mem.h"
#include "os/status.h"

typedef struct {
  chan_io io; /* first member; buf points to bytes */
  char bytes[];
} parked_msg;

/* The first of its stream; *found is NULL at the end of the list. */
static chan_io **find(chan_io **at, uint32_t tag) {
  while (*at && (*at)->tag >> CHANNEL_STREAM_SHIFT != tag >> CHANNEL_STREAM_SHIFT) at = &(*at)->next;
  return at;
}

static int make_parked(size_t nbytes, uint32_t tag, chan_io **out) {
  size_t room;
  parked_msg *m = mem_add(sizeof *m, nbytes, &room) ? malloc(room) : NULL;
  if (!m) return os_fail(LWCC_ERR_SYSTEM, "channel: no memory to put a message of %zu bytes aside", nbytes);
  m->io = (chan_io){.buf = m->bytes, .nbytes = nbytes, .tag = tag, .owned = true};
  *out = &m->io;
  return LWCC_OK;
}

int park_choose(lane *l, const frame_header *h) {
  chan_io **at = find(&l->head, h->tag), *io = *at;
  if (io == l->head) return LWCC_OK;
  if (io) {
    *at = io->next;
    if (!io->next) l->tail = at;
  } else {
    TRY(make_parked((size_t)h->nbytes, h->tag, &io));
    l->parking = io;
  }
  io->next = l->head;
  l->head = io;
  return LWCC_OK;
}

int park_take(lane *l, chan_io *io) {
  chan_io **at = find(&l->parked, io->tag), *m = *at;
  if (!m) return 0;
  if (m->tag != io->tag || m->nbytes != io->nbytes)
    return os_fail(LWCC_ERR_PROTOCOL, "channel: %zu bytes with tag %u came, expected %zu bytes with tag %u", m->nbytes,
                   m->tag, io->nbytes, io->tag);
  *at = m->next;
  if (m->nbytes) memcpy(io->buf, m->buf, m->nbytes);
  free(m);
  io->done = io->nbytes;
  io->status = LWCC_OK;
  return 1;
}

int park_finish_head(lane *l) {
  chan_io *m = l->parking, **last = &l->parked;
  l->parking = NULL;
  m->owned = false; /* not freed yet */
  frame_finish_head(l, LWCC_OK);
  m->next = NULL;
  while (*last) last = &(*last)->next;
  *last = m;
  chan_io **at = find(&l->head, m->tag), *io = *at;
  if (!io) return LWCC_OK;
  chan_io *after = io->next; /* read before its owner may have it back */
  int st = park_take(l, io);
  if (st < 0) return st;
  *at = after;
  if (!after) l->tail = at;
  return LWCC_OK;
}

static int replace_head(lane *l) {
  chan_io *io = l->head, *copy = NULL;
  TRY(make_parked(io->nbytes, io->tag, &copy));
  if (io->nbytes) memcpy(copy->buf, io->buf, io->nbytes); /* a receive needs it not, a send does */
  copy->done = io->done;
  copy->next = io->next;
  l->head = copy;
  if (!copy->next) l->tail = &copy->next;
  return LWCC_OK;
}

int park_cancel(lane *l, chan_io *io) {
  chan_io **at = &l->head;
  while (*at && *at != io) at = &(*at)->next;
  if (!*at) return LWCC_OK;
  if (io == l->head && l->header_done > 0) {
    int st = replace_head(l);
    if (st < 0) frame_fail_lane(l, st);
    if (st < 0) return st;
  } else {
    *at = io->next;
    if (!io->next) l->tail = at;
  }
  io->status = LWCC_ERR_SHUTDOWN;
  return LWCC_OK;
}

void park_free(lane *l) {
  for (chan_io *m = l->parked, *next; m; m = next) {
    next = m->next;
    free(m);
  }
  l->parked = NULL;
}
