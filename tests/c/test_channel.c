/* One suite over every transport: pairs made in this process, driven by one thread, so that each schedule repeats. */
#pragma GCC diagnostic ignored "-Wformat-zero-length" /* of CHECK without a text */

#include <inttypes.h>
#include <pthread.h>
#include <unistd.h>

#include "channel/channel.h"
#include "check.h"
#include "os/clock.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/ucx.h"

typedef struct {
  int controls, lost, lost_status;
  size_t control_bytes;
  uint8_t last[64];
  char text[256];
} seen;

typedef struct {
  channel *ch[2];
  seen seen[2];
  void *rings;
  int raw; /* a descriptor that feeds bytes in place of rank 1's control socket, or -1 */
} pair;

typedef enum { MEM, MEM_MISCHIEF, SHM, TCP, UCX_TCP, UCX_SHM, KINDS } kind;
static const char *const kind_names[] = {"mem", "mem with mischief", "shm", "tcp", "ucx over tcp", "ucx over shm"};

static void on_control(void *arg, int peer, const void *msg, size_t nbytes) {
  seen *s = arg;
  (void)peer;
  s->controls++;
  s->control_bytes += nbytes;
  memcpy(s->last, msg, nbytes < sizeof s->last ? nbytes : sizeof s->last);
}

static void on_lost(void *arg, int peer, int status, const char *text) {
  seen *s = arg;
  (void)peer;
  s->lost++;
  s->lost_status = status;
  os_copy_text(s->text, sizeof s->text, text);
}

static void tcp_sockets(int n, int *a, int *b) {
  int listener, port;
  CHECK(sock_listen_tcp("127.0.0.1", &listener, &port) == 0);
  for (int c = 0; c < n; c++) {
    CHECK(sock_connect_tcp("127.0.0.1", port, &a[c]) == 0);
    CHECK(sock_accept(listener, &b[c]) == 0);
  }
  close(listener);
}

typedef struct {
  int rank, socket, code;
  transport_link *link;
  char text[256];
} ucx_end;

static void *begin_ucx(void *arg) {
  ucx_end *e = arg;
  int sockets[2];
  bool other[2] = {false, false};
  transport_link *links[2] = {NULL, NULL};
  sockets[e->rank] = -1;
  sockets[!e->rank] = e->socket;
  transport_ucx_meeting m = {.rank = e->rank,
                             .size = 2,
                             .sockets = sockets,
                             .other_netns = other,
                             .timeout_s = 20,
                             .deadline_ns = clock_deadline(20)};
  e->code = transport_ucx_join(&m, links);
  if (e->code < 0) os_copy_text(e->text, sizeof e->text, os_error());
  if (e->code < 0) close(e->socket);
  e->link = links[!e->rank];
  return NULL;
}

static void begin_both(ucx_end e[2]) {
  pthread_t other;
  e[1].rank = 1;
  tcp_sockets(1, &e[0].socket, &e[1].socket);
  CHECK(pthread_create(&other, NULL, begin_ucx, &e[1]) == 0);
  begin_ucx(&e[0]);
  CHECK(pthread_join(other, NULL) == 0);
}

static void make_links(pair *p, kind k, uint64_t fault_after, transport_link **l) {
  int fds[2], a[LINK_CLASSES], b[LINK_CLASSES];
  if (k == SHM) {
    int fd = -1;
    CHECK(mem_segment_create("test", transport_shm_bytes(), &fd) == 0 &&
          mem_segment_map(fd, transport_shm_bytes(), &p->rings) == 0 && sock_pair(fds) == 0);
    close(fd);
    CHECK(transport_shm_open(1, p->rings, 0, fds[0], &l[0]) == 0 &&
          transport_shm_open(0, p->rings, 1, fds[1], &l[1]) == 0);
  } else if (k == TCP) {
    tcp_sockets(LINK_CLASSES, a, b);
    CHECK(transport_tcp_open(1, a, &l[0]) == 0 && transport_tcp_open(0, b, &l[1]) == 0);
  } else if (k == UCX_TCP || k == UCX_SHM) {
    ucx_end e[2] = {0};
    setenv("UCX_TLS", k == UCX_TCP ? "tcp" : "posix,self", 1);
    begin_both(e);
    for (int i = 0; i < 2; i++) CHECK(e[i].code == 0, "%s", e[i].text);
    for (int i = 0; i < 2; i++) l[i] = e[i].link;
  } else {
    CHECK(transport_mem_pair(k == MEM ? 0 : 20261130, fault_after, &l[0], &l[1]) == 0);
  }
}

