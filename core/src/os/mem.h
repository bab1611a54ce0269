/* Checked size arithmetic, and segments: nameless shared memory that vanishes with its last process. */
#ifndef OS_MEM_H
#define OS_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MEM_PAGE = 4096 }; /* the unit of our layouts; a multiple or divisor of every system's page */

/* false on overflow; *out is then untouched. Any thread. */
static inline bool mem_add(size_t a, size_t b, size_t *out) {
  size_t r;
  if (__builtin_add_overflow(a, b, &r)) return false;
  *out = r;
  return true;
}
static inline bool mem_mul(size_t a, size_t b, size_t *out) {
  size_t r;
  if (__builtin_mul_overflow(a, b, &r)) return false;
  *out = r;
  return true;
}
/* n rounded up to a multiple of unit (a power of two); false on overflow. */
static inline bool mem_round_up(size_t n, size_t unit, size_t *out) {
  if (!mem_add(n, unit - 1, &n)) return false;
  *out = n & ~(unit - 1);
  return true;
}

/* Zeroed heap memory for count objects; LWCC_ERR_SYSTEM with text. Freed by free(). Any thread. */
int mem_zeroed(size_t count, size_t nbytes, void **out);

/* A segment of nbytes zeros, as a descriptor (owner: caller; close-on-exec; its size is sealed, so that no peer can
 * shrink it under our feet). Pages are taken when touched. Any thread. */
int mem_segment_create(const char *label, size_t nbytes, int *fd_out);
/* Map a segment that must have at least nbytes. LWCC_ERR_SYSTEM, LWCC_ERR_PROTOCOL (too short). Any thread. */
int mem_segment_map(int fd, size_t nbytes, void **out);
void mem_segment_unmap(void *p, size_t nbytes);
/* Give the pages of a page-aligned range back to the system; they read as zeros afterwards, in every process. */
void mem_segment_discard(void *p, size_t nbytes);
/* Can this process make and fill a segment of nbytes? LWCC_OK, or LWCC_ERR_SYSTEM whose text says what is too small or
 * forbidden and what to do. Any thread. */
int mem_segment_probe(size_t nbytes);
/* Copy n bytes at `address` of process pid (of the same user) to `to`. LWCC_ERR_PEER_LOST: it has ended.
 * LWCC_ERR_SYSTEM: the system does not allow it, or there is no such memory. Any thread. */
int mem_peek(int pid, void *to, uint64_t address, size_t n);
#endif
