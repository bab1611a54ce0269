/* Receives of several streams on one pipe. Between channel.c and frame.c only; driving thread. */
#ifndef CHANNEL_PARK_H
#define CHANNEL_PARK_H
#include "channel/frame.h"

/* A header has arrived: put the receive that it is meant for at the head of the lane; where none is posted yet, memory
 * of our own, so that the messages behind it can pass. */
int park_choose(lane *l, const frame_header *h);
/* The message at the head is complete, and was parked: hand it over, or keep it. LWCC_ERR_PROTOCOL. */
int park_finish_head(lane *l);
/* The oldest parked message of io's stream, if there is one: 1. LWCC_ERR_PROTOCOL if it is another one than expected.
 */
int park_take(lane *l, chan_io *io);
/* Take io out of the lane, if it is there; what is under way goes on with a copy. LWCC_ERR_SYSTEM: all of the lane has
 * failed. */
int park_cancel(lane *l, chan_io *io);
void park_free(lane *l);
#endif
