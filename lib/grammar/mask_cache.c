/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/mask_cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct mask {
    atomic_uint shares;
    atomic_bool used; /* since the hand came by */
    uint64_t hash;
    struct mask *next; /* in its slot */
    size_t key_words;
    uint32_t words[]; /* the key, then the set */
};

struct mask_cache {
    pthread_mutex_t lock;
    size_t words, bytes, limit, most;
    struct mask **slots; /* [slot_mask + 1] */
    size_t slot_mask;
    struct mask **ring; /* [count], at most [most]; the hand goes round */
    size_t count, hand;
};

int mask_cache_create(struct mask_cache **out, size_t words, size_t bytes, struct error *err)
{
    struct mask_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's masks");
    cache->words = words;
    cache->limit = bytes;
    cache->most = bytes / (sizeof(struct mask) + words * 4) + 1;
    cache->slot_mask = 63;
    while (cache->slot_mask < cache->most)
        cache->slot_mask = cache->slot_mask * 2 + 1;
    cache->slots = calloc(cache->slot_mask + 1, sizeof(struct mask *));
    cache->ring = calloc(cache->most, sizeof(struct mask *));
    if (!cache->slots || !cache->ring || pthread_mutex_init(&cache->lock, NULL)) {
        free(cache->slots);
        free(cache->ring);
        free(cache);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's masks");
    }
    *out = cache;
    return 0;
}

void mask_cache_free(struct mask_cache *cache)
{
    if (!cache)
        return;
    for (size_t i = 0; i < cache->count; i++)
        mask_release(cache->ring[i]);
    pthread_mutex_destroy(&cache->lock);
    free(cache->slots);
    free(cache->ring);
    free(cache);
}

static size_t mask_bytes(const struct mask_cache *cache, size_t key_words)
{
    return sizeof(struct mask) + (cache->words + key_words) * sizeof(uint32_t);
}

size_t mask_cache_bytes(const struct mask_cache *cache)
{
    return sizeof *cache + (cache->slot_mask + 1 + cache->most) * sizeof(struct mask *) +
           cache->limit + mask_bytes(cache, MASK_KEY_WORDS);
}

size_t mask_cache_share_bytes(const struct mask_cache *cache, const struct mask *mask)
{
    return mask ? mask_bytes(cache, mask->key_words) : 0;
}

static struct mask *find(const struct mask_cache *cache, const struct mask_key *key, uint64_t hash)
{
    struct mask *mask = cache->slots[hash & cache->slot_mask];
    while (mask && (mask->hash != hash || mask->key_words != key->count ||
                    memcmp(mask->words, key->words, key->count * sizeof *key->words) != 0))
        mask = mask->next;
    if (mask) {
        atomic_fetch_add(&mask->shares, 1);
        atomic_store(&mask->used, true);
    }
    return mask;
}

struct mask *mask_cache_find(struct mask_cache *cache, const struct mask_key *key)
{
    uint64_t hash = XXH3_64bits(key->words, key->count * sizeof *key->words);
    pthread_mutex_lock(&cache->lock);
    struct mask *mask = find(cache, key, hash);
    pthread_mutex_unlock(&cache->lock);
    return mask;
}

/* Drops the first mask, from the hand on, that was not used since the hand came by. */
static void drop_one(struct mask_cache *cache)
{
    for (;;) {
        cache->hand = cache->hand + 1 < cache->count ? cache->hand + 1 : 0;
        if (!atomic_exchange(&cache->ring[cache->hand]->used, false))
            break;
    }
    struct mask *mask = cache->ring[cache->hand];
    struct mask **link = &cache->slots[mask->hash & cache->slot_mask];
    while (*link != mask)
        link = &(*link)->next;
    *link = mask->next;
    cache->bytes -= mask_bytes(cache, mask->key_words);
    cache->ring[cache->hand] = cache->ring[--cache->count];
    mask_release(mask);
}

struct mask *mask_cache_keep(struct mask_cache *cache, const struct mask_key *key,
                             const uint32_t *set, struct error *err)
{
    size_t bytes = mask_bytes(cache, key->count);
    struct mask *mask = malloc(bytes);
    if (!mask) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's mask");
        return NULL;
    }
    atomic_init(&mask->shares, 2);
    atomic_init(&mask->used, true);
    mask->hash = XXH3_64bits(key->words, key->count * sizeof *key->words);
    mask->key_words = key->count;
    memcpy(mask->words, key->words, key->count * sizeof *key->words);
    memcpy(mask->words + key->count, set, cache->words * sizeof *set);
    pthread_mutex_lock(&cache->lock);
    struct mask *other = find(cache, key, mask->hash); /* another thread was faster */
    if (!other) {
        while (cache->count > 0 &&
               (cache->count == cache->most || cache->bytes + bytes > cache->limit))
            drop_one(cache);
        struct mask **slot = &cache->slots[mask->hash & cache->slot_mask];
        mask->next = *slot;
        *slot = mask;
        cache->ring[cache->count++] = mask;
        cache->bytes += bytes;
    }
    pthread_mutex_unlock(&cache->lock);
    if (!other)
        return mask;
    free(mask);
    return other;
}

const uint32_t *mask_set(const struct mask *mask)
{
    return mask->words + mask->key_words;
}

struct mask *mask_share(struct mask *mask)
{
    atomic_fetch_add(&mask->shares, 1);
    return mask;
}

void mask_release(struct mask *mask)
{
    if (mask && atomic_fetch_sub(&mask->shares, 1) == 1)
        free(mask);
}
