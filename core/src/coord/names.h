/* A hash table of nodes that live inside their owners' structures. The caller compares keys. */
#ifndef COORD_NAMES_H
#define COORD_NAMES_H
#include <stddef.h>
#include <stdint.h>

typedef struct name_node {
  struct name_node *next;
  uint64_t hash;
} name_node;

typedef struct {
  name_node **slots; /* owned; NULL while empty */
  size_t mask, count;
} name_table;

/* The structure that a node is a member of. */
#define OWNER(type, member, node) ((type *)(void *)((char *)(node)-offsetof(type, member)))

uint64_t name_hash(const char *name, uint64_t salt);
uint64_t id_hash(uint32_t id);
/* First node with this hash, then the next ones; NULL at the end. */
name_node *names_first(const name_table *t, uint64_t hash);
name_node *names_next(const name_node *node);
int names_add(name_table *t, name_node *node, uint64_t hash); /* LWCC_ERR_SYSTEM */
void names_remove(name_table *t, name_node *node);            /* no-op if it is not in */
/* Every node once; fn may free its node's owner. */
void names_each(name_table *t, void (*fn)(name_node *node, void *arg), void *arg);
void names_free(name_table *t); /* not the nodes */
#endif
