/* Ranks as threads: endpoints exchanged in memory, real sockets and real segments. */
#pragma GCC diagnostic ignored "-Wformat-zero-length" /* of CHECK without a text */

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "channel/bootstrap.h"
#include "channel/connect.h"
#include "channel/endpoint.h"
#include "check.h"
#include "os/clock.h"
#include "os/env.h"
#include "os/hmac.h"
#include "os/sock.h"
#include "os/status.h"
#include "os/thread.h"

enum { MAX = 5 };

typedef struct {
  int size;
  const char *node[MAX], *transport[MAX];
  double timeout_s;
  int missing, wrong_secret, garbage; /* ranks; -1: none. garbage: connections of a stranger to each listener */
  bool memory;                        /* also exercise registered memory */
} scene;

typedef struct {
  const scene *sc;
  int rank, code;
  bootstrap *b;
  char endpoint[600], text[1024];
  const char *endpoints[MAX];
  transport_link *links[MAX];
  rank_identity ids[MAX];
  node *nd;
  channel *ch;
  int heard[MAX], meetings; /* messages from each peer */
  uint32_t region[MAX];
  uint64_t offset[MAX];
} rank_state;

static const uint8_t good[32] = "thirty-two bytes shared by all.", bad[32] = "somebody else's";

typedef struct {
  uint32_t region;
  uint64_t offset;
} where;

static void on_control(void *arg, int peer, const void *msg, size_t nbytes) {
  rank_state *s = arg;
  s->heard[peer]++;
  if (nbytes != sizeof(where)) return;
  where w;
  memcpy(&w, msg, sizeof w);
  s->region[peer] = w.region;
  s->offset[peer] = w.offset;
}
static void on_lost(void *arg, int peer, int status, const char *text) {
  (void)arg;
  (void)peer;
  (void)status;
  (void)text;
}
static void drive(void *arg) {
  channel_progress(((rank_state *)arg)->ch);
}

static void say_to_all(rank_state *s, const void *msg, size_t nbytes) {
  for (int i = 0; i < s->sc->size; i++)
    if (i != s->rank) CHECK(channel_control(s->ch, i, msg, nbytes) == 0, "%s", os_error());
}

static bool met(const rank_state *s) {
  for (int i = 0; i < s->sc->size; i++)
    if (i != s->rank && s->heard[i] < s->meetings) return false;
  return channel_idle(s->ch);
}

/* Everybody hears a message from everybody. */
static void meet_all(rank_state *s, const void *msg, size_t nbytes) {
  s->meetings++;
  say_to_all(s, msg, nbytes);
  uint64_t end = clock_deadline(30);
  while (!met(s) && clock_ns() < end) channel_progress(s->ch);
  CHECK(met(s), "rank %d, meeting %d", s->rank, s->meetings);
}

static void use_memory(rank_state *s) {
  CHECK(node_size(s->nd) == s->sc->size);
  char *p = node_alloc(s->nd, 100000, drive, s), *q = node_alloc(s->nd, 5000, drive, s);
  char *big = node_alloc(s->nd, (size_t)100 << 20, drive, s);
  CHECK(p && q && big, "%s", os_error());
  if (!p || !q || !big) return;
  CHECK((uintptr_t)p % 64 == 0 && p[0] == 0 && p[99999] == 0 && q == p + 102400);
  p[777] = (char)(s->rank + 1);
  where w;
  uint32_t r;
  uint64_t o;
  CHECK(node_find(s->nd, p + 777, 10, &w.region, &w.offset));
  CHECK(node_find(s->nd, big + 5, 1, &r, &o) && r != w.region);
  CHECK(!node_find(s->nd, &w, 1, &r, &o) && !node_find(s->nd, big, (size_t)101 << 20, &r, &o));
  meet_all(s, &w, sizeof w);
  for (int i = 0; i < s->sc->size; i++) {
    if (i == s->rank) continue;
    const char *there = node_map(s->nd, i, s->region[i], s->offset[i], 10);
    CHECK(there && *there == i + 1);
    CHECK(!node_map(s->nd, i, s->region[i], s->offset[i], (size_t)64 << 20) && !node_map(s->nd, i, 200, 0, 1));
  }
  meet_all(s, "", 0);
  node_free(s->nd, p);
  char *again = node_alloc(s->nd, 100000, drive, s);
  CHECK(again == p && again[777] == 0, "freed memory is used again, as zeros");
  node_free(s->nd, q);
  node_free(s->nd, again);
  node_free(s->nd, NULL);
}

static void *join_rank(void *arg) {
  rank_state *s = arg;
  s->code = bootstrap_join(s->b, s->endpoints, s->sc->timeout_s, s->links, &s->nd, s->ids);
  if (s->code < 0) {
    os_copy_text(s->text, sizeof s->text, os_error());
    return NULL;
  }
  channel_events ev = {.arg = s, .on_control = on_control, .on_lost = on_lost};
  CHECK(channel_create(s->rank, s->sc->size, 3, s->links, &ev, &s->ch) == 0);
  CHECK(node_attach(s->nd, s->ch) == 0);
  meet_all(s, "hi", 2);
  if (s->sc->memory) use_memory(s);
  meet_all(s, "end", 3); /* nobody leaves while another still needs him */
  return NULL;
}