static void pair_open(pair *p, kind k, uint64_t fault_after) {
  transport_link *l[2], *of[2][2];
  memset(p, 0, sizeof *p);
  make_links(p, k, fault_after, l);
  for (int i = 0; i < 2; i++) {
    of[i][i] = NULL;
    of[i][!i] = l[i];
    channel_events ev = {.arg = &p->seen[i], .on_control = on_control, .on_lost = on_lost};
    CHECK(channel_create(i, 2, 7, of[i], &ev, &p->ch[i]) == 0);
  }
}

static void *close_one(void *arg) {
  channel_close(arg);
  return NULL;
}

/* Rank 1 leaves while rank 0 goes on: a leaving end may wait a moment for the other. */
static pthread_t begin_leaving(pair *p) {
  pthread_t leaving;
  CHECK(pthread_create(&leaving, NULL, close_one, p->ch[1]) == 0);
  p->ch[1] = NULL;
  return leaving;
}

static void pair_close(pair *p) {
  bool both = p->ch[1] != NULL;
  pthread_t leaving = both ? begin_leaving(p) : pthread_self();
  if (p->ch[0]) channel_close(p->ch[0]);
  if (both) CHECK(pthread_join(leaving, NULL) == 0);
  if (p->rings) mem_segment_unmap(p->rings, transport_shm_bytes());
}

/* Drive both ends until the condition holds; false past the deadline. */
#define DRIVE(p, cond)                              \
  ({                                                \
    uint64_t end_ = clock_deadline(20);             \
    while (!(cond) && clock_ns() < end_) {          \
      if ((p)->ch[0]) channel_progress((p)->ch[0]); \
      if ((p)->ch[1]) channel_progress((p)->ch[1]); \
    }                                               \
    (cond);                                         \
  })

static uint8_t pattern(size_t i, unsigned salt) {
  return (uint8_t)(i * 31 + i / 251 + salt);
}

static void test_messages_of_every_size_arrive_whole(kind k) {
  static const size_t sizes[] = {0, 1, 15, 1008, 1024, 1025, 65536, 300001, 5000003};
  enum { N = sizeof sizes / sizeof *sizes };
  pair p;
  pair_open(&p, k, 0);
  for (int cls = LINK_NAMED; cls < LINK_CLASSES; cls++) {
    chan_io out[N] = {0}, in[N] = {0};
    for (unsigned i = 0; i < N; i++) { /* all posted at once, sends before receives on one class */
      uint8_t *data = malloc(sizes[i] + 1);
      for (size_t b = 0; b < sizes[i]; b++) data[b] = pattern(b, i);
      out[i] = (chan_io){.buf = data, .nbytes = sizes[i], .tag = 100 + i};
      in[i] = (chan_io){.buf = calloc(1, sizes[i] + 1), .nbytes = sizes[i], .tag = 100 + i};
      if (cls % 2) channel_send(p.ch[0], 1, cls, &out[i]);
      channel_recv(p.ch[1], 0, cls, &in[i]);
      if (cls % 2 == 0) channel_send(p.ch[0], 1, cls, &out[i]);
    }
    CHECK(DRIVE(&p, in[N - 1].status != LWCC_PENDING && channel_idle(p.ch[0])), "%s", kind_names[k]);
    for (unsigned i = 0; i < N; i++) {
      CHECK(out[i].status == LWCC_OK && in[i].status == LWCC_OK && in[i].done == sizes[i]);
      CHECK(memcmp(out[i].buf, in[i].buf, sizes[i]) == 0, "%s size %zu", kind_names[k], sizes[i]);
      free(out[i].buf);
      free(in[i].buf);
    }
  }
  pair_close(&p);
}

static void test_classes_do_not_block_one_another(kind k) {
  pair p;
  pair_open(&p, k, 0);
  size_t n = 32 << 20; /* more than any pipe holds, and nobody receives it yet */
  chan_io bulk = {.buf = calloc(1, n), .nbytes = n, .tag = 1}, sink = {.buf = malloc(n), .nbytes = n, .tag = 1};
  chan_io small = {.buf = "hello", .nbytes = 5, .tag = 2};
  char got[5];
  chan_io in = {.buf = got, .nbytes = 5, .tag = 2};
  channel_send(p.ch[0], 1, LINK_NAMED, &bulk);
  channel_send(p.ch[0], 1, LINK_RAW, &small);
  CHECK(channel_control(p.ch[0], 1, "control", 7) == 0);
  channel_recv(p.ch[1], 0, LINK_RAW, &in);
  CHECK(DRIVE(&p, in.status == LWCC_OK && p.seen[1].controls == 1), "%s", kind_names[k]);
  CHECK(memcmp(got, "hello", 5) == 0 && memcmp(p.seen[1].last, "control", 7) == 0);
  CHECK(bulk.status == LWCC_PENDING && !channel_idle(p.ch[0]));
  channel_recv(p.ch[1], 0, LINK_NAMED, &sink);
  CHECK(DRIVE(&p, sink.status == LWCC_OK && bulk.status == LWCC_OK), "%s", kind_names[k]);
  free(bulk.buf);
  free(sink.buf);
  pair_close(&p);
}

