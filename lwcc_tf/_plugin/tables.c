#include "_plugin/tables.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

tf_table tf;
core_table core;

/* Find the loaded object that is the core's native module. It was loaded for Python alone, so that its symbols are not
 * in the global scope; dlopen gives the very same instance. */
static int find_core(struct dl_phdr_info *info, size_t nbytes, void *found) {
  (void)nbytes;
  const char *file = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
  if (!file || strncmp(file, "/_native.", 9) != 0) return 0;
  void *handle = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
  if (handle && dlsym(handle, "lwcc_submit")) {
    *(void **)found = handle;
    return 1;
  }
  return 0;
}

const char *tables_load(void) {
  void *framework = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD), *native = NULL, *symbol;
#define TF_FIND(result, name, arguments)                               \
  symbol = dlsym(RTLD_DEFAULT, #name);                                 \
  if (!symbol && framework) symbol = dlsym(framework, #name);          \
  if (!symbol) return "this TensorFlow has no " #name " in its C API"; \
  memcpy(&tf.name, &symbol, sizeof symbol);
  TF_TABLE(TF_FIND)
  dl_iterate_phdr(find_core, &native);
  if (!native) return "lwcc's native module is not loaded";
#define CORE_FIND(name)                                \
  symbol = dlsym(native, #name);                       \
  if (!symbol) return "the loaded lwcc has no " #name; \
  memcpy(&core.name, &symbol, sizeof symbol);
  CORE_TABLE(CORE_FIND)
  return NULL;
}
