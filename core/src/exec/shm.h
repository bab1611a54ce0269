/* Collectives over memory that all ranks of a team have mapped: no messages, no plan steps on a wire.
 * An area is shared state of one lane of collectives: calls on it are the same and in the same order on every rank.
 * A call is a state machine, so that several lanes can be stepped side by side by one thread. */
#ifndef EXEC_SHM_H
#define EXEC_SHM_H
#include <stdbool.h>

#include "exec/coll.h"

typedef struct shm_team shm_team; /* this rank's handle on one area */
typedef struct shm_call shm_call; /* one collective under way; one at a time per team; owned by the team */

typedef struct { /* how the team reaches registered memory (wraps the node); members may be NULL: nothing registered */
  void *arg;
  bool (*find)(void *arg, const void *p, size_t n, uint32_t *region_out, uint64_t *offset_out);
  void *(*map)(void *arg, int index, uint32_t region, uint64_t offset, size_t n);
  /* Copy n bytes at an address of another rank's process; NULL: the system allows it to no rank of the team. */
  /* LWCC_ERR_PEER_LOST: the process has ended; the call then waits for the abort by whoever watches the ranks. */
  int (*peek)(void *arg, int index, void *to, uint64_t address, size_t n);
  void (*ring)(void *arg, int index); /* end the sleep of a rank whose engine sleeps; NULL: none do */
} shm_reach;

size_t shm_area_bytes(int p); /* memory for p ranks, a multiple of 4096 */
/* area: zeroed memory mapped by all; me: index; cores: that the p ranks may use together. */
int shm_team_open(void *area, int p, int me, int cores, const shm_reach *reach, shm_team **out);
void shm_team_close(shm_team *t);

shm_call *shm_start(shm_team *t, const coll_args *a); /* args: copied, arrays borrowed until the end; never fails */
/* Take one step. LWCC_OK: finished. LWCC_PENDING: *progress_out tells whether anything was done. Never blocks. */
int shm_step(shm_call *c, bool *progress_out);
/* Blocking form, with the wait policy of the area (spin, yield, futex). aborted: polled now and then while waiting;
 * non-zero ends the call with that status. Caller: any one thread at a time per team. */
int shm_run(shm_team *t, const coll_args *a, int (*aborted)(void *arg), void *arg);
void shm_interrupt(shm_team *t); /* any thread: end all futex sleeps of this area, in every rank */
/* Engine sleep (named lane): announce, look once more, sleep in the channel, retract. */
void shm_set_asleep(shm_team *t, bool asleep);
const char *shm_kernel_name(const shm_team *t, const coll_args *a, bool registered); /* "swap", "own", ... for logs */
#endif
