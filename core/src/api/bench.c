/* Timing in C: the loop of a benchmark, so that no interpreter stands between two calls. */
#include "api/ctx.h"
#include "exec/reduce.h"
#include "os/clock.h"
#include "os/status.h"

/* There and back, as two broadcasts, which both ranks of a pair have to take part in. */
static int ping_pong(const lwcc_loop *b) {
  TRY(lwcc_raw_broadcast(b->output, b->count, b->dtype, 0, 0));
  return lwcc_raw_broadcast(b->output, b->count, b->dtype, 1, 0);
}

static int fold(const lwcc_loop *b) {
  void *out = b->output;
  reduce_fold(b->dtype, LWCC_SUM)(2, (const void *[]){b->input, out}, 1, &out, (size_t)b->count, 1.0);
  return LWCC_OK;
}

static int run_once(const lwcc_loop *b) {
  switch (b->collective) {
    case LWCC_ALLREDUCE:
      return lwcc_raw_allreduce(b->input, b->output, b->count, b->dtype, b->op, 0);
    case LWCC_BROADCAST:
      return lwcc_raw_broadcast(b->output, b->count, b->dtype, 0, 0);
    case LWCC_ALLGATHER:
      return lwcc_raw_allgather(b->input, b->output, b->count, b->dtype, 0);
    case LWCC_REDUCESCATTER:
      return lwcc_raw_reducescatter(b->input, b->output, b->count, b->dtype, b->op, 0);
    case LWCC_ALLTOALL:
      return lwcc_raw_alltoall(b->input, b->output, b->count, b->dtype, 0);
    case LWCC_BARRIER:
      return lwcc_raw_barrier(0);
    case LWCC_TIME_P2P:
      return ping_pong(b);
    case LWCC_TIME_FOLD:
      return fold(b);
    default:
      return os_fail(LWCC_ERR_INVALID, "lwcc_time_loop: collective %d is unknown", b->collective);
  }
}

int lwcc_time_loop(const lwcc_loop *b, double *seconds_out) {
  if (b->dtype < 0 || b->dtype >= LWCC_DTYPES)
    return os_fail(LWCC_ERR_INVALID, "lwcc_time_loop: dtype %d is unknown", b->dtype);
  for (int64_t i = 0; i < b->iterations; i++) {
    TRY(raw_meet());
    uint64_t began = clock_ns();
    TRY(run_once(b));
    seconds_out[i] = (double)(clock_ns() - began) * (b->collective == LWCC_TIME_P2P ? 0.5e-9 : 1e-9);
  }
  return LWCC_OK;
}
