/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json into a struct tokenizer. The JSON is freed before this returns. */
#include "engine/base/file.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20 };

static int32_t json_id(const json_t *value)
{
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    return id >= 0 && id < VOCABULARY_MAX_IDS ? (int32_t)id : -1;
}

static int read_vocabulary(struct vocabulary *vocabulary, json_t *model, size_t more,
                           struct error *err)
{
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab))
        return error_set(err, ERROR_INVALID, "model: vocab: expected an object {token: id}");
    if (vocabulary_init(vocabulary, json_object_size(vocab) + more, err))
        return error_prefix(err, "model: vocab");
    const char *content;
    json_t *value;
    json_object_foreach(vocab, content, value)
    {
        int32_t id = json_id(value);
        if (id < 0)
            return error_set(err, ERROR_INVALID,
                             "model: vocab: \"%.60s\": expected an id in [0, %d)", content,
                             VOCABULARY_MAX_IDS);
        if (vocabulary_add(vocabulary, id, content, strlen(content), TOKEN_MODEL, err))
            return error_prefix(err, "model: vocab");
    }
    return 0;
}

/* The two parts of a merge, "a b" or ["a", "b"]. */
static bool merge_parts(const json_t *merge, const char *parts[2], size_t lengths[2])
{
    if (json_is_array(merge)) {
        for (size_t i = 0; i < 2; i++) {
            parts[i] = json_string_value(json_array_get(merge, i));
            lengths[i] = parts[i] ? strlen(parts[i]) : 0;
        }
        return json_array_size(merge) == 2 && parts[0] && parts[1];
    }
    parts[0] = json_string_value(merge);
    const char *space = parts[0] ? strchr(parts[0], ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return false;
    lengths[0] = (size_t)(space - parts[0]);
    parts[1] = space + 1;
    lengths[1] = strlen(parts[1]);
    return true;
}

static int read_merge(struct bpe *bpe, const json_t *merge, struct text_buffer *whole,
                      struct error *err)
{
    const char *parts[2];
    size_t lengths[2];
    if (!merge_parts(merge, parts, lengths))
        return error_set(err, ERROR_INVALID, "expected \"a b\" or [\"a\", \"b\"]");
    int32_t ids[2];
    whole->length = 0;
    for (size_t i = 0; i < 2; i++) {
        ids[i] = vocabulary_find_model(bpe->vocabulary, parts[i], lengths[i]);
        if (lengths[i] == 0 || ids[i] < 0)
            return error_set(err, ERROR_INVALID, "\"%.*s\" is not in the vocabulary",
                             (int)(lengths[i] < 60 ? lengths[i] : 60), parts[i]);
        if (text_buffer_append(whole, parts[i], lengths[i], err))
            return -1;
    }
    int32_t merged = vocabulary_find_model(bpe->vocabulary, whole->data, whole->length);
    if (merged < 0)
        return error_set(err, ERROR_INVALID, "\"%.*s\" is not in the vocabulary",
                         (int)(whole->length < 60 ? whole->length : 60), whole->data);
    return bpe_add_merge(bpe, ids[0], ids[1], merged, err);
}

static int read_merges(struct tokenizer *tokenizer, json_t *model, struct error *err)
{
    json_t *merges = json_object_get(model, "merges");
    if (!json_is_array(merges))
        return error_set(err, ERROR_INVALID, "model: merges: expected an array");
    if (bpe_init(&tokenizer->bpe, &tokenizer->vocabulary, json_array_size(merges), err))
        return error_prefix(err, "model: merges");
    struct text_buffer whole = {0};
    int failed = 0;
    for (size_t i = 0; !failed && i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *text = json_string_value(merge);
        if (text && strncmp(text, "#version", 8) == 0)
            continue; /* the first line of a merges.txt */
        failed = read_merge(&tokenizer->bpe, merge, &whole, err);
        if (failed)
            error_prefix(err, "model: merges[%zu]", i);
    }
    text_buffer_clear(&whole);
    return failed;
}

/* Options of the model that would change every id, and that nobody serves. */
static int check_model(json_t *model, struct error *err)
{
    const json_t *type = json_object_get(model, "type");
    if (!json_is_object(model))
        return error_set(err, ERROR_INVALID, "model: expected an object");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return error_set(err, ERROR_UNSUPPORTED, "model: type: expected \"BPE\", got \"%.60s\"",
                         json_is_string(type) ? json_string_value(type) : "(no string)");
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return error_set(err, ERROR_UNSUPPORTED, "model: dropout: expected null, got a value");
    static const char *const AFFIXES[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, AFFIXES[i]);
        if (affix && !json_is_null(affix) && json_string_length(affix) > 0)
            return error_set(err, ERROR_UNSUPPORTED, "model: %s: expected null, got \"%.60s\"",
                             AFFIXES[i], json_string_value(affix));
    }
    return 0;
}

