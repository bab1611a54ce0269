#include "coord/bytes.h"

#include <stdlib.h>
#include <string.h>

void bytes_put(bytes *b, const void *src, size_t n) {
  if (b->n + n > b->cap) {
    size_t cap = b->cap ? b->cap * 2 : 256;
    while (cap < b->n + n) cap *= 2;
    uint8_t *data = realloc(b->data, cap);
    if (!data) {
      b->failed = true;
      return;
    }
    b->data = data;
    b->cap = cap;
  }
  if (n) memcpy(b->data + b->n, src, n);
  b->n += n;
}

void bytes_u8(bytes *b, uint8_t v) {
  bytes_put(b, &v, sizeof v);
}

void bytes_u32(bytes *b, uint32_t v) {
  bytes_put(b, &v, sizeof v);
}

void bytes_text(bytes *b, const char *s) {
  size_t n = strlen(s);
  bytes_u32(b, (uint32_t)n);
  bytes_put(b, s, n);
}

void bytes_free(bytes *b) {
  free(b->data);
  *b = (bytes){0};
}

void read_into(reader *r, void *dst, size_t n) {
  if (r->bad || (size_t)(r->end - r->at) < n) {
    r->bad = true;
    memset(dst, 0, n);
    return;
  }
  memcpy(dst, r->at, n);
  r->at += n;
}

uint8_t read_u8(reader *r) {
  uint8_t v;
  read_into(r, &v, sizeof v);
  return v;
}

uint32_t read_u32(reader *r) {
  uint32_t v;
  read_into(r, &v, sizeof v);
  return v;
}

void read_text(reader *r, char *dst, size_t cap) {
  uint32_t n = read_u32(r);
  if (n >= cap) r->bad = true;
  if (r->bad) n = 0;
  read_into(r, dst, n);
  dst[n] = 0;
}
