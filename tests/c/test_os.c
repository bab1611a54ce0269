#pragma GCC diagnostic ignored "-Wformat-zero-length" /* of CHECK without a text */

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "os/clock.h"
#include "os/cpu.h"
#include "os/env.h"
#include "os/futex.h"
#include "os/hmac.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "os/thread.h"

/* What the code between begin and end wrote to stderr. */
static char captured[4096];
static int capture_fd, saved_stderr;

static void capture_begin(void) {
  saved_stderr = dup(STDERR_FILENO);
  capture_fd = memfd_create("stderr", 0);
  dup2(capture_fd, STDERR_FILENO);
}

static void capture_end(void) {
  dup2(saved_stderr, STDERR_FILENO);
  ssize_t n = pread(capture_fd, captured, sizeof captured - 1, 0);
  captured[n > 0 ? n : 0] = '\0';
  close(capture_fd);
  close(saved_stderr);
}

static void *fail_elsewhere(void *arg) {
  (void)arg;
  os_fail(LWCC_ERR_SYSTEM, "other");
  return NULL;
}

static void test_failure_texts_belong_to_their_thread(void) {
  pthread_t t;
  CHECK(os_fail(LWCC_ERR_INVALID, "mine %d", 7) == LWCC_ERR_INVALID);
  CHECK(thread_create(&t, "a name that is too long", fail_elsewhere, NULL) == 0);
  thread_join(t);
  CHECK(strcmp(os_error(), "mine 7") == 0);
  os_fail(LWCC_ERR_INVALID, "around %s", os_error());
  CHECK(strcmp(os_error(), "around mine 7") == 0);
  char small[4];
  os_copy_text(small, sizeof small, "abcdef");
  CHECK(strcmp(small, "abc") == 0);
}

static void test_variables_fall_back_with_a_warning(void) {
  unsetenv("HOROVOD_FUSION_THRESHOLD");
  CHECK(env_int(ENV_FUSION_THRESHOLD) == 64 << 20);
  setenv("HOROVOD_FUSION_THRESHOLD", "1000", 1);
  CHECK(env_int(ENV_FUSION_THRESHOLD) == 1000);
  setenv("LWCC_FUSION_THRESHOLD", "2KiB", 1);
  CHECK(env_int(ENV_FUSION_THRESHOLD) == 2048);
  setenv("LWCC_STALL_WARN", "0.25", 1);
  CHECK(env_real(ENV_STALL_WARN) == 0.25);
  setenv("LWCC_TRANSPORT", "TCP", 1);
  CHECK(env_choice(ENV_TRANSPORT) == 2);
  capture_begin();
  setenv("LWCC_FUSION_THRESHOLD", "-5", 1);
  CHECK(env_int(ENV_FUSION_THRESHOLD) == 64 << 20);
  setenv("LWCC_TRANSPORT", "carrier pigeon", 1);
  CHECK(env_choice(ENV_TRANSPORT) == 0);
  setenv("LWCC_STALL_WARN", "nan", 1);
  CHECK(env_real(ENV_STALL_WARN) == 5);
  capture_end();
  CHECK(strstr(captured, "LWCC_FUSION_THRESHOLD=\"-5\"") && strstr(captured, "0..1099511627776"), "%s", captured);
  CHECK(strstr(captured, "carrier pigeon") && strstr(captured, "auto|shm|tcp") && strstr(captured, "nan"), "%s",
        captured);
  unsetenv("LWCC_TRANSPORT");
  for (int i = 0; i < ENV_COUNT; i++) CHECK(strncmp(env_at(i)->name, "LWCC_", 5) == 0 && *env_at(i)->help);
  CHECK(!env_at(ENV_COUNT) && !env_at(-1));
}

static void test_log_lines_are_whole_and_filtered(void) {
  log_set_level(LOG_INFO);
  log_set_rank(3);
  capture_begin();
  LOG(DEBUG, "hidden");
  LOG(INFO, "shown %d", 5);
  LOG(INFO, "%2000d", 1);
  capture_end();
  CHECK(!strstr(captured, "hidden") && strstr(captured, "rank 3 [test_os] info: shown 5\n"), "%s", captured);
  CHECK(captured[strlen(captured) - 1] == '\n' && strlen(captured) < 1500);
  log_set_rank(-1);
  log_set_level(LOG_WARN);
}

static void test_size_arithmetic_notices_overflow(void) {
  size_t n = 1;
  CHECK(!mem_add(SIZE_MAX, 1, &n) && !mem_mul(SIZE_MAX / 2, 3, &n) && !mem_round_up(SIZE_MAX - 1, 4096, &n) && n == 1);
  CHECK(mem_round_up(4097, 4096, &n) && n == 8192);
}

static void test_segments_are_shared_sealed_and_discardable(void) {
  int fd;
  void *a, *b;
  CHECK(mem_segment_create("t", 1 << 20, &fd) == 0 && mem_segment_map(fd, 1 << 20, &a) == 0);
  CHECK(mem_segment_map(fd, 1 << 20, &b) == 0 && a != b);
  ((char *)a)[5000] = 9;
  CHECK(((char *)b)[5000] == 9);
  mem_segment_discard(a, 1 << 20);
  CHECK(((char *)b)[5000] == 0);
  CHECK(ftruncate(fd, 4096) != 0, "a peer must not be able to shrink it");
  void *c;
  CHECK(mem_segment_map(fd, 2 << 20, &c) == LWCC_ERR_PROTOCOL);
  CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  mem_segment_unmap(a, 1 << 20);
  mem_segment_unmap(b, 1 << 20);
  close(fd);
}

