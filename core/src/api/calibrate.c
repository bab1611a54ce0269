/* The cost model's numbers, from collectives of known plans that all ranks run at once: so they hold what the ranks
 * take from one another when they share cores or a link, which a lone ping-pong does not see. */
#include "api/calibrate.h"

#include "exec/reduce.h"
#include "os/clock.h"
#include "os/env.h"
#include "os/log.h"
#include "os/status.h"

enum { TIMES = 5, LARGE = 256 << 10 }; /* runs, of which the best counts; bytes */

typedef struct {
  engine *e;
  pset *ps;
} probe;

static char input[LARGE], output[LARGE]; /* taken when touched; no rank may fail for want of them */

/* The best of some runs, each from a barrier. */
static int run(const probe *p, const coll_args *what, const char *algorithm, double *best_out) {
  coll_args a = *what, barrier = {.collective = LWCC_BARRIER, .dtype = LWCC_UINT8, .prescale = 1, .postscale = 1};
  a.in = input;
  a.out = output;
  a.op = LWCC_SUM;
  a.prescale = a.postscale = 1;
  for (int i = 0; i < TIMES; i++) {
    TRY(raw_run(p->e, p->ps, &barrier, "dissemination"));
    uint64_t began = clock_ns();
    TRY(raw_run(p->e, p->ps, &a, algorithm));
    double s = (double)(clock_ns() - began) * 1e-9;
    if (i == 0 || s < *best_out) *best_out = s;
  }
  return LWCC_OK;
}

static double add_one_byte(void) {
  double best = 1;
  for (int i = 0; i < TIMES; i++) {
    uint64_t began = clock_ns();
    void *out = output;
    reduce_fold(LWCC_FLOAT32, LWCC_SUM)(2, (const void *[]){input, out}, 1, &out, LARGE / 4, 1.0);
    double s = (double)(clock_ns() - began) * 1e-9;
    if (s < best) best = s;
  }
  return best / LARGE;
}

/* An allgather by the ring is p - 1 rounds of one message; a fold of little is two rounds of p - 1. */
static int measure(const probe *p, wire_cost *out) {
  double size = p->ps->size, small = 0, large = 0, fold = 0;
  const coll_args one = {.collective = LWCC_ALLGATHER, .dtype = LWCC_UINT8, .count = 1};
  const coll_args many = {.collective = LWCC_ALLGATHER, .dtype = LWCC_UINT8, .count = LARGE / (size_t)p->ps->size};
  const coll_args few = {.collective = LWCC_ALLREDUCE, .dtype = LWCC_FLOAT32, .count = (size_t)p->ps->size};
  TRY(run(p, &one, "ring", &small));
  TRY(run(p, &many, "ring", &large));
  TRY(run(p, &few, "fold", &fold));
  double alpha = small / (size - 1), overhead = size > 2 ? (fold - 2 * alpha) / (2 * size - 4) : alpha / 3;
  *out = (wire_cost){.alpha_s = alpha,
                     .beta_s_per_byte = large > small ? (large - small) / ((double)many.count * (size - 1)) : 0,
                     .gamma_s_per_byte = add_one_byte(),
                     .overhead_s = overhead < 0       ? 0
                                   : overhead < alpha ? overhead
                                                      : alpha};
  return LWCC_OK;
}

/* The ranks have measured different numbers: their mean, which a ring gives to all bit by bit. */
static int settle(const probe *p, wire_cost *cost) {
  coll_args a = {.collective = LWCC_ALLREDUCE,
                 .dtype = LWCC_FLOAT64,
                 .op = LWCC_SUM,
                 .in = cost,
                 .out = cost,
                 .count = sizeof *cost / sizeof(double),
                 .prescale = 1,
                 .postscale = 1.0 / p->ps->size};
  TRY(raw_run(p->e, p->ps, &a, "ring"));
  LOG(DEBUG, "wire: %.2f us a message, %.2f us for each more of a round, %.4f ns a byte, %.4f ns to add one",
      cost->alpha_s * 1e6, cost->overhead_s * 1e6, cost->beta_s_per_byte * 1e9, cost->gamma_s_per_byte * 1e9);
  engine_lock(p->e);
  p->e->cost = p->ps->raw.cost = p->ps->named.cost = *cost;
  atomic_store_explicit(&p->ps->raw_calls, 0, memory_order_relaxed); /* nobody asked for these */
  engine_unlock(p->e);
  return LWCC_OK;
}

int calibrate(engine *e) {
  probe p = {.e = e, .ps = engine_set(e, 0)};
  wire_cost cost;
  if (*env_text(ENV_COST) || e->size == 1 || p.ps->raw.shm || p.ps->raw.engine != LWCC_ENGINE_OWN) return LWCC_OK;
  TRY(measure(&p, &cost));
  return settle(&p, &cost);
}
