#include "channel/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "channel/connect.h"
#include "channel/endpoint.h"
#include "channel/node_build.h"
#include "os/clock.h"
#include "os/cpu.h"
#include "os/env.h"
#include "os/hmac.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"

/* the order of LWCC_TRANSPORT's choices */
typedef enum { MODE_AUTO, MODE_SHM, MODE_TCP, MODE_UCX, MODE_SHM_UCX } transport_mode;

struct bootstrap {
  lwcc_job job;
  uint8_t secret[32];
  transport_mode mode;
  int tcp_listener, unix_listener;
  endpoint own;
};

typedef struct { /* one join */
  bootstrap *b;
  endpoint *ends;          /* [size] */
  connect_target *targets; /* [size] */
  int *group;              /* [size] */
  unsigned *want;          /* [size] */
  int (*fds)[SOCKET_KINDS];
  int *mates, *service; /* [parts.size] ranks that may share with me, me included */
  node_parts parts;
  uint64_t deadline_ns;
  double timeout_s;
} joining;

static void make_printable(char *text) {
  for (char *p = text; *p; p++)
    if (*p <= ' ' || *p > '~') *p = '_';
}

void bootstrap_override(bootstrap *b, const char *node_name, const char *transport) {
  int mode = transport ? env_choice_index(ENV_TRANSPORT, transport) : -1;
  if (node_name) os_copy_text(b->own.node, sizeof b->own.node, node_name);
  make_printable(b->own.node);
  if (mode >= 0) b->mode = (transport_mode)mode;
  b->own.share = b->mode != MODE_TCP && b->mode != MODE_UCX;
  b->own.ucx = b->mode == MODE_UCX || b->mode == MODE_SHM_UCX;
}

static int name_self(bootstrap *b) {
  endpoint *e = &b->own;
  uint8_t random[16];
  e->version = ENDPOINT_VERSION;
  e->rank = b->job.rank;
  e->pid = (int)getpid();
  e->netns = cpu_netns();
  cpu_boot_id(e->boot, sizeof e->boot);
  if (gethostname(e->host, sizeof e->host - 1) != 0) os_copy_text(e->host, sizeof e->host, "unknown");
  make_printable(e->host);
  endpoint_note_settings(e);
  b->mode = (transport_mode)env_choice(ENV_TRANSPORT);
  bootstrap_override(b, env_text(ENV_NODE), NULL);
  TRY(hmac_random(random, sizeof random));
  int n = snprintf(e->target.unix_name, sizeof e->target.unix_name, "lwcc-");
  for (size_t i = 0; i < sizeof random; i++)
    n += snprintf(e->target.unix_name + n, sizeof e->target.unix_name - (size_t)n, "%02x", random[i]);
  return sock_own_address(e->target.address, sizeof e->target.address);
}

/* Five sockets for each rank, two of a mate, and its regions; the limit that shells set is often too low. */
static void want_descriptors(int size) {
  struct rlimit limit;
  rlim_t enough = 256 + 6 * (rlim_t)size;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
  limit.rlim_cur = enough < limit.rlim_max ? enough : limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit); /* a wish: what does not suffice is told where it fails */
}

int bootstrap_open(const lwcc_job *job, bootstrap **out) {
  if (job->size < 1 || job->rank < 0 || job->rank >= job->size || !job->secret)
    return os_fail(LWCC_ERR_INVALID, "open: rank %d of %d ranks; expected 0 <= rank < size and a secret", job->rank,
                   job->size);
  want_descriptors(job->size);
  bootstrap *b;
  TRY(mem_zeroed(1, sizeof *b, (void **)&b));
  memcpy(b->secret, job->secret, sizeof b->secret);
  b->job = *job;
  b->job.secret = b->secret;
  b->tcp_listener = b->unix_listener = -1;
  int code = name_self(b);
  if (code >= 0) code = sock_listen_tcp(b->own.target.address, &b->tcp_listener, &b->own.target.port);
  if (code >= 0) code = sock_listen_unix(b->own.target.unix_name, &b->unix_listener);
  if (code < 0) {
    bootstrap_close(b);
    return code;
  }
  *out = b;
  return LWCC_OK;
}

int bootstrap_endpoint(const bootstrap *b, char *out, size_t cap) {
  int n = endpoint_print(&b->own, out, cap);
  if (n >= 0 && (size_t)n < cap) return LWCC_OK;
  return os_fail(LWCC_ERR_INVALID, "open: the endpoint text needs %d bytes, %zu were given", n + 1, cap);
}

void bootstrap_close(bootstrap *b) {
  if (!b) return;
  if (b->tcp_listener >= 0) close(b->tcp_listener);
  if (b->unix_listener >= 0) close(b->unix_listener);
  explicit_bzero(b->secret, sizeof b->secret);
  free(b);
}

