/* Look-ups in the generated table of algorithms. */
#include <string.h>

#include "plan/ir.h"

const char *collective_name(int collective) {
  static const char *const names[] = {"allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"};
  return collective >= 0 && collective < LWCC_COLLECTIVES ? names[collective] : "unknown collective";
}

const algo_entry *algo_at(int collective, int index) {
  if (index < 0) return NULL;
  for (int i = 0; i < algo_table_length; i++) {
    if (algo_table[i].algo->collective == collective && index-- == 0) return &algo_table[i];
  }
  return NULL;
}

const algo_entry *algo_find(int collective, const char *name) {
  for (int i = 0; i < algo_table_length; i++) {
    const algo_entry *e = &algo_table[i];
    if (e->algo->collective == collective && strcmp(e->name, name) == 0) return e;
  }
  return NULL;
}
