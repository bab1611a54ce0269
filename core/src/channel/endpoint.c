#include "channel/endpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/env.h"
#include "os/status.h"

/* By these the ranks choose a plan each for itself. */
static const struct {
  const char *key;
  env_id id;
} alike[ENDPOINT_ALIKE] = {{"algorithm", ENV_ALGORITHM}, {"cost", ENV_COST}, {"tuned", ENV_TUNED}};

void endpoint_note_settings(endpoint *out) {
  for (int i = 0; i < ENDPOINT_ALIKE; i++) {
    const char *text = env_text(alike[i].id);
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *p = text; *p; p++) hash = (hash ^ (uint8_t)*p) * 16777619u;
    snprintf(out->alike[i], sizeof out->alike[i], "%08" PRIx32 ":%s", hash, text);
    for (char *p = out->alike[i]; *p; p++)
      if (*p <= ' ' || *p > '~') *p = '_';
  }
}

int endpoint_check_settings(const endpoint *e, int size) {
  for (int i = 0; i < ENDPOINT_ALIKE; i++)
    for (int r = 1; r < size; r++) {
      const char *first = e[0].alike[i], *other = e[r].alike[i];
      if (strcmp(first, other) != 0 && strchr(first, ':') && strchr(other, ':'))
        return os_fail(LWCC_ERR_MISMATCH, "join: %s differs: rank 0 has \"%s\", rank %d has \"%s\"; all need the same",
                       env_at(alike[i].id)->name, strchr(first, ':') + 1, r, strchr(other, ':') + 1);
    }
  for (int r = 1; r < size; r++)
    if (e[r].ucx != e[0].ucx)
      return os_fail(LWCC_ERR_MISMATCH,
                     "join: LWCC_TRANSPORT differs: rank %d asks for ucx, rank %d does not; all need "
                     "the same",
                     e[r].ucx ? r : 0, e[r].ucx ? 0 : r);
  return LWCC_OK;
}

int endpoint_print(const endpoint *e, char *out, size_t cap) {
  return snprintf(out, cap,
                  "lwcc=%d rank=%d host=%s pid=%d boot=%s netns=%" PRIu64
                  " node=%s share=%d ucx=%d address=%s port=%d unix=%s %s=%s %s=%s %s=%s",
                  e->version, e->rank, e->host, e->pid, e->boot, e->netns, e->node, e->share, e->ucx, e->target.address,
                  e->target.port, e->target.unix_name, alike[0].key, e->alike[0], alike[1].key, e->alike[1],
                  alike[2].key, e->alike[2]);
}

static void take_word(endpoint *e, const char *key, const char *value) {
  struct {
    const char *key;
    char *text;
    size_t cap;
  } texts[] = {{"host", e->host, sizeof e->host},
               {"boot", e->boot, sizeof e->boot},
               {"node", e->node, sizeof e->node},
               {"address", e->target.address, sizeof e->target.address},
               {"unix", e->target.unix_name, sizeof e->target.unix_name}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (strcmp(key, texts[i].key) == 0) os_copy_text(texts[i].text, texts[i].cap, value);
  for (int i = 0; i < ENDPOINT_ALIKE; i++)
    if (strcmp(key, alike[i].key) == 0) os_copy_text(e->alike[i], sizeof e->alike[i], value);
  long long n = strtoll(value, NULL, 10);
  if (strcmp(key, "lwcc") == 0) e->version = (int)n;
  if (strcmp(key, "rank") == 0) e->rank = (int)n;
  if (strcmp(key, "pid") == 0) e->pid = (int)n;
  if (strcmp(key, "share") == 0) e->share = n != 0;
  if (strcmp(key, "ucx") == 0) e->ucx = n != 0;
  if (strcmp(key, "port") == 0) e->target.port = (int)n;
  if (strcmp(key, "netns") == 0) e->netns = strtoull(value, NULL, 10);
}

int endpoint_parse(const char *text, int rank, endpoint *out) {
  memset(out, 0, sizeof *out);
  out->rank = -1;
  for (const char *p = text; *p;) {
    char word[160], *equals;
    size_t n = strcspn(p, " ");
    if (n > 0 && n < sizeof word) {
      memcpy(word, p, n);
      word[n] = '\0';
      equals = strchr(word, '=');
      if (equals) *equals = '\0';
      if (equals) take_word(out, word, equals + 1);
    }
    p += n + (p[n] == ' ');
  }
  if (out->version != ENDPOINT_VERSION)
    return os_fail(LWCC_ERR_INVALID, "join: endpoint of rank %d has version %d, this build speaks %d: \"%.80s\"", rank,
                   out->version, ENDPOINT_VERSION, text);
  if (out->rank != rank || out->target.port <= 0 || out->target.port > 65535 || !*out->target.address ||
      !*out->target.unix_name)
    return os_fail(LWCC_ERR_INVALID, "join: endpoint of rank %d is incomplete or another rank's: \"%.160s\"", rank,
                   text);
  return LWCC_OK;
}

bool endpoint_same_system(const endpoint *a, const endpoint *b) {
  return *a->boot && strcmp(a->boot, b->boot) == 0 && a->netns == b->netns;
}

static bool same_node(const endpoint *a, const endpoint *b) {
  if (*a->node && *b->node) return strcmp(a->node, b->node) == 0;
  return endpoint_same_system(a, b);
}

void endpoint_group(const endpoint *e, int size, int *group_out) {
  for (int i = 0; i < size; i++) {
    int j = 0; /* against the first of each node only: with mixed LWCC_NODE the relation need not be transitive */
    while (j < i && !(group_out[j] == j && same_node(&e[i], &e[j]))) j++;
    group_out[i] = j;
  }
}
