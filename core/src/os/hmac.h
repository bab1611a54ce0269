#ifndef OS_HMAC_H
#define OS_HMAC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HMAC_BYTES = 32 };

/* HMAC-SHA256 (RFC 2104, FIPS 180-4). Any thread. */
void hmac_sha256(const void *key, size_t key_nbytes, const void *msg, size_t nbytes, uint8_t out[HMAC_BYTES]);
/* Equality in constant time. Any thread. */
bool hmac_equal(const uint8_t a[HMAC_BYTES], const uint8_t b[HMAC_BYTES]);
/* Unguessable bytes from the kernel; LWCC_ERR_SYSTEM. Any thread. */
int hmac_random(void *out, size_t nbytes);
#endif
