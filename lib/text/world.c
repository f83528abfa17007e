/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/world.h"

#include "lib/text/unicode.h"

#include <stdlib.h>

/* The entries' bytes come to lie in `bytes`. */
static int add_tokens(const struct vocabulary *vocabulary, struct text_buffer *bytes,
                      struct trie_entry *entries, size_t *count, struct error *err)
{
    if (text_buffer_reserve(bytes, vocabulary->contents.length + 1, err))
        return -1; /* a byte is spelled with one at least: it does not move any more */
    for (int32_t id = 0; id < vocabulary->size; id++) {
        const struct vocabulary_token *token = &vocabulary->tokens[id];
        if (!(token->flags & TOKEN_MODEL) || token->flags & TOKEN_ADDED)
            continue;
        const char *content = vocabulary_content(vocabulary, id);
        char *const first = bytes->data + bytes->length;
        for (size_t at = 0, used; at < token->length; at += used)
            bytes->data[bytes->length++] = (char)byte_level_byte(utf8_decode(content + at, &used));
        const size_t length = (size_t)(bytes->data + bytes->length - first);
        if (length == 0 || length > TOKEN_TRIE_MAX_LENGTH)
            return error_set(err, ERROR_INVALID, "token %d: expected 1 to %d bytes, got %zu", id,
                             TOKEN_TRIE_MAX_LENGTH, length);
        entries[(*count)++] = (struct trie_entry){first, (uint32_t)length, id};
    }
    return 0;
}

int world_finish(struct world *world, const struct vocabulary *vocabulary, struct error *err)
{
    struct text_buffer bytes = {0};
    size_t count = 0;
    struct trie_entry *entries = calloc(vocabulary->count + 1, sizeof *entries);
    int failed =
        !entries ? error_set(err, ERROR_NO_MEMORY, "no memory for %zu tokens", vocabulary->count)
                 : add_tokens(vocabulary, &bytes, entries, &count, err);
    if (!failed)
        failed = token_trie_build(&world->trie, entries, count, err);
    free(entries);
    text_buffer_clear(&bytes);
    for (int byte = 0; !failed && byte < 256; byte++) {
        uint32_t node = 0;
        if (!token_trie_step(&world->trie, &node, (unsigned char)byte) ||
            world->trie.nodes[node].id < 0)
            failed =
                error_set(err, ERROR_INVALID, "expected a token for each byte, got none for 0x%02X",
                          (unsigned)byte);
    }
    return failed;
}

void world_clear(struct world *world)
{
    token_trie_clear(&world->trie);
}

int world_encode(const struct world *world, const char *text, size_t length, struct token_list *ids,
                 struct error *err)
{
    for (size_t start = 0, end; start < length; start = end) {
        uint32_t node = 0;
        int32_t id = -1;
        end = start;
        for (size_t at = start;
             at < length && token_trie_step(&world->trie, &node, (unsigned char)text[at]);) {
            at++;
            if (world->trie.nodes[node].id < 0)
                continue;
            id = world->trie.nodes[node].id;
            end = at;
        }
        if (token_list_push(ids, id, err))
            return -1;
    }
    return 0;
}

int world_spell(const char *bytes, size_t length, struct text_buffer *spelled, struct error *err)
{
    if (text_buffer_reserve(spelled, 2 * length, err))
        return -1;
    for (size_t i = 0; i < length; i++)
        spelled->length += utf8_encode(byte_level_character((unsigned char)bytes[i]),
                                       spelled->data + spelled->length);
    return 0;
}
