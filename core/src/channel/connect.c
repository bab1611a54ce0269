/* The handshake, on one connection:
 *   connector: hello (mark, generation, from, to, kind, nonce)
 *   acceptor:  nonce, HMAC(secret, "accept" hello nonce)
 *   connector: HMAC(secret, "connect" hello nonce)
 *   acceptor:  one byte: taken
 * All connections advance together in one poll loop, each with a deadline of its own, so a stranger delays nobody. */
#include "channel/connect.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/hmac.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"

enum { NONCE = 16, STRANGERS = 256, TURN_MS = 50 };
static const double patience_s = 5; /* for one connection */

typedef enum { UNUSED, RESTING, CONNECTING, AWAIT_CHALLENGE, AWAIT_TAKEN, AWAIT_HELLO, AWAIT_PROOF } conn_state;

typedef struct {
  char mark[8];
  uint64_t generation;
  int32_t from, to, kind, zero;
  uint8_t nonce[NONCE];
} hello_msg;

typedef struct {
  uint8_t nonce[NONCE], mac[HMAC_BYTES];
} challenge_msg;

typedef struct {
  conn_state state;
  int fd, peer, kind;
  uint64_t until_ns; /* RESTING: when to try again; else when to give up */
  hello_msg hello;
  uint8_t nonce[NONCE]; /* the acceptor's */
  uint8_t buf[64];
  size_t got;
} conn;

typedef struct {
  const connect_spec *spec;
  conn *conns;          /* first the outgoing ones, then STRANGERS incoming ones */
  struct pollfd *polls; /* nconns + 2; the first two are the listeners', then those of the conns in use, in order */
  int noutgoing, nconns;
  char problem[160]; /* the latest, for the timeout's text */
} meeting;

static const char mark[8] = "lwcc/1";

static void proof(const meeting *m, const char *label, const conn *c, uint8_t out[HMAC_BYTES]) {
  uint8_t text[8 + sizeof c->hello + NONCE] = {0};
  memcpy(text, label, strlen(label));
  memcpy(text + 8, &c->hello, sizeof c->hello);
  memcpy(text + 8 + sizeof c->hello, c->nonce, NONCE);
  hmac_sha256(m->spec->job.secret, 32, text, sizeof text, out);
}

static void give_up(meeting *m, conn *c, const char *why) {
  snprintf(m->problem, sizeof m->problem, "%s", why);
  LOG(DEBUG, "join: dropped a connection: %s", why);
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  bool outgoing = c - m->conns < m->noutgoing;
  c->state = outgoing ? RESTING : UNUSED;
  c->until_ns = clock_deadline(0.1);
}

static void take(meeting *m, conn *c) {
  int *slot = &m->spec->fds[c->peer][c->kind];
  if (*slot >= 0) close(*slot); /* the peer gave up an earlier attempt */
  *slot = c->fd;
  c->fd = -1;
  c->state = UNUSED;
}

/* A fresh socket has room for these few bytes: less than all of them is a failure. */
static bool say(conn *c, const void *msg, size_t nbytes) {
  return sock_send(c->fd, msg, nbytes) == (ssize_t)nbytes;
}

static void begin(meeting *m, conn *c) {
  const connect_target *t = &m->spec->targets[c->peer];
  int code =
      c->kind < SOCKET_RING ? sock_connect_tcp(t->address, t->port, &c->fd) : sock_connect_unix(t->unix_name, &c->fd);
  if (code < 0) {
    give_up(m, c, os_error());
    return;
  }
  c->state = CONNECTING;
  c->got = 0;
  c->until_ns = clock_deadline(patience_s);
}

static void introduce(meeting *m, conn *c) {
  const lwcc_job *job = &m->spec->job;
  if (sock_connected(c->fd) < 0) {
    give_up(m, c, os_error());
    return;
  }
  c->hello = (hello_msg){.generation = job->generation, .from = job->rank, .to = c->peer, .kind = c->kind};
  memcpy(c->hello.mark, mark, sizeof mark);
  if (hmac_random(c->hello.nonce, NONCE) < 0 || !say(c, &c->hello, sizeof c->hello)) {
    give_up(m, c, "a peer closed the connection at once");
    return;
  }
  c->state = AWAIT_CHALLENGE;
}

