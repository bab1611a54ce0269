/* Ranks that have joined: they are out of data, and take part in everything with neutral elements until all have. */
#include <stdio.h>
#include <string.h>

#include "coord/tally.h"
#include "os/status.h"

bool part_complete(const coordinator *co, const tally *t) {
  if (t->nasked == co->ps->size) return true;
  for (int i = 0; i < co->ps->size; i++)
    if (!t->asked[i] && !co->joined[i]) return false;
  return true;
}

/* Whatever the joined ranks were the last to be waited for gets ready. */
static int decide_complete(coordinator *co) {
  for (tally *t = co->oldest, *next; t; t = next) {
    uint64_t freed = co->freed;
    next = t->newer;
    if (!t->since_ns || t->ready || t->collective == JOIN || !part_complete(co, t)) continue;
    TRY(tally_decide(co, t));
    if (co->freed != freed) next = co->oldest; /* a decision may free any tally, next too */
  }
  return LWCC_OK;
}

int part_join(coordinator *co, tally *t, int from) {
  co->joined[from] = true;
  co->njoined++;
  TRY(decide_complete(co));
  if (co->njoined < co->ps->size) return LWCC_OK;
  bytes_u8(&co->log, ENTRY_JOINED);
  bytes_u32(&co->log, (uint32_t)from);
  memset(co->joined, 0, (size_t)co->ps->size * sizeof *co->joined);
  co->njoined = 0;
  tally_settled(co, t);
  return LWCC_OK;
}

bool part_forbidden(const coordinator *co, const tally *t, char *text, size_t cap) {
  signature s;
  int joined = 0;
  while (t->asked[joined]) joined++;
  tally_asked(co, t, tally_first(co, t), &s);
  int root = s.collective == LWCC_BROADCAST ? pset_index(co->ps, s.root) : 0;
  if (s.collective == LWCC_BROADCAST && (root < 0 || !t->asked[root])) {
    snprintf(text, cap, "\"%s\": rank %d is the root of this broadcast, but has joined: it is out of data", t->name,
             s.root);
    return true;
  }
  if (strncmp(t->name, "lwcc.set_", 9) != 0) return false;
  snprintf(text, cap, "process sets are made and removed by all ranks together, but rank %d has joined",
           co->ps->ranks[joined]);
  return true;
}

void part_log(coordinator *co, const tally *t) {
  signature s = t->agreed; /* as the absent would have asked: with no rows where rows are a rank's own */
  if (s.collective == LWCC_ALLGATHER || s.collective == LWCC_ALLTOALL) s.shape[0] = 0;
  s.splits = NULL;
  s.nsplits = 0;
  bytes_put(&co->log, t->asked, (size_t)co->ps->size);
  signature_put(&co->log, &s);
}
