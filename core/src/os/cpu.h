#ifndef OS_CPU_H
#define OS_CPU_H
#include <stddef.h>
#include <stdint.h>

/* Cores this process may use: its affinity mask, cut by the cgroup's quota; at least 1. Any thread. */
int cpu_cores(void);
/* Cores that the cgroup's quota allows; 0: no limit. Any thread. */
int cpu_quota(void);
/* The affinity mask as cores 0..1023, one bit each. */
enum { CPU_MASK_WORDS = 16 };
void cpu_mask(uint64_t mask_out[CPU_MASK_WORDS]);
/* The kernel's boot id ("" if unreadable) and the network namespace's inode (0 if unreadable). Any thread. */
void cpu_boot_id(char *out, size_t cap);
uint64_t cpu_netns(void);

/* Tell the core that this is a spin loop. */
#if defined(__x86_64__) || defined(__i386__)
static inline void cpu_pause(void) {
  __builtin_ia32_pause();
}
#elif defined(__aarch64__)
static inline void cpu_pause(void) {
  __asm__ volatile("isb" ::: "memory");
}
#else
static inline void cpu_pause(void) {
  __asm__ volatile("" ::: "memory");
}
#endif
#endif
