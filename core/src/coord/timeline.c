#include "coord/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lwcc/lwcc.h"
#include "os/clock.h"
#include "os/log.h"
#include "os/mem.h"
#include "os/status.h"

enum { EVENT_CAP = 8192, HEAD_CAP = 512 };
static const char tail[] = "\n]\n";

struct timeline {
  int fd, rank;
  bool marks;
  int64_t skew_ns; /* wall clock less monotonic clock, so that hosts agree about as well as their clocks */
  uint64_t spans;  /* numbers the waits, which overlap */
};

/* Escape what JSON cannot hold; bytes of UTF-8 pass. */
static void escape(const char *text, char *out, size_t cap) {
  size_t n = 0;
  for (; *text && n + 7 < cap; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      n += (size_t)snprintf(out + n, cap - n, "\\%c", c);
    else if (c < 0x20)
      n += (size_t)snprintf(out + n, cap - n, "\\u%04x", c);
    else
      out[n++] = (char)c;
  }
  out[n] = 0;
}

/* Put events in front of the closing bracket, in one write: the file is whole before and after. The lock is of all the
 * host's ranks, and the kernel frees that of a dead one. */
static void append(timeline *t, const char *events) {
  char text[EVENT_CAP + 8];
  if (flock(t->fd, LOCK_EX) != 0) return;
  off_t end = lseek(t->fd, 0, SEEK_END);
  int n = snprintf(text, sizeof text, "%s%s%s", end > 0 ? ",\n" : "[\n", events, tail);
  off_t at = end > 0 ? end - (off_t)strlen(tail) : 0;
  if (pwrite(t->fd, text, (size_t)n, at) != n) LOG(WARN, "timeline: an event is lost: %s", strerror(errno));
  flock(t->fd, LOCK_UN);
}

static double micros(const timeline *t, uint64_t ns) {
  return (double)((int64_t)ns + t->skew_ns) * 1e-3;
}

/* Keep what this job's other ranks have written; empty the file otherwise. */
static void begin_file(const timeline *t, const char *job) {
  char head[HEAD_CAP + 1] = "";
  flock(t->fd, LOCK_EX);
  ssize_t n = pread(t->fd, head, HEAD_CAP, 0);
  head[n > 0 ? n : 0] = 0;
  if (!strstr(head, job) && ftruncate(t->fd, 0) != 0) LOG(WARN, "timeline: %s", strerror(errno));
  flock(t->fd, LOCK_UN);
}

int timeline_open(const timeline_parts *p, timeline **out) {
  struct timespec wall;
  struct stat kind;
  char event[EVENT_CAP], host[256];
  void *memory;
  TRY(mem_zeroed(1, sizeof(timeline), &memory));
  timeline *t = memory;
  t->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (t->fd < 0 || fstat(t->fd, &kind) != 0 || !S_ISREG(kind.st_mode)) {
    int st = os_fail(LWCC_ERR_INVALID, "timeline: cannot write to \"%.400s\": %s", p->path,
                     t->fd < 0 ? strerror(errno) : "not a file");
    if (t->fd >= 0) close(t->fd);
    free(t);
    return st;
  }
  clock_gettime(CLOCK_REALTIME, &wall);
  t->skew_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - (int64_t)clock_ns();
  t->rank = p->rank;
  t->marks = p->marks;
  begin_file(t, p->job);
  escape(p->host, host, sizeof host);
  snprintf(event, sizeof event,
           "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d (%s)\",\"job\":\"%s\"}},\n"
           "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
           p->rank, p->rank, host, p->job, p->rank, p->rank);
  append(t, event);
  *out = t;
  return LWCC_OK;
}

void timeline_close(timeline *t) {
  if (!t) return;
  close(t->fd);
  free(t);
}

void timeline_request(timeline *t, const request *r, uint64_t began_ns, int status) {
  char event[EVENT_CAP], name[NAME_CAP * 2], what[512], seen[1024];
  uint64_t now = clock_ns(), until = began_ns ? began_ns : now;
  size_t n = 0;
  escape(r->name, name, sizeof name);
  signature_print(&r->sig, what, sizeof what);
  escape(what, seen, sizeof seen);
  t->spans++;
  if (!r->stand_in)
    n += (size_t)snprintf(
        event, sizeof event,
        "{\"name\":\"%s\",\"cat\":\"wait\",\"ph\":\"b\",\"id\":\"%d.%llu\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f},\n"
        "{\"name\":\"%s\",\"cat\":\"wait\",\"ph\":\"e\",\"id\":\"%d.%llu\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}%s",
        name, t->rank, (unsigned long long)t->spans, t->rank, r->set, micros(t, r->submitted_ns), name, t->rank,
        (unsigned long long)t->spans, t->rank, r->set, micros(t, until), began_ns ? ",\n" : "");
  if (began_ns && t->marks)
    n += (size_t)snprintf(event + n, sizeof event - n,
                          "{\"name\":\"begin\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f},\n", t->rank,
                          r->set, micros(t, began_ns));
  if (began_ns)
    snprintf(event + n, sizeof event - n,
             "{\"name\":\"%s\",\"cat\":\"run\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
             "\"args\":{\"what\":\"%s\",\"nbytes\":%zu,\"status\":\"%s\",\"joined\":%s}}",
             name, t->rank, r->set, micros(t, began_ns), (double)(now - began_ns) * 1e-3, seen, r->nbytes,
             status < 0 ? "failed" : "ok", r->stand_in ? "true" : "false");
  if (n || began_ns) append(t, event);
}
