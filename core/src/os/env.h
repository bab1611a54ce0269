/* Every LWCC_* variable, in one table: name, type, default, help. Nothing else in the core calls getenv. */
#ifndef OS_ENV_H
#define OS_ENV_H
#include <stdint.h>

typedef enum { ENV_TEXT, ENV_INT, ENV_BYTES, ENV_REAL, ENV_CHOICE } env_type;

/* id, Horovod's synonym or "", type, default, choices or "least..most", help. Bytes take K, M and G suffixes. */
#define ENV_TABLE(X)                                                                                            \
  X(LOG_LEVEL, "HOROVOD_LOG_LEVEL", ENV_CHOICE, "warning", "trace|debug|info|warning|error|fatal",              \
    "least level of the lines written to stderr")                                                               \
  X(TRANSPORT, "", ENV_CHOICE, "auto", "auto|shm|tcp|ucx|shm+ucx",                                              \
    "auto: shared memory within a node, TCP across; tcp: only TCP; shm: fail rather than use TCP; "             \
    "ucx: only UCX; shm+ucx: shared memory within a node, UCX across")                                          \
  X(NODE, "", ENV_TEXT, "", "", "name of this rank's node; overrides what boot id and network namespace say")   \
  X(IFACE, "", ENV_TEXT, "", "", "network interface (eth0) or subnet (10.0.0.0/8) for TCP between nodes")       \
  X(ADDRESS, "", ENV_TEXT, "", "", "IPv4 address under which the other ranks reach this one; IFACE goes first") \
  X(FUSION_THRESHOLD, "HOROVOD_FUSION_THRESHOLD", ENV_BYTES, "64M", "0..1099511627776",                         \
    "most bytes of one fused collective; 0: no fusion")                                                         \
  X(STALL_WARN, "HOROVOD_STALL_CHECK_TIME_SECONDS", ENV_REAL, "5", "0..1e9",                                    \
    "seconds before a request that some ranks lack is reported; 0: never")                                      \
  X(STALL_ABORT, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", ENV_REAL, "60", "0..1e9",                               \
    "seconds before such a request fails on all ranks; 0: never")                                               \
  X(CACHE_CAPACITY, "HOROVOD_CACHE_CAPACITY", ENV_INT, "0", "0..16777216",                                      \
    "most remembered negotiation answers; 0: chosen by the library")                                            \
  X(ALGORITHM, "", ENV_TEXT, "", "",                                                                            \
    "forced algorithms, such as allreduce=ring,broadcast=binomial; @BYTES: up to this payload")                 \
  X(ISA, "", ENV_CHOICE, "auto", "auto|base|avx2|avx512", "instruction set of the reduction kernels")           \
  X(SPIN, "", ENV_INT, "-1", "-1..1000000000", "microseconds of spinning before a wait sleeps; -1: by cores")   \
  X(TIMELINE, "HOROVOD_TIMELINE", ENV_TEXT, "", "",                                                             \
    "file for a timeline of all collectives, as Chrome's JSON; DYNAMIC: only when a script asks for it")        \
  X(COST, "", ENV_TEXT, "", "",                                                                                 \
    "cost of the wire: seconds for a message, a byte, a reduced byte (15e-6,4e-10,5e-11); alike on all ranks; " \
    "unset: measured at start")                                                                                 \
  X(TUNED, "", ENV_TEXT, "", "",                                                                                \
    "algorithms over a wire by largest payload, from `lwcc tune`: allreduce=recursive_doubling@32768,...")      \
  X(CONNECT_TIMEOUT, "", ENV_REAL, "60", "0.001..1e9", "seconds that a rank waits for the others to join")      \
  X(CONGESTION, "", ENV_TEXT, "cubic", "", "congestion control of TCP between nodes; bbr bears losses better")  \
  X(PEER_TIMEOUT, "", ENV_REAL, "20", "0..86400",                                                               \
    "seconds without a sign of life after which another node is taken for dead (TCP); 0: never")                \
  X(UCX_LIB, "", ENV_TEXT, "", "", "path of the libucp.so.0 to use; unset: the loader's, else the wheel's")

typedef enum {
#define X(id, synonym, type, fallback, allowed, help) ENV_##id,
  ENV_TABLE(X)
#undef X
      ENV_COUNT
} env_id;

typedef struct {
  const char *name, *synonym;
  env_type type;
  const char *fallback, *allowed, *help;
} env_row;

const env_row *env_at(int index); /* NULL past the end. Any thread */
/* The value: the LWCC_ variable, else its synonym, else the default. A bad value is a warning that names the variable,
 * what it held and what is allowed; then the default holds. The environment must not change meanwhile. Any thread. */
const char *env_text(env_id id); /* "" if unset; borrowed from the environment */
int64_t env_int(env_id id);      /* also ENV_BYTES */
double env_real(env_id id);
int env_choice(env_id id);                         /* index within allowed */
int env_choice_index(env_id id, const char *text); /* of a text among the allowed ones; -1: it is none */
#endif
