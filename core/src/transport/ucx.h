/* What we use of UCX's C interface, declared here, so that neither building nor running LWCC needs UCX: the library is
 * looked up when it is asked for. The layouts are those of UCX's API 1.10 (2021); UCX only ever appends to a structure,
 * and reads of it what the mask in its first word names. tests/c/test_ucx.c compares them with UCX's own headers. */
#ifndef TRANSPORT_UCX_H
#define TRANSPORT_UCX_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { UCX_MAJOR = 1, UCX_MINOR = 10 }; /* the least version */

typedef int8_t ucx_status; /* one byte, also as a result */
enum { UCX_DONE = 0, UCX_RUNNING = 1, UCX_UNREACHABLE = -6, UCX_BUSY = -15, UCX_LAST_STATUS = -100 };

enum { UCX_SET_FEATURES = 1 << 0, UCX_SET_PEERS = 1 << 6, UCX_FEATURE_TAG = 1 << 0, UCX_FEATURE_WAKEUP = 1 << 4 };
typedef struct {
  uint64_t mask, features, unused[5];
  size_t peers; /* about how many */
} ucx_context_params;

enum { UCX_SET_THREADS = 1 << 0, UCX_ONE_THREAD_AT_A_TIME = 1 };
typedef struct {
  uint64_t mask;
  int threads;
} ucx_worker_params;

enum { UCX_SET_ADDRESS = 1 << 0, UCX_SET_ERRORS = 1 << 1, UCX_SET_ON_ERROR = 1 << 2 };
enum { UCX_ERRORS_NONE, UCX_ERRORS_PEER };
typedef struct {
  uint64_t mask;
  const void *address;
  int errors;
  void (*on_error)(void *arg, void *endpoint, ucx_status status);
  void *arg;
} ucx_endpoint_params;

enum { UCX_SET_FLAGS = 1 << 4, UCX_ALWAYS_A_REQUEST = 1 << 16, UCX_CLOSE_BY_FORCE = 1 << 0 };
typedef struct {
  uint32_t mask, flags;
  uint64_t unused[11];
} ucx_request_params;

typedef struct {
  uint64_t tag;
  size_t nbytes;
} ucx_arrival;

enum { UCX_LOG_HANDLED, UCX_LOG_NEXT_HANDLER, UCX_LOG_ERROR = 1, UCX_LOG_WARN };
typedef int ucx_log_fn(const char *file, unsigned line, const char *function, int level, const void *component,
                       const char *format, va_list args);

/* result, name, parameters. Handles and requests are void pointers; a request may be an error in disguise. */
#define UCX_CALLS(X)                                                                                    \
  X(void, ucp_get_version, (unsigned *major, unsigned *minor, unsigned *release))                       \
  X(const char *, ucs_status_string, (ucx_status status))                                               \
  X(ucx_status, ucp_config_read, (const char *prefix, const char *file, void **config))                 \
  X(void, ucp_config_release, (void *config))                                                           \
  X(ucx_status, ucp_init_version,                                                                       \
    (unsigned major, unsigned minor, const ucx_context_params *params, const void *config, void **out)) \
  X(void, ucp_cleanup, (void *context))                                                                 \
  X(void, ucp_context_print_info, (void *context, FILE *to))                                            \
  X(ucx_status, ucp_worker_create, (void *context, const ucx_worker_params *params, void **out))        \
  X(void, ucp_worker_destroy, (void *worker))                                                           \
  X(ucx_status, ucp_worker_get_address, (void *worker, void **address, size_t *nbytes))                 \
  X(void, ucp_worker_release_address, (void *worker, void *address))                                    \
  X(ucx_status, ucp_worker_get_efd, (void *worker, int *fd))                                            \
  X(ucx_status, ucp_worker_arm, (void *worker))                                                         \
  X(ucx_status, ucp_worker_signal, (void *worker))                                                      \
  X(unsigned, ucp_worker_progress, (void *worker))                                                      \
  X(ucx_status, ucp_ep_create, (void *worker, const ucx_endpoint_params *params, void **out))           \
  X(void *, ucp_ep_close_nbx, (void *endpoint, const ucx_request_params *params))                       \
  X(void *, ucp_tag_send_nbx,                                                                           \
    (void *endpoint, const void *buf, size_t nbytes, uint64_t tag, const ucx_request_params *params))   \
  X(void *, ucp_tag_recv_nbx,                                                                           \
    (void *worker, void *buf, size_t nbytes, uint64_t tag, uint64_t mask, const ucx_request_params *p)) \
  X(ucx_status, ucp_tag_recv_request_test, (void *request, ucx_arrival *out))                           \
  X(ucx_status, ucp_request_check_status, (void *request))                                              \
  X(void, ucp_request_cancel, (void *worker, void *request))                                            \
  X(void, ucp_request_free, (void *request))

typedef struct {
#define X(result, name, parameters) result(*name) parameters;
  UCX_CALLS(X)
#undef X
  char path[512];
  unsigned version[3];
} ucx_library;

/* Load UCX once for the process: LWCC_UCX_LIB if that is set; else the loader's libucp.so.0, else that of the wheel
 * beside the lwcc package. LWCC_ERR_UNSUPPORTED says what was tried, what the loader said, and what to do. Any thread.
 */
int ucx_load(const ucx_library **out);
/* A context of UCX's configuration; owner: caller (ucp_cleanup). Any thread. */
int ucx_context(const ucx_library *ucx, size_t peers, void **out);
/* < 0: the status in a returned request. Pure. */
static inline ucx_status ucx_request_status(const void *request) {
  return (uintptr_t)request >= (uintptr_t)(intptr_t)UCX_LAST_STATUS ? (ucx_status)(intptr_t)request : UCX_DONE;
}
#endif
