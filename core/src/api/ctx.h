/* The one context of the process: everything that lives from open to shutdown. */
#ifndef API_CTX_H
#define API_CTX_H
#include "coord/engine.h"

/* The running engine of this process, or NULL with text (not joined, or in a forked child). Any thread. */
engine *ctx_engine(void);
/* Same, and the set; NULL with text if it is unknown or this rank is no member. */
engine *ctx_member(int set, pset **set_out);
/* Fails with the engine's failure if the job is over. */
int ctx_alive(const engine *e);
/* A barrier of all ranks in our own shared memory, whatever the engine, so that every engine's calls are timed from the
 * same start; by the engine where there is no such memory. Any thread. */
int raw_meet(void);
#endif