static int read_model(struct tokenizer *tokenizer, json_t *model, size_t added, struct error *err)
{
    struct bpe *bpe = &tokenizer->bpe;
    struct fields fields = {model, "model"};
    if (check_model(model, err) || read_vocabulary(&tokenizer->vocabulary, model, added, err) ||
        read_merges(tokenizer, model, err) ||
        fields_bool(&fields, "byte_fallback", FIELD_OPTIONAL, &bpe->byte_fallback, err) ||
        fields_bool(&fields, "fuse_unk", FIELD_OPTIONAL, &bpe->fuse_unknown, err) ||
        fields_bool(&fields, "ignore_merges", FIELD_OPTIONAL, &bpe->ignore_merges, err))
        return -1;
    const json_t *unknown = json_object_get(model, "unk_token");
    bpe->unknown_id = -1;
    if (unknown && !json_is_null(unknown)) {
        const char *content;
        if (fields_string(&fields, "unk_token", FIELD_REQUIRED, &content, err) != 0)
            return -1;
        bpe->unknown_id = vocabulary_find_model(&tokenizer->vocabulary, content, strlen(content));
        if (bpe->unknown_id < 0)
            return error_set(err, ERROR_INVALID,
                             "model: unk_token: \"%.60s\" is not in the vocabulary", content);
    }
    return 0;
}

/* Enters an added token into the vocabulary, where it may be already. */
static int register_added(struct vocabulary *vocabulary, int32_t id, const char *content,
                          unsigned flags, struct error *err)
{
    int32_t known = vocabulary_find(vocabulary, content, strlen(content));
    if (known < 0)
        return vocabulary_add(vocabulary, id, content, strlen(content), flags, err);
    if (known != id)
        return error_set(err, ERROR_INVALID,
                         "\"%.60s\": expected id %d as in the vocabulary, got %d", content, known,
                         id);
    if (vocabulary->tokens[known].flags & TOKEN_ADDED)
        return error_set(err, ERROR_INVALID, "\"%.60s\": given twice", content);
    vocabulary->tokens[known].flags |= flags;
    return 0;
}

/* The text that is looked for: the content, or what the normalizer makes of it. */
static int added_text(const struct normalizer *normalizer, const char *content, bool normalized,
                      struct added_token *token, struct error *err)
{
    struct text_buffer buffers[2] = {{0}};
    const char *text = content;
    size_t length = strlen(content);
    int failed = 0;
    if (normalized)
        failed = normalizer_apply(normalizer, content, length, buffers, &text, &length, err);
    if (!failed && (length == 0 || length > ADDED_TOKEN_MAX_LENGTH))
        failed = error_set(err, ERROR_INVALID,
                           "\"%.60s\": expected 1 to %d bytes once normalized, got %zu", content,
                           ADDED_TOKEN_MAX_LENGTH, length);
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

static int read_added_token(struct tokenizer *tokenizer, const json_t *json, struct error *err)
{
    struct fields fields = {json, "token"};
    const char *content;
    struct added_token token = {.id = json_id(json_object_get(json, "id"))};
    bool special = false;
    if (fields_string(&fields, "content", FIELD_REQUIRED, &content, err) ||
        fields_bool(&fields, "special", FIELD_OPTIONAL, &special, err))
        return -1;
    bool normalized = !special;
    if (fields_bool(&fields, "normalized", FIELD_OPTIONAL, &normalized, err) ||
        fields_bool(&fields, "single_word", FIELD_OPTIONAL, &token.single_word, err) ||
        fields_bool(&fields, "lstrip", FIELD_OPTIONAL, &token.lstrip, err) ||
        fields_bool(&fields, "rstrip", FIELD_OPTIONAL, &token.rstrip, err))
        return -1;
    if (token.id < 0)
        return error_set(err, ERROR_INVALID, "\"%.60s\": expected an id in [0, %d)", content,
                         VOCABULARY_MAX_IDS);
    unsigned flags = TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0);
    if (register_added(&tokenizer->vocabulary, token.id, content, flags, err) ||
        added_text(&tokenizer->normalizer, content, normalized, &token, err))
        return -1;
    return added_tokens_push(normalized ? &tokenizer->normalized_tokens : &tokenizer->plain_tokens,
                             token, err);
}

