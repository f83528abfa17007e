/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/special_tokens.h"

#include "lib/base/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define NAME "tokenizer_config.json"

static const char *const FLAGS[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
enum { NORMALIZED = 3, SPECIAL = 4 };

static const char *const NAMED[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

struct builder {
    const struct special_tokens *tokens;
    json_t *keys;    /* config with special_tokens_map.json over it */
    json_t *decoder; /* {id: token}: what the files say of added tokens */
    json_t *present; /* {content: token}: the tokenizer's added tokens, the last of each content */
    json_t *named;   /* {content: true}: the special tokens that have a name */
    json_t *more;
    struct error *err;
};

static int no_memory(struct builder *builder)
{
    return error_set(builder->err, ERROR_NO_MEMORY, NAME ": no memory");
}

/* A token as AddedToken(**json) makes it; NULL with the error set. */
static json_t *token_of(struct builder *builder, const json_t *json, const char *place,
                        bool special)
{
    struct fields fields = {json, NAME};
    const char *content;
    snprintf(fields.place, sizeof fields.place, NAME ": %.100s", place);
    bool flags[COUNT(FLAGS)] = {[SPECIAL] = special};
    json_t *token = json_object();
    int failed =
        !token || fields_string(&fields, "content", FIELD_REQUIRED, &content, builder->err);
    failed =
        failed || fields_bool(&fields, "special", FIELD_OPTIONAL, &flags[SPECIAL], builder->err);
    flags[NORMALIZED] = !flags[SPECIAL];
    failed = failed || json_object_set_new(token, "content", json_string(content));
    for (size_t i = 0; !failed && i < COUNT(FLAGS); i++)
        failed = fields_bool(&fields, FLAGS[i], FIELD_OPTIONAL, &flags[i], builder->err) ||
                 json_object_set_new(token, FLAGS[i], json_boolean(flags[i]));
    if (!failed)
        return token;
    json_decref(token);
    no_memory(builder); /* unless another error is set */
    return NULL;
}

/* The token that a text or an object with "__type": "AddedToken" stands for. */
static json_t *special_of(struct builder *builder, const json_t *value, const char *place)
{
    const char *type = json_string_value(json_object_get(value, "__type"));
    if (type && strcmp(type, "AddedToken") == 0)
        return token_of(builder, value, place, false);
    if (!json_is_string(value)) {
        error_set(builder->err, ERROR_INVALID,
                  NAME ": %.100s: expected a string or an AddedToken, got %s", place,
                  fields_kind(value));
        return NULL;
    }
    json_t *object = json_pack("{s:O}", "content", value);
    json_t *token = object ? token_of(builder, object, place, true) : NULL;
    json_decref(object);
    if (!token)
        no_memory(builder);
    return token;
}

static const char *content_of(const json_t *token)
{
    return json_string_value(json_object_get(token, "content"));
}

/* Whether two tokens have the same flags. */
static bool same(const json_t *left, const json_t *right)
{
    for (size_t i = 0; i < COUNT(FLAGS); i++)
        if (json_is_true(json_object_get(left, FLAGS[i])) !=
            json_is_true(json_object_get(right, FLAGS[i])))
            return false;
    return true;
}

/* Enters {id: token} into the decoder, and takes the reference. */
static int decoder_set(struct builder *builder, json_int_t id, json_t *token)
{
    char key[24];
    snprintf(key, sizeof key, "%lld", (long long)id);
    bool failed = !token || json_object_set_new(token, "id", json_integer(id)) ||
                  json_object_set(builder->decoder, key, token);
    json_decref(token);
    return failed ? no_memory(builder) : 0;
}

static int read_decoder(struct builder *builder, const json_t *list)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)list, key, value)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (end == key || *end || id < 0 || id > UINT32_MAX)
            return error_set(builder->err, ERROR_INVALID,
                             NAME ": added_tokens_decoder: \"%.60s\": expected an id", key);
        json_t *token = token_of(builder, value, "added_tokens_decoder", false);
        if (!token || decoder_set(builder, id, token))
            return -1;
    }
    return 0;
}

