/* Whether the ranks of a node share memory is decided by the first of them for all, after each has shown that it reads
 * what the first wrote and the first has read what each wrote. Layout of the segment: head, rings of all pairs, area.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "channel/node_build.h"
#include "os/cpu.h"
#include "os/hmac.h"
#include "os/mem.h"
#include "os/sock.h"
#include "os/status.h"
#include "transport/transport.h"

enum { AREA_BYTES = 4 << 20, AREA_BYTES_PER_RANK = 2 << 20 };

typedef struct { /* written before a message on the socket, read after it: the kernel orders them */
  _Atomic uint64_t echo;
  uint64_t mask[CPU_MASK_WORDS];
  int64_t quota;
  int64_t pid;
  uint64_t secret_at; /* where its process keeps the word, for the others to find by mem_peek */
} member_slot;

typedef struct {
  _Atomic uint64_t word;
  int64_t cores;
  member_slot members[];
} segment_head;

typedef struct {
  uint32_t ok;
  char why[252];
  uint64_t nbytes, word;
} share_msg;

static size_t head_bytes(int size) {
  size_t n = sizeof(segment_head) + (size_t)size * sizeof(member_slot);
  return (n + MEM_PAGE - 1) / MEM_PAGE * MEM_PAGE;
}

static size_t rings_bytes(int size) {
  return (size_t)size * (size_t)(size - 1) / 2 * transport_shm_bytes();
}
static size_t area_bytes(int size) {
  return AREA_BYTES + (size_t)size * AREA_BYTES_PER_RANK;
}

uint8_t *share_rings(const node_parts *parts, int index) {
  int low = index < parts->me ? index : parts->me, high = index < parts->me ? parts->me : index;
  int pair = high * (high - 1) / 2 + low;
  return parts->segment + head_bytes(parts->size) + (size_t)pair * transport_shm_bytes();
}

uint8_t *share_area(const node_parts *parts, size_t *nbytes_out) {
  *nbytes_out = parts->segment ? area_bytes(parts->size) : 0;
  return parts->segment ? parts->segment + head_bytes(parts->size) + rings_bytes(parts->size) : NULL;
}

int share_pid(const node_parts *parts, int index) {
  return (int)((segment_head *)parts->segment)->members[index].pid;
}

static void fill_slot(const node_parts *parts, const uint64_t *word_at) {
  uint64_t word = *word_at;
  segment_head *head = (segment_head *)parts->segment;
  member_slot *slot = &head->members[parts->me];
  cpu_mask(slot->mask);
  slot->quota = cpu_quota();
  slot->pid = getpid();
  slot->secret_at = (uintptr_t)word_at;
  /* release: pairs with the acquire in count_cores and the leader's check */
  atomic_store_explicit(&slot->echo, word + (uint64_t)parts->me + 1, memory_order_release);
}

/* The union of the masks, cut by the quota if every rank has one. */
static int count_cores(const node_parts *parts) {
  segment_head *head = (segment_head *)parts->segment;
  int cores = 0;
  int64_t quota = 0;
  bool limited = true;
  for (int w = 0; w < CPU_MASK_WORDS; w++) {
    uint64_t all = 0;
    for (int i = 0; i < parts->size; i++) all |= head->members[i].mask[w];
    cores += __builtin_popcountll(all);
  }
  for (int i = 0; i < parts->size; i++) {
    int64_t q = head->members[i].quota;
    limited &= q > 0;
    if (q > quota) quota = q;
  }
  if (limited && quota < cores) cores = (int)quota;
  return cores > 0 ? cores : 1;
}

static void say_why(share_msg *m) {
  m->ok = 0;
  os_copy_text(m->why, sizeof m->why, os_error());
}

static int make_segment(node_parts *parts, const uint64_t *word, int *fd_out) {
  size_t touched = head_bytes(parts->size) + rings_bytes(parts->size);
  TRY(mem_segment_probe(touched));
  TRY(mem_segment_create("lwcc-node", parts->segment_nbytes, fd_out));
  void *p;
  TRY(mem_segment_map(*fd_out, parts->segment_nbytes, &p));
  parts->segment = p;
  atomic_store_explicit(&((segment_head *)p)->word, *word, memory_order_release);
  fill_slot(parts, word);
  return LWCC_OK;
}

/* Hear from every member; its complaint, or a word that does not match, turns the verdict. */
static int collect(const node_parts *parts, uint64_t word, share_msg *verdict) {
  for (int i = 1; i < parts->size; i++) {
    share_msg reply;
    TRY(sock_recv_all(parts->service[i], &reply, sizeof reply, NULL, parts->deadline_ns));
    reply.why[sizeof reply.why - 1] = '\0';
    if (!verdict->ok) continue;
    segment_head *head = (segment_head *)parts->segment;
    /* acquire: pairs with the release in fill_slot */
    uint64_t echo = atomic_load_explicit(&head->members[i].echo, memory_order_acquire);
    if (reply.ok && reply.word == word && echo == word + (uint64_t)i + 1) continue;
    verdict->ok = 0;
    snprintf(verdict->why, sizeof verdict->why, "rank %d: %.200s", parts->ranks[i],
             reply.ok ? "it maps other memory than the first rank of its node" : reply.why);
  }
  return LWCC_OK;
}