static int read_added_tokens(struct tokenizer *tokenizer, const json_t *json, struct error *err)
{
    for (size_t i = 0; i < json_array_size(json); i++)
        if (read_added_token(tokenizer, json_array_get(json, i), err))
            return error_prefix(err, "added_tokens[%zu]", i);
    if (added_tokens_sort(&tokenizer->plain_tokens, err))
        return -1;
    return added_tokens_sort(&tokenizer->normalized_tokens, err);
}

static int read_all(struct tokenizer *tokenizer, json_t *root, struct error *err)
{
    const json_t *version = json_object_get(root, "version");
    json_t *added = json_object_get(root, "added_tokens");
    if (!json_is_object(root))
        return error_set(err, ERROR_INVALID, "expected an object");
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return error_set(err, ERROR_UNSUPPORTED, "version: expected \"1.0\", got \"%.40s\"",
                         json_is_string(version) ? json_string_value(version) : "(no string)");
    if (added && !json_is_null(added) && !json_is_array(added))
        return error_set(err, ERROR_INVALID, "added_tokens: expected an array");
    if (read_model(tokenizer, json_object_get(root, "model"), json_array_size(added), err) ||
        normalizer_read(&tokenizer->normalizer, json_object_get(root, "normalizer"), err) ||
        pretokenizer_read(&tokenizer->pretokenizer, json_object_get(root, "pre_tokenizer"),
                          &tokenizer->bpe.byte_level, err) ||
        read_added_tokens(tokenizer, added, err) ||
        decoder_read(&tokenizer->decoder, json_object_get(root, "decoder"), err) ||
        template_read(tokenizer, json_object_get(root, "post_processor"), err))
        return -1;
    bpe_finish(&tokenizer->bpe);
    if (tokenizer->bpe.byte_level && tokenizer->bpe.byte_fallback)
        for (int byte = 0; byte < 256; byte++)
            if (tokenizer->bpe.byte_ids[byte] < 0)
                return error_set(err, ERROR_UNSUPPORTED,
                                 "model: byte_fallback with ByteLevel and no token for byte %d",
                                 byte);
    return decoder_prepare(&tokenizer->decoder, &tokenizer->vocabulary,
                           &tokenizer->normalized_tokens, err);
}

int tokenizer_load(struct tokenizer **out, const char *json, size_t length, struct error *err)
{
    if (length > MAX_FILE_BYTES)
        return error_set(err, ERROR_INVALID, "expected at most %d bytes, got %zu", MAX_FILE_BYTES,
                         length);
    json_error_t json_error;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &json_error);
    if (!root)
        return error_set(err, ERROR_INVALID, "line %d, column %d: %s", json_error.line,
                         json_error.column, json_error.text);
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    int failed = tokenizer ? read_all(tokenizer, root, err)
                           : error_set(err, ERROR_NO_MEMORY, "no memory for a tokenizer");
    json_decref(root);
    if (failed) {
        tokenizer_free(tokenizer);
        return -1;
    }
    *out = tokenizer;
    return 0;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct error *err)
{
    char *content;
    size_t length;
    if (file_read(path, MAX_FILE_BYTES, &content, &length, err))
        return -1;
    int failed = tokenizer_load(out, content, length, err);
    free(content);
    return failed ? error_prefix(err, "%s", path) : 0;
}

void tokenizer_free(struct tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    vocabulary_clear(&tokenizer->vocabulary);
    bpe_clear(&tokenizer->bpe);
    added_tokens_clear(&tokenizer->plain_tokens);
    added_tokens_clear(&tokenizer->normalized_tokens);
    normalizer_clear(&tokenizer->normalizer);
    pretokenizer_clear(&tokenizer->pretokenizer);
    decoder_clear(&tokenizer->decoder);
    token_list_clear(&tokenizer->prefix);
    token_list_clear(&tokenizer->suffix);
    free(tokenizer);
}
