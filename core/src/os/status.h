/* Failure texts. The function that decides a negative status writes the text; everyone above only forwards. */
#ifndef OS_STATUS_H
#define OS_STATUS_H
#include "lwcc/lwcc.h"

/* Record the text for this thread and return code. Any thread. */
int os_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* This thread's latest text; never NULL. */
const char *os_error(void);
/* Copy text into dst (cap bytes, always terminated). */
void os_copy_text(char *dst, size_t cap, const char *text);

#define TRY(expr)                            \
  do {                                       \
    int try_status_ = (expr);                \
    if (try_status_ < 0) return try_status_; \
  } while (0)
#endif
