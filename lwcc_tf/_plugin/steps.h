/* Jobs under way, by the step of the graph that they belong to.
 *
 * When the ranks disagree about one tensor of a step, every rank's step ends in that error, and what else it had
 * submitted may lack a rank for ever. Such jobs are given up: TensorFlow is told at once, and later requests carry the
 * number of failures so far in their names, which is the same on every rank, so that they meet no leftover. */
#ifndef LWCC_TF_STEPS_H
#define LWCC_TF_STEPS_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { STEPS_TEXT = 1024 };

typedef struct step_entry {
  struct step_entry *prev, *next; /* guarded by the lock of steps.c, as the rest */
  int64_t step;
  int32_t set;
  bool listed;        /* and so nobody has told TensorFlow of its end */
  atomic_int holders; /* who may still look at it: its own end, and steps_fail's caller; the last one frees it */
} step_entry;

/* Enter a job; returns the failures so far of its process set, or -1 where its step has failed already: TensorFlow may
 * hear of this job before the one that failed, so why[STEPS_TEXT] then gets that one's text. Called on: any thread. */
int64_t steps_enter(step_entry *e, char *why);
/* Take a job out; returns whether the caller has to tell TensorFlow. Called on: any thread. */
bool steps_leave(step_entry *e);
/* Count a failure of e's set that every rank sees, and take out all jobs of e's step; returns them, linked by next, to
 * be told and let go by the caller, who holds them. text[STEPS_TEXT] is kept. Called on: the driving thread. */
step_entry *steps_fail(const step_entry *e, const char *text);
/* The failures so far of a process set. Called on: any thread. */
int64_t steps_failures(int32_t set);
/* The largest number of jobs that were under way at one time since the last call. Called on: any thread. */
int32_t steps_most(void);
#endif
