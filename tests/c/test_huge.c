/* Counts beyond 2^31 elements through the whole engine: negotiation, values by rank, plan, channel. The links carry
 * headers and control for real, but of payloads only the lengths, and the tensors are address space without memory. */
#include <sys/mman.h>

#include "engines.h"
#include "os/sock.h"

#define HUGE ((INT64_C(1) << 31) + 5) /* elements */
enum { REAL = 4096, QUEUE = 64 << 10 };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SHADOWED = 1 }; /* memory that is written has a shadow, several times its size */
#else
enum { SHADOWED = 0 };
#endif

typedef struct part { /* bytes under way: real ones, or just a length */
  struct part *next;
  size_t n, done;
  bool hollow;
  uint8_t bytes[];
} part;

typedef struct {
  pthread_mutex_t mu; /* guards all below */
  part *head[2][LINK_CLASSES], **tail[2][LINK_CLASSES];
  uint64_t hollow[2]; /* bytes that side has sent as lengths */
  int users;
} hollow_pipe;

typedef struct {
  transport_link base;
  hollow_pipe *pipe;
  int side, fd;
} hollow_link;

static ssize_t write_one(transport_link *l, int cls, void *buf, size_t n) {
  hollow_link *h = (hollow_link *)l;
  hollow_pipe *p = h->pipe;
  bool real = n <= REAL || cls == LINK_CONTROL;
  part *q = malloc(sizeof *q + (real ? n : 0));
  if (!q) abort();
  *q = (part){.n = n, .hollow = !real};
  if (real) memcpy(q->bytes, buf, n);
  pthread_mutex_lock(&p->mu);
  if (!real) p->hollow[h->side] += n;
  *p->tail[h->side][cls] = q;
  p->tail[h->side][cls] = &q->next;
  pthread_mutex_unlock(&p->mu);
  return (ssize_t)n;
}

static ssize_t read_one(transport_link *l, int cls, void *buf, size_t n) {
  hollow_link *h = (hollow_link *)l;
  hollow_pipe *p = h->pipe;
  int from = !h->side;
  size_t moved = 0;
  pthread_mutex_lock(&p->mu);
  part *q = p->head[from][cls];
  if (q) {
    moved = q->n - q->done < n ? q->n - q->done : n;
    if (!q->hollow) memcpy(buf, q->bytes + q->done, moved);
    q->done += moved;
    if (q->done == q->n) {
      p->head[from][cls] = q->next;
      if (!q->next) p->tail[from][cls] = &p->head[from][cls];
      free(q);
    }
  }
  pthread_mutex_unlock(&p->mu);
  return (ssize_t)moved;
}

static ssize_t hollow_send(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, write_one);
}
static ssize_t hollow_recv(transport_link *l, int cls, const struct iovec *parts, int n) {
  return transport_each(l, cls, parts, n, read_one);
}

static int hollow_fd(const transport_link *l, int cls) {
  (void)cls;
  return ((const hollow_link *)l)->fd;
}

static void hollow_sleep(transport_link *l, int asleep) {
  (void)l, (void)asleep;
}

static void hollow_flush(transport_link *l) {
  sock_send(((hollow_link *)l)->fd, "", 1); /* always rings: simple, and never misses */
}

static int hollow_check(transport_link *l) {
  char bytes[256];
  while (sock_recv(((hollow_link *)l)->fd, bytes, sizeof bytes) > 0) continue;
  return LWCC_OK;
}

static void hollow_close(transport_link *l) {
  hollow_link *h = (hollow_link *)l;
  hollow_pipe *p = h->pipe;
  pthread_mutex_lock(&p->mu);
  bool last = --p->users == 0;
  pthread_mutex_unlock(&p->mu);
  close(h->fd);
  free(h);
  for (int s = 0; last && s < 2; s++)
    for (int c = 0; c < LINK_CLASSES; c++)
      for (part *q = p->head[s][c], *next; q; q = next) {
        next = q->next;
        free(q);
      }
  if (last) free(p);
}

static const transport_ops hollow_ops = {.name = "hollow",
                                         .in_memory = 1,
                                         .send = hollow_send,
                                         .recv = hollow_recv,
                                         .fd = hollow_fd,
                                         .set_asleep = hollow_sleep,
                                         .flush = hollow_flush,
                                         .check = hollow_check,
                                         .close = hollow_close};

static hollow_pipe *join_two(transport_link **l) {
  hollow_pipe *p = calloc(1, sizeof *p);
  int fds[2];
  if (!p || sock_pair(fds) < 0) abort();
  pthread_mutex_init(&p->mu, NULL);
  p->users = 2;
  for (int s = 0; s < 2; s++) {
    hollow_link *h = calloc(1, sizeof *h);
    if (!h) abort();
    *h = (hollow_link){.base = {.ops = &hollow_ops, .peer = !s}, .pipe = p, .side = s, .fd = fds[s]};
    for (int c = 0; c < LINK_CLASSES; c++) p->tail[s][c] = &p->head[s][c];
    l[s] = &h->base;
  }
  return p;
}

