#include "coord/names.h"

#include <stdlib.h>

#include "os/status.h"

uint64_t name_hash(const char *name, uint64_t salt) { /* FNV-1a, then mixed */
  uint64_t h = UINT64_C(0xcbf29ce484222325) ^ salt;
  for (; *name; name++) h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
  return h ^ h >> 29;
}

uint64_t id_hash(uint32_t id) {
  uint64_t h = id * UINT64_C(0x9e3779b97f4a7c15);
  return h ^ h >> 32;
}

name_node *names_first(const name_table *t, uint64_t hash) {
  name_node *n = t->slots ? t->slots[hash & t->mask] : NULL;
  while (n && n->hash != hash) n = n->next;
  return n;
}

name_node *names_next(const name_node *node) {
  name_node *n = node->next;
  while (n && n->hash != node->hash) n = n->next;
  return n;
}

static int grow(name_table *t) {
  size_t slots = t->slots ? (t->mask + 1) * 2 : 64;
  name_node **fresh = calloc(slots, sizeof *fresh);
  if (!fresh) return os_fail(LWCC_ERR_SYSTEM, "no memory for a table of %zu names", slots);
  for (size_t i = 0; t->slots && i <= t->mask; i++) {
    for (name_node *n = t->slots[i], *next; n; n = next) {
      next = n->next;
      n->next = fresh[n->hash & (slots - 1)];
      fresh[n->hash & (slots - 1)] = n;
    }
  }
  free(t->slots);
  t->slots = fresh;
  t->mask = slots - 1;
  return LWCC_OK;
}

int names_add(name_table *t, name_node *node, uint64_t hash) {
  if (!t->slots || t->count > t->mask) TRY(grow(t));
  node->hash = hash;
  node->next = t->slots[hash & t->mask];
  t->slots[hash & t->mask] = node;
  t->count++;
  return LWCC_OK;
}

void names_remove(name_table *t, name_node *node) {
  if (!t->slots) return;
  for (name_node **at = &t->slots[node->hash & t->mask]; *at; at = &(*at)->next) {
    if (*at != node) continue;
    *at = node->next;
    t->count--;
    return;
  }
}

void names_each(name_table *t, void (*fn)(name_node *node, void *arg), void *arg) {
  for (size_t i = 0; t->slots && i <= t->mask; i++) {
    for (name_node *n = t->slots[i], *next; n; n = next) {
      next = n->next;
      fn(n, arg);
    }
  }
}

void names_free(name_table *t) {
  free(t->slots);
  *t = (name_table){0};
}
