/* SPDX-License-Identifier: Apache-2.0 */
/* The added tokens of tokenizer.json. Their ids are the library's: that of the vocabulary where it
 * has the content, else the next free one in the order of the list. What the file gives as "id" is
 * not used; where it differs, there is a warning. */
#include "lib/text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* One element of the list. */
struct entry {
    const char *content; /* borrowed from the document */
    int64_t stated;      /* -1: nothing */
    int32_t id;
    bool normalized, special, single_word, lstrip, rstrip;
};

struct reader {
    struct tokenizer *tokenizer;
    struct entry *entries; /* [count] */
    size_t count;
    int32_t next_id;
};

static int read_entry(struct entry *entry, const json_t *json, enum field_need id,
                      struct error *err)
{
    struct fields fields = {json, "token"};
    entry->stated = -1;
    return fields_string(&fields, "content", FIELD_REQUIRED, &entry->content, err) ||
                   fields_int(&fields, "id", id, 0, UINT32_MAX, &entry->stated, err) ||
                   fields_bool(&fields, "single_word", FIELD_REQUIRED, &entry->single_word, err) ||
                   fields_bool(&fields, "lstrip", FIELD_REQUIRED, &entry->lstrip, err) ||
                   fields_bool(&fields, "rstrip", FIELD_REQUIRED, &entry->rstrip, err) ||
                   fields_bool(&fields, "normalized", FIELD_REQUIRED, &entry->normalized, err) ||
                   fields_bool(&fields, "special", FIELD_REQUIRED, &entry->special, err)
               ? -1
               : 0;
}

/* Gives the entry its id, and enters it into the vocabulary. */
static int register_entry(struct reader *reader, struct entry *entry, struct error *err)
{
    struct vocabulary *vocabulary = &reader->tokenizer->vocabulary;
    size_t length = strlen(entry->content);
    unsigned flags = TOKEN_ADDED | (entry->special ? TOKEN_SPECIAL : 0);
    entry->id = vocabulary_find(vocabulary, entry->content, length);
    if (entry->id >= 0) {
        vocabulary->tokens[entry->id].flags |= flags;
    } else {
        entry->id = reader->next_id++;
        if (vocabulary_knows(vocabulary, entry->id))
            return error_set(
                err, ERROR_UNSUPPORTED,
                "\"%.60s\": the next free id is %d to the library, but the vocabulary, "
                "whose ids have a gap, gives that to \"%.60s\"",
                entry->content, entry->id, vocabulary_content(vocabulary, entry->id));
        if (vocabulary_add(vocabulary, entry->id, entry->content, length, flags, err))
            return -1;
    }
    if (entry->stated >= 0 && entry->stated != entry->id)
        warnings_add(&reader->tokenizer->warnings,
                     "tokenizer.json: added_tokens: \"%.60s\": its id is %d, as in Hugging Face's "
                     "library, not the "
                     "%lld that is stated",
                     entry->content, entry->id, (long long)entry->stated);
    return 0;
}

/* The text that is looked for: the content, or what the normalizer makes of it. */
static int copy_text(const struct normalizer *normalizer, const struct entry *entry,
                     struct added_token *token, struct error *err)
{
    struct text_buffer buffers[2] = {{0}};
    const char *text = entry->content;
    size_t length = strlen(text);
    int failed = 0;
    if (entry->normalized)
        failed = normalizer_apply(normalizer, text, length, buffers, NULL, &text, &length, err);
    if (!failed && (length == 0 || length > ADDED_TOKEN_MAX_LENGTH))
        failed = error_set(err, ERROR_INVALID,
                           "\"%.60s\": expected 1 to %d bytes once normalized, got %zu",
                           entry->content, ADDED_TOKEN_MAX_LENGTH, length);
    token->content = failed ? NULL : malloc(length + 1);
    if (!failed && !token->content)
        failed = error_set(err, ERROR_NO_MEMORY, "no memory for an added token");
    if (!failed) {
        memcpy(token->content, text, length);
        token->content[length] = 0;
        token->length = length;
    }
    text_buffer_clear(&buffers[0]);
    text_buffer_clear(&buffers[1]);
    return failed;
}

/* Puts the entry among the tokens that are searched for, where it is the last one of its id. */
static int search_for(struct reader *reader, const struct entry *entry, bool last,
                      struct error *err)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    struct added_token token = {.id = entry->id,
                                .single_word = entry->single_word,
                                .lstrip = entry->lstrip,
                                .rstrip = entry->rstrip};
    token.special = tokenizer->vocabulary.tokens[entry->id].flags & TOKEN_SPECIAL;
    if (!last && !entry->normalized)
        return 0;
    if (copy_text(&tokenizer->normalizer, entry, &token, err))
        return -1;
    if (entry->normalized &&
        decoder_respell(&tokenizer->decoder, entry->id, token.content, token.length, err)) {
        free(token.content);
        return -1;
    }
    if (!last) {
        free(token.content);
        return 0;
    }
    return added_tokens_push(
        entry->normalized ? &tokenizer->normalized_tokens : &tokenizer->plain_tokens, token, err);
}

static int search_for_all(struct reader *reader, struct error *err)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    size_t *last = calloc((size_t)tokenizer->vocabulary.size + 1, sizeof *last);
    if (!last)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu added tokens", reader->count);
    for (size_t i = 0; i < reader->count; i++)
        last[reader->entries[i].id] = i;
    int failed = 0;
    for (size_t i = 0; !failed && i < reader->count; i++)
        failed = search_for(reader, &reader->entries[i], last[reader->entries[i].id] == i, err);
    free(last);
    if (failed)
        return error_prefix(err, "added_tokens");
    if (added_tokens_sort(&tokenizer->plain_tokens, err))
        return -1;
    return added_tokens_sort(&tokenizer->normalized_tokens, err);
}

static int read_list(struct reader *reader, const json_t *list, enum field_need id,
                     struct error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct entry *entry = &reader->entries[reader->count];
        if (read_entry(entry, json_array_get(list, i), id, err))
            return error_prefix(err, "added_tokens[%zu]", i);
        if (entry->content[0] == 0)
            continue; /* the library leaves it out, too */
        if (register_entry(reader, entry, err))
            return error_prefix(err, "added_tokens[%zu]", i);
        reader->count++;
    }
    return 0;
}

int added_tokens_read(struct tokenizer *tokenizer, const json_t *list, const json_t *more,
                      struct error *err)
{
    struct reader reader = {.tokenizer = tokenizer,
                            .next_id = (int32_t)tokenizer->vocabulary.count};
    size_t count = json_array_size(list) + json_array_size(more);
    reader.entries = calloc(count + 1, sizeof *reader.entries);
    if (!reader.entries)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu added tokens", count);
    int failed = read_list(&reader, list, FIELD_REQUIRED, err);
    /* Those of another file come behind the largest id, the library says. */
    for (size_t i = 0; i < reader.count; i++)
        if (reader.entries[i].id >= reader.next_id)
            reader.next_id = reader.entries[i].id + 1;
    failed =
        failed || read_list(&reader, more, FIELD_OPTIONAL, err) || search_for_all(&reader, err);
    free(reader.entries);
    return failed ? -1 : 0;
}
