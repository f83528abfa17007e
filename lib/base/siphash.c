/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/siphash.h"

#include "lib/base/bytes.h"

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(uint64_t v[4], int count)
{
    for (int i = 0; i < count; i++) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static void absorb(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    rounds(v, 2);
    v[0] ^= word;
}

void siphash(const unsigned char *key, const void *bytes, size_t size, unsigned char *out)
{
    const unsigned char *in = bytes;
    uint64_t k0 = read_u64(key), k1 = read_u64(key + 8);
    uint64_t v[4] = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du ^ 0xee,
                     k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    size_t whole = size / 8 * 8;
    for (size_t i = 0; i < whole; i += 8)
        absorb(v, read_u64(in + i));
    uint64_t last = (uint64_t)size << 56;
    for (size_t i = whole; i < size; i++)
        last |= (uint64_t)in[i] << 8 * (i - whole);
    absorb(v, last);
    for (int half = 0; half < 2; half++) {
        v[half == 0 ? 2 : 1] ^= half == 0 ? 0xee : 0xdd;
        rounds(v, 4);
        uint64_t word = v[0] ^ v[1] ^ v[2] ^ v[3];
        memcpy(out + 8 * half, &word, 8);
    }
}
