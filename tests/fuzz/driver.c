/* Runs a fuzz target without a fuzzer's runtime: mutates the seeds by a fixed rule, so that a run can be repeated.
 * usage: program runs random_seed [seed files ...] */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

enum { INPUT_LIMIT = 4096, SEED_LIMIT = 64 };
typedef struct {
  uint8_t data[INPUT_LIMIT];
  size_t nbytes;
} input;

static uint64_t state;

static uint64_t next_random(void) { /* splitmix64 */
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static void mutate(input *in) {
  static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff};
  size_t at = in->nbytes ? next_random() % in->nbytes : 0;
  switch (next_random() % 5) {
    case 0: /* flip a bit */
      if (in->nbytes) in->data[at] ^= (uint8_t)(1u << (next_random() % 8));
      break;
    case 1: /* an edge value */
      if (in->nbytes) in->data[at] = edges[next_random() % sizeof edges];
      break;
    case 2: /* cut */
      in->nbytes = at;
      break;
    case 3: /* append */
      while (in->nbytes < INPUT_LIMIT && next_random() % 8) in->data[in->nbytes++] = (uint8_t)next_random();
      break;
    default: /* double a piece */
      if (in->nbytes && in->nbytes * 2 <= INPUT_LIMIT) {
        memcpy(in->data + in->nbytes, in->data + at, in->nbytes - at);
        in->nbytes += in->nbytes - at;
      }
  }
}

int main(int argc, char **argv) {
  static input seeds[SEED_LIMIT];
  static input work;
  int nseeds = 1; /* the empty input */
  if (argc < 3) return 2;
  long runs = atol(argv[1]);
  state = strtoull(argv[2], NULL, 10);
  for (int i = 3; i < argc && nseeds < SEED_LIMIT; i++) {
    FILE *f = fopen(argv[i], "rb");
    if (!f) return 2;
    seeds[nseeds].nbytes = fread(seeds[nseeds].data, 1, INPUT_LIMIT, f);
    fclose(f);
    nseeds++;
  }
  for (int i = 0; i < nseeds; i++) LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].nbytes);
  for (long run = 0; run < runs; run++) {
    memcpy(&work, &seeds[next_random() % (uint64_t)nseeds], sizeof work);
    for (uint64_t n = 1 + next_random() % 8; n > 0; n--) mutate(&work);
    LLVMFuzzerTestOneInput(work.data, work.nbytes);
  }
  printf("%ld mutations of %d seeds\n", runs, nseeds);
  return 0;
}