static void test_the_probe_says_what_is_too_small(void) {
  struct rlimit before, small = {.rlim_cur = 65536, .rlim_max = RLIM_INFINITY};
  CHECK(mem_segment_probe(1 << 20) == 0, "%s", os_error());
  getrlimit(RLIMIT_FSIZE, &before);
  small.rlim_max = before.rlim_max;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  CHECK(mem_segment_probe(1 << 20) == LWCC_ERR_SYSTEM && strstr(os_error(), "ulimit -f"), "%s", os_error());
  setrlimit(RLIMIT_FSIZE, &before);
}

static void hex_equal(const uint8_t *mac, const char *hex) {
  char text[2 * HMAC_BYTES + 1];
  for (int i = 0; i < HMAC_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", mac[i]);
  CHECK(strcmp(text, hex) == 0, "%s", text);
}

static void test_hmac_matches_rfc_4231(void) {
  uint8_t key[131], mac[HMAC_BYTES], other[HMAC_BYTES];
  hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, mac);
  hex_equal(mac, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  memset(key, 0xaa, sizeof key);
  const char *text = "Test Using Larger Than Block-Size Key - Hash Key First";
  hmac_sha256(key, sizeof key, text, strlen(text), other);
  hex_equal(other, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(hmac_equal(mac, mac) && !hmac_equal(mac, other));
}

static void test_sockets_pass_bytes_and_descriptors(void) {
  int fds[2], passed = -1, segment;
  char buf[8];
  void *p;
  CHECK(sock_pair(fds) == 0 && sock_recv(fds[1], buf, 8) == 0);
  CHECK(mem_segment_create("t", 4096, &segment) == 0);
  CHECK(sock_send_all(fds[0], "12345678", 8, segment, clock_deadline(5)) == 0);
  CHECK(sock_recv_all(fds[1], buf, 8, &passed, clock_deadline(5)) == 0 && passed >= 0 && buf[7] == '8');
  CHECK(mem_segment_map(passed, 4096, &p) == 0 && (fcntl(passed, F_GETFD) & FD_CLOEXEC));
  CHECK(sock_recv_all(fds[1], buf, 8, NULL, clock_deadline(0.01)) == LWCC_ERR_TIMEOUT);
  close(fds[0]);
  CHECK(sock_recv(fds[1], buf, 8) == LWCC_ERR_PEER_LOST && strstr(os_error(), "closed"));
  CHECK(sock_send(fds[1], buf, 8) == LWCC_ERR_PEER_LOST, "and no SIGPIPE");
  mem_segment_unmap(p, 4096);
  close(fds[1]);
  close(passed);
  close(segment);
}

static void test_the_own_address_follows_the_interface(void) {
  char a[32];
  unsetenv("LWCC_IFACE");
  setenv("LWCC_ADDRESS", "10.1.2.3", 1);
  CHECK(sock_own_address(a, sizeof a) == 0 && strcmp(a, "10.1.2.3") == 0);
  setenv("LWCC_IFACE", "lo", 1);
  CHECK(sock_own_address(a, sizeof a) == 0 && strcmp(a, "127.0.0.1") == 0);
  setenv("LWCC_IFACE", "127.0.0.0/8", 1);
  CHECK(sock_own_address(a, sizeof a) == 0 && strcmp(a, "127.0.0.1") == 0);
  setenv("LWCC_IFACE", "nosuch0", 1);
  CHECK(sock_own_address(a, sizeof a) == LWCC_ERR_INVALID && strstr(os_error(), "lo=127.0.0.1"), "%s", os_error());
  unsetenv("LWCC_IFACE");
  unsetenv("LWCC_ADDRESS");
}

static _Atomic uint32_t word;
static void *wake_word(void *arg) {
  (void)arg;
  atomic_store(&word, 1);
  futex_wake(&word);
  return NULL;
}

static void test_futex_wakes_and_times_out(void) {
  pthread_t t;
  CHECK(futex_wait(&word, 0, 1000) == 1);
  CHECK(thread_create(&t, "waker", wake_word, NULL) == 0);
  while (atomic_load(&word) == 0) CHECK(futex_wait(&word, 0, INT64_C(20000000000)) == 0);
  thread_join(t);
}

static void test_cores_and_identity(void) {
  char boot[64];
  uint64_t mask[CPU_MASK_WORDS];
  cpu_mask(mask);
  cpu_boot_id(boot, sizeof boot);
  CHECK(cpu_cores() >= 1 && strlen(boot) == 36 && cpu_netns() != 0 && cpu_quota() >= 0);
  CHECK(clock_left_ms(clock_deadline(-1)) == 0 && clock_left_ms(clock_deadline(1e300)) > 1000);
}

int main(void) {
  test_failure_texts_belong_to_their_thread();
  test_variables_fall_back_with_a_warning();
  test_log_lines_are_whole_and_filtered();
  test_size_arithmetic_notices_overflow();
  test_segments_are_shared_sealed_and_discardable();
  test_the_probe_says_what_is_too_small();
  test_hmac_matches_rfc_4231();
  test_sockets_pass_bytes_and_descriptors();
  test_the_own_address_follows_the_interface();
  test_futex_wakes_and_times_out();
  test_cores_and_identity();
  return check_report();
}
