/* Prints the text pictures of every algorithm at the sizes given as arguments, each rank's after a line
 * "== <collective>_<name> <size>". */
#include <stdio.h>
#include <stdlib.h>

#include "os/status.h"
#include "plan/ir.h"

static int print_size(int collective, const char *name, int size) {
  printf("== %s_%s %d\n", collective_name(collective), name, size);
  for (int rank = 0; rank < size; rank++) {
    int64_t nbytes = lwcc_algorithm_print(collective, name, rank, size, NULL, 0);
    if (nbytes == LWCC_ERR_UNSUPPORTED) return 0;
    char *text = nbytes < 0 ? NULL : malloc((size_t)nbytes + 1);
    if (!text) return fprintf(stderr, "%s: %s\n", name, os_error());
    lwcc_algorithm_print(collective, name, rank, size, text, (size_t)nbytes + 1);
    fputs(text, stdout);
    free(text);
  }
  return 0;
}

int main(int argc, char **argv) {
  for (int c = 0; c < LWCC_COLLECTIVES; c++) {
    for (int i = 0; lwcc_algorithm_name(c, i); i++) {
      for (int a = 1; a < argc; a++) {
        if (print_size(c, lwcc_algorithm_name(c, i), atoi(argv[a]))) return 1;
      }
    }
  }
  return 0;
}
