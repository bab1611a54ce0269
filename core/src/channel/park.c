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

static int make_parked(const frame_header *h, chan_io **out) {
  size_t nbytes;
  parked_msg *m = mem_add(sizeof *m, (size_t)h->nbytes, &nbytes) ? malloc(nbytes) : NULL;
  if (!m)
    return os_fail(LWCC_ERR_SYSTEM, "channel: no memory for a message of %llu bytes that came early",
                   (unsigned long long)h->nbytes);
  m->io = (chan_io){.buf = m->bytes, .nbytes = (size_t)h->nbytes, .tag = h->tag, .status = LWCC_PENDING};
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
    TRY(make_parked(h, &io));
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

void park_free(lane *l) {
  for (chan_io *m = l->parked, *next; m; m = next) {
    next = m->next;
    free(m);
  }
  l->parked = NULL;
}
