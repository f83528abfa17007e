/* SPDX-License-Identifier: Apache-2.0 */
/* The post-processors of tokenizer.json: the ids put before and after those of a text. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

enum { MAX_NESTING = 4, MAX_PIECES = 64 };

static int push_id(const struct tokenizer *tokenizer, struct token_list *list, const json_t *value,
                   struct error *err)
{
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= tokenizer->vocabulary.size ||
        !vocabulary_knows(&tokenizer->vocabulary, (int32_t)id))
        return error_set(err, ERROR_INVALID, "post_processor: expected the id of a token, got %lld",
                         (long long)id);
    return token_list_push(list, (int32_t)id, err);
}

/* The ids of the special token called `name`. */
static int push_special(const struct tokenizer *tokenizer, const json_t *specials, const char *name,
                        struct token_list *list, struct error *err)
{
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    if (!json_is_array(ids) || json_array_size(ids) > MAX_PIECES)
        return error_set(err, ERROR_INVALID,
                         "post_processor: special_tokens: \"%.60s\": expected a list of ids", name);
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (push_id(tokenizer, list, json_array_get(ids, i), err))
            return -1;
    return 0;
}

/* Puts what a processor adds around what those before it did. */
static int wrap(struct tokenizer *tokenizer, struct token_list *before, struct token_list *after,
                struct error *err)
{
    for (size_t i = 0; i < tokenizer->prefix.count; i++)
        if (token_list_push(before, tokenizer->prefix.ids[i], err))
            return -1;
    for (size_t i = 0; i < after->count; i++)
        if (token_list_push(&tokenizer->suffix, after->ids[i], err))
            return -1;
    struct token_list old = tokenizer->prefix;
    tokenizer->prefix = *before;
    *before = old;
    return 0;
}

static int read_pieces(const struct tokenizer *tokenizer, const struct fields *fields,
                       struct token_list *before, struct token_list *after, struct error *err)
{
    const json_t *pieces;
    if (fields_list(fields, "single", FIELD_REQUIRED, &pieces, err) != 0)
        return -1;
    bool seen = false, good = json_array_size(pieces) <= MAX_PIECES;
    for (size_t i = 0; good && i < json_array_size(pieces); i++) {
        const json_t *piece = json_array_get(pieces, i);
        const char *special =
            json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        const char *sequence =
            json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (special) {
            if (push_special(tokenizer, json_object_get(fields->object, "special_tokens"), special,
                             seen ? after : before, err))
                return -1;
        } else {
            good = sequence && strcmp(sequence, "A") == 0 && !seen;
            seen = true;
        }
    }
    if (!good || !seen)
        return error_set(err, ERROR_UNSUPPORTED,
                         "post_processor: single: expected special tokens around one sequence A");
    return 0;
}

/* RobertaProcessing and BertProcessing: "cls" before, "sep" after, each [content, id]. */
static int read_pair(const struct tokenizer *tokenizer, const struct fields *fields,
                     struct token_list *before, struct token_list *after, struct error *err)
{
    const json_t *cls = json_object_get(fields->object, "cls");
    const json_t *sep = json_object_get(fields->object, "sep");
    if (push_id(tokenizer, before, json_array_get(cls, 1), err))
        return -1;
    return push_id(tokenizer, after, json_array_get(sep, 1), err);
}

static int read_processor(struct tokenizer *tokenizer, const json_t *json, int depth,
                          struct error *err)
{
    static const char *const NAMES[] = {"ByteLevel", "TemplateProcessing", "RobertaProcessing",
                                        "BertProcessing", "Sequence"};
    enum { BYTE_LEVEL, TEMPLATE, ROBERTA, BERT, SEQUENCE };
    struct fields fields = {json, "post_processor"};
    int name = tokenizer_parts_choice(&fields, "type", NAMES, sizeof NAMES / sizeof *NAMES, err);
    if (name < 0 || name == BYTE_LEVEL) /* it only moves offsets */
        return name < 0 ? -1 : 0;
    if (name == SEQUENCE) {
        const json_t *items;
        if (fields_list(&fields, "processors", FIELD_REQUIRED, &items, err) != 0)
            return -1;
        if (depth == MAX_NESTING || json_array_size(items) > MAX_PIECES)
            return error_set(err, ERROR_UNSUPPORTED, "post_processor: too many steps");
        for (size_t i = 0; i < json_array_size(items); i++)
            if (read_processor(tokenizer, json_array_get(items, i), depth + 1, err))
                return -1;
        return 0;
    }
    struct token_list before = {0}, after = {0};
    int failed = name == TEMPLATE ? read_pieces(tokenizer, &fields, &before, &after, err)
                                  : read_pair(tokenizer, &fields, &before, &after, err);
    if (!failed)
        failed = wrap(tokenizer, &before, &after, err);
    token_list_clear(&before);
    token_list_clear(&after);
    return failed;
}

int template_read(struct tokenizer *tokenizer, const json_t *json, struct error *err)
{
    return !json || json_is_null(json) ? 0 : read_processor(tokenizer, json, 0, err);
}
