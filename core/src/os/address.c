/* Which of this host's addresses the other ranks should use. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/env.h"
#include "os/sock.h"
#include "os/status.h"

/* Is text the interface's name, or a subnet a.b.c.d/n that holds its address? */
static bool matches(const struct ifaddrs *i, const char *text) {
  const char *slash = strchr(text, '/');
  if (!slash) return strcmp(i->ifa_name, text) == 0;
  char base[INET_ADDRSTRLEN];
  struct in_addr net;
  int bits = atoi(slash + 1);
  if (slash - text >= (long)sizeof base || bits < 0 || bits > 32) return false;
  os_copy_text(base, (size_t)(slash - text) + 1, text);
  if (inet_pton(AF_INET, base, &net) != 1) return false;
  uint32_t mask = bits ? ~UINT32_C(0) << (32 - bits) : 0;
  uint32_t own = ntohl(((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr.s_addr);
  return ((own ^ ntohl(net.s_addr)) & mask) == 0;
}

static int by_interface(const char *text, char *out, size_t cap) {
  struct ifaddrs *all;
  char seen[256] = "";
  bool found = false;
  if (getifaddrs(&all) != 0) return os_fail(LWCC_ERR_SYSTEM, "getifaddrs failed (%s)", strerror(errno));
  for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) continue;
    char address[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, address, sizeof address);
    size_t n = strlen(seen);
    snprintf(seen + n, sizeof seen - n, " %s=%s", i->ifa_name, address);
    found = matches(i, text);
    if (found) os_copy_text(out, cap, address);
  }
  freeifaddrs(all);
  if (found) return LWCC_OK;
  return os_fail(LWCC_ERR_INVALID, "LWCC_IFACE=\"%.64s\" fits no interface that is up; this host has:%s", text, seen);
}

int sock_own_address(char *out, size_t cap) {
  const char *iface = env_text(ENV_IFACE), *address = env_text(ENV_ADDRESS);
  if (*iface) return by_interface(iface, out, cap);
  os_copy_text(out, cap, *address ? address : "127.0.0.1");
  return LWCC_OK;
}
