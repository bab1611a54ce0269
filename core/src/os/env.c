#include "os/env.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "os/log.h"

static const env_row rows[] = {
#define X(id, synonym, type, fallback, allowed, help) {"LWCC_" #id, synonym, type, fallback, allowed, help},
    ENV_TABLE(X)
#undef X
};

const env_row *env_at(int index) {
  return index >= 0 && index < ENV_COUNT ? &rows[index] : NULL;
}

/* The raw text and the variable it came from; NULL if unset or empty. */
static const char *look_up(const env_row *row, const char **name_out) {
  *name_out = row->name;
  const char *v = getenv(row->name);
  if ((!v || !*v) && *row->synonym) {
    *name_out = row->synonym;
    v = getenv(row->synonym);
  }
  return v && *v ? v : NULL;
}

static bool parse_number(const env_row *row, const char *text, double *out) {
  char *end;
  errno = 0;
  double x = strtod(text, &end);
  if (end == text || errno || !isfinite(x)) return false;
  if (row->type == ENV_BYTES && *end) {
    static const char suffixes[] = "KMG";
    const char *s = strchr(suffixes, toupper((unsigned char)*end));
    if (!s) return false;
    x = ldexp(x, 10 * (int)(s - suffixes + 1));
    end += strcasecmp(end + 1, "iB") == 0 ? 3 : strcasecmp(end + 1, "B") == 0 ? 2 : 1;
  }
  double least = strtod(row->allowed, NULL), most = strtod(strstr(row->allowed, "..") + 2, NULL);
  if (*end) return false;
  if (row->type != ENV_REAL && x != floor(x)) return false;
  *out = x;
  return x >= least && x <= most;
}

static double number(const env_row *row) {
  double x = 0, fallback = 0;
  const char *name, *v = look_up(row, &name);
  parse_number(row, row->fallback, &fallback);
  if (!v) return fallback;
  if (parse_number(row, v, &x)) return x;
  const char *kind = row->type == ENV_BYTES ? "a whole number of bytes"
                     : row->type == ENV_INT ? "a whole number"
                                            : "a number";
  LOG(WARN, "%s=\"%.100s\" is not %s in %s; using %s", name, v, kind, row->allowed, row->fallback);
  return fallback;
}

const char *env_text(env_id id) {
  const char *name, *v = look_up(&rows[id], &name);
  return v ? v : rows[id].fallback;
}

int64_t env_int(env_id id) {
  return (int64_t)number(&rows[id]);
}
double env_real(env_id id) {
  return number(&rows[id]);
}

/* "warn" stands for "warning", as in many tools. */
int env_choice_index(env_id id, const char *text) {
  const char *allowed = rows[id].allowed;
  if (strcasecmp(text, "warn") == 0) text = "warning";
  size_t n = strlen(text);
  int index = 0;
  for (const char *p = allowed; *p; index++) {
    size_t m = strcspn(p, "|");
    if (m == n && strncasecmp(p, text, n) == 0) return index;
    p += m + (p[m] == '|');
  }
  return -1;
}

int env_choice(env_id id) {
  const env_row *row = &rows[id];
  const char *name, *v = look_up(row, &name);
  int fallback = env_choice_index(id, row->fallback);
  if (!v) return fallback;
  int chosen = env_choice_index(id, v);
  if (chosen >= 0) return chosen;
  LOG(WARN, "%s=\"%.100s\" is not one of %s; using %s", name, v, row->allowed, row->fallback);
  return fallback;
}
