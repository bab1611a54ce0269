/* A plan as text, for people, golden tests and failure texts. */
#include <stdarg.h>
#include <stdio.h>

#include "plan/ir.h"

typedef struct {
  char *out;
  size_t cap;
  int64_t length; /* needed so far, whether it fitted or not */
} sink;

static void put(sink *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(sink *s, const char *fmt, ...) {
  size_t used = (size_t)s->length < s->cap ? (size_t)s->length : s->cap;
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(s->cap > used ? s->out + used : NULL, s->cap - used, fmt, args);
  va_end(args);
  s->length += n;
}

void plan_step_text(const lwcc_plan *p, int step, char out[PLAN_STEP_TEXT]) {
  const plan_step *s = &p->steps[step];
  const char *kind = plan_kind_name(s->kind);
  const char *from = p->collective == LWCC_ALLTOALL && s->kind == STEP_COPY ? "input chunk" : "chunk";
  if (s->kind == STEP_COPY || s->kind == STEP_REDUCE) {
    snprintf(out, PLAN_STEP_TEXT, "%s chunk %d from %s %d", kind, s->chunk, from, s->src);
    return;
  }
  if (s->kind == STEP_FOLD) {
    snprintf(out, PLAN_STEP_TEXT, "fold chunk %d on rank %d", s->chunk, s->peer);
    return;
  }
  const char *way = s->kind == STEP_SEND ? "to" : "from";
  if (s->n == 0)
    snprintf(out, PLAN_STEP_TEXT, "%s no chunk %s rank %d", kind, way, s->peer);
  else if (s->n == 1)
    snprintf(out, PLAN_STEP_TEXT, "%s chunk %d %s rank %d", kind, s->chunk, way, s->peer);
  else
    snprintf(out, PLAN_STEP_TEXT, "%s chunks %d..%d %s rank %d", kind, s->chunk, s->chunk + s->n - 1, way, s->peer);
}

int64_t plan_print(const lwcc_plan *p, char *out, size_t cap) {
  sink s = {out, cap, 0};
  char line[PLAN_STEP_TEXT];
  put(&s, "%s: rank %d of %d, %d chunk%s, %d round%s\n", collective_name(p->collective), p->rank, p->size, p->nchunks,
      p->nchunks == 1 ? "" : "s", p->nrounds, p->nrounds == 1 ? "" : "s");
  for (int round = 0, step = 0; round < p->nrounds; round++) {
    put(&s, "round %d\n", round);
    for (; step < p->round_end[round]; step++) {
      plan_step_text(p, step, line);
      put(&s, "  step %d: %s\n", step, line);
    }
  }
  return s.length;
}
