/* Bytes as an encoded plan: decode, and what was taken must survive encoding, printing and its own proof. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plan/codec.h"

static void round_trip(const lwcc_plan *p) {
  size_t nbytes = plan_encode(p, NULL, 0);
  uint8_t *bytes = malloc(nbytes ? nbytes : 1);
  lwcc_plan *again = NULL;
  if (!bytes) abort();
  if (plan_encode(p, bytes, nbytes) != nbytes) abort();
  if (plan_decode(bytes, nbytes, &again) != LWCC_OK) abort();
  if (again->nsteps != p->nsteps || again->nrounds != p->nrounds) abort();
  if (p->nsteps && memcmp(again->steps, p->steps, sizeof *p->steps * (size_t)p->nsteps) != 0) abort();
  plan_free(again);
  free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
  char text[256];
  lwcc_plan *p = NULL;
  if (plan_decode(data, nbytes, &p) != LWCC_OK) {
    if (p) abort(); /* outputs are set only on success */
    return 0;
  }
  round_trip(p);
  if (plan_print(p, text, sizeof text) < 0) abort();
  if (p->size == 1) {
    const lwcc_plan *alone = p;
    plan_verify(&alone, 1);
  }
  plan_free(p);
  return 0;
}
