/* One run of a kernel: from TensorFlow's tensors to requests, and back. */
#ifndef LWCC_TF_JOB_H
#define LWCC_TF_JOB_H
#include "_plugin/kernel.h"

/* Run a kernel. With a callback it is called when the outputs are there, perhaps before this returns, on any thread;
 * without one this returns then. Called on: TensorFlow's threads. */
void job_run(void *k, TF_OpKernelContext *ctx, TF_AsyncOpKernelDoneCallback *done);
void job_run_blocking(void *k, TF_OpKernelContext *ctx);
/* Outputs that took over their input's memory, and that were allocated. Called on: any thread. */
int32_t job_forwarded(void);
int32_t job_allocated(void);
#endif
