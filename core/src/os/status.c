#include "os/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_text[1024];

int os_fail(int code, const char *fmt, ...) {
  char text[sizeof last_text]; /* fmt's arguments may point into last_text */
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  memcpy(last_text, text, sizeof text);
  return code;
}

const char *os_error(void) {
  return last_text;
}

void os_copy_text(char *dst, size_t cap, const char *text) {
  if (cap == 0) return;
  size_t n = strnlen(text, cap - 1);
  memmove(dst, text, n);
  dst[n] = '\0';
}
