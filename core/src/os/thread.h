#ifndef OS_THREAD_H
#define OS_THREAD_H
#include <pthread.h>

/* Start a joinable thread whose name (at most 15 bytes are kept) appears in log lines and in top -H. It blocks all
 * signals, so that they go to the application's threads. Any thread. */
int thread_create(pthread_t *out, const char *name, void *(*fn)(void *arg), void *arg);
void thread_join(pthread_t t);
#endif
