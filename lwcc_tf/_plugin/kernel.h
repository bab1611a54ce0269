/* An op's attributes, read when TensorFlow makes its kernel. */
#ifndef LWCC_TF_KERNEL_H
#define LWCC_TF_KERNEL_H
#include "_plugin/tables.h"

typedef struct call_counter call_counter;

typedef struct {
  int32_t collective, op, root, set;
  bool blocking; /* the caller waits for this op alone: no other thread is needed */
  double prescale, postscale;
  call_counter *counter; /* numbers the calls of this name; NULL: the name alone is enough */
  char algorithm[64];    /* the core's name of it; empty: the set's, or selected */
  size_t name_nbytes;    /* without the end */
  char name[];
} kernel;

/* Make a kernel; NULL after a failure, which TensorFlow was told. Called on: any thread. */
kernel *kernel_create(TF_OpKernelConstruction *construction, lwcc_collective collective);
/* Called on: any thread. */
void kernel_delete(void *k);
/* The number of this call among those of the kernel's name. Called on: any thread. */
unsigned long kernel_number(const kernel *k);
/* A status for a failure, to be deleted by the caller. Called on: any thread. */
TF_Status *kernel_status(int status, const char *text);
#endif
