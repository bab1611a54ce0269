#include "coord/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/mem.h"
#include "os/status.h"

static const char *const collective_names[] = {"allreduce", "broadcast", "allgather", "reducescatter",
                                               "alltoall",  "barrier",   "join"};

const char *dtype_name(int dtype) {
  static const char *const names[] = {"uint8", "int8", "uint16",  "int16",    "uint32",  "int32",  "uint64",
                                      "int64", "bool", "float16", "bfloat16", "float32", "float64"};
  return dtype >= 0 && dtype < LWCC_DTYPES ? names[dtype] : "?";
}

const char *op_name(int op) {
  static const char *const names[] = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};
  return op >= 0 && op <= LWCC_PRODUCT ? names[op] : "?";
}

void signature_put(bytes *b, const signature *s) {
  bytes_u32(b, (uint32_t)s->collective);
  bytes_u32(b, (uint32_t)s->dtype);
  bytes_u32(b, (uint32_t)s->op);
  bytes_u32(b, (uint32_t)s->root);
  bytes_u32(b, (uint32_t)s->group_size);
  bytes_put(b, &s->group, sizeof s->group);
  bytes_put(b, &s->prescale, sizeof s->prescale);
  bytes_put(b, &s->postscale, sizeof s->postscale);
  bytes_text(b, s->algorithm);
  bytes_u32(b, (uint32_t)s->ndim);
  bytes_put(b, s->shape, (size_t)s->ndim * sizeof *s->shape);
  bytes_u32(b, (uint32_t)s->nsplits);
  bytes_put(b, s->splits, (size_t)s->nsplits * sizeof *s->splits);
}

static void read_splits(reader *r, signature *out) {
  out->nsplits = (int32_t)read_u32(r);
  if (out->nsplits < 0 || out->nsplits > RANKS_MAX) r->bad = true;
  if (r->bad || !out->nsplits) {
    out->nsplits = 0;
    return;
  }
  out->splits = malloc((size_t)out->nsplits * sizeof *out->splits);
  if (!out->splits) r->bad = true, out->nsplits = 0;
  if (out->splits) read_into(r, out->splits, (size_t)out->nsplits * sizeof *out->splits);
}

void signature_read(reader *r, signature *out) {
  memset(out, 0, sizeof *out);
  out->collective = (int32_t)read_u32(r);
  out->dtype = (int32_t)read_u32(r);
  out->op = (int32_t)read_u32(r);
  out->root = (int32_t)read_u32(r);
  out->group_size = (int32_t)read_u32(r);
  read_into(r, &out->group, sizeof out->group);
  read_into(r, &out->prescale, sizeof out->prescale);
  read_into(r, &out->postscale, sizeof out->postscale);
  read_text(r, out->algorithm, sizeof out->algorithm);
  out->ndim = (int32_t)read_u32(r);
  if (out->ndim < 0 || out->ndim > DIMS_MAX || out->dtype < 0 || out->dtype >= LWCC_DTYPES || out->collective < 0 ||
      out->collective > JOIN || out->group_size < 0)
    r->bad = true;
  if (r->bad) out->ndim = 0;
  read_into(r, out->shape, (size_t)out->ndim * sizeof *out->shape);
  for (int d = 0; d < out->ndim; d++) r->bad |= out->shape[d] < 0;
  read_splits(r, out);
}

void signature_free(signature *s) {
  free(s->splits);
  s->splits = NULL;
  s->nsplits = 0;
}

int signature_copy(signature *dst, const signature *src) {
  int64_t *splits = NULL;
  if (src->nsplits) {
    splits = malloc((size_t)src->nsplits * sizeof *splits);
    if (!splits) return os_fail(LWCC_ERR_SYSTEM, "no memory for %d splits", src->nsplits);
    memcpy(splits, src->splits, (size_t)src->nsplits * sizeof *splits);
  }
  free(dst->splits);
  *dst = *src;
  dst->splits = splits;
  return LWCC_OK;
}

/* Everything but the splits and the dimensions before `dim`. */
static int same_from(const signature *a, const signature *b, int dim) {
  if (a->collective != b->collective || a->dtype != b->dtype || a->op != b->op || a->root != b->root) return 0;
  if (a->ndim != b->ndim || a->group_size != b->group_size || a->group != b->group) return 0;
  if (a->prescale != b->prescale || a->postscale != b->postscale || strcmp(a->algorithm, b->algorithm) != 0) return 0;
  for (int d = dim; d < a->ndim; d++)
    if (a->shape[d] != b->shape[d]) return 0;
  return 1;
}

int signature_same(const signature *a, const signature *b) {
  if (!same_from(a, b, 0) || a->nsplits != b->nsplits) return 0;
  return !a->nsplits || memcmp(a->splits, b->splits, (size_t)a->nsplits * sizeof *a->splits) == 0;
}

int signature_agree(const signature *a, const signature *b) {
  int rows_differ = a->collective == LWCC_ALLGATHER || a->collective == LWCC_ALLTOALL;
  return same_from(a, b, rows_differ ? 1 : 0);
}

static void append(char *out, size_t cap, const char *text) {
  size_t n = strlen(out);
  if (n + 1 < cap) snprintf(out + n, cap - n, "%s", text);
}

void signature_print(const signature *s, char *out, size_t cap) {
  char part[96];
  snprintf(out, cap, "%s %s[", collective_names[s->collective], dtype_name(s->dtype));
  for (int d = 0; d < s->ndim; d++) {
    snprintf(part, sizeof part, "%s%lld", d ? ", " : "", (long long)s->shape[d]);
    append(out, cap, part);
  }
  append(out, cap, "]");
  if (s->collective == LWCC_ALLREDUCE || s->collective == LWCC_REDUCESCATTER) {
    snprintf(part, sizeof part, ", op %s", op_name(s->op));
    append(out, cap, part);
  }
  if (s->collective == LWCC_BROADCAST || s->root) {
    snprintf(part, sizeof part, ", root %d", s->root);
    append(out, cap, part);
  }
  if (s->prescale != 1.0 || s->postscale != 1.0) {
    snprintf(part, sizeof part, ", prescale %g, postscale %g", s->prescale, s->postscale);
    append(out, cap, part);
  }
  if (s->group_size) {
    snprintf(part, sizeof part, ", in a group of %d", s->group_size);
    append(out, cap, part);
  }
  if (s->algorithm[0]) {
    snprintf(part, sizeof part, ", algorithm %s", s->algorithm);
    append(out, cap, part);
  }
}

size_t signature_row_count(const signature *s) {
  size_t n = 1;
  for (int d = 1; d < s->ndim; d++) n *= (size_t)s->shape[d];
  return n;
}

bool signature_rows_fit(const signature *s, const int64_t *rows, size_t n) {
  int64_t sum = 0;
  size_t elements;
  for (size_t i = 0; i < n; i++)
    if (rows[i] < 0 || __builtin_add_overflow(sum, rows[i], &sum)) return false;
  return mem_mul((size_t)sum, signature_row_count(s), &elements) && elements <= PTRDIFF_MAX / sizeof(double);
}

size_t signature_count(const signature *s) {
  return s->ndim ? (size_t)s->shape[0] * signature_row_count(s) : 1;
}
