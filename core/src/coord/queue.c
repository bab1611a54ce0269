#include "coord/queue.h"

#include <stdlib.h>
#include <string.h>

#include "os/clock.h"
#include "os/futex.h"
#include "os/mem.h"
#include "os/status.h"

enum { BLOCK = 1024, INDEX_BITS = 16, TICKET_STEP = 1 << INDEX_BITS };

int queue_init(queue *q) {
  memset(q, 0, sizeof *q);
  pthread_mutex_init(&q->mu, NULL);
  q->tail = &q->head;
  return LWCC_OK;
}

static request *request_at(queue *q, uint32_t index) {
  _Atomic(request *) *block = q->blocks[index / BLOCK];
  return block ? atomic_load_explicit(&block[index % BLOCK], memory_order_acquire) : NULL;
}

void queue_destroy(queue *q) {
  for (uint32_t i = 0; i < q->made; i++) {
    request *r = request_at(q, i);
    signature_free(&r->sig);
    free(r->owned);
    free(r->rows);
    free(r);
  }
  for (size_t i = 0; i < 64; i++) free(q->blocks[i]);
  names_free(&q->pending);
  pthread_mutex_destroy(&q->mu);
}

static uint64_t key_of(int set, int collective, const char *name) {
  return name_hash(name, (uint64_t)(uint32_t)set << 8 | (uint32_t)collective);
}

static request *find_locked(queue *q, int set, int collective, const char *name) {
  for (name_node *n = names_first(&q->pending, key_of(set, collective, name)); n; n = names_next(n)) {
    request *r = OWNER(request, node, n);
    if (r->set == set && r->sig.collective == collective && strcmp(r->name, name) == 0) return r;
  }
  return NULL;
}

request *queue_find(queue *q, int set, int collective, const char *name) {
  pthread_mutex_lock(&q->mu);
  request *r = find_locked(q, set, collective, name);
  pthread_mutex_unlock(&q->mu);
  return r;
}

static int make_request(queue *q, request **out) {
  void *memory;
  uint32_t index = q->made;
  if (index >= 64 * BLOCK)
    return os_fail(LWCC_ERR_SYSTEM, "%u requests are outstanding or not released; that is the limit", index);
  if (!q->blocks[index / BLOCK]) {
    TRY(mem_zeroed(BLOCK, sizeof(_Atomic(request *)), &memory));
    q->blocks[index / BLOCK] = memory;
  }
  TRY(mem_zeroed(1, sizeof(request), &memory));
  request *r = memory;
  atomic_init(&r->ticket, index);
  atomic_store_explicit(&q->blocks[index / BLOCK][index % BLOCK], r, memory_order_release);
  q->made++;
  *out = r;
  return LWCC_OK;
}

/* A free request with a new ticket. */
static int take_request(queue *q, request **out) {
  if (!q->free) {
    TRY(make_request(q, out));
  } else {
    *out = q->free;
    q->free = (*out)->next;
  }
  request *r = *out;
  r->next = NULL;
  atomic_fetch_add_explicit(&r->ticket, TICKET_STEP, memory_order_relaxed);
  atomic_store_explicit(&r->released, false, memory_order_relaxed);
  r->finished = r->in_lane = r->refused = false;
  r->looks = 0;
  r->nbytes = 0;
  r->first_dim = 0;
  r->nrows = r->contributors = 0;
  r->text[0] = 0;
  atomic_store_explicit(&r->done, 0, memory_order_relaxed);
  atomic_store_explicit(&r->status, LWCC_PENDING, memory_order_relaxed);
  return LWCC_OK;
}

static void give_back(queue *q, request *r) {
  free(r->owned);
  free(r->rows);
  r->owned = NULL;
  r->rows = NULL;
  r->next = q->free;
  q->free = r;
}

static int take_one(queue *q, int index, request_fill fill, void *arg, request **out) {
  int st = take_request(q, out);
  if (st < 0) return st;
  request *r = *out;
  st = fill(arg, index, r);
  if (st >= 0 && find_locked(q, r->set, r->sig.collective, r->name))
    st = os_fail(LWCC_ERR_INVALID,
                 "\"%s\": a request of this name is pending on this rank; wait for it or use another name", r->name);
  if (st >= 0) st = names_add(&q->pending, &r->node, key_of(r->set, r->sig.collective, r->name));
  if (st < 0) give_back(q, r);
  return st;
}

static int submit_locked(queue *q, int n, request_fill fill, void *arg, lwcc_ticket *tickets_out) {
  request *first = NULL, **tail = &first;
  int closed = atomic_load_explicit(&q->closed, memory_order_relaxed), st = LWCC_OK;
  if (closed < 0) return os_fail(closed, "%s", q->closed_text);
  uint64_t now = clock_ns();
  for (int i = 0; i < n && st >= 0; i++) {
    request *r = NULL;
    st = take_one(q, i, fill, arg, &r);
    if (st < 0) break;
    r->submitted_ns = now;
    *tail = r;
    tail = &r->next;
  }
  if (st < 0) {
    for (request *r = first, *next; r; r = next) {
      next = r->next;
      names_remove(&q->pending, &r->node);
      give_back(q, r);
    }
    return st;
  }
  int i = 0;
  for (request *r = first; r; r = r->next) tickets_out[i++] = atomic_load_explicit(&r->ticket, memory_order_relaxed);
  *q->tail = first;
  q->tail = tail;
  atomic_fetch_add(&q->outstanding, (uint32_t)n);
  return LWCC_OK;
}

