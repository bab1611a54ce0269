/* The failure text of each thread. */
#include "os/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char failure[1024];

int os_fail(int code, const char *fmt, ...) {
  char text[sizeof failure]; /* an argument may be the old text */
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  os_copy_text(failure, sizeof failure, text);
  return code;
}

const char *os_error(void) {
  return failure;
}

void os_copy_text(char *dst, size_t cap, const char *text) {
  if (cap) snprintf(dst, cap, "%s", text);
}
