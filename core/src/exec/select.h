/* Which algorithm runs, and its plan for this rank. Driving thread only. */
#ifndef EXEC_SELECT_H
#define EXEC_SELECT_H
#include "exec/exec.h"
#include "plan/ir.h"

/* *plan_out: borrowed from the team's cache or a definition; NULL: the shared-memory kernels. *name_out: static. */
int select_plan(exec_team *team, const coll_args *a, const char *forced, const lwcc_plan **plan_out,
                const char **name_out);
/* Bytes that the collective handles, which all ranks know alike; 0 for an alltoall, whose blocks are a rank's own. */
size_t select_payload(const exec_team *team, const coll_args *a);
int select_cache(exec_team *team, exec_cache **out); /* the team's cache, made if need be */

typedef struct {
  const algo_entry *entry;
  lwcc_plan **parts; /* [size]: the plan of each rank whose part this one has played; NULL until used */
  plan_cost_t cost;
  bool priced, refused; /* refused: does not serve this many ranks */
} cached_plan;

struct exec_cache {
  cached_plan *plans; /* [algo_table_length] */
  exec_op *spare;     /* a finished operation, with its arrays */
  struct {
    bool known;
    int index;                    /* into plans */
  } choice[LWCC_COLLECTIVES][64]; /* by log2 of the payload */
};
#endif
