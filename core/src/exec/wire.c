/* PATH 8/9 begins here: the steps of a plan become messages.
 *
 * A step becomes a flight (a fold: several), and the flights have numbers in the order of the rounds; within a round
 * sends come before receives. A flight moves in pieces. A piece of a send goes out as soon as no flight with a lower
 * number has yet to write there; a received piece is put in its place as soon as none has yet to write or send what
 * lies there. So two rounds overlap piece by piece, and transfer and reduction too.
 *
 * Why nothing waits in a circle: lower rounds never wait for higher ones. Within a round a piece waits only for sends
 * of lower or equal position in D, and such a send waits, beyond the pieces that have room, for lower positions at its
 * receiver. Where one round has several receives from the same peer, that order is not given; they have room for all
 * their pieces. */
#include "exec/wire.h"

#include <stdlib.h>
#include <string.h>

#include "os/mem.h"
#include "os/status.h"

#define PIECE ((size_t)256 << 10) /* a few stay in the second-level cache; a multiple of every element */
#define PART ((size_t)64 << 10)   /* is added of a piece that is still arriving */
enum { DEPTH = 4 };               /* pieces of a flight under way */

static flight *get(const exec_op *op, uint64_t number) {
  return &op->flights[number % op->capacity];
}

static size_t chunk_at(const exec_op *op, int chunk) {
  return op->bounds[chunk] * op->width;
}

static size_t position(const flight *f, size_t piece) {
  return piece * PIECE < f->nbytes ? piece * PIECE : f->nbytes;
}

static size_t piece_nbytes(const flight *f, size_t piece) {
  return position(f, piece + 1) - position(f, piece);
}

static chan_io *io_of(const flight *f, size_t piece) {
  return (chan_io *)(void *)f->ios + piece % f->depth;
}

static char *slot_of(const flight *f, size_t piece) {
  size_t each = f->nbytes < PIECE ? f->nbytes : PIECE;
  return f->slots + piece % f->depth * each;
}

static bool finished(const flight *f) {
  return f->done == f->npieces;
}

static bool receives(const flight *f) {
  return f->kind >= FLIGHT_COPY && f->kind <= FLIGHT_TERM;
}

/* ---- opening rounds ---- */

static int round_first(const exec_op *op, int round) {
  return round ? op->plan->round_end[round - 1] : 0;
}

static size_t flights_of(const exec_op *op, int round) {
  size_t n = 0;
  if (round == op->plan->nrounds) return 0;
  for (int i = round_first(op, round); i < op->plan->round_end[round]; i++) {
    const plan_step *s = &op->plan->steps[i];
    n += s->kind != STEP_FOLD ? 1 : s->peer == op->plan->rank ? 2 * (size_t)op->plan->size - 1 : 2;
  }
  return n;
}

static int open_flight(exec_op *op, flight f, int plan_peer, bool roomy) {
  flight *slot = get(op, op->end);
  f.peer = op->team->ranks[(plan_peer + op->rotation) % op->team->size];
  f.npieces = f.nbytes ? (f.nbytes + PIECE - 1) / PIECE : op->plan->collective == LWCC_BARRIER;
  f.depth = roomy || f.npieces < DEPTH ? f.npieces : DEPTH;
  f.ios = slot->ios;
  f.slots = slot->slots;
  f.ios_room = slot->ios_room;
  f.slots_room = slot->slots_room;
  if (f.kind == FLIGHT_FOLD || f.kind == FLIGHT_LOCAL) f.peer = -1;
  for (uint64_t n = op->end; n > op->first && f.peer >= 0 && !f.before; n--) {
    const flight *g = get(op, n - 1);
    if (g->peer == f.peer && receives(g) == receives(&f)) f.before = n;
  }
  *slot = f;
  op->end++;
  if (f.peer < 0) return LWCC_OK;
  TRY(exec_room(&slot->ios, &slot->ios_room, f.depth * sizeof(chan_io)));
  if (!receives(&f) || f.kind == FLIGHT_COPY) return LWCC_OK;
  return exec_room(&slot->slots, &slot->slots_room, f.depth * (f.nbytes < PIECE ? f.nbytes : PIECE));
}

static flight range(const exec_op *op, flight_kind kind, const plan_step *s) {
  size_t at = chunk_at(op, s->chunk);
  return (flight){.kind = kind, .at = at, .nbytes = chunk_at(op, s->chunk + s->n) - at, .step = s};
}

