/* A byte ring between one writer and one reader, in memory that both have mapped.
 * The counters only grow; each is written by one side alone, on a cache line of its own. Each side keeps a copy of the
 * other's counter in private memory and looks at the shared one only when the copy says full or empty, so that a line
 * travels once per batch and not once per call. The counters come from another process: they are checked, not trusted.
 */
#ifndef TRANSPORT_SHM_RING_H
#define TRANSPORT_SHM_RING_H
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

typedef struct {
  alignas(64) _Atomic uint64_t written; /* by the writer */
  alignas(64) _Atomic uint64_t taken;   /* by the reader */
} shm_ring_head;

typedef struct { /* one side's private view */
  shm_ring_head *head;
  uint8_t *bytes;
  uint64_t capacity; /* a power of two */
  uint64_t mine;     /* my counter */
  uint64_t theirs;   /* the last seen value of the other's; may lag */
} shm_ring;

static inline void shm_ring_open(shm_ring *r, void *head, void *bytes, uint64_t capacity) {
  *r = (shm_ring){.head = head, .bytes = bytes, .capacity = capacity};
}

/* Bytes written, 0 if full, -1 if the reader's counter makes no sense. Writer only. */
static inline ssize_t shm_ring_write(shm_ring *r, const void *buf, size_t n) {
  uint64_t room = r->capacity - (r->mine - r->theirs);
  if (room < n) {
    /* acquire: pairs with the release in shm_ring_read: the reader is done with the bytes we overwrite */
    r->theirs = atomic_load_explicit(&r->head->taken, memory_order_acquire);
    if (r->mine - r->theirs > r->capacity) return -1;
    room = r->capacity - (r->mine - r->theirs);
  }
  if (n > room) n = room;
  if (n == 0) return 0;
  uint64_t at = r->mine & (r->capacity - 1), first = r->capacity - at;
  if (first > n) first = n;
  memcpy(r->bytes + at, buf, first);
  memcpy(r->bytes, (const uint8_t *)buf + first, n - first);
  r->mine += n;
  /* release: pairs with the acquire in shm_ring_read: the bytes are there */
  atomic_store_explicit(&r->head->written, r->mine, memory_order_release);
  return (ssize_t)n;
}

/* Bytes read, 0 if empty, -1 if the writer's counter makes no sense. Reader only. */
static inline ssize_t shm_ring_read(shm_ring *r, void *buf, size_t n) {
  uint64_t there = r->theirs - r->mine;
  if (there < n) {
    /* acquire: pairs with the release in shm_ring_write */
    r->theirs = atomic_load_explicit(&r->head->written, memory_order_acquire);
    there = r->theirs - r->mine;
    if (there > r->capacity) return -1;
  }
  if (n > there) n = there;
  if (n == 0) return 0;
  uint64_t at = r->mine & (r->capacity - 1), first = r->capacity - at;
  if (first > n) first = n;
  memcpy(buf, r->bytes + at, first);
  memcpy((uint8_t *)buf + first, r->bytes, n - first);
  r->mine += n;
  /* release: pairs with the acquire in shm_ring_write: the room may be used again */
  atomic_store_explicit(&r->head->taken, r->mine, memory_order_release);
  return (ssize_t)n;
}
#endif
