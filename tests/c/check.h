/* The C test harness. A test file is a program: CHECK things, end main with `return check_report();`. */
#ifndef CHECK_H
#define CHECK_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
enum { TSAN = 1 }; /* makes threads 5 to 15 times slower, and needs fewer rounds to see a race */
#else
enum { TSAN = 0 };
#endif

static int check_count, check_failed;

#define CHECK(cond, ...)                                               \
  do {                                                                 \
    __atomic_fetch_add(&check_count, 1, __ATOMIC_RELAXED);             \
    if (!(cond)) {                                                     \
      __atomic_fetch_add(&check_failed, 1, __ATOMIC_RELAXED);          \
      fprintf(stderr, "%s:%d: CHECK(%s) ", __FILE__, __LINE__, #cond); \
      fprintf(stderr, " " __VA_ARGS__);                                \
      fputc('\n', stderr);                                             \
    }                                                                  \
  } while (0)

/* Look for leaks now, and not at the end: for tests that go on with a library which LeakSanitizer does not survive (it
 * crashes itself, on a busy machine, after UCX has had threads). */
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
void __lsan_do_leak_check(void);
static inline void check_leaks_so_far(void) {
  __lsan_do_leak_check();
}
#else
static inline void check_leaks_so_far(void) {}
#endif

static inline int check_report(void) {
  printf("%d checks, %d failed\n", check_count, check_failed);
  return check_failed != 0 || check_count == 0;
}
#endif