/* A stranger greets with junk and stays connected. */
static void stranger(const rank_state *s, int fds[2]) {
  endpoint e;
  CHECK(endpoint_parse(s->endpoint, s->rank, &e) == 0);
  CHECK(sock_connect_tcp(e.target.address, e.target.port, &fds[0]) == 0);
  CHECK(sock_connect_unix(e.target.unix_name, &fds[1]) == 0);
  static const char junk[300] = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 2; i++) CHECK(sock_send_all(fds[i], junk, i ? 5 : sizeof junk, -1, clock_deadline(5)) == 0);
}

static void play(const scene *sc, rank_state *ranks) {
  pthread_t threads[MAX];
  int strangers[MAX][2];
  for (int i = 0; i < sc->size; i++) {
    rank_state *s = &ranks[i];
    memset(s, 0, sizeof *s);
    s->sc = sc;
    s->rank = i;
    lwcc_job job = {.rank = i, .size = sc->size, .secret = i == sc->wrong_secret ? bad : good, .generation = 3};
    CHECK(bootstrap_open(&job, &s->b) == 0, "%s", os_error());
    bootstrap_override(s->b, sc->node[i], sc->transport[i] ? sc->transport[i] : "auto");
    CHECK(bootstrap_endpoint(s->b, s->endpoint, sizeof s->endpoint) == 0 && !strchr(s->endpoint, '\n'));
    for (int k = 0; k < sc->size; k++) ranks[k].endpoints[i] = NULL;
  }
  for (int i = 0; i < sc->size; i++) {
    for (int k = 0; k < sc->size; k++) ranks[i].endpoints[k] = ranks[k].endpoint;
    if (sc->garbage >= 0) stranger(&ranks[i], strangers[i]);
  }
  for (int i = 0; i < sc->size; i++)
    if (i != sc->missing) CHECK(thread_create(&threads[i], "rank", join_rank, &ranks[i]) == 0);
  for (int i = 0; i < sc->size; i++)
    if (i != sc->missing) thread_join(threads[i]);
  for (int i = 0; i < sc->size; i++) {
    bootstrap_close(ranks[i].b);
    if (ranks[i].ch) channel_close(ranks[i].ch);
    if (sc->garbage >= 0) close(strangers[i][0]), close(strangers[i][1]);
  }
}

static void leave(const scene *sc, rank_state *ranks) {
  for (int i = 0; i < sc->size; i++) node_close(ranks[i].nd);
}

static scene plain(int size) {
  return (scene){.size = size, .timeout_s = 60, .missing = -1, .wrong_secret = -1, .garbage = -1};
}

static rank_state ranks[MAX];

static void test_ranks_of_one_node_share_memory(void) {
  for (int size = 1; size <= MAX; size++) {
    scene sc = plain(size);
    sc.memory = true;
    sc.garbage = size % 2 ? 0 : -1;
    play(&sc, ranks);
    for (int i = 0; i < size; i++) {
      CHECK(ranks[i].code == 0, "size %d rank %d: %s", size, i, ranks[i].text);
      if (ranks[i].code < 0) continue;
      CHECK(node_size(ranks[i].nd) == size && node_me(ranks[i].nd) == i && node_cores(ranks[i].nd) >= 1);
      CHECK((node_segment(ranks[i].nd) != NULL) == (size > 1));
      CHECK(ranks[i].ids[i].local_rank == i && ranks[i].ids[i].local_size == size && ranks[i].ids[i].cross_size == 1);
      CHECK(ranks[i].ids[i].pid == getpid());
    }
    leave(&sc, ranks);
  }
}

static void test_tcp_only_shares_nothing(void) {
  for (int size = 2; size <= MAX; size++) {
    scene sc = plain(size);
    for (int i = 0; i < size; i++) sc.transport[i] = "tcp";
    play(&sc, ranks);
    for (int i = 0; i < size; i++) {
      CHECK(ranks[i].code == 0, "%s", ranks[i].text);
      if (ranks[i].code < 0) continue;
      CHECK(node_size(ranks[i].nd) == 1 && !node_segment(ranks[i].nd) && ranks[i].ids[i].local_size == size);
    }
    leave(&sc, ranks);
  }
}

static void test_two_nodes_share_within_and_not_across(void) {
  scene sc = plain(5);
  for (int i = 0; i < 5; i++) sc.node[i] = i % 2 ? "odd" : "even";
  play(&sc, ranks);
  for (int i = 0; i < 5; i++) {
    CHECK(ranks[i].code == 0, "%s", ranks[i].text);
    if (ranks[i].code < 0) continue;
    const rank_identity *id = &ranks[i].ids[i];
    CHECK(node_size(ranks[i].nd) == (i % 2 ? 2 : 3) && node_ranks(ranks[i].nd)[0] == i % 2);
    CHECK(id->local_rank == i / 2 && id->cross_rank == i % 2 && id->cross_size == (i == 4 ? 1 : 2), "rank %d", i);
  }
  leave(&sc, ranks);
}

