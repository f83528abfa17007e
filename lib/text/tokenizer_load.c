/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json into a struct tokenizer. The JSON is freed before this returns. */
#include "lib/base/file.h"
#include "lib/text/gguf_tokenizer.h"
#include "lib/text/tokenizer.h"
#include "lib/text/tokenizer_config.h"
#include "lib/text/tokenizer_parts.h"
#include "lib/text/unicode.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
        if (!text != !json_string_value(json_array_get(merges, 0))) {
            failed = error_set(err, ERROR_INVALID,
                               "model: merges[%zu]: expected strings only, or pairs only", i);
            break;
        }
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
    if (dropout && !json_is_null(dropout) &&
        (!json_is_number(dropout) || json_number_value(dropout) != 0))
        return error_set(err, ERROR_UNSUPPORTED, "model: dropout: expected null, got a value");
    static const char *const AFFIXES[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, AFFIXES[i]);
        if (affix && !json_is_null(affix) &&
            (!json_is_string(affix) || json_string_length(affix) > 0))
            return error_set(err, ERROR_UNSUPPORTED, "model: %s: expected null, got \"%.60s\"",
                             AFFIXES[i],
                             json_is_string(affix) ? json_string_value(affix) : "(no string)");
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

/* "truncation" and "padding" are not applied; what the library cannot read is refused as there. */
static int open_unused(struct fields *fields, const json_t *root, const char *key,
                       struct error *err)
{
    *fields = (struct fields){json_object_get(root, key), ""};
    snprintf(fields->place, sizeof fields->place, "%s", key);
    if (fields->object && !json_is_null(fields->object) && !json_is_object(fields->object))
        return error_set(err, ERROR_INVALID, "%s: expected an object or null, got %s", key,
                         fields_kind(fields->object));
    return 0;
}

static int check_truncation(const json_t *root, struct error *err)
{
    static const char *const SIDES[] = {"Left", "Right"};
    static const char *const STRATEGIES[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
    struct fields fields;
    int choice;
    int64_t number;
    if (open_unused(&fields, root, "truncation", err))
        return -1;
    if (!json_is_object(fields.object))
        return 0;
    return fields_choice(&fields, "direction", FIELD_NOT_NULL, SIDES, 2, &choice, err) ||
                   fields_choice(&fields, "strategy", FIELD_REQUIRED, STRATEGIES, 3, &choice,
                                 err) ||
                   fields_int(&fields, "max_length", FIELD_REQUIRED, 0, INT64_MAX, &number, err) ||
                   fields_int(&fields, "stride", FIELD_REQUIRED, 0, INT64_MAX, &number, err)
               ? -1
               : 0;
}

static int check_padding(const json_t *root, struct error *err)
{
    static const char *const SIDES[] = {"Left", "Right"};
    struct fields fields, fixed;
    int choice;
    int64_t number;
    const char *text;
    if (open_unused(&fields, root, "padding", err))
        return -1;
    if (!json_is_object(fields.object))
        return 0;
    if (json_is_object(json_object_get(fields.object, "strategy"))) {
        if (fields_object(&fields, "strategy", FIELD_REQUIRED, &fixed, err) ||
            fields_int(&fixed, "Fixed", FIELD_REQUIRED, 0, INT64_MAX, &number, err))
            return -1;
    } else {
        static const char *const LONGEST[] = {"BatchLongest"};
        if (fields_choice(&fields, "strategy", FIELD_REQUIRED, LONGEST, 1, &choice, err))
            return -1;
    }
    return fields_choice(&fields, "direction", FIELD_REQUIRED, SIDES, 2, &choice, err) ||
                   fields_int(&fields, "pad_to_multiple_of", FIELD_OPTIONAL, 0, INT64_MAX, &number,
                              err) ||
                   fields_int(&fields, "pad_id", FIELD_REQUIRED, 0, UINT32_MAX, &number, err) ||
                   fields_int(&fields, "pad_type_id", FIELD_REQUIRED, 0, UINT32_MAX, &number,
                              err) ||
                   fields_string(&fields, "pad_token", FIELD_REQUIRED, &text, err)
               ? -1
               : 0;
}

static int read_parts(struct tokenizer *tokenizer, const json_t *root, const json_t *more,
                      struct error *err)
{
    json_t *added = json_object_get(root, "added_tokens");
    if (added && !json_is_array(added))
        return error_set(err, ERROR_INVALID, "added_tokens: expected an array");
    if (check_truncation(root, err) || check_padding(root, err) ||
        read_model(tokenizer, json_object_get(root, "model"),
                   json_array_size(added) + json_array_size(more), err) ||
        normalizer_read(&tokenizer->normalizer, json_object_get(root, "normalizer"), err) ||
        pretokenizer_read(&tokenizer->pretokenizer, &tokenizer->normalizer,
                          json_object_get(root, "pre_tokenizer"), &tokenizer->bpe.byte_level,
                          err) ||
        added_tokens_read(tokenizer, added, more, err) ||
        decoder_read(&tokenizer->decoder, json_object_get(root, "decoder"), err))
        return -1;
    return template_read(tokenizer, json_object_get(root, "post_processor"), err);
}

static int read_all(struct tokenizer *tokenizer, const json_t *root, const json_t *more,
                    struct error *err)
{
    static const char *const KNOWN[] = {"version",        "truncation", "padding",
                                        "added_tokens",   "normalizer", "pre_tokenizer",
                                        "post_processor", "decoder",    "model"};
    const json_t *version = json_object_get(root, "version");
    if (!json_is_object(root))
        return error_set(err, ERROR_INVALID, "expected an object");
    const struct fields fields = {root, "top level"};
    if (fields_only(&fields, KNOWN, sizeof KNOWN / sizeof *KNOWN, err))
        return -1;
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
        return error_set(err, ERROR_UNSUPPORTED, "version: expected \"1.0\", got \"%.40s\"",
                         json_is_string(version) ? json_string_value(version) : "(no string)");
    if (read_parts(tokenizer, root, more, err))
        return -1;
    bpe_finish(&tokenizer->bpe);
    if (tokenizer->bpe.byte_level && tokenizer->bpe.byte_fallback)
        for (int byte = 0; byte < 256; byte++)
            if (tokenizer->bpe.byte_ids[byte] < 0)
                return error_set(err, ERROR_UNSUPPORTED,
                                 "model: byte_fallback with ByteLevel and no token for byte %d",
                                 byte);
    return decoder_prepare(&tokenizer->decoder, &tokenizer->vocabulary, err);
}

/* A tokenizer of the JSON; `place` is for messages about it. */
static int make(struct tokenizer **out, const json_t *root, const struct tokenizer_config *files,
                const char *place, struct error *err)
{
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a tokenizer");
    tokenizer->split_special_tokens = files->split_special_tokens;
    if (read_all(tokenizer, root, files->more, err) == 0) {
        *out = tokenizer;
        return 0;
    }
    if (place[0])
        error_prefix(err, "%.*s", (int)strlen(place) - 2, place);
    tokenizer_free(tokenizer);
    return -1;
}

/* Loads a tokenizer.json with the files beside it; `place` is for messages about it. */
static int load(struct tokenizer **out, const char *json, size_t length, const char *place,
                struct tokenizer_config *files, struct error *err)
{
    if (length > MAX_FILE_BYTES)
        return error_set(err, ERROR_INVALID, "%sexpected at most %d bytes, got %zu", place,
                         MAX_FILE_BYTES, length);
    json_error_t json_error;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &json_error);
    if (!root)
        return error_set(err, ERROR_INVALID, "%sline %d, column %d: %s", place, json_error.line,
                         json_error.column, json_error.text);
    static const char WORD[] = "\"ByteLevel\"";
    files->mentions_byte_level = memmem(json, length, WORD, sizeof WORD - 1) != NULL;
    int failed = tokenizer_config_apply(files, root, err);
    if (!failed)
        failed = make(out, root, files, place, err);
    json_decref(root);
    return failed;
}

