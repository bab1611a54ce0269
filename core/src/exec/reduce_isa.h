/* The kernels of each instruction set, as tables; reduce.c picks one when the library is loaded. */
#ifndef EXEC_REDUCE_ISA_H
#define EXEC_REDUCE_ISA_H
#include <stdbool.h>

#include "exec/reduce.h"
#include "lwcc/lwcc.h"

enum { REDUCE_OPS = 4 }; /* sum, min, max, product */

typedef struct {
  const char *name; /* "avx2" */
  reduce_fold_fn fold[LWCC_DTYPES][REDUCE_OPS];
} reduce_table;

extern const reduce_table reduce_base;
#if defined(__x86_64__)
extern const reduce_table reduce_avx2, reduce_avx512;
#endif

int reduce_op_index(int op); /* -1: not an operation of the kernels. Any thread. */
/* The index-th table that this processor can run, slowest first; NULL past the end. Any thread. */
const reduce_table *reduce_usable(int index);
#endif
