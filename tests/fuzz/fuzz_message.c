/* Any bytes as negotiation frames, to a coordinator and to a rank that obeys one: the engine obeys, ignores or gives
 * the job up. The first byte picks the part; then frames follow, each with a byte for its sender and one for its
 * length. */
#include <stdlib.h>
#include <string.h>

#include "coord/engine.h"
#include "os/log.h"

enum { SIZE = 3, REQUESTS = 4 };

static int64_t input[REQUESTS][6], output[REQUESTS][6], splits[SIZE] = {1, 2, 3};

/* A length from the wire may be more than there is memory: refused here from 1 GiB on, before the sanitizer marks
 * an eighth of it. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1:max_allocation_size_mb=1024";
}

static int fill(void *arg, int index, request *r) {
  static const int collectives[REQUESTS] = {LWCC_ALLREDUCE, LWCC_ALLREDUCE, LWCC_ALLGATHER, LWCC_ALLTOALL};
  int i = *(const int *)arg;
  (void)index;
  signature sig = {
      .collective = collectives[i], .dtype = LWCC_INT64, .op = LWCC_SUM, .ndim = 1, .prescale = 1, .postscale = 1};
  sig.shape[0] = 6;
  if (sig.collective == LWCC_ALLTOALL) sig.splits = splits, sig.nsplits = SIZE;
  r->name[0] = (char)('a' + i);
  r->name[1] = 0;
  r->input = input[i];
  r->output = sig.collective == LWCC_ALLREDUCE ? output[i] : NULL;
  return signature_copy(&r->sig, &sig);
}

static engine *make(int rank, transport_link **peers) {
  transport_link *links[SIZE] = {NULL};
  rank_identity ids[SIZE] = {{0}};
  engine_parts parts = {.rank = rank, .size = SIZE, .ids = ids, .limits = {.fusion_nbytes = 1 << 20, .capacity = 2}};
  engine *e;
  channel *ch;
  for (int r = 0; r < SIZE; r++) {
    peers[r] = NULL;
    if (r == rank) continue;
    if (transport_mem_pair(0, 0, &links[r], &peers[r]) < 0) abort();
    links[r]->peer = r;
  }
  if (engine_create(&parts, &e) < 0) abort();
  channel_events events = engine_events(e);
  if (channel_create(rank, SIZE, 0, links, &events, &ch) < 0 || engine_bind(e, ch, NULL) < 0) abort();
  return e;
}

static void turn(engine *e, transport_link **peers) {
  uint8_t heard[4096];
  const struct iovec all = {heard, sizeof heard};
  engine_turn(e);
  for (int r = 0; r < SIZE; r++)
    for (int c = 0; peers[r] && c < LINK_CLASSES; c++)
      while (peers[r]->ops->recv(peers[r], c, &all, 1) > 0) continue;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  lwcc_ticket tickets[REQUESTS];
  transport_link *peers[SIZE];
  if (n < 1) return 0;
  log_set_level(LOG_ERROR);
  engine *e = make(data[0] & 1, peers);
  for (int i = 0; i < REQUESTS; i++)
    if (queue_submit(&e->q, 1, fill, &i, &tickets[i]) < 0) abort();
  turn(e, peers);
  for (size_t at = 1; at + 2 <= n;) {
    int from = data[at] % SIZE;
    size_t length = data[at + 1] < n - at - 2 ? data[at + 1] : n - at - 2;
    uint8_t *frame = malloc(length + 1); /* of its own, so that reading past the end is seen */
    memcpy(frame, data + at + 2, length);
    if (from != e->rank) order_control(e, from, frame, length);
    free(frame);
    turn(e, peers);
    at += 2 + length;
  }
  engine_fail(e, LWCC_ERR_SHUTDOWN, "the end");
  if (atomic_load(&e->q.outstanding)) abort(); /* a request that nobody ends */
  engine_free(e);
  for (int r = 0; r < SIZE; r++)
    if (peers[r]) peers[r]->ops->close(peers[r]);
  return 0;
}
