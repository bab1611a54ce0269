/* The log: one line per event, one write to stderr, so that the lines of several ranks never mix. */
#ifndef OS_LOG_H
#define OS_LOG_H

typedef enum { LOG_TRACE, LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_FATAL } log_level;

/* Lines below the level are dropped; the level is LWCC_LOG_LEVEL when first asked. Any thread. */
void log_set_level(log_level level);
int log_wants(log_level level);
/* The rank in this thread's lines (-1: none). Any thread; each thread sets its own. */
void log_set_rank(int rank);
int log_rank(void);
/* Write "time rank thread level text". Any thread. */
void log_line(log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define LOG(level, ...)                                             \
  do {                                                              \
    if (log_wants(LOG_##level)) log_line(LOG_##level, __VA_ARGS__); \
  } while (0)
#endif
