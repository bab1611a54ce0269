/* What every request did and when, as Chrome's JSON (chrome://tracing, Perfetto): one file for all ranks of a host, one
 * pid a rank, a thread per process set. The file is whole JSON after every event, whoever dies; who reads it while the
 * job runs takes a shared flock for that, as the kernel shows a write page by page. Driving thread only. */
#ifndef COORD_TIMELINE_H
#define COORD_TIMELINE_H
#include "coord/queue.h"

typedef struct timeline timeline;

typedef struct {
  const char *path;
  const char *job; /* printable; a file of another job, or of anything else, is emptied first */
  int rank;
  const char *host;
  bool marks; /* also an instant for the beginning of each collective */
} timeline_parts;

int timeline_open(const timeline_parts *parts, timeline **out);
void timeline_close(timeline *t); /* NULL is fine */
/* r is complete: it waited from its submission to began_ns (0: it never began), then ran until now. */
void timeline_request(timeline *t, const request *r, uint64_t began_ns, int status);
#endif