static void test_control_is_delivered_both_ways_without_limit(kind k) {
  pair p;
  pair_open(&p, k, 0);
  uint8_t *big = calloc(1, 1 << 20);
  for (int i = 0; i < 300; i++)
    for (int r = 0; r < 2; r++) CHECK(channel_control(p.ch[r], !r, big, i == 150 ? 1 << 20 : (size_t)i) == 0);
  CHECK(DRIVE(&p, p.seen[0].controls == 300 && p.seen[1].controls == 300), "%s: %d %d", kind_names[k],
        p.seen[0].controls, p.seen[1].controls);
  CHECK(p.seen[0].control_bytes == (1 << 20) + 300 * 299 / 2 - 150);
  CHECK(channel_control(p.ch[0], 1, big, (256 << 20) + 1) == LWCC_ERR_INVALID);
  free(big);
  pair_close(&p);
}

static void test_a_lost_peer_fails_its_ios_once_and_delivers_what_it_sent(kind k) {
  pair p;
  char buf[8];
  pair_open(&p, k, 0);
  CHECK(channel_control(p.ch[1], 0, "bye", 3) == 0);
  CHECK(DRIVE(&p, channel_idle(p.ch[1])));
  chan_io in = {.buf = buf, .nbytes = 8, .tag = 5}, late = {.buf = buf, .nbytes = 8};
  channel_recv(p.ch[0], 1, LINK_RAW, &in);
  pthread_t leaving = begin_leaving(&p);
  CHECK(DRIVE(&p, p.seen[0].lost > 0), "%s", kind_names[k]);
  CHECK(pthread_join(leaving, NULL) == 0);
  CHECK(p.seen[0].controls == 1 && memcmp(p.seen[0].last, "bye", 3) == 0, "%s", kind_names[k]);
  CHECK(in.status == LWCC_ERR_PEER_LOST && p.seen[0].lost_status == LWCC_ERR_PEER_LOST);
  CHECK(channel_lost(p.ch[0], 1) && strstr(p.seen[0].text, "rank 1"), "%s", p.seen[0].text);
  channel_send(p.ch[0], 1, LINK_RAW, &late);
  CHECK(late.status == LWCC_ERR_PEER_LOST && channel_control(p.ch[0], 1, "x", 1) == LWCC_ERR_PEER_LOST);
  for (int i = 0; i < 1000; i++) channel_progress(p.ch[0]);
  CHECK(p.seen[0].lost == 1);
  pair_close(&p);
}

static void test_a_wrong_tag_or_length_is_a_protocol_failure(kind k) {
  for (int variant = 0; variant < 2; variant++) {
    pair p;
    uint8_t a[64] = {0}, b[64];
    pair_open(&p, k, 0);
    chan_io out = {.buf = a, .nbytes = variant ? 60 : 64, .tag = variant ? 1 : 2},
            in = {.buf = b, .nbytes = 64, .tag = 1};
    channel_recv(p.ch[1], 0, LINK_NAMED, &in);
    channel_send(p.ch[0], 1, LINK_NAMED, &out);
    CHECK(DRIVE(&p, p.seen[1].lost > 0), "%s", kind_names[k]);
    CHECK(in.status == LWCC_ERR_PROTOCOL && strstr(p.seen[1].text, "expected 64 bytes with tag 1"), "%s",
          p.seen[1].text);
    CHECK(DRIVE(&p, p.seen[0].lost > 0), "%s: the other end must notice", kind_names[k]);
    pair_close(&p);
  }
}

