#include "os/hmac.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "os/status.h"

typedef struct {
  uint32_t h[8];
  uint64_t nbytes; /* taken so far */
  uint8_t block[64];
} sha256;

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

static void take_block(sha256 *s) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++) {
    const uint8_t *b = s->block + 4 * i;
    w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
  }
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
  }
  memcpy(v, s->h, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t e = v[4], a = v[0];
    uint32_t t =
        v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + round_constant[i] + w[i];
    uint32_t u = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t;
    v[0] = t + u;
  }
  for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

static void take(sha256 *s, const void *msg, size_t nbytes) {
  for (const uint8_t *p = msg, *end = p + nbytes; p < end; p++) {
    s->block[s->nbytes++ % 64] = *p;
    if (s->nbytes % 64 == 0) take_block(s);
  }
}

static void start(sha256 *s) {
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(s->h, first, sizeof first);
  s->nbytes = 0;
}

static void finish(sha256 *s, uint8_t out[HMAC_BYTES]) {
  uint64_t nbits = s->nbytes * 8;
  uint8_t tail[8];
  for (int i = 0; i < 8; i++) tail[i] = (uint8_t)(nbits >> (56 - 8 * i));
  take(s, "\x80", 1);
  while (s->nbytes % 64 != 56) take(s, "", 1);
  take(s, tail, sizeof tail);
  for (int i = 0; i < HMAC_BYTES; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac_sha256(const void *key, size_t key_nbytes, const void *msg, size_t nbytes, uint8_t out[HMAC_BYTES]) {
  uint8_t pad[64] = {0};
  sha256 s;
  if (key_nbytes > sizeof pad) {
    start(&s);
    take(&s, key, key_nbytes);
    finish(&s, pad);
  } else {
    memcpy(pad, key, key_nbytes);
  }
  for (size_t i = 0; i < sizeof pad; i++) pad[i] ^= 0x36;
  start(&s);
  take(&s, pad, sizeof pad);
  take(&s, msg, nbytes);
  finish(&s, out);
  for (size_t i = 0; i < sizeof pad; i++) pad[i] ^= 0x36 ^ 0x5c;
  start(&s);
  take(&s, pad, sizeof pad);
  take(&s, out, HMAC_BYTES);
  finish(&s, out);
}

bool hmac_equal(const uint8_t a[HMAC_BYTES], const uint8_t b[HMAC_BYTES]) {
  unsigned differ = 0;
  for (int i = 0; i < HMAC_BYTES; i++) differ |= a[i] ^ b[i];
  return differ == 0;
}

int hmac_random(void *out, size_t nbytes) {
  for (size_t done = 0; done < nbytes;) {
    ssize_t n = getrandom((char *)out + done, nbytes - done, 0);
    if (n < 0 && errno != EINTR) return os_fail(LWCC_ERR_SYSTEM, "getrandom failed (%s)", strerror(errno));
    if (n > 0) done += (size_t)n;
  }
  return LWCC_OK;
}