static int open_send(exec_op *op, const plan_step *s) {
  flight f = range(op, FLIGHT_SEND, s);
  if (op->plan->collective == LWCC_ALLTOALL) {
    f.outside = true;
    f.at = op->input_bounds[s->chunk] * op->width;
    f.nbytes = op->input_bounds[s->chunk + s->n] * op->width - f.at;
  }
  return open_flight(op, f, s->peer, false);
}

static int open_receive(exec_op *op, const plan_step *s, int round) {
  bool sent = false;
  int from_peer = 0;
  for (int i = round_first(op, round); i < op->plan->round_end[round]; i++) {
    const plan_step *o = &op->plan->steps[i];
    from_peer +=
        o->kind == STEP_FOLD || (o->peer == s->peer && (o->kind == STEP_RECV_COPY || o->kind == STEP_RECV_REDUCE));
    sent |= o->kind == STEP_SEND && o->chunk < s->chunk + s->n && s->chunk < o->chunk + o->n;
  }
  bool staged = sent && op->plan->collective != LWCC_ALLTOALL;
  flight_kind kind = s->kind == STEP_RECV_REDUCE ? FLIGHT_REDUCE : staged ? FLIGHT_STAGED : FLIGHT_COPY;
  return open_flight(op, range(op, kind, s), s->peer, from_peer > 1);
}

/* The owner takes the others' terms in rank order and folds them. */
static int open_terms(exec_op *op, const plan_step *s) {
  for (int r = 0; r < op->plan->size; r++)
    if (r != op->plan->rank) TRY(open_flight(op, range(op, FLIGHT_TERM, s), r, false));
  return open_flight(op, range(op, FLIGHT_FOLD, s), s->peer, false);
}

static int open_results(exec_op *op, const plan_step *s) {
  if (s->peer != op->plan->rank) return open_flight(op, range(op, FLIGHT_COPY, s), s->peer, false);
  for (int r = 0; r < op->plan->size; r++)
    if (r != op->plan->rank) TRY(open_flight(op, range(op, FLIGHT_SEND, s), r, false));
  return LWCC_OK;
}

static int open_local(exec_op *op, const plan_step *s) {
  flight f = range(op, FLIGHT_LOCAL, s);
  f.outside = op->plan->collective == LWCC_ALLTOALL;
  return open_flight(op, f, op->plan->rank, false);
}

/* Sends first, then receives, then the results of folds, then what stays within the rank: on both sides of a pair the
 * messages have one order. */
static int open_round(exec_op *op) {
  int round = op->round++, me = op->plan->rank;
  for (int pass = 0; pass < 4; pass++) {
    for (int i = round_first(op, round); i < op->plan->round_end[round]; i++) {
      const plan_step *s = &op->plan->steps[i];
      bool fold = s->kind == STEP_FOLD, local = s->kind == STEP_COPY || s->kind == STEP_REDUCE;
      if (pass == 0 && s->kind == STEP_SEND) TRY(open_send(op, s));
      if (pass == 0 && fold && s->peer != me) TRY(open_flight(op, range(op, FLIGHT_SEND, s), s->peer, false));
      if (pass == 1 && (s->kind == STEP_RECV_COPY || s->kind == STEP_RECV_REDUCE)) TRY(open_receive(op, s, round));
      if (pass == 1 && fold && s->peer == me) TRY(open_terms(op, s));
      if (pass == 2 && fold) TRY(open_results(op, s));
      if (pass == 3 && local) TRY(open_local(op, s));
    }
  }
  return LWCC_OK;
}

int wire_begin(exec_op *op) {
  size_t most = 0, need;
  for (int r = 0; r < op->plan->nrounds; r++)
    if (flights_of(op, r) > most) most = flights_of(op, r);
  op->capacity = 2 * most + 1;
  op->first = op->end = 0;
  op->round = 0;
  op->upcoming = flights_of(op, 0);
  TRY(exec_room(&op->sources, &op->sources_room, (size_t)op->plan->size * sizeof(void *)));
  if (op->capacity <= op->flights_room) return LWCC_OK;
  if (!mem_mul(op->capacity, sizeof(flight), &need)) need = SIZE_MAX;
  flight *more = realloc(op->flights, need);
  if (!more) return os_fail(LWCC_ERR_SYSTEM, "no memory for a round of %zu messages", most);
  memset(more + op->flights_room, 0, (op->capacity - op->flights_room) * sizeof *more);
  op->flights = more;
  op->flights_room = op->capacity;
  return LWCC_OK;
}