static void test_a_sleeper_is_woken_by_data_by_death_and_by_wake(kind k) {
  pair p;
  pair_open(&p, k, 0);
  pthread_t leaving = pthread_self();
  for (int event = 0; event < 3; event++) {
    seen before = p.seen[0];
    while (channel_progress(p.ch[0]) > 0) continue;
    channel_prepare_sleep(p.ch[0]);
    while (channel_progress(p.ch[0]) > 0) continue;
    if (event == 0) channel_wake(p.ch[0]);
    if (event == 1) {
      CHECK(channel_control(p.ch[1], 0, "x", 1) == 0);
      while (!channel_idle(p.ch[1])) channel_progress(p.ch[1]);
    }
    if (event == 2) leaving = begin_leaving(&p);
    uint64_t start = clock_ns();
    channel_wait(p.ch[0], INT64_C(20000000000), true);
    CHECK(clock_ns() - start < UINT64_C(15000000000), "%s: event %d did not wake", kind_names[k], event);
    channel_woken(p.ch[0]);
    CHECK(DRIVE(&p, event == 0 || p.seen[0].controls + p.seen[0].lost > before.controls + before.lost));
  }
  CHECK(p.seen[0].lost == 1, "%s", kind_names[k]);
  CHECK(pthread_join(leaving, NULL) == 0);
  pair_close(&p);
}

static void test_garbage_from_a_peer_is_contained(kind k) {
  transport_link *l[2], *of[2];
  pair p = {0};
  uint8_t junk[4096];
  unsigned seed = 12345;
  for (size_t i = 0; i < sizeof junk; i++) junk[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 16);
  make_links(&p, k, 0, l);
  of[0] = NULL;
  of[1] = l[0];
  channel_events ev = {.arg = &p.seen[0], .on_control = on_control, .on_lost = on_lost};
  CHECK(channel_create(0, 2, 7, of, &ev, &p.ch[0]) == 0);
  const struct iovec all = {junk, sizeof junk};
  for (int i = 0; i < 100 && l[1]->ops->send(l[1], LINK_CONTROL, &all, 1) == 0; i++) continue;
  l[1]->ops->flush(l[1]);
  CHECK(DRIVE(&p, p.seen[0].lost == 1), "%s", kind_names[k]);
  CHECK(p.seen[0].lost_status == LWCC_ERR_PROTOCOL && p.seen[0].controls == 0, "%s", p.seen[0].text);
  l[1]->ops->close(l[1]);
  pair_close(&p);
}

static void test_a_broken_link_fails_both_ends(void) {
  for (uint64_t fault = 1; fault < 20000; fault += 1717) {
    pair p;
    static uint8_t a[30000], b[30000];
    pair_open(&p, MEM_MISCHIEF, fault);
    chan_io out = {.buf = a, .nbytes = sizeof a}, in = {.buf = b, .nbytes = sizeof b};
    channel_recv(p.ch[1], 0, LINK_RAW, &in);
    channel_send(p.ch[0], 1, LINK_RAW, &out);
    CHECK(DRIVE(&p, p.seen[0].lost && p.seen[1].lost));
    CHECK(in.status == LWCC_ERR_PEER_LOST && out.status == LWCC_ERR_PEER_LOST);
    pair_close(&p);
  }
}

static void test_close_ends_what_is_pending(kind k) {
  pair p;
  char buf[4];
  pair_open(&p, k, 0);
  chan_io in = {.buf = buf, .nbytes = 4};
  channel_recv(p.ch[0], 1, LINK_NAMED, &in);
  CHECK(in.status == LWCC_PENDING);
  pair_close(&p);
  CHECK(in.status == LWCC_ERR_SHUTDOWN);
}

static void report_idle_cost(kind k) {
  pair p;
  pair_open(&p, k, 0);
  uint64_t start = clock_ns();
  for (int i = 0; i < 200000; i++) channel_progress(p.ch[0]);
  printf("%s: %.0f ns for an idle turn\n", kind_names[k], (double)(clock_ns() - start) / 200000);
  pair_close(&p);
}

int main(void) {
  const ucx_library *ucx;
  kind last = ucx_load(&ucx) == 0 ? KINDS : UCX_TCP;
  if (last < KINDS) printf("skipped: %s\n", os_error());
  for (kind k = 0; k < last; k++) {
    if (k == UCX_TCP) check_leaks_so_far();
    test_messages_of_every_size_arrive_whole(k);
    test_classes_do_not_block_one_another(k);
    test_control_is_delivered_both_ways_without_limit(k);
    test_a_lost_peer_fails_its_ios_once_and_delivers_what_it_sent(k);
    test_a_wrong_tag_or_length_is_a_protocol_failure(k);
    test_a_sleeper_is_woken_by_data_by_death_and_by_wake(k);
    test_garbage_from_a_peer_is_contained(k);
    test_close_ends_what_is_pending(k);
    report_idle_cost(k);
  }
  test_a_broken_link_fails_both_ends();
  return check_report();
}
