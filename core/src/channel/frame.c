/* Frames on the byte pipes: 16 bytes of header, then the payload. */
#include "channel/frame.h"

#include <stdlib.h>
#include <string.h>

#include "channel/park.h"
#include "os/status.h"

enum { BUDGET = 256 << 10, SHARED_BUDGET = 64 << 10 }; /* bytes of a lane in one turn: of one class, of several */

void frame_note_failure(channel *ch, int peer, int code, const char *text) {
  peer_state *p = &ch->peers[peer];
  if (p->failure) return;
  p->failure = code;
  os_copy_text(p->text, sizeof p->text, text);
  ch->failures++;
}

void frame_finish_head(lane *l, int status) {
  chan_io *io = l->head;
  l->head = io->next;
  if (!l->head) l->tail = &l->head;
  l->header_done = 0;
  if (io->owned)
    free(io);
  else
    io->status = status; /* last: from here on the owner may reuse it */
}

void frame_fail_lane(lane *l, int status) {
  while (l->head) frame_finish_head(l, status);
  l->parking = NULL;
}

/* A pipe broke or ended. That is the end of the peer, unless it has said that it leaves. */
static void lane_failed(channel *ch, int peer, lane *l, int code) {
  peer_state *p = &ch->peers[peer];
  if (!p->departed) {
    frame_note_failure(ch, peer, code, os_error());
    return;
  }
  l->ended = true;
  frame_fail_lane(l, code);
}

/* Count n bytes that went over the pipe, header first. */
static void lane_advance(lane *l, size_t n) {
  chan_io *io = l->head;
  size_t h = sizeof l->header - l->header_done;
  if (h > n) h = n;
  l->header_done += h;
  io->done += n - h;
}

static bool lane_complete(const lane *l) {
  return l->header_done == sizeof l->header && l->head->done == l->head->nbytes;
}

/* What is left of the frame at the head: the rest of its header, then at most so much of its payload. */
static int list_rest(lane *l, size_t most, struct iovec parts_out[2]) {
  chan_io *io = l->head;
  size_t header = sizeof l->header - l->header_done, left = io->nbytes - io->done;
  int n = 0;
  if (left > most) left = most;
  if (header) parts_out[n++] = (struct iovec){(uint8_t *)&l->header + l->header_done, header};
  if (left) parts_out[n++] = (struct iovec){(uint8_t *)io->buf + io->done, left};
  return n;
}

/* One call of the transport for the head of the lane. */
static ssize_t send_part(channel *ch, peer_state *p, int cls, size_t most) {
  lane *l = &p->out[cls];
  struct iovec parts[2];
  if (!l->header_done)
    l->header = (frame_header){.magic = ch->magic + (uint32_t)cls, .tag = l->head->tag, .nbytes = l->head->nbytes};
  int n = list_rest(l, most, parts);
  return p->link->ops->send(p->link, cls, parts, n);
}

static size_t budget(const channel *ch) {
  return ch->shared ? SHARED_BUDGET : BUDGET;
}

bool frame_pump_out(channel *ch, int peer, int cls) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->out[cls];
  size_t moved = 0, most = budget(ch);
  while (l->head && !p->failure && l->ready && moved < most) {
    ssize_t n = send_part(ch, p, cls, most - moved);
    if (n < 0) lane_failed(ch, peer, l, (int)n);
    if (n <= 0) {
      l->ready = p->link->ops->in_memory;
      break;
    }
    moved += (size_t)n;
    lane_advance(l, (size_t)n);
    if (lane_complete(l)) frame_finish_head(l, LWCC_OK);
  }
  return moved > 0;
}

static int check_header(const channel *ch, int peer, int cls, const frame_header *h) {
  uint32_t magic = ch->magic + (uint32_t)cls;
  if (h->magic != magic)
    return os_fail(LWCC_ERR_PROTOCOL, "channel: rank %d sent a frame of mark %08x, expected %08x", peer, h->magic,
                   magic);
  if (cls == LINK_CONTROL) {
    if (h->nbytes <= CONTROL_MAX) return LWCC_OK;
    return os_fail(LWCC_ERR_PROTOCOL, "channel: rank %d announced a control message of %llu bytes, at most %d expected",
                   peer, (unsigned long long)h->nbytes, CONTROL_MAX);
  }
  const chan_io *io = ch->peers[peer].in[cls].head;
  if (h->tag == io->tag && h->nbytes == io->nbytes) return LWCC_OK;
  return os_fail(LWCC_ERR_PROTOCOL, "channel: rank %d sent %llu bytes with tag %u, expected %zu bytes with tag %u",
                 peer, (unsigned long long)h->nbytes, h->tag, io->nbytes, io->tag);
}

