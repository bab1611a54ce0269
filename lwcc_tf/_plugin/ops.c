/* The ops: what they take and give, their shapes, and their registration when the library is loaded.
 *
 * They are stateful, so that nothing merges, folds or prunes them; the Python side keeps tf.function from chaining
 * them. */
#include <stdio.h>
#include <stdlib.h>

#include "_plugin/done.h"
#include "_plugin/job.h"
#include "_plugin/steps.h"

#define TYPES                                                                                                   \
  "{half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool, complex64, " \
  "complex128}"

typedef struct {
  const char *name;
  const char *attrs[4], *inputs[2], *outputs[2];
  shape_fn shapes;
  create_fn create;
} op_definition;

/* ---- shapes ---- */

static void same_shapes(TF_ShapeInferenceContext *c, TF_Status *st) {
  int n = (int)tf.TF_ShapeInferenceContextNumInputs(c);
  for (int i = 0; i < n && tf.TF_GetCode(st) == TF_OK; i++) {
    TF_ShapeHandle *shape = tf.TF_NewShapeHandle();
    tf.TF_ShapeInferenceContextGetInput(c, i, shape, st);
    if (tf.TF_GetCode(st) == TF_OK) tf.TF_ShapeInferenceContextSetOutput(c, i, shape, st);
    tf.TF_DeleteShapeHandle(shape);
  }
}

static void set_vector_of_unknown_length(TF_ShapeInferenceContext *c, int output, TF_Status *st) {
  TF_ShapeHandle *rows = tf.TF_ShapeInferenceContextVectorFromSize(c, (size_t)-1);
  if (tf.TF_GetCode(st) == TF_OK) tf.TF_ShapeInferenceContextSetOutput(c, output, rows, st);
  tf.TF_DeleteShapeHandle(rows);
}

/* Output i has the shape of input i with an unknown first dimension. */
static void unknown_rows(TF_ShapeInferenceContext *c, int i, TF_Status *st) {
  TF_ShapeHandle *in = tf.TF_NewShapeHandle(), *rest = tf.TF_NewShapeHandle(), *out = tf.TF_NewShapeHandle();
  TF_ShapeHandle *rows = tf.TF_ShapeInferenceContextVectorFromSize(c, (size_t)-1);
  tf.TF_ShapeInferenceContextGetInput(c, i, in, st);
  if (tf.TF_GetCode(st) == TF_OK) tf.TF_ShapeInferenceContextWithRankAtLeast(c, in, 1, in, st);
  if (tf.TF_GetCode(st) == TF_OK) tf.TF_ShapeInferenceContextSubshape(c, in, 1, INT64_MAX, rest, st);
  if (tf.TF_GetCode(st) == TF_OK) tf.TF_ShapeInferenceContextConcatenateShapes(c, rows, rest, out, st);
  if (tf.TF_GetCode(st) == TF_OK) tf.TF_ShapeInferenceContextSetOutput(c, i, out, st);
  tf.TF_DeleteShapeHandle(in);
  tf.TF_DeleteShapeHandle(rest);
  tf.TF_DeleteShapeHandle(out);
  tf.TF_DeleteShapeHandle(rows);
}

static void scattered_shapes(TF_ShapeInferenceContext *c, TF_Status *st) {
  int n = (int)tf.TF_ShapeInferenceContextNumInputs(c);
  for (int i = 0; i < n && tf.TF_GetCode(st) == TF_OK; i++) unknown_rows(c, i, st);
}

static void gathered_shapes(TF_ShapeInferenceContext *c, TF_Status *st) {
  int n = (int)tf.TF_ShapeInferenceContextNumInputs(c);
  scattered_shapes(c, st);
  for (int i = 0; i < n && tf.TF_GetCode(st) == TF_OK; i++) set_vector_of_unknown_length(c, n + i, st);
}