int queue_submit(queue *q, int n, request_fill fill, void *arg, lwcc_ticket *tickets_out) {
  pthread_mutex_lock(&q->mu);
  int st = submit_locked(q, n, fill, arg, tickets_out);
  pthread_mutex_unlock(&q->mu);
  return st;
}

request *queue_drain(queue *q) {
  if (!atomic_load(&q->outstanding)) return NULL;
  pthread_mutex_lock(&q->mu);
  request *r = q->head;
  q->head = NULL;
  q->tail = &q->head;
  pthread_mutex_unlock(&q->mu);
  return r;
}

void request_complete(queue *q, request *r, int status, const char *text) {
  if (text && status < 0) os_copy_text(r->text, sizeof r->text, text);
  void (*on_done)(void *, int, const char *) = r->on_done;
  void *user = r->user;
  pthread_mutex_lock(&q->mu);
  names_remove(&q->pending, &r->node);
  atomic_fetch_sub_explicit(&q->outstanding, 1, memory_order_relaxed);
  atomic_store_explicit(&r->status, status, memory_order_release);
  atomic_store(&r->done, 1);
  if (atomic_load(&r->waiters)) futex_wake(&r->done);
  r->finished = true;
  if (atomic_load_explicit(&r->released, memory_order_relaxed)) give_back(q, r);
  pthread_mutex_unlock(&q->mu);
  if (on_done) on_done(user, status, status < 0 && text ? text : "");
}

typedef struct {
  int set;
  bool waiting_only;
  uint32_t n;
  request *list; /* linked by next; none of them is in another list */
} collect_arg;

static void collect(name_node *node, void *arg) {
  collect_arg *c = arg;
  request *r = OWNER(request, node, node);
  if ((c->set >= 0 && r->set != c->set) || (c->waiting_only && r->in_lane)) return;
  c->n++;
  r->next = c->list;
  c->list = r;
}

/* Take the set's requests out of the queue of the undrained. */
static void drop_undrained(queue *q, int set) {
  request **at = &q->head;
  while (*at) {
    if (set < 0 || (*at)->set == set)
      *at = (*at)->next;
    else
      at = &(*at)->next;
  }
  q->tail = at;
}

uint32_t queue_fail_all(queue *q, int set, bool waiting_only, int status, const char *text) {
  collect_arg c = {.set = set, .waiting_only = waiting_only};
  pthread_mutex_lock(&q->mu);
  drop_undrained(q, set);
  names_each(&q->pending, collect, &c);
  pthread_mutex_unlock(&q->mu);
  for (request *r = c.list, *next; r; r = next) {
    next = r->next;
    request_complete(q, r, status, text);
  }
  return c.n;
}

typedef struct {
  int set;
  const request *oldest;
} look_arg;

static void look(name_node *node, void *arg) {
  look_arg *l = arg;
  request *r = OWNER(request, node, node);
  if (r->set != l->set || r->in_lane || r->sig.collective == JOIN) return;
  r->looks++;
  if (!l->oldest || r->looks > l->oldest->looks) l->oldest = r;
}

uint32_t queue_look(queue *q, int set, char *name_out) {
  look_arg l = {.set = set};
  pthread_mutex_lock(&q->mu);
  names_each(&q->pending, look, &l);
  uint32_t looks = l.oldest ? l.oldest->looks : 0;
  if (looks) os_copy_text(name_out, NAME_CAP, l.oldest->name);
  pthread_mutex_unlock(&q->mu);
  return looks;
}

void queue_close(queue *q, int status, const char *text) {
  pthread_mutex_lock(&q->mu);
  if (!atomic_load_explicit(&q->closed, memory_order_relaxed)) {
    os_copy_text(q->closed_text, sizeof q->closed_text, text);
    atomic_store_explicit(&q->closed, status, memory_order_release);
  }
  pthread_mutex_unlock(&q->mu);
}

request *queue_lookup(queue *q, lwcc_ticket t) {
  uint32_t index = (uint32_t)(t & (TICKET_STEP - 1));
  request *r = t >= TICKET_STEP && index < 64 * BLOCK ? request_at(q, index) : NULL;
  if (r && atomic_load_explicit(&r->ticket, memory_order_relaxed) == t &&
      !atomic_load_explicit(&r->released, memory_order_relaxed))
    return r;
  os_fail(LWCC_ERR_INVALID, "ticket %llu is unknown: never given, or released", (unsigned long long)t);
  return NULL;
}

int request_status(const request *r) {
  return atomic_load_explicit(&r->status, memory_order_acquire);
}

void request_sleep(request *r, uint64_t deadline_ns) {
  atomic_fetch_add(&r->waiters, 1);
  while (!atomic_load(&r->done)) {
    uint64_t now = deadline_ns ? clock_ns() : 0;
    if (deadline_ns && now >= deadline_ns) break;
    futex_wait(&r->done, 0, deadline_ns ? (int64_t)(deadline_ns - now) : -1);
  }
  atomic_fetch_sub(&r->waiters, 1);
}

void queue_release(queue *q, request *r) {
  pthread_mutex_lock(&q->mu);
  if (!atomic_exchange_explicit(&r->released, true, memory_order_relaxed)) {
    if (r->finished) give_back(q, r);
  }
  pthread_mutex_unlock(&q->mu);
}
