#include "transport/transport.h"

ssize_t transport_each(transport_link *l, int cls, const struct iovec *parts, int n,
                       ssize_t (*one)(transport_link *l, int cls, void *buf, size_t nbytes)) {
  ssize_t total = 0;
  for (int i = 0; i < n; i++) {
    ssize_t moved = one(l, cls, parts[i].iov_base, parts[i].iov_len);
    if (moved < 0) return total ? total : moved; /* a failure shows again in the next call */
    total += moved;
    if ((size_t)moved < parts[i].iov_len) break;
  }
  return total;
}
