/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

/* A hash that collides this often was made to; looking things up would take quadratic time. */
enum { MAX_PROBES = 512 };

static uint64_t hash_bytes(const char *data, size_t length)
{
    uint64_t hash = length * 0x9E3779B97F4A7C15u;
    while (length > 0) {
        uint64_t word = 0;
        size_t step = length < 8 ? length : 8;
        memcpy(&word, data, step);
        hash = (hash ^ word) * 0xFF51AFD7ED558CCDu;
        hash ^= hash >> 32;
        data += step;
        length -= step;
    }
    hash *= 0xC4CEB9FE1A85EC53u;
    return hash ^ hash >> 29;
}

int vocabulary_init(struct vocabulary *vocabulary, size_t count, struct error *err)
{
    if (count > VOCABULARY_MAX_IDS)
        return error_set(err, ERROR_INVALID, "%zu tokens, expected at most %d", count,
                         VOCABULARY_MAX_IDS);
    size_t slots = 64;
    while (slots < 2 * count)
        slots *= 2;
    vocabulary->slots = malloc(slots * sizeof *vocabulary->slots);
    if (!vocabulary->slots)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu tokens", count);
    memset(vocabulary->slots, 0xFF, slots * sizeof *vocabulary->slots);
    vocabulary->slot_mask = slots - 1;
    return 0;
}

/* The slot of a content: the one that holds it, or the free one where it belongs; -1 when it has
 * collided too often. */
static ptrdiff_t find_slot(const struct vocabulary *vocabulary, const char *content, size_t length)
{
    size_t slot = hash_bytes(content, length) & vocabulary->slot_mask;
    for (int probes = 0; probes < MAX_PROBES; probes++) {
        int32_t id = vocabulary->slots[slot];
        if (id < 0)
            return (ptrdiff_t)slot;
        const struct vocabulary_token *token = &vocabulary->tokens[id];
        if (token->length == length &&
            memcmp(vocabulary->contents.data + token->offset, content, length) == 0)
            return (ptrdiff_t)slot;
        slot = (slot + 1) & vocabulary->slot_mask;
    }
    return -1;
}

static int grow_to(struct vocabulary *vocabulary, int32_t size, struct error *err)
{
    if (size <= vocabulary->size)
        return 0;
    if (array_grow((void **)&vocabulary->tokens, &vocabulary->capacity, (size_t)size,
                   sizeof *vocabulary->tokens, err))
        return -1;
    memset(vocabulary->tokens + vocabulary->size, 0,
           (size_t)(size - vocabulary->size) * sizeof *vocabulary->tokens);
    vocabulary->size = size;
    return 0;
}

int vocabulary_add(struct vocabulary *vocabulary, int32_t id, const char *content, size_t length,
                   unsigned flags, struct error *err)
{
    if (id < 0 || id >= VOCABULARY_MAX_IDS)
        return error_set(err, ERROR_INVALID, "\"%.60s\": expected an id in [0, %d), got %d",
                         content, VOCABULARY_MAX_IDS, id);
    if (grow_to(vocabulary, id + 1, err))
        return -1;
    struct vocabulary_token *token = &vocabulary->tokens[id];
    if (token->flags & TOKEN_KNOWN)
        return error_set(err, ERROR_INVALID, "\"%.60s\": id %d is already that of \"%.60s\"",
                         content, id, vocabulary_content(vocabulary, id));
    if (length >= UINT32_MAX - vocabulary->contents.length)
        return error_set(err, ERROR_INVALID, "more than 4 GiB of token contents");
    ptrdiff_t slot = find_slot(vocabulary, content, length);
    if (slot < 0 || 4 * (vocabulary->count + 1) > 3 * (vocabulary->slot_mask + 1))
        return error_set(err, ERROR_INVALID, "\"%.60s\": too many tokens with the same hash",
                         content);
    if (vocabulary->slots[slot] >= 0)
        return error_set(err, ERROR_INVALID, "\"%.60s\": expected one id, got %d and %d", content,
                         vocabulary->slots[slot], id);
    size_t offset = vocabulary->contents.length;
    if (text_buffer_append(&vocabulary->contents, content, length, err) ||
        text_buffer_append(&vocabulary->contents, "", 1, err))
        return -1;
    *token = (struct vocabulary_token){(uint32_t)offset, (uint32_t)length, flags | TOKEN_KNOWN};
    vocabulary->slots[slot] = id;
    vocabulary->count++;
    if (flags & TOKEN_MODEL && length > vocabulary->longest)
        vocabulary->longest = length;
    return 0;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *content, size_t length)
{
    ptrdiff_t slot = find_slot(vocabulary, content, length);
    return slot < 0 ? -1 : vocabulary->slots[slot];
}

int32_t vocabulary_find_model(const struct vocabulary *vocabulary, const char *content,
                              size_t length)
{
    int32_t id = vocabulary_find(vocabulary, content, length);
    return id >= 0 && vocabulary->tokens[id].flags & TOKEN_MODEL ? id : -1;
}

void vocabulary_clear(struct vocabulary *vocabulary)
{
    free(vocabulary->tokens);
    free(vocabulary->slots);
    text_buffer_clear(&vocabulary->contents);
    *vocabulary = (struct vocabulary){0};
}
