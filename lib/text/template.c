/* SPDX-License-Identifier: Apache-2.0 */
/* The post-processors of tokenizer.json: the ids put before and after those of a text. */
#include "lib/text/tokenizer_parts.h"

#include <string.h>

enum { MAX_NESTING = 4, MAX_PIECES = 64 };

static int push_id(const struct tokenizer *tokenizer, struct token_list *list, const json_t *value,
                   const char *key, struct error *err)
{
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= tokenizer->vocabulary.size ||
        !vocabulary_knows(&tokenizer->vocabulary, (int32_t)id))
        return error_set(err, ERROR_INVALID,
                         "post_processor: %s: expected the id of a token, got %lld", key,
                         (long long)id);
    return token_list_push(list, (int32_t)id, err);
}

/* {name: {"id": text, "ids": [id], "tokens": [text]}}, as the library reads it. */
static int check_specials(const json_t *specials, struct error *err)
{
    const char *name;
    json_t *special;
    json_object_foreach((json_t *)specials, name, special)
    {
        const json_t *ids = json_object_get(special, "ids");
        const json_t *tokens = json_object_get(special, "tokens");
        bool good = json_is_string(json_object_get(special, "id")) && json_is_array(ids) &&
                    json_is_array(tokens) && json_array_size(ids) <= MAX_PIECES;
        for (size_t i = 0; good && i < json_array_size(ids); i++)
            good = json_is_integer(json_array_get(ids, i));
        for (size_t i = 0; good && i < json_array_size(tokens); i++)
            good = json_is_string(json_array_get(tokens, i));
        if (!good)
            return error_set(err, ERROR_INVALID,
                             "post_processor: special_tokens: \"%.60s\": expected an id, a list of "
                             "ids and one of tokens",
                             name);
    }
    return 0;
}

/* The ids of the special token called `name`. */
static int push_special(const struct tokenizer *tokenizer, const json_t *specials, const char *name,
                        struct token_list *list, struct error *err)
{
    const json_t *ids = json_object_get(json_object_get(specials, name), "ids");
    if (!ids)
        return error_set(err, ERROR_INVALID,
                         "post_processor: special_tokens: \"%.60s\": expected an id, a list of ids "
                         "and one of tokens",
                         name);
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (push_id(tokenizer, list, json_array_get(ids, i), "special_tokens", err))
            return -1;
    return 0;
}

enum piece { PIECE_BAD, PIECE_SPECIAL, PIECE_FIRST, PIECE_SECOND };

/* {"SpecialToken": {"id": *name, "type_id": 0}} or {"Sequence": {"id": "A", "type_id": 0}}. */
static enum piece piece_of(const json_t *piece, const char **name)
{
    const json_t *special = json_object_get(piece, "SpecialToken");
    const json_t *body = special ? special : json_object_get(piece, "Sequence");
    *name = json_string_value(json_object_get(body, "id"));
    if (json_object_size(piece) != 1 || !*name ||
        !json_is_integer(json_object_get(body, "type_id")))
        return PIECE_BAD;
    if (special)
        return PIECE_SPECIAL;
    return strcmp(*name, "A") == 0   ? PIECE_FIRST
           : strcmp(*name, "B") == 0 ? PIECE_SECOND
                                     : PIECE_BAD;
}

/* TemplateProcessing. "pair" is for two texts, which nobody has here. */
static int read_pieces(struct tokenizer *tokenizer, const struct fields *fields, struct error *err)
{
    const json_t *single, *pair;
    struct fields specials;
    if (fields_list(fields, "single", FIELD_REQUIRED, &single, err) != 0 ||
        fields_list(fields, "pair", FIELD_REQUIRED, &pair, err) != 0 ||
        fields_object(fields, "special_tokens", FIELD_REQUIRED, &specials, err) != 0 ||
        check_specials(specials.object, err) != 0)
        return -1;
    const char *name;
    bool seen = false;
    bool good = json_array_size(single) <= MAX_PIECES && json_array_size(pair) <= MAX_PIECES;
    for (size_t i = 0; good && i < json_array_size(pair); i++)
        good = piece_of(json_array_get(pair, i), &name) != PIECE_BAD;
    for (size_t i = 0; good && i < json_array_size(single); i++) {
        enum piece piece = piece_of(json_array_get(single, i), &name);
        if (piece == PIECE_SPECIAL &&
            push_special(tokenizer, specials.object, name,
                         seen ? &tokenizer->suffix : &tokenizer->prefix, err))
            return -1;
        good = piece == PIECE_SPECIAL || (piece == PIECE_FIRST && !seen);
        seen |= piece == PIECE_FIRST;
    }
    if (!good || !seen)
        return error_set(err, ERROR_UNSUPPORTED,
                         "post_processor: single: expected special tokens around one sequence A");
    return 0;
}

/* RobertaProcessing and BertProcessing: "cls" before, "sep" after, each [content, id]. */
static int read_pair(struct tokenizer *tokenizer, const struct fields *fields, struct error *err)
{
    static const char *const KEYS[] = {"cls", "sep"};
    struct token_list *const lists[] = {&tokenizer->prefix, &tokenizer->suffix};
    for (size_t i = 0; i < 2; i++) {
        const json_t *pair = json_object_get(fields->object, KEYS[i]);
        if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)))
            return error_set(err, ERROR_INVALID, "post_processor: %s: expected [content, id]",
                             KEYS[i]);
        if (push_id(tokenizer, lists[i], json_array_get(pair, 1), KEYS[i], err))
            return -1;
    }
    return 0;
}

/* The library takes a post-processor for what its other keys are, whatever its "type" says. */
static int check_keys(const struct fields *fields, bool is_pair, bool is_template,
                      struct error *err)
{
    static const char *const KEYS[] = {"cls", "sep", "single"};
    for (size_t i = 0; i < 3; i++)
        if (json_object_get(fields->object, KEYS[i]) && !(i < 2 ? is_pair : is_template))
            return error_set(err, ERROR_UNSUPPORTED, "post_processor: %s: not a key of %s", KEYS[i],
                             json_string_value(json_object_get(fields->object, "type")));
    return 0;
}

static int read_processor(struct tokenizer *tokenizer, const json_t *json, int depth,
                          struct error *err)
{
    static const char *const NAMES[] = {"ByteLevel", "TemplateProcessing", "RobertaProcessing",
                                        "BertProcessing", "Sequence"};
    enum { BYTE_LEVEL, TEMPLATE, ROBERTA, BERT, SEQUENCE };
    struct fields fields = {json, "post_processor"};
    int name = tokenizer_parts_choice(&fields, "type", NAMES, sizeof NAMES / sizeof *NAMES, err);
    if (name < 0 || check_keys(&fields, name == ROBERTA || name == BERT, name == TEMPLATE, err))
        return -1;
    if (name == BYTE_LEVEL) { /* it only moves offsets */
        struct byte_level unused;
        return tokenizer_parts_byte_level(&fields, &unused, err);
    }
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
    if (tokenizer->prefix.count + tokenizer->suffix.count > 0)
        return error_set(err, ERROR_UNSUPPORTED,
                         "post_processor: processors: %s behind one that adds tokens", NAMES[name]);
    return name == TEMPLATE ? read_pieces(tokenizer, &fields, err)
                            : read_pair(tokenizer, &fields, err);
}

int template_read(struct tokenizer *tokenizer, const json_t *json, struct error *err)
{
    return !json || json_is_null(json) ? 0 : read_processor(tokenizer, json, 0, err);
}
