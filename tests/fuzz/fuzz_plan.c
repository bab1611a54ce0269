/* Bytes as plans: decoding takes any bytes; what it accepts is sound enough to be encoded, printed, priced and proved
 * together with the plans of the other ranks, whatever the proof then says.
 * The input is one encoded plan after the other, each behind its length in two bytes, one for each rank. */
#include <stdlib.h>
#include <string.h>

#include "plan/codec.h"

enum { MAX_RANKS = 16, MAX_BYTES = 1 << 14 };

static void check_canonical(const lwcc_plan *p, const uint8_t *bytes, size_t nbytes) {
  uint8_t *again = malloc(nbytes);
  if (plan_encode(p, again, nbytes) != nbytes || memcmp(again, bytes, nbytes) != 0) abort();
  free(again);
  char text[512];
  if (plan_print(p, text, sizeof text) < (int64_t)strlen(text)) abort();
}

/* The steps once more through the builder: what the decoder lets pass, the verbs must accept. */
static void check_builder(const lwcc_plan *p) {
  lwcc_plan *q;
  if (plan_new(p->collective, p->rank, p->size, p->nchunks, &q) < 0) abort();
  for (int round = 0, i = 0; round < p->nrounds; round++) {
    for (; i < p->round_end[round]; i++) {
      const plan_step *s = &p->steps[i];
      if (s->kind == STEP_SEND) lwcc_plan_send(q, s->peer, s->chunk, s->n);
      if (s->kind == STEP_RECV_COPY) lwcc_plan_recv_copy(q, s->peer, s->chunk, s->n);
      if (s->kind == STEP_RECV_REDUCE) lwcc_plan_recv_reduce(q, s->peer, s->chunk, s->n);
      if (s->kind == STEP_COPY) lwcc_plan_copy(q, s->chunk, s->src);
      if (s->kind == STEP_REDUCE) lwcc_plan_reduce(q, s->chunk, s->src);
      if (s->kind == STEP_FOLD) lwcc_plan_fold(q, s->chunk, s->peer);
    }
    lwcc_plan_end_round(q);
  }
  if (plan_finish(q) < 0 || q->nsteps != p->nsteps || q->nrounds != p->nrounds) abort();
  plan_free(q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
  lwcc_plan *plans[MAX_RANKS];
  int n = 0;
  for (size_t at = 0; nbytes <= MAX_BYTES && n < MAX_RANKS && at + 2 <= nbytes; n++) {
    size_t length = data[at] | (size_t)data[at + 1] << 8;
    at += 2;
    if (length > nbytes - at) length = nbytes - at;
    if (plan_decode(data + at, length, &plans[n]) < 0) break;
    check_canonical(plans[n], data + at, length);
    check_builder(plans[n]);
    at += length;
  }
  if (n > 0) {
    plan_cost((const lwcc_plan *const *)plans, n, NULL);
    plan_verify((const lwcc_plan *const *)plans, n);
    if (plans[0]->size < n) plan_verify((const lwcc_plan *const *)plans, plans[0]->size);
  }
  for (int r = 0; r < n; r++) plan_free(plans[r]);
  return 0;
}
