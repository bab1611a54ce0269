#ifndef API_CALIBRATE_H
#define API_CALIBRATE_H
#include "coord/engine.h"

/* Find what the wire of this job costs, in a few milliseconds, unless LWCC_COST says it or no wire is used: every rank
 * calls it at the same place, and all choose algorithms by the same numbers afterwards. Fails as a collective does.
 * Caller's thread. */
int calibrate(engine *e);
#endif