static void answer_challenge(meeting *m, conn *c) {
  challenge_msg challenge;
  uint8_t mac[HMAC_BYTES];
  memcpy(&challenge, c->buf, sizeof challenge);
  memcpy(c->nonce, challenge.nonce, NONCE);
  char text[80];
  snprintf(text, sizeof text, "rank %d does not hold this job's secret", c->peer);
  proof(m, "accept", c, mac);
  if (!hmac_equal(mac, challenge.mac)) {
    give_up(m, c, text);
    return;
  }
  proof(m, "connect", c, mac);
  if (!say(c, mac, sizeof mac)) {
    give_up(m, c, "a peer closed the connection in the handshake");
    return;
  }
  c->state = AWAIT_TAKEN;
}

static void challenge_stranger(meeting *m, conn *c) {
  const connect_spec *s = m->spec;
  memcpy(&c->hello, c->buf, sizeof c->hello);
  const hello_msg *h = &c->hello;
  if (memcmp(h->mark, mark, sizeof mark) != 0 || h->to != s->job.rank || h->from <= s->job.rank ||
      h->from >= s->job.size || h->kind < 0 || h->kind >= SOCKET_KINDS) {
    give_up(m, c, "a stranger sent bytes that are no greeting");
    return;
  }
  if (h->generation != s->job.generation || !(s->want[h->from] >> h->kind & 1)) {
    give_up(m, c, "a greeting came from another generation of the job, or for a socket that is not wanted");
    return;
  }
  c->peer = h->from;
  c->kind = h->kind;
  challenge_msg challenge;
  if (hmac_random(c->nonce, NONCE) < 0) {
    give_up(m, c, os_error());
    return;
  }
  memcpy(challenge.nonce, c->nonce, NONCE);
  proof(m, "accept", c, challenge.mac);
  c->state = AWAIT_PROOF;
  if (!say(c, &challenge, sizeof challenge)) give_up(m, c, "a peer closed the connection in the handshake");
}

static void check_proof(meeting *m, conn *c) {
  uint8_t mac[HMAC_BYTES];
  proof(m, "connect", c, mac);
  char text[100];
  snprintf(text, sizeof text, "who claims to be rank %d does not hold this job's secret", c->peer);
  if (hmac_equal(mac, c->buf) && say(c, "", 1)) {
    take(m, c);
  } else {
    give_up(m, c, text);
  }
}

/* Read what is expected next and act on it. */
static void advance(meeting *m, conn *c) {
  if (c->state == CONNECTING) {
    introduce(m, c);
    return;
  }
  size_t need = c->state == AWAIT_CHALLENGE ? sizeof(challenge_msg)
                : c->state == AWAIT_HELLO   ? sizeof(hello_msg)
                : c->state == AWAIT_PROOF   ? HMAC_BYTES
                                            : 1;
  ssize_t n = sock_recv(c->fd, c->buf + c->got, need - c->got);
  if (n < 0) {
    give_up(m, c,
            c->state == AWAIT_HELLO ? "a stranger left"
                                    : "a peer dropped the handshake (another secret, or not yet ready)");
    return;
  }
  c->got += (size_t)n;
  if (c->got < need) return;
  c->got = 0;
  switch (c->state) {
    case AWAIT_CHALLENGE:
      answer_challenge(m, c);
      break;
    case AWAIT_HELLO:
      challenge_stranger(m, c);
      break;
    case AWAIT_PROOF:
      check_proof(m, c);
      break;
    default:
      take(m, c);
  }
}

/* Accept one; when there are too many strangers, the one who has waited longest goes. */
static int accept_one(meeting *m, int listener) {
  int fd;
  int code = sock_accept(listener, &fd);
  if (code != LWCC_OK) return code;
  conn *chosen = &m->conns[m->noutgoing];
  for (conn *c = chosen; c < m->conns + m->nconns; c++) {
    if (c->state == UNUSED || (chosen->state != UNUSED && c->until_ns < chosen->until_ns)) chosen = c;
    if (c->state == UNUSED) break;
  }
  if (chosen->state != UNUSED) give_up(m, chosen, "too many strangers");
  *chosen = (conn){.state = AWAIT_HELLO, .fd = fd, .peer = -1, .until_ns = clock_deadline(patience_s)};
  return LWCC_OK;
}

