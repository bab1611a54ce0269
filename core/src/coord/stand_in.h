/* The request of a rank that has joined: neutral elements in, a result that nobody reads. Driving thread only. */
#ifndef COORD_STAND_IN_H
#define COORD_STAND_IN_H
#include "coord/pset.h"
#include "exec/coll.h"

request *stand_in_make(const cached *c); /* NULL: no memory. c: outlives it */
int stand_in_fill(request *r);           /* give it its memory, when it runs */
bool stand_in_free(request *r);          /* false: it is none, and nothing was done */
/* Scales of a reduction that some ranks miss: such that a neutral element is one before and after scaling. */
void stand_in_scale(coll_args *a, int contributors);
#endif
