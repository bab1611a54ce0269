#ifndef OS_FUTEX_H
#define OS_FUTEX_H
#include <stdatomic.h>
#include <stdint.h>

/* Sleep while *word == expected, across processes; timeout_ns < 0: no limit. Returns 0 when woken, when the word
 * differs or on a signal (look again), 1 on timeout. Any thread. */
int futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
/* Wake all sleepers of the word, in every process that maps it. Any thread. */
void futex_wake(_Atomic uint32_t *word);
#endif
