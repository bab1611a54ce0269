/* Plans as bytes, for caches, files and other languages. Any thread; no shared state. */
#ifndef PLAN_CODEC_H
#define PLAN_CODEC_H
#include "plan/ir.h"

/* All fields are little-endian 32-bit words:
 *   magic "LWPL", version, collective, rank, size, nchunks, nrounds, nsteps,
 *   round_end[nrounds], then kind, peer, chunk, n, src for each step. */
enum { PLAN_CODEC_VERSION = 1 };

/* Bytes needed; they are written if cap allows. */
size_t plan_encode(const lwcc_plan *p, void *out, size_t cap);
/* Any bytes are safe. LWCC_ERR_PROTOCOL if they are not an encoded plan; LWCC_ERR_PLAN if a step is out of bounds.
 * Memory taken is proportional to nbytes. Owner of *out: caller. */
int plan_decode(const void *bytes, size_t nbytes, lwcc_plan **out);
#endif