static void exchanged_shapes(TF_ShapeInferenceContext *c, TF_Status *st) {
  unknown_rows(c, 0, st);
  set_vector_of_unknown_length(c, 1, st);
}

static void no_shapes(TF_ShapeInferenceContext *c, TF_Status *st) {
  (void)c;
  (void)st;
}

static void scalar_shape(TF_ShapeInferenceContext *c, TF_Status *st) {
  TF_ShapeHandle *scalar = tf.TF_ShapeInferenceContextScalar(c);
  tf.TF_ShapeInferenceContextSetOutput(c, 0, scalar, st);
  tf.TF_DeleteShapeHandle(scalar);
}

/* ---- kernels ---- */

#define CREATE(function, collective)                             \
  static void *function(TF_OpKernelConstruction *construction) { \
    return kernel_create(construction, collective);              \
  }
CREATE(create_allreduce, LWCC_ALLREDUCE)
CREATE(create_broadcast, LWCC_BROADCAST)
CREATE(create_allgather, LWCC_ALLGATHER)
CREATE(create_reducescatter, LWCC_REDUCESCATTER)
CREATE(create_alltoall, LWCC_ALLTOALL)
CREATE(create_barrier, LWCC_BARRIER)

/* The number kernel's attribute `op`: which number. Those from MOST_UNDER_WAY on need no job. */
enum {
  RANK,
  SIZE,
  LOCAL_RANK,
  LOCAL_SIZE,
  CROSS_RANK,
  CROSS_SIZE,
  INCLUDED,
  MOST_UNDER_WAY,
  FORWARDED,
  ALLOCATED,
  ASYNCHRONOUS
};

static int32_t asynchronous; /* kernels return before they are done; written once, at load */

static int place(const kernel *k, int32_t *out) {
  lwcc_world w;
  int32_t rank, size;
  int st = core.lwcc_get_world(&w);
  if (st >= 0) st = core.lwcc_set_info(k->set, &rank, &size);
  if (st < 0) return st;
  const int32_t numbers[] = {rank, size, w.local_rank, w.local_size, w.cross_rank, w.cross_size, rank >= 0};
  *out = numbers[k->op];
  return LWCC_OK;
}

static int number(const kernel *k, int32_t *out) {
  switch (k->op) {
    case MOST_UNDER_WAY:
      *out = steps_most();
      return LWCC_OK;
    case FORWARDED:
      *out = job_forwarded();
      return LWCC_OK;
    case ALLOCATED:
      *out = job_allocated();
      return LWCC_OK;
    case ASYNCHRONOUS:
      *out = asynchronous;
      return LWCC_OK;
    default:
      return place(k, out);
  }
}

static void *create_number(TF_OpKernelConstruction *construction) {
  return kernel_create(construction, LWCC_COLLECTIVES);
}

static void compute_number(void *k, TF_OpKernelContext *ctx) {
  int32_t value = 0;
  int found = number(k, &value);
  TF_Status *st = found < 0 ? kernel_status(found, core.lwcc_error()) : tf.TF_NewStatus();
  TF_Tensor *out = found < 0 ? NULL : tf.TF_AllocateOutput(ctx, 0, TF_INT32, NULL, 0, sizeof value, st);
  if (out) {
    *(int32_t *)tf.TF_TensorData(out) = value;
    tf.TF_DeleteTensor(out);
  }
  if (tf.TF_GetCode(st) != TF_OK) tf.TF_OpKernelContext_Failure(ctx, st);
  tf.TF_DeleteStatus(st);
}

/* ---- registration ---- */

static const char *const common[] = {"tensor_name: string",
                                     "op: int = 1",
                                     "root: int = 0",
                                     "process_set: int = 0",
                                     "blocking: int = 0",
                                     "numbered: int = 0",
                                     "algorithm: string = ''",
                                     "prescale_bits: int = 4607182418800017408", /* 1.0 */
                                     "postscale_bits: int = 4607182418800017408"};

