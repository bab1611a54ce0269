#include "_plugin/done.h"

#include <string.h>

enum { DESTROY = 3 }; /* of the manager's operations */

void done_take(TF_AsyncOpKernelDoneCallback *done, taken_done *out) {
  taken_done *original = (void *)done;
  memcpy(out, original, sizeof *out);
  original->manage = NULL; /* so that the destructor does nothing */
}

void done_run(taken_done *done) {
  tf.TF_RunAsyncOpKernelDoneCallback((TF_AsyncOpKernelDoneCallback *)(void *)done);
  if (done->manage) done->manage(done, done, DESTROY);
}

static void *probed;

static void probe(taken_done *done) {
  probed = done->store[0];
}

static int manage_probe(void *a, const void *b, int operation) {
  (void)a;
  (void)b;
  (void)operation;
  return 0;
}

int done_layout_holds(void) {
  taken_done fake = {.manage = manage_probe};
  void (*invoke)(taken_done *) = probe;
  fake.store[0] = &fake;
  memcpy(&fake.invoke, &invoke, sizeof invoke);
  tf.TF_RunAsyncOpKernelDoneCallback((TF_AsyncOpKernelDoneCallback *)(void *)&fake);
  return probed == &fake;
}
