#include "os/thread.h"

#include <signal.h>
#include <string.h>

#include "os/status.h"

int thread_create(pthread_t *out, const char *name, void *(*fn)(void *arg), void *arg) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited by the new thread */
  int err = pthread_create(out, NULL, fn, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err) return os_fail(LWCC_ERR_SYSTEM, "cannot start thread %s (%s); see ulimit -u", name, strerror(err));
  char shortened[16];
  os_copy_text(shortened, sizeof shortened, name);
  pthread_setname_np(*out, shortened);
  return LWCC_OK;
}

void thread_join(pthread_t t) {
  pthread_join(t, NULL);
}
