/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes short strings under a key: SipHash-2-4 with 128 bits of output (Aumasson and Bernstein
 * 2012). Without the key nobody can compute the hash of a string, or test a guess. */
#ifndef LIB_BASE_SIPHASH_H
#define LIB_BASE_SIPHASH_H

#include <stddef.h>

enum { SIPHASH_BYTES = 16 };

/* key, out: [SIPHASH_BYTES]; bytes: [size]. */
void siphash(const unsigned char *key, const void *bytes, size_t size, unsigned char *out);

#endif