static int begin(joining *j, const char *const *endpoints) {
  size_t n = (size_t)j->b->job.size;
  TRY(mem_zeroed(n, sizeof *j->ends, (void **)&j->ends));
  TRY(mem_zeroed(n, sizeof *j->targets, (void **)&j->targets));
  TRY(mem_zeroed(n, sizeof *j->group, (void **)&j->group));
  TRY(mem_zeroed(n, sizeof *j->want, (void **)&j->want));
  TRY(mem_zeroed(n, sizeof *j->mates, (void **)&j->mates));
  TRY(mem_zeroed(n, sizeof *j->service, (void **)&j->service));
  TRY(mem_zeroed(n, sizeof *j->fds, (void **)&j->fds));
  for (size_t i = 0; i < n; i++)
    for (int k = 0; k < SOCKET_KINDS; k++) j->fds[i][k] = -1;
  j->ends[0] = j->b->own;
  for (size_t i = 0; i < n; i++) {
    if (n > 1) TRY(endpoint_parse(endpoints[i], (int)i, &j->ends[i]));
    j->targets[i] = j->ends[i].target;
  }
  endpoint_group(j->ends, (int)n, j->group);
  return endpoint_check_settings(j->ends, (int)n);
}

/* Ranks of my node that can share with me; none unless all of the node can, so that a node is of one kind. */
static int find_mates(joining *j) {
  int me = j->b->job.rank, n = 0;
  bool all = true;
  for (int i = 0; i < j->b->job.size; i++) {
    j->parts.crowd += *j->ends[i].boot && strcmp(j->ends[i].boot, j->ends[me].boot) == 0;
    if (j->group[i] != j->group[me]) continue;
    if (i == me) j->parts.me = n;
    j->mates[n++] = i;
    all &= j->ends[i].share && endpoint_same_system(&j->ends[i], &j->ends[j->group[me]]);
  }
  if (!all) {
    j->mates[0] = me;
    j->parts.me = 0;
    n = 1;
  }
  j->parts.size = n;
  j->parts.ranks = j->mates;
  if (j->b->mode != MODE_SHM || n == j->b->job.size) return LWCC_OK;
  return os_fail(LWCC_ERR_UNSUPPORTED, "rank %d: LWCC_TRANSPORT=shm, but only %d of %d ranks can share memory with it",
                 me, n, j->b->job.size);
}

static int meet(joining *j) {
  connect_spec spec = {.job = j->b->job,
                       .tcp_listener = j->b->tcp_listener,
                       .unix_listener = j->b->unix_listener,
                       .targets = j->targets,
                       .want = j->want,
                       .fds = j->fds,
                       .deadline_ns = j->deadline_ns,
                       .timeout_s = j->timeout_s};
  return connect_all(&spec);
}

/* UCX needs one connection of a pair: to begin, and for the news of a death. */
static unsigned wire_sockets(const joining *j) {
  return j->b->own.ucx ? 1 << LINK_CONTROL : WANT_TCP;
}

/* The verdict was no: the ranks of the node use the wire like strangers. */
static int fall_back(joining *j, const char *why) {
  if (j->b->mode == MODE_SHM) return os_fail(LWCC_ERR_UNSUPPORTED, "LWCC_TRANSPORT=shm is not possible: %s", why);
  if (j->parts.me == 0)
    LOG(WARN, "no shared memory between the %d ranks of this node, using %s: %s", j->parts.size,
        j->b->own.ucx ? "UCX" : "TCP", why);
  memset(j->want, 0, (size_t)j->b->job.size * sizeof *j->want);
  for (int i = 0; i < j->parts.size; i++) {
    int *fds = j->fds[j->mates[i]];
    if (i != j->parts.me) j->want[j->mates[i]] = wire_sockets(j);
    for (int k = SOCKET_RING; k < SOCKET_KINDS; k++) {
      if (fds[k] >= 0) close(fds[k]);
      fds[k] = -1;
    }
  }
  j->mates[0] = j->b->job.rank;
  j->parts.size = 1;
  j->parts.me = 0;
  return meet(j);
}

static int connect_everybody(joining *j) {
  int me = j->b->job.rank;
  for (int i = 0; i < j->b->job.size; i++) j->want[i] = i == me ? 0 : wire_sockets(j);
  for (int i = 0; i < j->parts.size; i++)
    if (i != j->parts.me) j->want[j->mates[i]] = WANT_UNIX;
  TRY(meet(j));
  j->parts.cores = cpu_cores();
  if (j->parts.size == 1) return LWCC_OK;
  for (int i = 0; i < j->parts.size; i++) j->service[i] = j->fds[j->mates[i]][SOCKET_SERVICE];
  j->parts.service = j->service;
  j->parts.deadline_ns = j->deadline_ns;
  bool shared;
  char why[256];
  TRY(share_agree(&j->parts, &shared, why, sizeof why));
  if (shared) return LWCC_OK;
  j->parts.service = NULL;
  return fall_back(j, why);
}

