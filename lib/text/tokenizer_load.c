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

static int read_parts(struct tokenizer *tokenizer, const json_t *root, const json_t *more, bool own,
                      struct error *err)
{
    json_t *added = json_object_get(root, "added_tokens");
    if (added && !json_is_array(added))
        return error_set(err, ERROR_INVALID, "added_tokens: expected an array");
    if (check_truncation(root, err) || check_padding(root, err) ||
        model_read(tokenizer, json_object_get(root, "model"),
                   json_array_size(added) + json_array_size(more), own, err) ||
        normalizer_read(&tokenizer->normalizer, json_object_get(root, "normalizer"), err) ||
        pretokenizer_read(&tokenizer->pretokenizer, &tokenizer->normalizer,
                          json_object_get(root, "pre_tokenizer"),
                          tokenizer->model == MODEL_BPE ? &tokenizer->bpe.byte_level : NULL, err) ||
        added_tokens_read(tokenizer, added, more, err) ||
        decoder_read(&tokenizer->decoder, json_object_get(root, "decoder"), err))
        return -1;
    return template_read(tokenizer, json_object_get(root, "post_processor"), err);
}

static int read_all(struct tokenizer *tokenizer, const json_t *root, const json_t *more, bool own,
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
    if (read_parts(tokenizer, root, more, own, err) || model_finish(tokenizer, err))
        return -1;
    return decoder_prepare(&tokenizer->decoder, &tokenizer->vocabulary, err);
}

/* A tokenizer of the JSON; `place` is for messages about it. own: we have made the JSON. */
static int make(struct tokenizer **out, const json_t *root, const struct tokenizer_config *files,
                bool own, const char *place, struct error *err)
{
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a tokenizer");
    tokenizer->split_special_tokens = files->split_special_tokens;
    if (read_all(tokenizer, root, files->more, own, err) == 0) {
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
        failed = make(out, root, files, false, place, err);
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
        failed = make(out, root, &none, true, place, err);
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

int tokenizer_load_world(struct tokenizer **out, const char *text, size_t length, const char *file,
                         struct error *err)
{
    struct tokenizer_config none = {0};
    json_t *root = NULL;
    char place[PATH_MAX + 2];
    snprintf(place, sizeof place, "%s: ", file);
    if (world_read(&root, text, length, file, err))
        return -1;
    int failed = make(out, root, &none, true, place, err);
    json_decref(root);
    return failed;
}

/* What of a folder, or as a file by itself, has the vocabulary. */
struct source {
    char file[PATH_MAX];
    bool folder, world;
};

static int find_source(struct source *source, const char *path, struct error *err)
{
    static const char SUFFIX[] = ".txt";
    struct stat status;
    const size_t length = strlen(path);
    source->folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    source->world = !source->folder && length >= sizeof SUFFIX - 1 &&
                    strcmp(path + length - (sizeof SUFFIX - 1), SUFFIX) == 0;
    if (length + sizeof "/" WORLD_FILE > sizeof source->file)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", path);
    snprintf(source->file, sizeof source->file, "%s%s", path,
             source->folder ? "/tokenizer.json" : "");
    if (!source->folder || file_exists(source->file))
        return 0;
    char world[PATH_MAX];
    snprintf(world, sizeof world, "%s/" WORLD_FILE, path);
    source->world = file_exists(world);
    if (source->world)
        memcpy(source->file, world, sizeof world);
    return 0;
}

int tokenizer_open(struct tokenizer **out, const char *path, struct error *err)
{
    char gguf[GGUF_PATH_SIZE];
    if (gguf_path(gguf, path, err) != 0)
        return -1;
    if (*gguf)
        return open_gguf(out, gguf, err);
    struct source source;
    struct tokenizer_config files = {0};
    char place[PATH_MAX + 2], *content;
    size_t length;
    if (find_source(&source, path, err) ||
        file_read(source.file, MAX_FILE_BYTES, &content, &length, err))
        return -1;
    snprintf(place, sizeof place, "%s: ", source.file);
    int failed = source.folder && !source.world ? tokenizer_config_read(&files, path, err) : 0;
    if (!failed)
        failed = source.world ? tokenizer_load_world(out, content, length, source.file, err)
                              : load(out, content, length, place, &files, err);
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
    unigram_clear(&tokenizer->unigram);
    world_clear(&tokenizer->world);
    added_tokens_clear(&tokenizer->plain_tokens);
    added_tokens_clear(&tokenizer->normalized_tokens);
    normalizer_clear(&tokenizer->normalizer);
    pretokenizer_clear(&tokenizer->pretokenizer);
    decoder_clear(&tokenizer->decoder);
    token_list_clear(&tokenizer->prefix);
    token_list_clear(&tokenizer->suffix);
    free(tokenizer);
}
