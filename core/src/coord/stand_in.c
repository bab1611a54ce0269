#include "coord/stand_in.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/reduce.h"
#include "os/mem.h"
#include "os/status.h"

request *stand_in_make(const cached *c) {
  void *memory;
  if (mem_zeroed(1, sizeof(request), &memory) < 0) return NULL;
  request *r = memory;
  r->stand_in = true;
  r->sig = c->sig; /* without splits, so that it owns nothing */
  memcpy(r->name, c->name, strlen(c->name) + 1);
  return r;
}

/* One buffer, in place, that holds the input; where the core sizes the output, it allocates that itself. Zeros serve
 * all but three operations, and those too when they are scaled by 0. */
int stand_in_fill(request *r) {
  const signature *s = &r->sig;
  size_t count = s->collective == LWCC_BARRIER ? 0 : signature_count(s);
  bool reduces = s->collective == LWCC_ALLREDUCE || s->collective == LWCC_REDUCESCATTER;
  r->scratch = count <= PTRDIFF_MAX / sizeof(double) ? calloc(count ? count : 1, coll_dtype_bytes(s->dtype)) : NULL;
  if (!r->scratch)
    return os_fail(LWCC_ERR_SYSTEM, "\"%s\": no memory for %zu elements on a rank that has joined", r->name, count);
  if (reduces && s->op >= LWCC_MIN && s->prescale != 0)
    reduce_neutral(s->dtype, s->op, s->prescale < 0, r->scratch, count);
  r->input = r->scratch;
  if (s->collective == LWCC_ALLREDUCE || s->collective == LWCC_BROADCAST) r->output = r->scratch;
  return LWCC_OK;
}

bool stand_in_free(request *r) {
  if (!r->stand_in) return false;
  free(r->scratch);
  free(r->owned);
  free(r->rows);
  free(r);
  return true;
}

void stand_in_scale(coll_args *a, int contributors) {
  if (a->op != LWCC_PRODUCT) return; /* a scaled 0 is 0, and infinity stays the end that prescale's sign makes it */
  a->postscale *= pow(a->prescale, contributors);
  a->prescale = 1.0;
}
