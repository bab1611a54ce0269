#include "os/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "os/env.h"

static atomic_int current_level = -1; /* -1: not read yet. relaxed everywhere: it orders nothing */
static _Thread_local int thread_rank = -1;

void log_set_level(log_level level) {
  atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

int log_wants(log_level level) {
  int now = atomic_load_explicit(&current_level, memory_order_relaxed);
  if (now < 0) {
    log_set_level(LOG_WARN); /* a bad LWCC_LOG_LEVEL is itself logged: no second look meanwhile */
    now = env_choice(ENV_LOG_LEVEL);
    log_set_level((log_level)now);
  }
  return (int)level >= now;
}

void log_set_rank(int rank) {
  thread_rank = rank;
}
int log_rank(void) {
  return thread_rank;
}

void log_line(log_level level, const char *fmt, ...) {
  static const char *const names[] = {"trace", "debug", "info", "warning", "error", "fatal"};
  char line[1400], thread[16] = "";
  struct timespec t;
  struct tm tm;
  clock_gettime(CLOCK_REALTIME, &t);
  localtime_r(&t.tv_sec, &tm);
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  char who[24] = "";
  if (thread_rank >= 0) snprintf(who, sizeof who, " rank %d", thread_rank);
  int n = snprintf(line, sizeof line, "%02d:%02d:%02d.%06ld lwcc%s [%s] %s: ", tm.tm_hour, tm.tm_min, tm.tm_sec,
                   t.tv_nsec / 1000, who, thread, names[level]);
  va_list args;
  va_start(args, fmt);
  int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, args);
  va_end(args);
  n += m < 0 ? 0 : m;
  if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
  line[n++] = '\n';
  if (write(STDERR_FILENO, line, (size_t)n) < 0) return; /* nobody left to tell */
}
