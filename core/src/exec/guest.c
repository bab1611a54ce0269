#include "exec/guest.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "exec/reduce.h"
#include "exec/wire.h"
#include "os/mem.h"
#include "os/status.h"

enum { TEXT_BYTES = 256 };

typedef struct guest_slot {
  struct guest_slot *next;
  lwcc_guest_call call;
  channel *ch;
  bool abandoned; /* guarded by lock: nobody waits for it any more; the guest's end frees it */
  char text[TEXT_BYTES];
  _Atomic int status; /* release by guest_done after text: pairs with the acquire in guest_step */
} guest_slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static guest_slot *waiting, **waiting_end = &waiting, *running; /* guarded by lock; running: taken by the guest */
static bool used;
static uint64_t numbers;

void guest_use(bool now) {
  pthread_mutex_lock(&lock);
  used = now;
  while (!now && waiting) { /* the world has ended before the guest came to them */
    guest_slot *s = waiting;
    waiting = s->next;
    free(s);
  }
  if (!waiting) waiting_end = &waiting;
  pthread_cond_broadcast(&more);
  pthread_mutex_unlock(&lock);
}

bool guest_used(void) {
  return used;
}

/* Scale what has to be scaled, and take the input out of the output's way. */
static int place(exec_op *op) {
  coll_args *a = &op->a;
  bool scaled = a->prescale != 1.0;
  size_t n = a->collective == LWCC_ALLGATHER && a->counts ? a->counts[op->team->me]
             : a->collective == LWCC_ALLGATHER            ? a->count
                                                          : exec_total(a, op->team->size);
  if (a->collective == LWCC_BARRIER) return LWCC_OK;
  if (a->collective == LWCC_ALLREDUCE || a->collective == LWCC_BROADCAST) {
    if (scaled && a->collective == LWCC_ALLREDUCE)
      reduce_scale(a->dtype, a->out, a->in, a->count, a->prescale);
    else if (a->in != a->out && (a->collective == LWCC_ALLREDUCE || op->team->me == a->root))
      reduce_copy(a->out, a->in, a->count * op->width, 0);
    a->in = a->out;
    return LWCC_OK;
  }
  if (a->in != a->out && !scaled) return LWCC_OK;
  TRY(exec_room(&op->work, &op->work_nbytes, n * op->width));
  memcpy(op->work, a->in, n * op->width);
  a->in = op->work;
  if (scaled && a->collective == LWCC_REDUCESCATTER) reduce_scale(a->dtype, op->work, op->work, n, a->prescale);
  return LWCC_OK;
}

int guest_begin(exec_op *op) {
  const coll_args *a = &op->a;
  void *memory;
  TRY(place(op));
  TRY(mem_zeroed(1, sizeof(guest_slot), &memory));
  guest_slot *s = memory;
  s->ch = op->team->ch;
  atomic_init(&s->status, LWCC_PENDING);
  s->call = (lwcc_guest_call){.collective = a->collective,
                              .dtype = a->dtype,
                              .op = a->op,
                              .root = a->root,
                              .set = op->team->set,
                              .raw = op->team->cls == LINK_RAW,
                              .input = a->in,
                              .output = a->out,
                              .count = (int64_t)a->count,
                              .counts = (const int64_t *)(const void *)a->counts,
                              .recv_counts = (const int64_t *)(const void *)a->recv_counts};
  op->guest = s;
  pthread_mutex_lock(&lock);
  s->call.id = ++numbers;
  *waiting_end = s;
  waiting_end = &s->next;
  pthread_cond_signal(&more);
  pthread_mutex_unlock(&lock);
  return LWCC_OK;
}

int guest_step(exec_op *op) {
  guest_slot *s = op->guest;
  const coll_args *a = &op->a;
  int st = atomic_load_explicit(&s->status, memory_order_acquire);
  if (st == LWCC_PENDING) return st;
  op->guest = NULL;
  if (st < 0) os_fail(st, "guest engine: %s", s->text);
  free(s);
  if (st < 0 || a->postscale == 1.0) return st;
  size_t n = a->collective == LWCC_ALLREDUCE ? a->count : a->counts ? a->counts[op->team->me] : a->count;
  if (a->collective == LWCC_ALLREDUCE || a->collective == LWCC_REDUCESCATTER)
    reduce_scale(a->dtype, a->out, a->out, n, a->postscale);
  return LWCC_OK;
}

bool guest_cancel(exec_op *op) {
  guest_slot *s = op->guest;
  if (!s) return false;
  pthread_mutex_lock(&lock);
  bool at_work = atomic_load(&s->status) == LWCC_PENDING;
  s->abandoned = at_work;
  pthread_mutex_unlock(&lock);
  op->guest = NULL;
  if (!at_work) free(s);
  return at_work;
}

int guest_next(lwcc_guest_call *out, double timeout_s) {
  struct timespec until;
  int st = LWCC_OK;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)timeout_s;
  pthread_mutex_lock(&lock);
  while (used && !waiting && st == LWCC_OK)
    if (pthread_cond_timedwait(&more, &lock, &until) == ETIMEDOUT) st = LWCC_PENDING;
  guest_slot *s = waiting;
  if (!used) st = LWCC_ERR_SHUTDOWN;
  if (used && s) {
    st = LWCC_OK;
    waiting = s->next;
    if (!waiting) waiting_end = &waiting;
    s->next = running;
    running = s;
    *out = s->call;
  }
  pthread_mutex_unlock(&lock);
  return st == LWCC_ERR_SHUTDOWN ? os_fail(st, "the guest engine is not in use any more") : st;
}

int guest_done(uint64_t id, int status, const char *text) {
  pthread_mutex_lock(&lock);
  guest_slot **at = &running;
  while (*at && (*at)->call.id != id) at = &(*at)->next;
  guest_slot *s = *at;
  if (s) {
    *at = s->next;
    os_copy_text(s->text, sizeof s->text, text);
    channel *ch = s->ch;
    if (s->abandoned) {
      free(s);
    } else {
      atomic_store_explicit(&s->status, status, memory_order_release);
      channel_wake(ch); /* under the lock: guest_cancel comes before the channel is closed */
    }
  }
  pthread_mutex_unlock(&lock);
  return s ? LWCC_OK : os_fail(LWCC_ERR_INVALID, "lwcc_guest_done: no call %llu is under way", (unsigned long long)id);
}
