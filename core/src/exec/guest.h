/* Collectives run by a thread of the application that asks for them one by one (lwcc_guest_next): the door for
 * libraries that only another language can call. */
#ifndef EXEC_GUEST_H
#define EXEC_GUEST_H
#include "exec/exec.h"

void guest_use(bool used); /* true: from now on; false: no more calls come, a waiting guest is told. Any one thread */
bool guest_used(void);     /* Any thread */

/* As exec_start and exec_step. Whoever drives the team. */
int guest_begin(exec_op *op);
int guest_step(exec_op *op);
bool guest_cancel(exec_op *op); /* true: the guest may still be at work, so the memory must stay. The same thread */

int guest_next(lwcc_guest_call *out, double timeout_s); /* The guest's thread */
int guest_done(uint64_t id, int status, const char *text);
#endif
