/* SPDX-License-Identifier: Apache-2.0 */
/* "model" of tokenizer.json: BPE and Unigram. */
#include "lib/text/tokenizer_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
static int check_bpe(json_t *model, struct error *err)
{
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

static int read_bpe(struct tokenizer *tokenizer, json_t *model, size_t added, struct error *err)
{
    struct bpe *bpe = &tokenizer->bpe;
    struct fields fields = {model, "model"};
    if (check_bpe(model, err) || read_vocabulary(&tokenizer->vocabulary, model, added, err) ||
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

/* A pair [token, score], whose place in the list is its id. */
static int read_piece(struct tokenizer *tokenizer, const json_t *pair, size_t id, struct error *err)
{
    const json_t *token = json_array_get(pair, 0), *score = json_array_get(pair, 1);
    struct unigram *unigram = &tokenizer->unigram;
    if (json_array_size(pair) != 2 || !json_is_string(token) || !json_is_number(score))
        return error_set(err, ERROR_INVALID, "expected [token, score], got %s", fields_kind(pair));
    unigram->scores[id] = json_number_value(score);
    if (unigram->scores[id] < unigram->unknown_score)
        unigram->unknown_score = unigram->scores[id];
    return vocabulary_add(&tokenizer->vocabulary, (int32_t)id, json_string_value(token),
                          json_string_length(token), TOKEN_MODEL, err);
}

static int read_unigram(struct tokenizer *tokenizer, json_t *model, size_t added, struct error *err)
{
    static const double PENALTY = 10; /* the library's, of unknown characters */
    struct unigram *unigram = &tokenizer->unigram;
    struct fields fields = {model, "model"};
    const json_t *vocab;
    int64_t unknown = -1;
    if (fields_list(&fields, "vocab", FIELD_REQUIRED, &vocab, err))
        return -1;
    const size_t count = json_array_size(vocab);
    if (vocabulary_init(&tokenizer->vocabulary, count + added, err))
        return error_prefix(err, "model: vocab");
    unigram->vocabulary = &tokenizer->vocabulary;
    unigram->unknown_score = INFINITY;
    unigram->scores = calloc(count + 1, sizeof *unigram->scores);
    if (!unigram->scores)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu scores", count);
    for (size_t id = 0; id < count; id++)
        if (read_piece(tokenizer, json_array_get(vocab, id), id, err))
            return error_prefix(err, "model: vocab[%zu]", id);
    unigram->unknown_score -= PENALTY;
    if (fields_bool(&fields, "byte_fallback", FIELD_NOT_NULL, &unigram->byte_fallback, err) ||
        fields_int(&fields, "unk_id", FIELD_OPTIONAL, 0, (int64_t)count - 1, &unknown, err))
        return -1;
    unigram->unknown_id = (int32_t)unknown;
    return 0;
}

int model_read(struct tokenizer *tokenizer, json_t *json, size_t added, bool own, struct error *err)
{
    static const char *const NAMES[] = {"BPE", "Unigram", "World"}; /* enum tokenizer_model */
    const struct fields fields = {json, "model"};
    int model = MODEL_BPE;
    if (!json_is_object(json))
        return error_set(err, ERROR_INVALID, "model: expected an object");
    if (json_object_get(json, "type"))
        model = tokenizer_parts_choice(&fields, "type", NAMES, own ? 3 : 2, err);
    if (model < 0)
        return -1;
    tokenizer->model = (enum tokenizer_model)model;
    switch (tokenizer->model) {
    case MODEL_BPE:
        return read_bpe(tokenizer, json, added, err);
    case MODEL_UNIGRAM:
        return read_unigram(tokenizer, json, added, err);
    case MODEL_WORLD:
        break;
    }
    return read_vocabulary(&tokenizer->vocabulary, json, added, err);
}

static int finish_bpe(struct bpe *bpe, struct error *err)
{
    bpe_finish(bpe);
    if (bpe->byte_level && bpe->byte_fallback)
        for (int byte = 0; byte < 256; byte++)
            if (bpe->byte_ids[byte] < 0)
                return error_set(err, ERROR_UNSUPPORTED,
                                 "model: byte_fallback with ByteLevel and no token for byte %d",
                                 byte);
    return 0;
}

int model_finish(struct tokenizer *tokenizer, struct error *err)
{
    switch (tokenizer->model) {
    case MODEL_BPE:
        return finish_bpe(&tokenizer->bpe, err);
    case MODEL_UNIGRAM:
        return unigram_finish(&tokenizer->unigram, err);
    case MODEL_WORLD:
        break;
    }
    return world_finish(&tokenizer->world, &tokenizer->vocabulary, err);
}