/* Only what is in use: poll takes no more entries than the process may have descriptors. */
static nfds_t list_polls(meeting *m) {
  nfds_t n = 0;
  m->polls[n++] = (struct pollfd){.fd = m->spec->tcp_listener, .events = POLLIN};
  m->polls[n++] = (struct pollfd){.fd = m->spec->unix_listener, .events = POLLIN};
  for (int i = 0; i < m->nconns; i++) {
    conn *c = &m->conns[i];
    if (c->state == RESTING && clock_ns() >= c->until_ns) begin(m, c);
    if (c->state > RESTING)
      m->polls[n++] = (struct pollfd){.fd = c->fd, .events = c->state == CONNECTING ? POLLOUT : POLLIN};
  }
  return n;
}

static int one_turn(meeting *m) {
  nfds_t n = list_polls(m), at = 2;
  if (poll(m->polls, n, TURN_MS) < 0 && errno != EINTR)
    return os_fail(LWCC_ERR_SYSTEM, "join: poll of %d descriptors failed (%s); see ulimit -n", (int)n, strerror(errno));
  for (int i = 0; i < m->nconns && at < n; i++) {
    conn *c = &m->conns[i];
    if (c->state <= RESTING) continue;
    if (m->polls[at++].revents) {
      advance(m, c);
    } else if (clock_ns() >= c->until_ns) {
      give_up(m, c, "a peer did not answer in time");
    }
  }
  int code = m->polls[0].revents ? accept_one(m, m->spec->tcp_listener) : LWCC_OK;
  if (code >= 0 && m->polls[1].revents) code = accept_one(m, m->spec->unix_listener);
  return code;
}

static bool arrived(const connect_spec *s, int peer) {
  for (int k = 0; k < SOCKET_KINDS; k++)
    if (s->want[peer] >> k & 1 && s->fds[peer][k] < 0) return false;
  return true;
}

static int missing(const meeting *m, char *list, size_t cap) {
  int n = 0;
  size_t used = 0;
  list[0] = '\0';
  for (int i = 0; i < m->spec->job.size; i++) {
    if (arrived(m->spec, i)) continue;
    if (used + 16 < cap) used += (size_t)snprintf(list + used, cap - used, "%s%d", n ? ", " : "", i);
    n++;
  }
  return n;
}

static int open_meeting(meeting *m) {
  const connect_spec *s = m->spec;
  for (int i = 0; i < s->job.rank; i++) m->noutgoing += __builtin_popcount(s->want[i]);
  m->nconns = m->noutgoing + STRANGERS;
  TRY(mem_zeroed((size_t)m->nconns, sizeof *m->conns, (void **)&m->conns));
  TRY(mem_zeroed((size_t)m->nconns + 2, sizeof *m->polls, (void **)&m->polls));
  for (int i = 0; i < m->nconns; i++) m->conns[i].fd = -1;
  conn *c = m->conns;
  for (int i = 0; i < s->job.rank; i++)
    for (int k = 0; k < SOCKET_KINDS; k++)
      if (s->want[i] >> k & 1) *c++ = (conn){.state = RESTING, .fd = -1, .peer = i, .kind = k};
  return LWCC_OK;
}

int connect_all(const connect_spec *spec) {
  meeting m = {.spec = spec};
  char list[200];
  int code = open_meeting(&m);
  while (code >= 0 && missing(&m, list, sizeof list) > 0) {
    code = one_turn(&m);
    if (code < 0 || clock_ns() < spec->deadline_ns) continue;
    int n = missing(&m, list, sizeof list);
    if (n > 0)
      code = os_fail(LWCC_ERR_TIMEOUT, "rank %d: %d of %d ranks did not join within %.3g s: %s%s%s%s", spec->job.rank,
                     n, spec->job.size, spec->timeout_s, list, *m.problem ? " (latest problem: " : "", m.problem,
                     *m.problem ? ")" : "");
  }
  for (int i = 0; m.conns && i < m.nconns; i++)
    if (m.conns[i].fd >= 0) close(m.conns[i].fd);
  free(m.conns);
  free(m.polls);
  return code < 0 ? code : LWCC_OK;
}
