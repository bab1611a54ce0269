/* The end of an asynchronous kernel. */
#ifndef LWCC_TF_DONE_H
#define LWCC_TF_DONE_H
#include "_plugin/tables.h"

/* A std::function<void()> as libstdc++ lays it out; it may be moved bit by bit. */
typedef struct {
  void *store[2];
  int (*manage)(void *, const void *, int);
  void *invoke;
} taken_done;

/* Take the callback over: TensorFlow hands out the address of an object on its caller's stack, which dies when
 * compute_async returns. Called on: any thread, within compute_async. */
void done_take(TF_AsyncOpKernelDoneCallback *done, taken_done *out);
/* Run a taken callback and destroy it; once. Called on: any thread. */
void done_run(taken_done *done);
/* Tell whether the layout is the one above: 1 or 0. Called on: the thread that loads the plugin. */
int done_layout_holds(void);
#endif
