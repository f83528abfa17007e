/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10, a counter-based random generator: 128 random bits are a pure function of a counter
 * and a key. So a draw needs no state and does not depend on other draws.
 * Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3. */
#ifndef LIB_BASE_PHILOX_H
#define LIB_BASE_PHILOX_H

#include <stdint.h>

struct philox {
    uint32_t word[4];
};

/* Works on `lanes` counters at once; word j of counter i is wordj[i]. Compilers vectorise the loop
 * when lanes is a constant. */
static inline void philox4x32_10_lanes(uint32_t *restrict word0, uint32_t *restrict word1,
                                       uint32_t *restrict word2, uint32_t *restrict word3,
                                       int lanes, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < lanes; i++) {
            uint64_t product0 = (uint64_t)0xD2511F53u * word0[i];
            uint64_t product1 = (uint64_t)0xCD9E8D57u * word2[i];
            word0[i] = (uint32_t)(product1 >> 32) ^ word1[i] ^ key0;
            word1[i] = (uint32_t)product1;
            word2[i] = (uint32_t)(product0 >> 32) ^ word3[i] ^ key1;
            word3[i] = (uint32_t)product0;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

static inline struct philox philox4x32_10(struct philox counter, uint32_t key0, uint32_t key1)
{
    uint32_t *word = counter.word;
    philox4x32_10_lanes(&word[0], &word[1], &word[2], &word[3], 1, key0, key1);
    return counter;
}

#endif