/* One call of the transport for the receive at the head; where it can only be meant for that one, the payload is read
 * with the header. */
static ssize_t recv_part(channel *ch, int peer, int cls, size_t most) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[cls];
  struct iovec parts[2];
  size_t missing = sizeof l->header - l->header_done;
  int k = list_rest(l, most, parts);
  ssize_t n = p->link->ops->recv(p->link, cls, parts, missing && ch->mixed ? 1 : k);
  if (n <= 0 || !missing || (size_t)n < missing) return n;
  if (ch->mixed) TRY(park_choose(l, &l->header));
  TRY(check_header(ch, peer, cls, &l->header));
  return n;
}

static bool pump_data(channel *ch, int peer, int cls) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[cls];
  size_t moved = 0, most = budget(ch);
  while (l->head && l->ready && moved < most) {
    ssize_t n = recv_part(ch, peer, cls, most - moved);
    if (n < 0) lane_failed(ch, peer, l, (int)n);
    if (n <= 0) {
      l->ready = n == 0 && p->link->ops->in_memory;
      break;
    }
    moved += (size_t)n;
    lane_advance(l, (size_t)n);
    if (!lane_complete(l)) continue;
    if (l->head != l->parking) {
      frame_finish_head(l, LWCC_OK);
      continue;
    }
    int st = park_finish_head(l);
    if (st < 0) frame_note_failure(ch, peer, st, os_error());
    if (st < 0) break;
  }
  return moved > 0;
}

static int control_room(peer_state *p, size_t nbytes) {
  if (nbytes < 64) nbytes = 64; /* so that an empty message has an address too */
  if (nbytes <= p->msg_room) return LWCC_OK;
  uint8_t *bigger = realloc(p->msg, nbytes);
  if (!bigger) return os_fail(LWCC_ERR_SYSTEM, "channel: no memory for a control message of %zu bytes", nbytes);
  p->msg = bigger;
  p->msg_room = nbytes;
  return LWCC_OK;
}

/* One call of the transport for the control message that is arriving. */
static ssize_t control_part(channel *ch, int peer) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[LINK_CONTROL];
  const transport_ops *ops = p->link->ops;
  if (l->header_done == sizeof l->header) {
    const struct iovec rest = {p->msg + p->msg_done, (size_t)l->header.nbytes - p->msg_done};
    ssize_t n = ops->recv(p->link, LINK_CONTROL, &rest, 1);
    if (n > 0) p->msg_done += (size_t)n;
    return n;
  }
  const struct iovec rest = {(uint8_t *)&l->header + l->header_done, sizeof l->header - l->header_done};
  ssize_t n = ops->recv(p->link, LINK_CONTROL, &rest, 1);
  if (n <= 0) return n;
  l->header_done += (size_t)n;
  if (l->header_done < sizeof l->header) return n;
  TRY(check_header(ch, peer, LINK_CONTROL, &l->header));
  TRY(control_room(p, (size_t)l->header.nbytes));
  p->msg_done = 0;
  return n;
}

static bool pump_control(channel *ch, int peer) {
  peer_state *p = &ch->peers[peer];
  lane *l = &p->in[LINK_CONTROL];
  bool moved = false;
  for (int calls = 0; calls < 64 && l->ready && !l->ended; calls++) {
    ssize_t n = control_part(ch, peer);
    if (n < 0) lane_failed(ch, peer, l, (int)n);
    if (n <= 0) {
      l->ready = n == 0 && p->link->ops->in_memory;
      break;
    }
    moved = true;
    if (l->header_done < sizeof l->header || p->msg_done < l->header.nbytes) continue;
    l->header_done = 0;
    ch->events.on_control(ch->events.arg, peer, p->msg, (size_t)l->header.nbytes);
  }
  return moved;
}

bool frame_pump_in(channel *ch, int peer) {
  bool moved = pump_control(ch, peer);
  for (int c = LINK_CLASSES - 1; c >= LINK_NAMED; c--) /* the small first */
    if (ch->peers[peer].in[c].head) moved |= pump_data(ch, peer, c);
  return moved;
}
