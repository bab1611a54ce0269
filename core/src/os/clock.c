#include "os/clock.h"

#include <limits.h>
#include <time.h>

uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int clock_left_ms(uint64_t deadline_ns) {
  uint64_t now = clock_ns();
  if (now >= deadline_ns) return 0;
  uint64_t ms = (deadline_ns - now + 999999) / 1000000;
  return ms > INT_MAX ? INT_MAX : (int)ms;
}

uint64_t clock_deadline(double seconds) {
  const double century = 3.2e9;
  if (!(seconds > 0)) seconds = 0; /* also NaN */
  if (seconds > century) seconds = century;
  return clock_ns() + (uint64_t)(seconds * 1e9);
}
