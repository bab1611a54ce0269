/* Growing byte buffers, and bounded reading. Byte order: the machine's (a job runs on machines of one order). */
#ifndef COORD_BYTES_H
#define COORD_BYTES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t *data; /* owned */
  size_t n, cap;
  bool failed; /* memory ran out; what was put since is lost */
} bytes;

void bytes_put(bytes *b, const void *src, size_t n);
void bytes_u8(bytes *b, uint8_t v);
void bytes_u32(bytes *b, uint32_t v);
void bytes_text(bytes *b, const char *s); /* u32 length, then the bytes */
void bytes_free(bytes *b);

typedef struct {
  const uint8_t *at, *end;
  bool bad; /* ran past the end; everything read since is 0 */
} reader;

void read_into(reader *r, void *dst, size_t n);
uint8_t read_u8(reader *r);
uint32_t read_u32(reader *r);
/* Writes at most cap - 1 bytes and the end; longer text is bad. */
void read_text(reader *r, char *dst, size_t cap);
#endif