static const op_definition collectives[] = {
    {"LwccAllreduce", {"T: list(" TYPES ") >= 1"}, {"tensors: T"}, {"outputs: T"}, same_shapes, create_allreduce},
    {"LwccBroadcast", {"T: list(" TYPES ") >= 1"}, {"tensors: T"}, {"outputs: T"}, same_shapes, create_broadcast},
    {"LwccAllgather",
     {"T: list(" TYPES ") >= 1", "N: int >= 1"},
     {"tensors: T"},
     {"outputs: T", "rows: N * int64"},
     gathered_shapes,
     create_allgather},
    {"LwccReducescatter",
     {"T: list(" TYPES ") >= 1"},
     {"tensors: T"},
     {"outputs: T"},
     scattered_shapes,
     create_reducescatter},
    {"LwccAlltoall",
     {"T: " TYPES},
     {"tensor: T", "splits: int64"},
     {"output: T", "rows: int64"},
     exchanged_shapes,
     create_alltoall},
    {"LwccBarrier", {NULL}, {NULL}, {NULL}, no_shapes, create_barrier},
};
static const op_definition numbers = {"LwccNumber", {NULL}, {NULL}, {"value: int32"}, scalar_shape, create_number};

static void define(const op_definition *d, TF_Status *st) {
  TF_OpDefinitionBuilder *b = tf.TF_NewOpDefinitionBuilder(d->name);
  for (int i = 0; i < 4 && d->attrs[i]; i++) tf.TF_OpDefinitionBuilderAddAttr(b, d->attrs[i]);
  for (size_t i = 0; i < sizeof common / sizeof *common; i++) tf.TF_OpDefinitionBuilderAddAttr(b, common[i]);
  for (int i = 0; i < 2 && d->inputs[i]; i++) tf.TF_OpDefinitionBuilderAddInput(b, d->inputs[i]);
  for (int i = 0; i < 2 && d->outputs[i]; i++) tf.TF_OpDefinitionBuilderAddOutput(b, d->outputs[i]);
  tf.TF_OpDefinitionBuilderSetIsStateful(b, true);
  tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(b, d->shapes);
  tf.TF_RegisterOpDefinition(b, st);
}

static void add_kernel(const char *name, TF_KernelBuilder *builder, TF_Status *st) {
  if (tf.TF_GetCode(st) == TF_OK) tf.TF_RegisterKernelBuilder(name, builder, st);
}

static void register_all(TF_Status *st) {
  /* LWCC_TF_BLOCKING: for trying what happens where the layout is another */
  asynchronous = !getenv("LWCC_TF_BLOCKING") && done_layout_holds();
  for (size_t i = 0; i < sizeof collectives / sizeof *collectives && tf.TF_GetCode(st) == TF_OK; i++) {
    const op_definition *d = &collectives[i];
    define(d, st);
    add_kernel(d->name,
               asynchronous ? tf.TF_NewAsyncKernelBuilder(d->name, "CPU", d->create, job_run, kernel_delete)
                            : tf.TF_NewKernelBuilder(d->name, "CPU", d->create, job_run_blocking, kernel_delete),
               st);
  }
  if (tf.TF_GetCode(st) == TF_OK) define(&numbers, st);
  add_kernel(numbers.name, tf.TF_NewKernelBuilder(numbers.name, "CPU", create_number, compute_number, kernel_delete),
             st);
}

__attribute__((constructor)) static void load(void) {
  const char *missing = tables_load();
  if (missing) {
    fprintf(stderr, "lwcc_tf: no collectives for TensorFlow: %s\n", missing);
    return;
  }
  TF_Status *st = tf.TF_NewStatus();
  register_all(st);
  if (tf.TF_GetCode(st) != TF_OK) fprintf(stderr, "lwcc_tf: TensorFlow refused an op: %s\n", tf.TF_Message(st));
  tf.TF_DeleteStatus(st);
}
