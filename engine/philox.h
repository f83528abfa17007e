/* Philox4x32-10, a counter-based generator: 128 random bits as a pure function of a counter and a
 * key, so that a draw needs no state and does not depend on what was drawn elsewhere.
 * Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3. */
#ifndef ENGINE_PHILOX_H
#define ENGINE_PHILOX_H

#include <stdint.h>

struct philox {
    uint32_t word[4];
};

static inline struct philox philox4x32_10(struct philox counter, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * counter.word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * counter.word[2];
        counter = (struct philox){{
            (uint32_t)(product1 >> 32) ^ counter.word[1] ^ key0,
            (uint32_t)product1,
            (uint32_t)(product0 >> 32) ^ counter.word[3] ^ key1,
            (uint32_t)product0,
        }};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

#endif
