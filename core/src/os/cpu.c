#include "os/cpu.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first bytes of a small file as text; "" if unreadable. */
static void read_text(const char *path, char *out, size_t cap) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, out, cap - 1);
  out[n > 0 ? n : 0] = '\0';
  if (fd >= 0) close(fd);
}

/* Rounded up. Version 2 of cgroups, then version 1. */
int cpu_quota(void) {
  char text[64];
  long long quota = 0, period = 0;
  read_text("/sys/fs/cgroup/cpu.max", text, sizeof text);
  if (sscanf(text, "%lld %lld", &quota, &period) != 2) {
    read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof text);
    sscanf(text, "%lld", &quota);
    read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us", text, sizeof text);
    sscanf(text, "%lld", &period);
  }
  return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

void cpu_mask(uint64_t mask_out[CPU_MASK_WORDS]) {
  cpu_set_t set;
  CPU_ZERO(&set);
  memset(mask_out, 0, CPU_MASK_WORDS * sizeof *mask_out);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  for (int i = 0; i < 64 * CPU_MASK_WORDS && i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &set)) mask_out[i / 64] |= UINT64_C(1) << i % 64;
}

int cpu_cores(void) {
  uint64_t mask[CPU_MASK_WORDS];
  int n = 0, quota = cpu_quota();
  cpu_mask(mask);
  for (int i = 0; i < CPU_MASK_WORDS; i++) n += __builtin_popcountll(mask[i]);
  if (quota && quota < n) n = quota;
  return n > 0 ? n : 1;
}

void cpu_boot_id(char *out, size_t cap) {
  read_text("/proc/sys/kernel/random/boot_id", out, cap);
  out[strcspn(out, "\n")] = '\0';
}

uint64_t cpu_netns(void) {
  struct stat st;
  return stat("/proc/self/ns/net", &st) == 0 ? (uint64_t)st.st_ino : 0;
}
