/* Bytes <-> plan. The counts in the header must fill the bytes exactly, so nothing is allocated on their word alone. */
#include "plan/codec.h"

#include <stdlib.h>

#include "os/status.h"

enum { HEADER_WORDS = 8, STEP_WORDS = 5, MAGIC = 0x4c50574c }; /* "LWPL" */

static uint8_t *put_word(uint8_t *at, uint32_t word) {
  for (int i = 0; i < 4; i++) *at++ = (uint8_t)(word >> (8 * i));
  return at;
}

static uint32_t get_word(const uint8_t *bytes, size_t index) {
  const uint8_t *at = bytes + 4 * index;
  return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

size_t plan_encode(const lwcc_plan *p, void *out, size_t cap) {
  size_t nbytes = 4 * (HEADER_WORDS + (size_t)p->nrounds + (size_t)STEP_WORDS * p->nsteps);
  if (cap < nbytes) return nbytes;
  const int header[HEADER_WORDS] = {MAGIC,   PLAN_CODEC_VERSION, p->collective, p->rank,
                                    p->size, p->nchunks,         p->nrounds,    p->nsteps};
  uint8_t *at = out;
  for (int i = 0; i < HEADER_WORDS; i++) at = put_word(at, (uint32_t)header[i]);
  for (int i = 0; i < p->nrounds; i++) at = put_word(at, (uint32_t)p->round_end[i]);
  for (int i = 0; i < p->nsteps; i++) {
    const plan_step *s = &p->steps[i];
    const int words[STEP_WORDS] = {(int)s->kind, s->peer, s->chunk, s->n, s->src};
    for (int w = 0; w < STEP_WORDS; w++) at = put_word(at, (uint32_t)words[w]);
  }
  return nbytes;
}

static int read_rounds(const uint8_t *bytes, lwcc_plan *p) {
  for (int i = 0, begin = 0; i < p->nrounds; i++) {
    uint32_t end = get_word(bytes, HEADER_WORDS + (size_t)i);
    if (end <= (uint32_t)begin || end > (uint32_t)p->nsteps)
      return os_fail(LWCC_ERR_PROTOCOL, "plan bytes: round %d ends at step %u, expected %d to %d", i, end, begin + 1,
                     p->nsteps);
    p->round_end[i] = begin = (int)end;
  }
  if (p->nsteps > 0 && (p->nrounds == 0 || p->round_end[p->nrounds - 1] != p->nsteps))
    return os_fail(LWCC_ERR_PROTOCOL, "plan bytes: the %d rounds do not end with step %d", p->nrounds, p->nsteps - 1);
  return LWCC_OK;
}

static int read_steps(const uint8_t *bytes, lwcc_plan *p) {
  for (int i = 0; i < p->nsteps; i++) {
    size_t at = HEADER_WORDS + (size_t)p->nrounds + (size_t)STEP_WORDS * i;
    uint32_t kind = get_word(bytes, at);
    if (kind > STEP_FOLD) return os_fail(LWCC_ERR_PROTOCOL, "plan bytes: step %d has the unknown kind %u", i, kind);
    plan_step s = {(step_kind)kind, (int)get_word(bytes, at + 1), (int)get_word(bytes, at + 2),
                   (int)get_word(bytes, at + 3), (int)get_word(bytes, at + 4)};
    const char *fault = plan_step_fault(p, &s);
    if (fault)
      return os_fail(LWCC_ERR_PLAN, "plan bytes: rank %d of %d, step %d: %s peer %d, chunk %d, n %d of %d chunks: %s",
                     p->rank, p->size, i, plan_kind_name(s.kind), s.peer, s.chunk, s.n, p->nchunks, fault);
    p->steps[i] = s;
  }
  return LWCC_OK;
}

static int read_body(const uint8_t *bytes, size_t nrounds, size_t nsteps, lwcc_plan *p) {
  p->steps = malloc((nsteps + 1) * sizeof *p->steps);
  p->round_end = malloc((nrounds + 1) * sizeof *p->round_end);
  if (!p->steps || !p->round_end) return os_fail(LWCC_ERR_SYSTEM, "plan bytes: no memory for %zu steps", nsteps);
  p->nsteps = (int)nsteps;
  p->capacity = (int)nsteps + 1;
  p->nrounds = (int)nrounds;
  p->round_capacity = (int)nrounds + 1;
  TRY(read_rounds(bytes, p));
  return read_steps(bytes, p);
}

int plan_decode(const void *bytes, size_t nbytes, lwcc_plan **out) {
  if (nbytes < 4 * HEADER_WORDS || get_word(bytes, 0) != MAGIC)
    return os_fail(LWCC_ERR_PROTOCOL, "plan bytes: %zu bytes that do not begin as a plan does", nbytes);
  if (get_word(bytes, 1) != PLAN_CODEC_VERSION)
    return os_fail(LWCC_ERR_PROTOCOL, "plan bytes: version %u, expected %d", get_word(bytes, 1), PLAN_CODEC_VERSION);
  uint64_t nrounds = get_word(bytes, 6), nsteps = get_word(bytes, 7);
  if (nbytes != 4 * (HEADER_WORDS + nrounds + STEP_WORDS * nsteps) || nsteps > PLAN_MAX_STEPS)
    return os_fail(LWCC_ERR_PROTOCOL, "plan bytes: %zu bytes for %u rounds and %u steps", nbytes, (uint32_t)nrounds,
                   (uint32_t)nsteps);
  lwcc_plan *p;
  TRY(plan_new((int)get_word(bytes, 2), (int)get_word(bytes, 3), (int)get_word(bytes, 4), (int)get_word(bytes, 5), &p));
  int status = read_body(bytes, nrounds, nsteps, p);
  if (status < 0) {
    plan_free(p);
    return status;
  }
  *out = p;
  return LWCC_OK;
}