static void test_without_room_for_a_segment_all_use_tcp(void) {
  struct rlimit before, small;
  getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 65536;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  for (int forced = 0; forced < 2; forced++) {
    scene sc = plain(3);
    for (int i = 0; i < 3; i++) sc.transport[i] = forced ? "shm" : "auto";
    play(&sc, ranks);
    for (int i = 0; i < 3 && !forced; i++)
      CHECK(ranks[i].code == 0 && node_size(ranks[i].nd) == 1, "%s", ranks[i].text);
    for (int i = 0; i < 3 && forced; i++)
      CHECK(ranks[i].code == LWCC_ERR_UNSUPPORTED && strstr(ranks[i].text, "ulimit -f"), "%s", ranks[i].text);
    leave(&sc, ranks);
  }
  setrlimit(RLIMIT_FSIZE, &before);
}

static void test_a_missing_rank_is_named(void) {
  scene sc = plain(4);
  sc.missing = 2;
  sc.timeout_s = 0.5;
  play(&sc, ranks);
  for (int i = 0; i < 4; i++)
    if (i != 2) CHECK(ranks[i].code == LWCC_ERR_TIMEOUT && strstr(ranks[i].text, "0.5 s: 2"), "%s", ranks[i].text);
  leave(&sc, ranks);
}

static void test_a_wrong_secret_keeps_a_rank_out(void) {
  scene sc = plain(3);
  sc.wrong_secret = 1;
  sc.timeout_s = 0.5;
  for (int i = 0; i < 3; i++) sc.transport[i] = i == 0 ? "tcp" : "auto";
  play(&sc, ranks);
  for (int i = 0; i < 3; i += 2)
    CHECK(ranks[i].code == LWCC_ERR_TIMEOUT && strstr(ranks[i].text, "0.5 s: 1") && strstr(ranks[i].text, "secret"),
          "%s", ranks[i].text);
  CHECK(ranks[1].code == LWCC_ERR_TIMEOUT && strstr(ranks[1].text, "0, 2"), "%s", ranks[1].text);
  leave(&sc, ranks);
}

static void test_bad_endpoints_are_refused(void) {
  endpoint e;
  CHECK(endpoint_parse("", 0, &e) == LWCC_ERR_INVALID);
  CHECK(endpoint_parse("lwcc=2 rank=0 address=1.2.3.4 port=1 unix=a", 0, &e) == LWCC_ERR_INVALID);
  CHECK(endpoint_parse("lwcc=1 rank=0 address=1.2.3.4 port=70000 unix=a", 0, &e) == LWCC_ERR_INVALID);
  CHECK(endpoint_parse("lwcc=1 rank=1 address=1.2.3.4 port=1 unix=a", 0, &e) == LWCC_ERR_INVALID);
  CHECK(endpoint_parse("lwcc=1 rank=0 address=1.2.3.4 port=1 unix=a new=word", 0, &e) == LWCC_OK);
}

static void test_settings_that_differ_are_named(void) {
  endpoint e[3], read;
  char line[1024], value[400];
  memset(e, 0, sizeof e);
  memset(value, 'x', sizeof value);
  value[sizeof value - 1] = 0; /* they differ past what a line shows */
  for (int r = 0; r < 3; r++) {
    value[sizeof value - 2] = r == 2 ? 'y' : 'x';
    setenv("LWCC_ALGORITHM", value, 1);
    endpoint_note_settings(&e[r]);
    e[r].version = ENDPOINT_VERSION;
    e[r].rank = r;
    e[r].target.port = 1;
    strcpy(e[r].target.address, "1.2.3.4");
    strcpy(e[r].target.unix_name, "a");
    CHECK(endpoint_print(&e[r], line, sizeof line) < (int)sizeof line);
    CHECK(endpoint_parse(line, r, &read) == LWCC_OK && memcmp(read.alike, e[r].alike, sizeof read.alike) == 0);
  }
  unsetenv("LWCC_ALGORITHM");
  CHECK(endpoint_check_settings(e, 2) == LWCC_OK);
  CHECK(endpoint_check_settings(e, 3) == LWCC_ERR_MISMATCH);
  const char *text = os_error();
  CHECK(strstr(text, "LWCC_ALGORITHM") && strstr(text, "rank 0") && strstr(text, "rank 2"), "%s", text);
}

int main(void) {
  test_bad_endpoints_are_refused();
  test_settings_that_differ_are_named();
  test_ranks_of_one_node_share_memory();
  test_tcp_only_shares_nothing();
  test_two_nodes_share_within_and_not_across();
  test_without_room_for_a_segment_all_use_tcp();
  test_a_missing_rank_is_named();
  test_a_wrong_secret_keeps_a_rank_out();
  return check_report();
}