/* added_tokens.json: {content: id}. Special are those that special_tokens_map names. */
static int read_added(struct builder *builder)
{
    const char *content;
    json_t *value;
    json_object_foreach((json_t *)builder->tokens->added, content, value)
    {
        bool special = false;
        for (size_t i = 0; i < COUNT(NAMED); i++) {
            const json_t *named = json_object_get(builder->keys, NAMED[i]);
            const char *text = json_is_object(named) ? content_of(named) : json_string_value(named);
            special |= text && strcmp(text, content) == 0;
        }
        if (!json_is_integer(value))
            return error_set(builder->err, ERROR_INVALID,
                             "added_tokens.json: \"%.60s\": expected an id, got %s", content,
                             fields_kind(value));
        json_t *token =
            json_pack("{s:s, s:b, s:b, s:b, s:b, s:b}", "content", content, "special", special,
                      "normalized", !special, "lstrip", 0, "rstrip", 0, "single_word", 0);
        if (decoder_set(builder, json_integer_value(value), token))
            return -1;
    }
    return 0;
}

/* The list of tokenizer.json, by stated id; a wrong one is refused where it is read for good. */
static int read_own(struct builder *builder, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *token = json_array_get(list, i);
        const json_t *id = json_object_get(token, "id");
        if (!content_of(token) || !json_is_integer(id))
            continue;
        if (decoder_set(builder, json_integer_value(id), json_copy(token)))
            return -1;
    }
    return 0;
}

/* Without added_tokens_decoder the older files count. */
static int read_files(struct builder *builder, const json_t *list)
{
    const json_t *decoder = json_object_get(builder->tokens->config, "added_tokens_decoder");
    if (decoder && !json_is_object(decoder))
        return error_set(builder->err, ERROR_INVALID,
                         NAME ": added_tokens_decoder: expected an object, got %s",
                         fields_kind(decoder));
    if (decoder)
        return read_decoder(builder, decoder);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)builder->tokens->map, key, value)
    {
        json_t *special = json_incref(value);
        if (json_is_object(value) && strcmp(key, "extra_special_tokens") != 0) {
            json_decref(special);
            special = json_copy(value);
            if (!special || json_object_set_new(special, "special", json_true()) ||
                json_object_set_new(special, "__type", json_string("AddedToken"))) {
                json_decref(special);
                return no_memory(builder);
            }
        }
        if (json_object_set_new(builder->keys, key, special))
            return no_memory(builder);
    }
    return read_added(builder) || read_own(builder, list) ? -1 : 0;
}

/* Adds a token and takes the reference. */
static int add(struct builder *builder, json_t *token, bool is_named)
{
    if (!token)
        return -1;
    const char *content = content_of(token);
    bool special = is_named || json_object_get(builder->named, content);
    bool failed = (special && json_object_set_new(token, "special", json_true())) ||
                  json_object_set(builder->present, content, token) ||
                  json_array_append(builder->more, token);
    json_decref(token);
    return failed ? no_memory(builder) : 0;
}

static int compare_ids(const void *left, const void *right)
{
    long long a = strtoll(*(const char *const *)left, NULL, 10);
    long long b = strtoll(*(const char *const *)right, NULL, 10);
    return (a > b) - (a < b);
}

/* What the files say of added tokens, by id, where the tokenizer does not have them so already. */
static int add_decoder(struct builder *builder)
{
    size_t count = json_object_size(builder->decoder), i = 0;
    const char **keys = calloc(count + 1, sizeof *keys);
    json_t *before = json_copy(builder->present);
    const char *key;
    json_t *value;
    int failed = !keys || !before ? no_memory(builder) : 0;
    if (!failed) {
        json_object_foreach(builder->decoder, key, value) keys[i++] = key;
        qsort(keys, count, sizeof *keys, compare_ids);
    }
    for (i = 0; !failed && i < count; i++) {
        json_t *token = json_object_get(builder->decoder, keys[i]);
        const json_t *there = json_object_get(before, content_of(token));
        if (!there || !same(token, there))
            failed = add(builder, json_incref(token), false);
    }
    free(keys);
    json_decref(before);
    return failed;
}

/* A special token whose content the tokenizer does not have yet. */
static int add_special(struct builder *builder, const json_t *value, const char *place, bool named)
{
    json_t *token = special_of(builder, value, place);
    if (!token)
        return -1;
    if (json_object_get(builder->present, content_of(token))) {
        json_decref(token);
        return 0;
    }
    return add(builder, token, named);
}

static bool ends_with_token(const char *key)
{
    size_t length = strlen(key);
    return length > 6 && strcmp(key + length - 6, "_token") == 0;
}