static int load_gguf(struct tokenizer **out, const void *bytes, size_t size, const char *file,
                     struct error *err)
{
    struct gguf gguf;
    struct warnings warnings = {0};
    struct tokenizer_config none = {0};
    json_t *root = NULL;
    char place[PATH_MAX];
    snprintf(place, sizeof place, "%s, as tokenizer.json: ", file);
    if (gguf_read(&gguf, bytes, size, file, err) != 0)
        return -1;
    int failed = gguf_tokenizer(&root, &gguf, &warnings, err);
    if (!failed)
        failed = make(out, root, &none, place, err);
    if (!failed)
        warnings_add_all(&(*out)->warnings, &warnings);
    json_decref(root);
    gguf_clear(&gguf);
    return failed;
}

static int open_gguf(struct tokenizer **out, const char *path, struct error *err)
{
    struct file_map map;
    if (file_map_open(&map, path, err) != 0)
        return -1;
    const char *slash = strrchr(path, '/');
    int failed = load_gguf(out, map.bytes, map.size, slash ? slash + 1 : path, err);
    file_map_close(&map);
    return failed;
}

int tokenizer_load_gguf(struct tokenizer **out, const void *bytes, size_t size, struct error *err)
{
    return load_gguf(out, bytes, size, "memory", err);
}

int tokenizer_load(struct tokenizer **out, const char *json, size_t length, struct error *err)
{
    struct tokenizer_config none = {0};
    int failed = load(out, json, length, "", &none, err);
    tokenizer_config_clear(&none);
    return failed;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct error *err)
{
    char gguf[GGUF_PATH_SIZE];
    if (gguf_path(gguf, path, err) != 0)
        return -1;
    if (*gguf)
        return open_gguf(out, gguf, err);
    struct stat status;
    struct tokenizer_config files = {0};
    bool folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    char file[PATH_MAX], place[PATH_MAX + 2];
    int wrote = snprintf(file, sizeof file, "%s%s", path, folder ? "/tokenizer.json" : "");
    if (wrote < 0 || (size_t)wrote >= sizeof file)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", path);
    snprintf(place, sizeof place, "%s: ", file);
    char *content;
    size_t length;
    if (file_read(file, MAX_FILE_BYTES, &content, &length, err))
        return -1;
    int failed = folder ? tokenizer_config_read(&files, path, err) : 0;
    if (!failed)
        failed = load(out, content, length, place, &files, err);
    tokenizer_config_clear(&files);
    free(content);
    return failed;
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
