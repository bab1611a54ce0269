/* Any bytes on any class of a link: the channel either takes them as frames or gives the peer up; it never crashes and
 * never allocates without limit. The first byte of the input picks class and whether receives are posted. */
#include <stdlib.h>
#include <string.h>

#include "channel/channel.h"
#include "lwcc/lwcc.h"

static void on_control(void *arg, int peer, const void *msg, size_t nbytes) {
  (void)peer;
  size_t *sum = arg;
  for (size_t i = 0; i < nbytes; i++) *sum += ((const uint8_t *)msg)[i]; /* every byte must be readable */
}

static void on_lost(void *arg, int peer, int status, const char *text) {
  (void)arg;
  if (peer != 1 || status >= 0 || !*text) abort();
}

/* Random bytes would never guess the magic: put it where a header of this class begins. */
static void plant_magic(uint8_t *bytes, size_t n, int cls) {
  uint32_t magic = (uint32_t)(UINT64_C(0x9e3779b97f4a7c15) >> 32) + (uint32_t)cls;
  if (n >= sizeof magic) memcpy(bytes, &magic, sizeof magic);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  transport_link *l[2], *links[2];
  channel *ch;
  size_t sum = 0;
  uint8_t buf[2][2048];
  channel_events ev = {.arg = &sum, .on_control = on_control, .on_lost = on_lost};
  if (n < 2 || transport_mem_pair(data[0] >> 4, 0, &l[0], &l[1]) < 0) return 0;
  links[0] = NULL;
  links[1] = l[0];
  l[0]->peer = 1;
  if (channel_create(0, 2, 0, links, &ev, &ch) < 0) abort();
  int cls = data[0] % LINK_CLASSES;
  chan_io in[2] = {{.buf = buf[0], .nbytes = data[1] * 8u, .tag = 0}, {.buf = buf[1], .nbytes = data[1], .tag = 1}};
  for (int i = 0; i < 2 && cls != LINK_CONTROL; i++) channel_recv(ch, 1, cls, &in[i]);
  uint8_t *bytes = malloc(n - 1);
  memcpy(bytes, data + 1, n - 1);
  if (data[0] & 8) plant_magic(bytes, n - 1, cls);
  for (size_t at = 0, calls = 0; at < n - 1 && calls < 1000; calls++) {
    const struct iovec rest = {(void *)(uintptr_t)(bytes + at), n - 1 - at};
    ssize_t k = l[1]->ops->send(l[1], cls, &rest, 1);
    if (k < 0) break;
    at += (size_t)k;
    channel_progress(ch);
  }
  l[1]->ops->close(l[1]);
  for (int i = 0; i < 200; i++) channel_progress(ch);
  channel_close(ch);
  for (int i = 0; i < 2 && cls != LINK_CONTROL; i++)
    if (in[i].status == LWCC_PENDING) abort();
  free(bytes);
  return 0;
}
