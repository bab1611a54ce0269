#ifndef OS_CLOCK_H
#define OS_CLOCK_H
#include <stdint.h>

/* Monotonic nanoseconds. Any thread. */
uint64_t clock_ns(void);
/* What is left until deadline_ns, as a poll timeout: rounded up to ms, 0 when past. Any thread. */
int clock_left_ms(uint64_t deadline_ns);
/* now + seconds, held below 100 years so that any user's number is safe. Any thread. */
uint64_t clock_deadline(double seconds);
#endif
