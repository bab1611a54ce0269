/* What the plugin calls, looked up when it is loaded: the part of TensorFlow's C API that its ops need, and the core
 * that the Python package has loaded. Nothing is compiled or linked against either. */
#ifndef LWCC_TF_TABLES_H
#define LWCC_TF_TABLES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lwcc/lwcc.h"

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;
typedef void (*shape_fn)(TF_ShapeInferenceContext *, TF_Status *);
typedef void *(*create_fn)(TF_OpKernelConstruction *);
typedef void (*compute_fn)(void *, TF_OpKernelContext *);
typedef void (*compute_async_fn)(void *, TF_OpKernelContext *, TF_AsyncOpKernelDoneCallback *);
typedef void (*delete_fn)(void *);

enum { /* of TF_Code: UNAVAILABLE is not here, because graphs report it as INTERNAL */
       TF_OK = 0,
       TF_UNKNOWN = 2,
       TF_INVALID_ARGUMENT = 3,
       TF_DEADLINE_EXCEEDED = 4,
       TF_RESOURCE_EXHAUSTED = 8,
       TF_FAILED_PRECONDITION = 9,
       TF_ABORTED = 10,
       TF_UNIMPLEMENTED = 12,
       TF_INTERNAL = 13
};
enum { TF_INT32 = 3, TF_COMPLEX64 = 8, TF_INT64 = 9, TF_COMPLEX128 = 18 }; /* of TF_DataType */

#define TF_TABLE(X)                                                                                                \
  X(TF_Status *, TF_NewStatus, (void))                                                                             \
  X(void, TF_DeleteStatus, (TF_Status *))                                                                          \
  X(int, TF_GetCode, (const TF_Status *))                                                                          \
  X(const char *, TF_Message, (const TF_Status *))                                                                 \
  X(void, TF_SetStatus, (TF_Status *, int, const char *))                                                          \
  X(TF_OpDefinitionBuilder *, TF_NewOpDefinitionBuilder, (const char *))                                           \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder *, TF_Status *))                                        \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder *, const char *))                                 \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder *, const char *))                                \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder *, const char *))                               \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder *, bool))                                   \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder *, shape_fn))                   \
  X(int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext *))                                      \
  X(TF_ShapeHandle *, TF_NewShapeHandle, (void))                                                                   \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle *))                                                                \
  X(TF_ShapeHandle *, TF_ShapeInferenceContextScalar, (TF_ShapeInferenceContext *))                                \
  X(TF_ShapeHandle *, TF_ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext *, size_t))                \
  X(void, TF_ShapeInferenceContextGetInput, (TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *))      \
  X(void, TF_ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext *, int, TF_ShapeHandle *, TF_Status *))     \
  X(void, TF_ShapeInferenceContextWithRankAtLeast,                                                                 \
    (TF_ShapeInferenceContext *, TF_ShapeHandle *, int64_t, TF_ShapeHandle *, TF_Status *))                        \
  X(void, TF_ShapeInferenceContextSubshape,                                                                        \
    (TF_ShapeInferenceContext *, TF_ShapeHandle *, int64_t, int64_t, TF_ShapeHandle *, TF_Status *))               \
  X(void, TF_ShapeInferenceContextConcatenateShapes,                                                               \
    (TF_ShapeInferenceContext *, TF_ShapeHandle *, TF_ShapeHandle *, TF_ShapeHandle *, TF_Status *))               \
  X(TF_KernelBuilder *, TF_NewKernelBuilder, (const char *, const char *, create_fn, compute_fn, delete_fn))       \
  X(TF_KernelBuilder *, TF_NewAsyncKernelBuilder,                                                                  \
    (const char *, const char *, create_fn, compute_async_fn, delete_fn))                                          \
  X(void, TF_RegisterKernelBuilder, (const char *, TF_KernelBuilder *, TF_Status *))                               \
  X(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback *))                                       \
  X(int, TF_NumInputs, (TF_OpKernelContext *))                                                                     \
  X(int64_t, TF_StepId, (TF_OpKernelContext *))                                                                    \
  X(void, TF_GetInput, (TF_OpKernelContext *, int, TF_Tensor **, TF_Status *))                                     \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext *, TF_Status *))                                         \
  X(TF_Tensor *, TF_AllocateOutput, (TF_OpKernelContext *, int, int, const int64_t *, int, size_t, TF_Status *))   \
  X(TF_Tensor *, TF_ForwardInputOrAllocateOutput,                                                                  \
    (TF_OpKernelContext *, const int *, int, int, const int64_t *, int, int *, TF_Status *))                       \
  X(void, TF_OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction *, const char *, int64_t *, TF_Status *)) \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                                     \
    (TF_OpKernelConstruction *, const char *, int32_t *, int32_t *, TF_Status *))                                  \
  X(void, TF_OpKernelConstruction_GetAttrString,                                                                   \
    (TF_OpKernelConstruction *, const char *, char *, size_t, TF_Status *))                                        \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction *, TF_Status *))                               \
  X(void, TF_DeleteTensor, (TF_Tensor *))                                                                          \
  X(int, TF_TensorType, (const TF_Tensor *))                                                                       \
  X(int, TF_NumDims, (const TF_Tensor *))                                                                          \
  X(int64_t, TF_Dim, (const TF_Tensor *, int))                                                                     \
  X(void *, TF_TensorData, (const TF_Tensor *))                                                                    \
  X(int64_t, TF_TensorElementCount, (const TF_Tensor *))

/* lwcc.h declares these; the table holds their addresses */
#define CORE_TABLE(X) \
  X(lwcc_submit)      \
  X(lwcc_run)         \
  X(lwcc_wait)        \
  X(lwcc_release)     \
  X(lwcc_get_result)  \
  X(lwcc_error)       \
  X(lwcc_get_world)   \
  X(lwcc_set_info)

#define TF_MEMBER(result, name, arguments) result(*name) arguments;
#define CORE_MEMBER(name) __typeof__(name) *name;
typedef struct {
  TF_TABLE(TF_MEMBER)
} tf_table;
typedef struct {
  CORE_TABLE(CORE_MEMBER)
} core_table;

extern tf_table tf;     /* written once, by tables_load */
extern core_table core; /* likewise */

/* Fill both tables; on failure return what is missing, else NULL. Called once, on the thread that loads the plugin. */
const char *tables_load(void);
#endif