static int make_ucx_links(joining *j, transport_link **links_out) {
  int size = j->b->job.size, me = j->b->job.rank, npairs = 0, *sockets;
  bool *other_netns;
  TRY(mem_zeroed((size_t)size, sizeof *sockets + sizeof *other_netns, (void **)&sockets));
  other_netns = (bool *)(sockets + size);
  for (int i = 0; i < size; i++) {
    sockets[i] = j->fds[i][LINK_CONTROL];
    npairs += sockets[i] >= 0;
    other_netns[i] = strcmp(j->ends[i].boot, j->ends[me].boot) == 0 && !endpoint_same_system(&j->ends[i], &j->ends[me]);
  }
  transport_ucx_meeting m = {.rank = me,
                             .size = size,
                             .sockets = sockets,
                             .other_netns = other_netns,
                             .deadline_ns = j->deadline_ns,
                             .timeout_s = j->timeout_s};
  int code = npairs ? transport_ucx_join(&m, links_out) : LWCC_OK;
  for (int i = 0; i < size; i++) j->fds[i][LINK_CONTROL] = sockets[i];
  free(sockets);
  return code;
}

static int make_links(joining *j, transport_link **links_out) {
  int me = j->b->job.rank, index = 0;
  double limit_s = env_real(ENV_PEER_TIMEOUT);
  for (int i = 0; i < j->b->job.size; i++) {
    int *fds = j->fds[i];
    bool mate = index < j->parts.size && j->mates[index] == i;
    index += mate;
    if (i == me) continue;
    if (mate) {
      TRY(transport_shm_open(i, share_rings(&j->parts, index - 1), me > i, fds[SOCKET_RING], &links_out[i]));
      fds[SOCKET_RING] = -1;
      continue;
    }
    sock_watch_tcp(fds[LINK_CONTROL], limit_s); /* the others may stay full as long as a rank is busy elsewhere */
    if (j->b->own.ucx) continue;
    TRY(transport_tcp_open(i, fds, &links_out[i]));
    for (int k = 0; k < SOCKET_RING; k++) fds[k] = -1;
  }
  return j->b->own.ucx ? make_ucx_links(j, links_out) : LWCC_OK;
}

static int make_node(joining *j, node **node_out) {
  for (int i = 0; i < j->parts.size && j->parts.service; i++) j->fds[j->mates[i]][SOCKET_SERVICE] = -1;
  int code = node_create(&j->parts, node_out);
  j->parts.segment = NULL; /* the node's, also on failure */
  return code;
}

/* cross: among the ranks that hold the same place in their nodes. */
static void identify(const joining *j, rank_identity *ids_out) {
  int size = j->b->job.size;
  for (int i = 0; i < size; i++) {
    rank_identity *id = &ids_out[i];
    *id = (rank_identity){.pid = j->ends[i].pid};
    os_copy_text(id->host, sizeof id->host, j->ends[i].host);
    for (int k = 0; k < size; k++) {
      if (j->group[k] != j->group[i]) continue;
      if (!id->local_size) id->node = k, id->shares = true;
      id->shares &= j->ends[k].share && endpoint_same_system(&j->ends[k], &j->ends[j->group[i]]);
      id->local_rank += k < i;
      id->local_size++;
    }
  }
  for (int i = 0; i < size; i++) {
    for (int k = 0; k < size; k++) {
      if (ids_out[k].local_rank != ids_out[i].local_rank) continue;
      ids_out[i].cross_rank += k < i;
      ids_out[i].cross_size++;
    }
  }
}

static void end(joining *j) {
  for (int i = 0; j->fds && i < j->b->job.size; i++)
    for (int k = 0; k < SOCKET_KINDS; k++)
      if (j->fds[i][k] >= 0) close(j->fds[i][k]);
  if (j->parts.segment) mem_segment_unmap(j->parts.segment, j->parts.segment_nbytes);
  free(j->ends);
  free(j->targets);
  free(j->group);
  free(j->want);
  free(j->mates);
  free(j->service);
  free(j->fds);
}

int bootstrap_join(bootstrap *b, const char *const *endpoints, double timeout_s, transport_link **links_out,
                   node **node_out, rank_identity *ids_out) {
  joining j = {.b = b, .timeout_s = timeout_s, .deadline_ns = clock_deadline(timeout_s)};
  memset(links_out, 0, (size_t)b->job.size * sizeof *links_out);
  int code = begin(&j, endpoints);
  if (code >= 0) code = find_mates(&j);
  if (code >= 0) code = connect_everybody(&j);
  if (code >= 0) code = make_links(&j, links_out);
  if (code >= 0) code = make_node(&j, node_out);
  if (code >= 0) identify(&j, ids_out);
  for (int i = 0; code < 0 && i < b->job.size; i++) {
    if (links_out[i]) links_out[i]->ops->close(links_out[i]);
    links_out[i] = NULL;
  }
  end(&j);
  return code < 0 ? code : LWCC_OK;
}