static bool is_standard(const char *key)
{
    for (size_t i = 0; i < COUNT(NAMED); i++)
        if (strcmp(key, NAMED[i]) == 0)
            return true;
    return false;
}

/* Calls `see` for each special token that has a name, in transformers' order. */
static int each_named(struct builder *builder,
                      int (*see)(struct builder *, const json_t *, const char *))
{
    for (size_t i = 0; i < COUNT(NAMED); i++) {
        const json_t *value = json_object_get(builder->keys, NAMED[i]);
        if (!value)
            value = json_object_get(builder->tokens->defaults, NAMED[i]);
        if (value && !json_is_null(value) && see(builder, value, NAMED[i]))
            return -1;
    }
    const char *key;
    json_t *value;
    for (int texts = 0; texts < 2; texts++)
        json_object_foreach(builder->keys, key, value)
        {
            bool wanted = texts ? json_is_string(value) : json_object_get(value, "__type") != NULL;
            if (wanted && ends_with_token(key) && !is_standard(key) && see(builder, value, key))
                return -1;
        }
    const json_t *extra = json_object_get(builder->keys, "extra_special_tokens");
    json_object_foreach((json_t *)extra, key, value) if (see(builder, value, key)) return -1;
    return 0;
}

static int note_named(struct builder *builder, const json_t *value, const char *place)
{
    json_t *token = special_of(builder, value, place);
    if (!token)
        return -1;
    int failed = json_object_set_new(builder->named, content_of(token), json_true());
    json_decref(token);
    return failed ? no_memory(builder) : 0;
}

static int add_named(struct builder *builder, const json_t *value, const char *place)
{
    return add_special(builder, value, place, true);
}

/* The same token once more, as a text alone makes it. */
static int add_bare(struct builder *builder, const json_t *value, const char *place)
{
    json_t *token = special_of(builder, value, place);
    json_t *text = token ? json_incref(json_object_get(token, "content")) : NULL;
    json_decref(token);
    token = text ? special_of(builder, text, place) : NULL;
    json_decref(text);
    return token ? add(builder, token, true) : -1;
}

static int add_extra(struct builder *builder)
{
    static const char *const KEYS[] = {"extra_special_tokens", "additional_special_tokens"};
    const json_t *extra = json_object_get(builder->keys, KEYS[0]);
    if (json_array_size(extra) == 0 && json_object_size(extra) == 0)
        extra = json_object_get(builder->keys, KEYS[1]);
    if (extra && !json_is_null(extra) && !json_is_array(extra) && !json_is_object(extra))
        return error_set(builder->err, ERROR_INVALID, NAME ": %s: expected a list, got %s", KEYS[0],
                         fields_kind(extra));
    for (size_t i = 0; i < json_array_size(extra); i++) {
        const json_t *value = json_array_get(extra, i);
        if (add_special(builder, value, KEYS[0], false) ||
            (builder->tokens->adds_all && add_bare(builder, value, KEYS[0])))
            return -1;
    }
    return 0;
}

static int build(struct builder *builder, json_t *root)
{
    json_t *list = json_object_get(root, "added_tokens");
    for (size_t i = 0; !builder->tokens->replaces && i < json_array_size(list); i++) {
        json_t *token = json_array_get(list, i);
        if (content_of(token) && json_object_set(builder->present, content_of(token), token))
            return no_memory(builder);
    }
    if (read_files(builder, list) || each_named(builder, note_named) || add_decoder(builder) ||
        each_named(builder, add_named) || add_extra(builder) ||
        (builder->tokens->adds_all && each_named(builder, add_bare)))
        return -1;
    return builder->tokens->replaces && json_object_set_new(root, "added_tokens", json_array())
               ? no_memory(builder)
               : 0;
}

int special_tokens_list(const struct special_tokens *tokens, json_t *root, json_t **more,
                        struct error *err)
{
    struct builder builder = {.tokens = tokens,
                              .keys = json_copy((json_t *)tokens->config),
                              .decoder = json_object(),
                              .present = json_object(),
                              .named = json_object(),
                              .more = json_array(),
                              .err = err};
    int failed =
        !builder.keys || !builder.decoder || !builder.present || !builder.named || !builder.more
            ? no_memory(&builder)
            : build(&builder, root);
    json_decref(builder.keys);
    json_decref(builder.decoder);
    json_decref(builder.present);
    json_decref(builder.named);
    if (failed)
        json_decref(builder.more);
    else
        *more = builder.more;
    return failed;
}