static hollow_pipe *world_of_two(world *w) {
  transport_link *l[2];
  hollow_pipe *p = join_two(l);
  rank_identity ids[2];
  memset(ids, 0, sizeof ids);
  w->size = 2;
  for (int r = 0; r < 2; r++) {
    transport_link *links[2] = {r ? l[1] : NULL, r ? NULL : l[0]};
    engine_parts parts = {.rank = r, .size = 2, .ids = ids, .limits = {.fusion_nbytes = 64 << 20, .capacity = 64}};
    channel *ch;
    if (engine_create(&parts, &w->e[r]) < 0) abort();
    channel_events events = engine_events(w->e[r]);
    if (channel_create(r, 2, 0, links, &events, &ch) < 0 || engine_bind(w->e[r], ch, NULL) < 0) abort();
  }
  for (int r = 0; r < 2; r++)
    if (engine_start(w->e[r]) < 0) abort();
  return p;
}

static void *space(size_t nbytes) {
  void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) abort();
  return p;
}

/* Address space whose pages are all the same few: for what really writes so many bytes. */
static void *folded(size_t nbytes) {
  enum { REAL_NBYTES = 4 << 20 };
  char *p = space(nbytes);
  int fd = memfd_create("folded", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, REAL_NBYTES) != 0) abort();
  for (size_t at = 0; at < nbytes; at += REAL_NBYTES) {
    size_t n = nbytes - at < REAL_NBYTES ? nbytes - at : REAL_NBYTES;
    if (mmap(p + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) abort();
  }
  close(fd);
  return p;
}

/* The collectives that compute or copy on their own rank; values mean nothing, as little of them travels. */
static void computed(engine *e) {
  char text[TEXT_CAP];
  lwcc_ticket t;
  size_t most = 2 * (size_t)HUGE;
  void *in = folded(most), *out = folded(most);
  static const struct {
    int collective;
    int64_t first_dim[2]; /* of each rank's output */
  } cases[] = {{LWCC_ALLREDUCE, {HUGE, HUGE}},
               {LWCC_ALLGATHER, {2 * HUGE, 2 * HUGE}},
               {LWCC_REDUCESCATTER, {HUGE / 2 + 1, HUGE / 2}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ask a = reduce_of("computed", LWCC_UINT8, LWCC_SUM, in, HUGE);
    a.collective = cases[i].collective;
    a.out = out;
    int64_t want = cases[i].first_dim[e->rank];
    CHECK(submit(e, &a, 1, &t) == LWCC_OK && finish_request(e, t, text) == LWCC_OK, "%d: %s", a.collective, text);
    request *r = queue_lookup(&e->q, t);
    CHECK(r->nbytes == (size_t)want && (r->first_dim == want || a.collective == LWCC_ALLREDUCE),
          "collective %d: %zu bytes, %lld rows", a.collective, r->nbytes, (long long)r->first_dim);
    queue_release(&e->q, r);
  }
  munmap(in, most);
  munmap(out, most);
}

static void huge(engine *e, void *arg) {
  char text[TEXT_CAP];
  lwcc_ticket t;
  hollow_pipe *p = arg;
  size_t nbytes = (size_t)HUGE * 8;
  void *in = space(nbytes), *out = space(nbytes);
  ask b = {.name = "b",
           .collective = LWCC_BROADCAST,
           .dtype = LWCC_INT64,
           .ndim = 2,
           .shape = {HUGE, 1},
           .in = in,
           .out = in};
  CHECK(run_one(e, &b, text) == LWCC_OK, "broadcast: %s", text);
  pthread_mutex_lock(&p->mu);
  CHECK(e->rank == 0 || p->hollow[0] > nbytes - ((size_t)8 << 20), "%llu bytes", (unsigned long long)p->hollow[0]);
  pthread_mutex_unlock(&p->mu);
  int64_t splits[2] = {e->rank ? HUGE : 0, e->rank ? 0 : HUGE};
  ask a = {.name = "a",
           .collective = LWCC_ALLTOALL,
           .dtype = LWCC_UINT8,
           .ndim = 1,
           .shape = {HUGE},
           .in = in,
           .out = out,
           .splits = splits};
  CHECK(submit(e, &a, 1, &t) == LWCC_OK && finish_request(e, t, text) == LWCC_OK, "alltoall: %s", text);
  request *r = queue_lookup(&e->q, t);
  CHECK(r->first_dim == HUGE && r->nbytes == (size_t)HUGE && r->rows[!e->rank] == HUGE && r->rows[e->rank] == 0,
        "alltoall: %lld rows", (long long)r->first_dim);
  queue_release(&e->q, r);
  b.name = "differs";
  b.shape[0] = HUGE + (INT64_C(1) << 32) * e->rank; /* equal in their lower 32 bits */
  int st = run_one(e, &b, text);
  CHECK(st == LWCC_ERR_MISMATCH && strstr(text, "2147483653"), "%d %s", st, text);
  munmap(in, nbytes);
  munmap(out, nbytes);
  if (!SHADOWED) computed(e);
}

int main(void) {
  world w;
  alarm(100);
  log_set_level(LOG_ERROR);
  hollow_pipe *p = world_of_two(&w);
  world_run(&w, huge, p);
  world_close(&w);
  return check_report();
}
