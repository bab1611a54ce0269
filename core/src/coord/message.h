/* What negotiation says on the wire. A frame: u32 set, then entries until its end. Rank to coordinator: READY, REQUEST.
 * Coordinator to rank, the order log: NEW, PART, RUN, ERROR, EVICT, JOINED. To everybody: BYE, LOST (set =
 * MESSAGE_ALL). Frames come from authenticated peers, and are decoded as if they did not: every length is checked. */
#ifndef COORD_MESSAGE_H
#define COORD_MESSAGE_H
#include "coord/bytes.h"
#include "lwcc/lwcc.h"

enum { NAME_CAP = 512, DIMS_MAX = 32, ALGORITHM_CAP = 64, TEXT_CAP = 1024, RANKS_MAX = 4096 };
enum { JOIN = LWCC_COLLECTIVES }; /* the "collective" of a request to be left out: it ends when all have joined */
#define MESSAGE_ALL UINT32_MAX
#define NOBODY UINT32_MAX
#define JOIN_NAME "lwcc.join"

typedef enum {
  ENTRY_READY = 'R',   /* u32 id */
  ENTRY_REQUEST = 'Q', /* text name, i32 priority, signature */
  ENTRY_NEW = 'N',     /* u32 id, u8 collective, text name, u32 n, i64 values[n]; allgather: each rank's first
                           dimension; alltoall: rows [from * size + to] */
  ENTRY_PART = 'P',    /* as NEW, then u8 asked[size], signature: it will run once, with neutral elements for the ranks
                           that have not asked, all of which have joined; an EVICT follows its RUN */
  ENTRY_RUN = 'X',     /* u32 n, u32 ids[n]: one bucket */
  ENTRY_ERROR = 'E',   /* u8 collective, i32 status, text name, text text, u32 n, u8 asked[n]: which ranks are
                           concerned; a request that is still on its way to the coordinator is counted anew */
  ENTRY_EVICT = 'V',   /* u32 id */
  ENTRY_JOINED = 'J',  /* u32 index of the rank that joined last: all have */
  ENTRY_BYE = 'B',     /* u32 rank that had left before, as the sender saw, or NOBODY */
  ENTRY_LOST = 'L'     /* u32 rank, text: this rank is dead, as the sender saw */
} entry_kind;

/* All that must agree between the ranks of one collective, except that allgather's first dimensions and alltoall's
 * splits may differ. */
typedef struct {
  int32_t collective, dtype, op, root, ndim, group_size;
  uint64_t group; /* hash of the first member's name; 0: not in a group */
  double prescale, postscale;
  char algorithm[ALGORITHM_CAP];
  int64_t shape[DIMS_MAX];
  int32_t nsplits;
  int64_t *splits; /* owned by who holds the signature; NULL: equal parts */
} signature;

void signature_put(bytes *b, const signature *s);
/* out->splits is allocated. r->bad on anything senseless. */
void signature_read(reader *r, signature *out);
int signature_copy(signature *dst, const signature *src); /* LWCC_ERR_SYSTEM; dst's old splits are freed */
void signature_free(signature *s);
/* Same in everything, splits and first dimensions included: what a cached answer needs. */
int signature_same(const signature *a, const signature *b);
/* May the two form one collective? */
int signature_agree(const signature *a, const signature *b);
/* "allreduce float32[10, 3], op Sum" */
void signature_print(const signature *s, char *out, size_t cap);
size_t signature_count(const signature *s); /* elements of the input */
/* Can that many rows, of all ranks together, be elements of one tensor in memory? */
bool signature_rows_fit(const signature *s, const int64_t *rows, size_t n);
size_t signature_row_count(const signature *s); /* elements per first-dimension row */
const char *op_name(int op);
const char *dtype_name(int dtype);
#endif
