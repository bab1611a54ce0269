#include <dlfcn.h>
#include <libgen.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "os/env.h"
#include "os/log.h"
#include "os/status.h"
#include "transport/transport.h"
#include "transport/ucx.h"

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* guards both below */
static ucx_library library;
static bool loaded;

/* <site-packages>/libucx/lib/libucp.so.0, if we are <site-packages>/lwcc/<file>. */
static void find_wheel(char *out, size_t cap) {
  Dl_info me;
  char path[400] = "./";
  if (dladdr(&library, &me) && me.dli_fname) os_copy_text(path, sizeof path, me.dli_fname);
  snprintf(out, cap, "%s/libucx/lib/libucp.so.0", dirname(dirname(path)));
}

static bool bind(void *handle, char *why, size_t cap) {
  const char *missing = NULL;
#define X(result, name, parameters)               \
  *(void **)&library.name = dlsym(handle, #name); \
  if (!library.name && !missing) missing = #name;
  UCX_CALLS(X)
#undef X
  unsigned *v = library.version;
  memset(library.version, 0, sizeof library.version);
  if (library.ucp_get_version) library.ucp_get_version(&v[0], &v[1], &v[2]);
  if (v[0] != UCX_MAJOR || v[1] < UCX_MINOR) {
    snprintf(why, cap, "it is version %u.%u.%u, and %d.%d or a later %d.x is needed", v[0], v[1], v[2], UCX_MAJOR,
             UCX_MINOR, UCX_MAJOR);
    return false;
  }
  if (missing) snprintf(why, cap, "version %u.%u.%u has no %s", v[0], v[1], v[2], missing);
  return !missing;
}

/* UCX writes to stdout, and what it calls an error may be a peer's end, or a way that we then do without. */
static int log_quietly(const char *file, unsigned line, const char *function, int level, const void *component,
                       const char *format, va_list args) {
  char text[400];
  (void)function;
  (void)component;
  if (level != UCX_LOG_ERROR && level != UCX_LOG_WARN) return UCX_LOG_NEXT_HANDLER;
  vsnprintf(text, sizeof text, format, args);
  LOG(DEBUG, "ucx: %s:%u: %s", file, line, text);
  return UCX_LOG_HANDLED;
}

/* Never unloaded: it has threads, and hooks in the process. */
static bool open_one(const char *path, char *why, size_t cap) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) os_copy_text(why, cap, dlerror());
  if (!handle || !bind(handle, why, cap)) return false;
  Dl_info it;
  void *symbol = dlsym(handle, "ucp_get_version");
  os_copy_text(library.path, sizeof library.path, dladdr(symbol, &it) && it.dli_fname ? it.dli_fname : path);
  void (*push)(ucx_log_fn *) = NULL;
  *(void **)&push = dlsym(handle, "ucs_log_push_handler"); /* not in the API, so it may vanish */
  if (push) push(log_quietly);
  LOG(INFO, "ucx: %s, version %u.%u.%u", library.path, library.version[0], library.version[1], library.version[2]);
  return true;
}

static int load(void) {
  const char *chosen = env_text(ENV_UCX_LIB);
  char first[300], second[300], wheel[440];
  if (*chosen) {
    if (open_one(chosen, first, sizeof first)) return LWCC_OK;
    return os_fail(LWCC_ERR_UNSUPPORTED, "ucx: cannot use LWCC_UCX_LIB=%s: %s", chosen, first);
  }
  if (open_one("libucp.so.0", first, sizeof first)) return LWCC_OK;
  find_wheel(wheel, sizeof wheel);
  if (open_one(wheel, second, sizeof second)) return LWCC_OK;
  return os_fail(LWCC_ERR_UNSUPPORTED,
                 "ucx: no library found. Install the system's UCX (it serves InfiniBand), or pip install lwcc[ucx], or "
                 "set LWCC_UCX_LIB to the path of a libucp.so.0. Tried libucp.so.0 (%s) and %s (%s)",
                 first, wheel, second);
}

int ucx_load(const ucx_library **out) {
  pthread_mutex_lock(&mu);
  int code = loaded ? LWCC_OK : load();
  loaded |= code == LWCC_OK;
  pthread_mutex_unlock(&mu);
  *out = &library;
  return code;
}

int ucx_context(const ucx_library *ucx, size_t peers, void **out) {
  const ucx_context_params params = {
      .mask = UCX_SET_FEATURES | UCX_SET_PEERS, .features = UCX_FEATURE_TAG | UCX_FEATURE_WAKEUP, .peers = peers};
  void *config = NULL;
  ucx_status st = ucx->ucp_config_read(NULL, NULL, &config);
  if (st == UCX_DONE) st = ucx->ucp_init_version(UCX_MAJOR, UCX_MINOR, &params, config, out);
  if (config) ucx->ucp_config_release(config);
  if (st == UCX_DONE) return LWCC_OK;
  return os_fail(LWCC_ERR_UNSUPPORTED,
                 "ucx: %s does not start: %s; see UCX_TLS, UCX_NET_DEVICES; LWCC_LOG_LEVEL=debug says more", ucx->path,
                 ucx->ucs_status_string(st));
}

int transport_ucx_describe(char *out, size_t cap) {
  const ucx_library *ucx;
  void *context;
  char *text = NULL;
  size_t nbytes = 0;
  TRY(ucx_load(&ucx));
  TRY(ucx_context(ucx, 1, &context));
  FILE *to = open_memstream(&text, &nbytes);
  if (to) {
    ucx->ucp_context_print_info(context, to);
    fclose(to);
  }
  ucx->ucp_cleanup(context);
  int n = snprintf(out, cap, "%s\n%u.%u.%u\n%s", ucx->path, ucx->version[0], ucx->version[1], ucx->version[2],
                   text ? text : "");
  free(text);
  return n;
}