void wire_cancel(exec_op *op) {
  for (; op->first < op->end; op->first++) {
    const flight *f = get(op, op->first);
    for (size_t piece = f->done; piece < f->posted; piece++)
      channel_cancel(op->team->ch, f->peer, op->cls, io_of(f, piece));
  }
}

void wire_free(exec_op *op) {
  for (size_t i = 0; i < op->flights_room; i++) {
    free(op->flights[i].ios);
    free(op->flights[i].slots);
  }
  free(op->flights);
  free(op->sources);
}

/* ---- moving ---- */

/* How many bytes from the beginning of flight number's range no earlier flight has yet to write (or, unless reading, to
 * send). */
static size_t clear_nbytes(const exec_op *op, uint64_t number, bool reading) {
  const flight *f = get(op, number);
  size_t clear = f->nbytes;
  for (uint64_t n = op->first; n < number && !f->outside; n++) {
    const flight *g = get(op, n);
    if (finished(g) || g->kind == FLIGHT_TERM || (g->kind == FLIGHT_SEND && (reading || g->outside))) continue;
    if (g->at >= f->at + f->nbytes || f->at >= g->at + g->nbytes) continue;
    size_t end = g->at + position(g, g->done);
    size_t part = end > f->at ? end - f->at : 0;
    if (part < clear) clear = part;
  }
  return clear;
}

static bool its_turn(const exec_op *op, const flight *f) {
  if (f->before <= op->first) return true; /* none, or finished */
  const flight *g = get(op, f->before - 1);
  return g->posted == g->npieces;
}

static void post(exec_op *op, flight *f) {
  chan_io *io = io_of(f, f->posted);
  const char *place = (f->outside ? op->input : op->data) + f->at + position(f, f->posted);
  void *buf = f->kind > FLIGHT_COPY ? slot_of(f, f->posted) : (void *)(uintptr_t)place; /* sends only read */
  *io = (chan_io){.buf = buf, .nbytes = piece_nbytes(f, f->posted), .tag = op->tag, .status = LWCC_PENDING};
  f->posted++;
  if (f->kind == FLIGHT_SEND)
    channel_send(op->team->ch, f->peer, op->cls, io);
  else
    channel_recv(op->team->ch, f->peer, op->cls, io);
}

/* A barrier's messages are empty, so no range orders them: a send waits for the receives of the rounds before. */
static bool barred(const exec_op *op, uint64_t number) {
  if (op->plan->collective != LWCC_BARRIER || get(op, number)->kind != FLIGHT_SEND) return false;
  for (uint64_t n = op->first; n < number; n++)
    if (receives(get(op, n)) && !finished(get(op, n))) return true;
  return false;
}

static bool post_pieces(exec_op *op, uint64_t number) {
  flight *f = get(op, number);
  bool any = false;
  if (f->posted == f->npieces || f->posted - f->done >= f->depth || !its_turn(op, f)) return false;
  if (barred(op, number)) return false;
  size_t clear = f->kind <= FLIGHT_COPY ? clear_nbytes(op, number, f->kind == FLIGHT_SEND) : f->nbytes;
  while (f->posted < f->npieces && f->posted - f->done < f->depth && position(f, f->posted + 1) <= clear) {
    post(op, f);
    any = true;
  }
  return any;
}

static int lost(const exec_op *op, const flight *f, const chan_io *io) {
  return os_fail(io->status, "%s %s: the connection to rank %d ended when %zu of %zu bytes were %s",
                 collective_name(op->a.collective), op->name, f->peer, position(f, f->done) + io->done, f->nbytes,
                 receives(f) ? "received" : "sent");
}

/* LWCC_OK: the piece has passed the channel. */
static int passed(const exec_op *op, const flight *f, size_t piece) {
  if (piece >= f->posted) return LWCC_PENDING;
  const chan_io *io = io_of(f, piece);
  return io->status < 0 ? lost(op, f, io) : io->status;
}

/* Put what has come of a piece in its place, up to clear; true: all of it is there. What is under way is taken in
 * parts, while it is in the cache, so that little is left to do when the last byte comes. */
