/* The collectives of an MPI in the place of ours, so that a comparison swaps the wire and nothing else: requests are
 * still negotiated and fused by coord. There is one MPI in a process; whoever loaded it (mpi4py) gives its handles. */
#ifndef EXEC_MPI_H
#define EXEC_MPI_H
#include "exec/exec.h"

typedef uint64_t mpi_handle; /* an MPI object as the library passes it: a pointer, or an int in the lower half */

int mpi_use(const lwcc_mpi *given); /* copied; NULL: no MPI any more. Before the engine starts. Any one thread */
bool mpi_used(void);                /* Any thread */

/* Give team its communicator: the world's, or a new one over its ranks, which is made by all of them. Driving thread.
 */
int mpi_team_open(exec_team *team, bool world);
void mpi_team_close(exec_team *team); /* Driving thread */

/* As exec_start and exec_step, for an operation of a team with a communicator. Whoever drives the team. */
int mpi_begin(exec_op *op);
int mpi_step(exec_op *op);
void mpi_free(exec_op *op); /* The same thread */
#endif
