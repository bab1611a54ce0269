/* Text as another rank's endpoint line: parse, and what was taken must print and parse to the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "channel/endpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
  char line[4096], printed[8192];
  endpoint first, second;
  if (nbytes >= sizeof line) return 0;
  memcpy(line, data, nbytes);
  line[nbytes] = 0;
  memset(&first, 0, sizeof first);
  if (endpoint_parse(line, 3, &first) != LWCC_OK) return 0;
  int length = endpoint_print(&first, printed, sizeof printed);
  if (length <= 0 || (size_t)length >= sizeof printed) abort();
  if (endpoint_parse(printed, 3, &second) != LWCC_OK) abort();
  if (first.rank != second.rank || strcmp(first.host, second.host) != 0 || first.netns != second.netns) abort();
  endpoint both[2] = {first, second};
  int group[2];
  endpoint_group(both, 2, group);
  return 0;
}