static bool apply(const exec_op *op, flight *f, bool whole, size_t clear) {
  size_t begin = position(f, f->done), all = piece_nbytes(f, f->done);
  size_t have = whole ? all : io_of(f, f->done)->done / PART * PART;
  if (have > clear - begin) have = (clear - begin) / op->width * op->width;
  if (have > f->applied) {
    void *to = op->data + f->at + begin + f->applied, *from = slot_of(f, f->done) + f->applied;
    size_t n = have - f->applied;
    if (f->kind == FLIGHT_STAGED)
      reduce_copy(to, from, n, 0);
    else
      op->fold(2, (const void *[]){to, from}, 1, &to, n / op->width, 1.0);
    f->applied = have;
  }
  if (f->applied < all) return false;
  f->applied = 0;
  return true;
}

static int settle(exec_op *op, uint64_t number, bool *any) {
  flight *f = get(op, number);
  size_t clear = SIZE_MAX;
  while (f->kind != FLIGHT_TERM && f->done < f->npieces) {
    int st = passed(op, f, f->done);
    if (st < 0) return st;
    bool applies = f->kind > FLIGHT_COPY && f->done < f->posted;
    if (st == LWCC_PENDING && !(applies && io_of(f, f->done)->done >= f->applied + PART)) break;
    if (applies && clear == SIZE_MAX) clear = clear_nbytes(op, number, false);
    if (applies && (clear < position(f, f->done) || !apply(op, f, st == LWCC_OK, clear))) break;
    f->done++;
    *any = true;
  }
  return LWCC_OK;
}

/* The terms are the size - 1 flights before the fold. */
static flight *term(const exec_op *op, uint64_t fold, int r) {
  uint64_t first = fold - ((uint64_t)op->plan->size - 1);
  return get(op, first + (uint64_t)(r < op->plan->rank ? r : r - 1));
}

static int settle_fold(exec_op *op, uint64_t number, bool *any) {
  flight *f = get(op, number);
  const void **src = (void *)op->sources;
  int size = op->plan->size, me = op->plan->rank;
  size_t clear = f->npieces ? clear_nbytes(op, number, false) : 0;
  for (; f->done < f->npieces && position(f, f->done + 1) <= clear; f->done++) {
    void *own = op->data + f->at + position(f, f->done);
    for (int r = 0; r < size; r++) {
      int st = r == me ? LWCC_OK : passed(op, term(op, number, r), f->done);
      if (st != LWCC_OK) return st < 0 ? st : LWCC_OK;
      src[r] = r == me ? own : slot_of(term(op, number, r), f->done);
    }
    op->fold(size, src, 1, &own, piece_nbytes(f, f->done) / op->width, 1.0);
    for (int r = 0; r < size; r++)
      if (r != me) term(op, number, r)->done++;
    *any = true;
  }
  return LWCC_OK;
}

/* Only alltoall's own block passes the proof, and it depends on nothing; others wait for all that is before them. */
static void settle_local(exec_op *op, uint64_t number, bool *any) {
  flight *f = get(op, number);
  const plan_step *s = f->step;
  if (finished(f) || (number != op->first && !f->outside)) return;
  void *dst = op->data + f->at;
  const char *src = op->input + op->input_bounds[s->src] * op->width;
  if (s->kind == STEP_COPY)
    reduce_copy(dst, src, f->nbytes, 0);
  else
    op->fold(2, (const void *[]){dst, src}, 1, &dst, f->nbytes / op->width, 1.0);
  f->done = f->npieces;
  *any = true;
}

static int move(exec_op *op, uint64_t number, bool *any) {
  flight *f = get(op, number);
  if (f->kind == FLIGHT_LOCAL) {
    settle_local(op, number, any);
  } else if (f->kind == FLIGHT_FOLD) {
    TRY(settle_fold(op, number, any));
  } else {
    TRY(settle(op, number, any));
    *any |= post_pieces(op, number);
  }
  while (op->first < op->end && finished(get(op, op->first))) op->first++;
  return LWCC_OK;
}

int wire_step(exec_op *op, bool *progress_out) {
  bool any;
  do {
    any = false;
    while (op->round < op->plan->nrounds && op->end - op->first + op->upcoming < op->capacity) {
      TRY(open_round(op));
      op->upcoming = flights_of(op, op->round);
      any = true;
    }
    for (uint64_t n = op->first; n < op->end; n++) TRY(move(op, n, &any));
    *progress_out |= any;
  } while (any);
  return op->first == op->end && op->round == op->plan->nrounds ? LWCC_OK : LWCC_PENDING;
}
