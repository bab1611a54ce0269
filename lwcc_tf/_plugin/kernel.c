#include "_plugin/kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct call_counter {
  call_counter *next;
  atomic_ulong calls; /* relaxed: only the number matters */
  char name[];
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static call_counter *counters; /* guarded by mu; entries live as long as the process: kernels come and go */

static call_counter *counter_of(const char *name, size_t nbytes) {
  pthread_mutex_lock(&mu);
  call_counter *c = counters;
  while (c && strcmp(c->name, name) != 0) c = c->next;
  if (!c && (c = calloc(1, sizeof *c + nbytes + 1))) {
    memcpy(c->name, name, nbytes);
    c->next = counters;
    counters = c;
  }
  pthread_mutex_unlock(&mu);
  return c;
}

static int64_t attribute(TF_OpKernelConstruction *construction, const char *name, TF_Status *st) {
  int64_t value = 0;
  if (tf.TF_GetCode(st) == TF_OK) tf.TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, st);
  return value;
}

/* Attributes of type float have 32 bits, so factors come as the bits of a double. */
static double factor(TF_OpKernelConstruction *construction, const char *name, TF_Status *st) {
  int64_t bits = attribute(construction, name, st);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static kernel *read_attributes(TF_OpKernelConstruction *construction, TF_Status *st) {
  int32_t list_size, nbytes = 0;
  tf.TF_OpKernelConstruction_GetAttrSize(construction, "tensor_name", &list_size, &nbytes, st);
  kernel *k = calloc(1, sizeof *k + (size_t)nbytes + 1);
  if (!k) {
    tf.TF_SetStatus(st, TF_RESOURCE_EXHAUSTED, "lwcc: no memory for a kernel");
    return NULL;
  }
  k->name_nbytes = (size_t)nbytes;
  if (nbytes) tf.TF_OpKernelConstruction_GetAttrString(construction, "tensor_name", k->name, (size_t)nbytes, st);
  k->op = (int32_t)attribute(construction, "op", st);
  k->root = (int32_t)attribute(construction, "root", st);
  k->set = (int32_t)attribute(construction, "process_set", st);
  k->blocking = attribute(construction, "blocking", st) != 0;
  if (tf.TF_GetCode(st) == TF_OK) /* one that is too long is cut, and then unknown */
    tf.TF_OpKernelConstruction_GetAttrString(construction, "algorithm", k->algorithm, sizeof k->algorithm - 1, st);
  k->prescale = factor(construction, "prescale_bits", st);
  k->postscale = factor(construction, "postscale_bits", st);
  if (attribute(construction, "numbered", st)) {
    k->counter = counter_of(k->name, k->name_nbytes);
    if (!k->counter) tf.TF_SetStatus(st, TF_RESOURCE_EXHAUSTED, "lwcc: no memory for a counter");
  }
  return k;
}

kernel *kernel_create(TF_OpKernelConstruction *construction, lwcc_collective collective) {
  TF_Status *st = tf.TF_NewStatus();
  kernel *k = read_attributes(construction, st);
  if (k) k->collective = (int32_t)collective;
  if (tf.TF_GetCode(st) != TF_OK) {
    tf.TF_OpKernelConstruction_Failure(construction, st);
    free(k);
    k = NULL;
  }
  tf.TF_DeleteStatus(st);
  return k;
}

void kernel_delete(void *k) {
  free(k);
}

unsigned long kernel_number(const kernel *k) {
  return atomic_fetch_add_explicit(&k->counter->calls, 1, memory_order_relaxed);
}

static int code_of(int status) {
  switch (status) {
    case LWCC_ERR_INVALID:
      return TF_INVALID_ARGUMENT;
    case LWCC_ERR_MISMATCH:
    case LWCC_ERR_SHUTDOWN:
      return TF_FAILED_PRECONDITION;
    case LWCC_ERR_PEER_LOST:
      return TF_ABORTED;
    case LWCC_ERR_TIMEOUT:
      return TF_DEADLINE_EXCEEDED;
    case LWCC_ERR_SYSTEM:
      return TF_RESOURCE_EXHAUSTED;
    case LWCC_ERR_UNSUPPORTED:
      return TF_UNIMPLEMENTED;
    default:
      return TF_UNKNOWN;
  }
}

TF_Status *kernel_status(int status, const char *text) {
  TF_Status *st = tf.TF_NewStatus();
  tf.TF_SetStatus(st, code_of(status), text);
  return st;
}
