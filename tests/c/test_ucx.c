/* What only UCX has: layouts that must agree with its headers, a start that can fail, and peers that break the rules.
 */
#pragma GCC diagnostic ignored "-Wformat-zero-length" /* of CHECK without a text */

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "os/clock.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/ucx_link.h"

#if __has_include(<ucp/api/ucp.h>)
#include <ucp/api/ucp.h>
#define SAME(ours, theirs) _Static_assert((int64_t)(ours) == (int64_t)(theirs), #ours " is not UCX's " #theirs)
#define AT(ours, a, theirs, b) SAME(offsetof(ours, a), offsetof(theirs, b))
SAME(sizeof(ucx_status), sizeof(ucs_status_t));
SAME(UCX_DONE, UCS_OK);
SAME(UCX_RUNNING, UCS_INPROGRESS);
SAME(UCX_UNREACHABLE, UCS_ERR_UNREACHABLE);
SAME(UCX_BUSY, UCS_ERR_BUSY);
SAME(UCX_LAST_STATUS, UCS_ERR_LAST);
SAME(UCX_SET_FEATURES, UCP_PARAM_FIELD_FEATURES);
SAME(UCX_SET_PEERS, UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
SAME(UCX_FEATURE_TAG, UCP_FEATURE_TAG);
SAME(UCX_FEATURE_WAKEUP, UCP_FEATURE_WAKEUP);
AT(ucx_context_params, features, ucp_params_t, features);
AT(ucx_context_params, peers, ucp_params_t, estimated_num_eps);
SAME(UCX_SET_THREADS, UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME(UCX_ONE_THREAD_AT_A_TIME, UCS_THREAD_MODE_SERIALIZED);
AT(ucx_worker_params, threads, ucp_worker_params_t, thread_mode);
SAME(UCX_SET_ADDRESS, UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME(UCX_SET_ERRORS, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME(UCX_SET_ON_ERROR, UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME(UCX_ERRORS_NONE, UCP_ERR_HANDLING_MODE_NONE);
SAME(UCX_ERRORS_PEER, UCP_ERR_HANDLING_MODE_PEER);
AT(ucx_endpoint_params, address, ucp_ep_params_t, address);
AT(ucx_endpoint_params, errors, ucp_ep_params_t, err_mode);
AT(ucx_endpoint_params, on_error, ucp_ep_params_t, err_handler.cb);
AT(ucx_endpoint_params, arg, ucp_ep_params_t, err_handler.arg);
SAME(UCX_SET_FLAGS, UCP_OP_ATTR_FIELD_FLAGS);
SAME(UCX_ALWAYS_A_REQUEST, UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
SAME(UCX_CLOSE_BY_FORCE, UCP_EP_CLOSE_FLAG_FORCE);
AT(ucx_request_params, mask, ucp_request_param_t, op_attr_mask);
AT(ucx_request_params, flags, ucp_request_param_t, flags);
AT(ucx_arrival, tag, ucp_tag_recv_info_t, sender_tag);
AT(ucx_arrival, nbytes, ucp_tag_recv_info_t, length);
static const char headers[] = "compared with UCX's headers";
#else
static const char headers[] = "skipped: not compared with UCX's headers, which are not here";
#endif

typedef struct {
  int rank, socket, code;
  double timeout_s;
  bool other_netns;
  transport_link *link;
  char text[512];
} end;

static void *begin(void *arg) {
  end *e = arg;
  int sockets[2] = {e->socket, e->socket};
  bool other[2] = {e->other_netns, e->other_netns};
  transport_link *links[2] = {NULL, NULL};
  sockets[e->rank] = -1;
  transport_ucx_meeting m = {.rank = e->rank,
                             .size = 2,
                             .sockets = sockets,
                             .other_netns = other,
                             .timeout_s = e->timeout_s,
                             .deadline_ns = clock_deadline(e->timeout_s)};
  e->code = transport_ucx_join(&m, links);
  e->link = links[!e->rank];
  os_copy_text(e->text, sizeof e->text, e->code < 0 ? os_error() : "");
  if (e->code < 0) close(e->socket);
  return NULL;
}

/* Both ends, as threads; UCX_TLS decides by what. */
static void begin_both(end e[2], const char *ways) {
  int fds[2];
  pthread_t other;
  setenv("UCX_TLS", ways, 1);
  CHECK(sock_pair(fds) == 0);
  for (int i = 0; i < 2; i++) {
    e[i].rank = i;
    e[i].socket = fds[i];
    e[i].timeout_s = 20;
  }
  CHECK(pthread_create(&other, NULL, begin, &e[1]) == 0);
  begin(&e[0]);
  CHECK(pthread_join(other, NULL) == 0);
}

static void *close_one(void *arg) {
  transport_link *l = arg;
  l->ops->close(l);
  return NULL;
}

static void close_both(end e[2]) {
  pthread_t other;
  CHECK(pthread_create(&other, NULL, close_one, e[1].link) == 0);
  close_one(e[0].link);
  CHECK(pthread_join(other, NULL) == 0);
}

/* ---- peers that break the rules ---- */

typedef struct {
  const char *name;
  uint64_t tag; /* beside the receiver's number */
  size_t nbytes;
  uint8_t fill;
  const char *words; /* in the receiver's text */
} offence;

static const offence offences[] = {
    {"a message that is longer than a slot", LINK_NAMED, 1 << 20, 1, "truncated"},
    {"an empty message", LINK_RAW, 0, 1, "empty message"},
    {"a message that has taken what was never sent", UINT64_C(77) << TAG_COUNT_SHIFT | LINK_CONTROL, 5, 1,
     "impossible counts"},
    {"a note that is too long", NOTE_KIND, sizeof(ucx_note) + 1, 1, "truncated"},
    {"a note that is too short", NOTE_KIND, 3, 1, "wrong size"},
    {"a note with impossible counts", NOTE_KIND, sizeof(ucx_note), 0x5a, "impossible counts"},
};

static void offend(const end e[2], const offence *o) {
  ucx_link *from = (ucx_link *)e[1].link;
  const ucx_library *ucx = from->worker->ucx;
  static uint8_t junk[1 << 20];
  static const ucx_request_params plain = {0};
  memset(junk, o->fill, sizeof junk);
  void *r = ucx->ucp_tag_send_nbx(from->endpoint, junk, o->nbytes, from->tag_out | o->tag, &plain);
  CHECK(ucx_request_status(r) == UCX_DONE);
  transport_link *to = e[0].link;
  uint64_t deadline = clock_deadline(10);
  ssize_t n = 0;
  while (n >= 0 && clock_ns() < deadline)
    for (int c = 0; c < LINK_CLASSES && n >= 0; c++) {
      char got[64];
      const struct iovec part = {got, sizeof got};
      ucx_progress(from->worker);
      n = to->ops->recv(to, c, &part, 1);
    }
  CHECK(n == LWCC_ERR_PEER_LOST && strstr(os_error(), o->words), "%s: %s", o->name, os_error());
  const struct iovec part = {"x", 1};
  CHECK(to->ops->send(to, LINK_NAMED, &part, 1) == LWCC_ERR_PEER_LOST, "%s", o->name);
  if (r) ucx->ucp_request_free(r);
}

static void test_who_breaks_the_rules_is_lost(const char *ways) {
  for (size_t i = 0; i < sizeof offences / sizeof *offences; i++) {
    end e[2] = {0};
    begin_both(e, ways);
    CHECK(e[0].code == 0 && e[1].code == 0, "%s%s", e[0].text, e[1].text);
    if (e[0].link && e[1].link) offend(e, &offences[i]);
    close_both(e);
  }
}

/* ---- starts that fail ---- */

static void test_no_way_between_two_ranks_is_said_on_both(void) {
  end e[2] = {0};
  e[1].other_netns = true; /* shared memory alone, and one of them may not trust it */
  begin_both(e, "posix,self");
  for (int i = 0; i < 2; i++)
    CHECK(e[i].code == LWCC_ERR_UNSUPPORTED && strstr(e[i].text, "rank 1: ") && strstr(e[i].text, "UCX_TLS=tcp"), "%s",
          e[i].text);
}

static void test_a_context_that_cannot_start_is_said_on_both(void) {
  end e[2] = {0};
  begin_both(e, "carrier_pigeon");
  for (int i = 0; i < 2; i++) CHECK(e[i].code == LWCC_ERR_UNSUPPORTED && strstr(e[i].text, "UCX_TLS"), "%s", e[i].text);
}

/* The peer says nothing, leaves, or announces nonsense. */
static void test_a_start_with_a_bad_peer_ends(void) {
  static const char junk[4096] = {0};
  for (int how = 0; how < 3; how++) {
    int fds[2];
    end e = {.timeout_s = how ? 20 : 0.3};
    setenv("UCX_TLS", "tcp", 1);
    CHECK(sock_pair(fds) == 0);
    e.socket = fds[0];
    if (how == 1) close(fds[1]);
    if (how == 2) CHECK(sock_send(fds[1], junk, sizeof junk) == sizeof junk);
    begin(&e);
    CHECK(e.code < 0 && e.link == NULL && strstr(e.text, "rank 1"), "%d %s", how, e.text);
    if (how != 1) close(fds[1]);
  }
}

int main(void) {
  const ucx_library *ucx;
  char text[4096];
  puts(headers);
  if (ucx_load(&ucx) < 0) {
    printf("skipped: %s\n", os_error());
    return 0;
  }
  check_leaks_so_far();
  setenv("UCX_TLS", "tcp", 1);
  CHECK(transport_ucx_describe(text, sizeof text) > 0 && strstr(text, ucx->path) && strstr(text, "tcp"), "%s", text);
  test_who_breaks_the_rules_is_lost("tcp");
  test_who_breaks_the_rules_is_lost("posix,self");
  test_no_way_between_two_ranks_is_said_on_both();
  test_a_context_that_cannot_start_is_said_on_both();
  test_a_start_with_a_bad_peer_ends();
  return check_report();
}
