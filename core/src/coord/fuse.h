/* PATH 6/9: several allreduces as one. Driving thread only. */
#ifndef COORD_FUSE_H
#define COORD_FUSE_H
#include "coord/pset.h"
#include "exec/coll.h"

struct engine;
/* Give args the memory and the count of the whole bucket: the members themselves where they are neighbours in memory,
 * else the fusion buffer, packed. *packed_out tells which. LWCC_ERR_SYSTEM. */
int fuse_pack(struct engine *e, pset *ps, const bucket *b, coll_args *args, bool *packed_out);
void fuse_unpack(const pset *ps, const bucket *b);
void fuse_free(struct engine *e, pset *ps);
#endif
