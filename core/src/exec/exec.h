/* Runs one collective of one rank: over the shared-memory area, a plan over the channel, or by another library.
 * Driving thread only. */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H
#include <stdbool.h>

#include "channel/channel.h"
#include "exec/coll.h"
#include "exec/shm.h"
#include "plan/ir.h"

typedef struct exec_cache exec_cache; /* plans, scratch and operations that a team keeps for later */

typedef struct {    /* who takes part, and over what; lives longer than its operations */
  int size, me;     /* me: index */
  const int *ranks; /* global rank of each index */
  const int *nodes; /* lowest index of each index's node; NULL: not known */
  channel *ch;
  int cls;           /* LINK_NAMED or LINK_RAW */
  shm_team *shm;     /* NULL: wire only */
  wire_cost cost;    /* the cost model's numbers for this team's wire */
  exec_cache *cache; /* exec's; NULL at first; exec_team_close frees it */
  int set;           /* id of its process set */
  int engine;        /* lwcc_engine: whose collectives carry the data */
  bool blocking;     /* MPI: by its blocking calls, within exec_step */
  uint64_t comm;     /* MPI: mpi.c's */
} exec_team;

typedef struct exec_op exec_op;

/* Choose an algorithm (forced name > LWCC_ALGORITHM > shared memory > cost model), bind the plan to memory, begin.
 * "shm" names the shared-memory kernels. LWCC_ERR_INVALID for an unknown name (lists the known ones),
 * LWCC_ERR_UNSUPPORTED if it does not serve this team. tag: carried by messages; its upper half is their stream
 * (channel.h), and operations of one stream must not overlap. */
int exec_start(exec_team *team, const coll_args *args, const char *algorithm, uint32_t tag, exec_op **out);
int exec_step(exec_op *op, bool *progress_out); /* LWCC_OK, LWCC_PENDING or failure. Never blocks */
void exec_free(exec_op *op); /* at any time; what is under way is cancelled, and the team is then of no use any more */
const char *exec_algorithm(const exec_op *op); /* what runs, for logs and the timeline */
void exec_team_close(exec_team *team);
#endif