/* Whether I can read the memory of every other: by finding the word where it says that it keeps it. */
static bool can_peek(const node_parts *parts, uint64_t word) {
  for (int i = 0; i < parts->size; i++) {
    const member_slot *slot = &((segment_head *)parts->segment)->members[i];
    uint64_t found = 0;
    if (mem_peek((int)slot->pid, &found, slot->secret_at, sizeof found) < 0 || found != word) return false;
  }
  return true;
}

/* The second round, when all slots are filled. The word stays where it is until the last has looked. */
static int lead_peeks(node_parts *parts, uint64_t word) {
  share_msg heard, verdict = {.ok = can_peek(parts, word)};
  for (int i = 1; i < parts->size; i++) {
    TRY(sock_recv_all(parts->service[i], &heard, sizeof heard, NULL, parts->deadline_ns));
    verdict.ok &= heard.ok == 1;
  }
  for (int i = 1; i < parts->size; i++)
    TRY(sock_send_all(parts->service[i], &verdict, sizeof verdict, -1, parts->deadline_ns));
  parts->peeks = verdict.ok;
  return LWCC_OK;
}

static int follow_peeks(node_parts *parts, uint64_t word) {
  share_msg m = {.ok = can_peek(parts, word)};
  TRY(sock_send_all(parts->service[0], &m, sizeof m, -1, parts->deadline_ns));
  TRY(sock_recv_all(parts->service[0], &m, sizeof m, NULL, parts->deadline_ns));
  parts->peeks = m.ok == 1;
  return LWCC_OK;
}

static int lead(node_parts *parts, share_msg *verdict) {
  share_msg offer = {.ok = 1, .nbytes = parts->segment_nbytes};
  uint64_t word;
  int fd = -1, code = LWCC_OK;
  TRY(hmac_random(&word, sizeof word));
  if (make_segment(parts, &word, &fd) < 0) say_why(&offer);
  for (int i = 1; i < parts->size && code >= 0; i++)
    code = sock_send_all(parts->service[i], &offer, sizeof offer, offer.ok ? fd : -1, parts->deadline_ns);
  if (fd >= 0) close(fd);
  TRY(code);
  *verdict = offer;
  TRY(collect(parts, word, verdict));
  if (verdict->ok) ((segment_head *)parts->segment)->cores = count_cores(parts);
  for (int i = 1; i < parts->size; i++)
    TRY(sock_send_all(parts->service[i], verdict, sizeof *verdict, -1, parts->deadline_ns));
  return verdict->ok ? lead_peeks(parts, word) : LWCC_OK;
}

static int try_map(node_parts *parts, const share_msg *offer, int fd, share_msg *reply) {
  if (!offer->ok) return os_fail(LWCC_ERR_SYSTEM, "%s", offer->why);
  if (fd < 0 || offer->nbytes != parts->segment_nbytes)
    return os_fail(LWCC_ERR_PROTOCOL, "a segment of %zu bytes was expected, %llu were offered", parts->segment_nbytes,
                   (unsigned long long)offer->nbytes);
  void *p;
  TRY(mem_segment_map(fd, parts->segment_nbytes, &p));
  parts->segment = p;
  reply->word = atomic_load_explicit(&((segment_head *)p)->word, memory_order_acquire);
  fill_slot(parts, &reply->word);
  return LWCC_OK;
}

static int follow(node_parts *parts, share_msg *verdict) {
  share_msg offer, reply = {.ok = 1};
  int fd;
  TRY(sock_recv_all(parts->service[0], &offer, sizeof offer, &fd, parts->deadline_ns));
  offer.why[sizeof offer.why - 1] = '\0';
  if (try_map(parts, &offer, fd, &reply) < 0) say_why(&reply);
  if (fd >= 0) close(fd);
  TRY(sock_send_all(parts->service[0], &reply, sizeof reply, -1, parts->deadline_ns));
  TRY(sock_recv_all(parts->service[0], verdict, sizeof *verdict, NULL, parts->deadline_ns));
  verdict->why[sizeof verdict->why - 1] = '\0';
  return verdict->ok ? follow_peeks(parts, reply.word) : LWCC_OK;
}

int share_agree(node_parts *parts, bool *shared_out, char *why, size_t cap) {
  share_msg verdict = {0};
  parts->segment = NULL;
  parts->segment_nbytes = head_bytes(parts->size) + rings_bytes(parts->size) + area_bytes(parts->size);
  int code = parts->me == 0 ? lead(parts, &verdict) : follow(parts, &verdict);
  if (code >= 0 && verdict.ok) parts->cores = (int)((segment_head *)parts->segment)->cores;
  if ((code < 0 || !verdict.ok) && parts->segment) {
    mem_segment_unmap(parts->segment, parts->segment_nbytes);
    parts->segment = NULL;
  }
  *shared_out = code >= 0 && verdict.ok;
  os_copy_text(why, cap, verdict.why);
  return code;
}
