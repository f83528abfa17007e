/* SPDX-License-Identifier: Apache-2.0 */
/* The masks of a grammar that took long to make, by where a text was. Its memory is bounded: new
 * masks push out those that were not asked for lately. Many threads may use it. */
#ifndef LIB_GRAMMAR_MASK_CACHE_H
#define LIB_GRAMMAR_MASK_CACHE_H

#include "lib/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { MASK_KEY_WORDS = 512 };

struct mask_key {
    uint32_t words[MASK_KEY_WORDS]; /* [count] */
    size_t count;
};

struct mask; /* counted: who holds one may read it, whatever the cache does */
struct mask_cache;

/* words: of 32 bits in a mask. bytes: what it may grow to, at least one mask. */
int mask_cache_create(struct mask_cache **out, size_t words, size_t bytes, struct error *err);
void mask_cache_free(struct mask_cache *cache); /* NULL is allowed */
size_t mask_cache_bytes(const struct mask_cache *cache);
/* Of a mask that someone holds beside it; NULL: none. */
size_t mask_cache_share_bytes(const struct mask_cache *cache, const struct mask *mask);

/* NULL: it is not there. */
struct mask *mask_cache_find(struct mask_cache *cache, const struct mask_key *key);
/* Keeps a copy of set [words], which it gives to the caller too. NULL: no memory. */
struct mask *mask_cache_keep(struct mask_cache *cache, const struct mask_key *key,
                             const uint32_t *set, struct error *err);
const uint32_t *mask_set(const struct mask *mask);
struct mask *mask_share(struct mask *mask);
void mask_release(struct mask *mask); /* NULL is allowed */

#endif
