/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NESTING = 4,
    MAX_STEPS = 64,
    MAX_CONTENT_BYTES = 256, /* of Prepend and Replace */
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The string "content" or "prepend" of a step, copied; NULL with the error set. */
static char *copy_content(const struct place *place, const char *key, size_t *length)
{
    const char *text = place_string(place, key);
    if (!text)
        return NULL;
    *length = strlen(text);
    char *copy = *length <= MAX_CONTENT_BYTES ? strdup(text) : NULL;
    if (!copy)
        error_set(place->err, ERROR_INVALID, "%s: %s: expected at most %d bytes, got %zu",
                  place->name, key, MAX_CONTENT_BYTES, *length);
    return copy;
}

/* Calls `read` for each element of the array `key`. */
static int read_sequence(void *part, const struct place *place, const char *key, int depth,
                         int (*read)(void *, const json_t *, int, struct error *))
{
    const json_t *items = place_array(place, key);
    if (!items)
        return -1;
    if (depth == MAX_NESTING || json_array_size(items) > MAX_STEPS)
        return error_set(place->err, ERROR_UNSUPPORTED,
                         "%s: expected at most %d steps, nested %d deep", place->name, MAX_STEPS,
                         MAX_NESTING);
    for (size_t i = 0; i < json_array_size(items); i++)
        if (read(part, json_array_get(items, i), depth + 1, place->err))
            return error_prefix(place->err, "%s[%zu]", key, i);
    return 0;
}

static int read_normalizer(void *part, const json_t *json, int depth, struct error *err)
{
    static const char *const NAMES[] = {"NFC",          "NFD",   "NFKC",    "NFKD",    "Lowercase",
                                        "StripAccents", "Strip", "Prepend", "Replace", "Sequence"};
    enum { SEQUENCE = COUNT(NAMES) - 1 }; /* the others are enum normalizer_kind */
    struct normalizer *normalizer = part;
    struct place place = {json, "normalizer", err};
    int kind = place_choice(&place, "type", NAMES, COUNT(NAMES));
    if (kind < 0)
        return -1;
    if (kind == SEQUENCE)
        return read_sequence(part, &place, "normalizers", depth, read_normalizer);
    struct normalizer_step step = {.kind = (enum normalizer_kind)kind};
    int failed = 0;
    if (step.kind == NORMALIZER_STRIP)
        failed = place_bool(&place, "strip_left", true, &step.strip_left) ||
                 place_bool(&place, "strip_right", true, &step.strip_right);
    if (step.kind == NORMALIZER_REPLACE)
        failed = !(step.pattern = place_pattern(&place));
    if (!failed && (step.kind == NORMALIZER_REPLACE || step.kind == NORMALIZER_PREPEND)) {
        const char *key = step.kind == NORMALIZER_PREPEND ? "prepend" : "content";
        failed = !(step.content = copy_content(&place, key, &step.content_length));
    }
    if (!failed)
        return normalizer_push(normalizer, step, err);
    pattern_free(step.pattern);
    free(step.content);
    return -1;
}

int normalizer_read(struct normalizer *normalizer, const json_t *json, struct error *err)
{
    return !json || json_is_null(json) ? 0 : read_normalizer(normalizer, json, 0, err);
}

/* What read_pretokenizer fills. */
struct pretokenizer_target {
    struct pretokenizer *pretokenizer;
    bool byte_level;
};

static int read_byte_level(struct pretokenizer_target *target, const struct place *place)
{
    bool prefix_space, use_regex;
    if (place_bool(place, "add_prefix_space", true, &prefix_space) ||
        place_bool(place, "use_regex", true, &use_regex))
        return -1;
    target->byte_level = true;
    struct pretokenizer_step space = {.kind = PRETOKENIZER_PREFIX_SPACE};
    struct pretokenizer_step split = {.kind = PRETOKENIZER_GPT2};
    if (prefix_space && pretokenizer_push(target->pretokenizer, space, place->err))
        return -1;
    return use_regex ? pretokenizer_push(target->pretokenizer, split, place->err) : 0;
}

static int read_metaspace(const struct place *place, struct pretokenizer_step *step)
{
    static const char *const SCHEMES[] = {"always", "first", "never"}; /* enum prepend_scheme */
    bool prefix_space;
    int scheme = PREPEND_ALWAYS;
    if (json_object_get(place->object, "prepend_scheme"))
        scheme = place_choice(place, "prepend_scheme", SCHEMES, COUNT(SCHEMES));
    if (scheme < 0 || place_character(place, "replacement", step->replacement) ||
        place_bool(place, "split", true, &step->split) ||
        place_bool(place, "add_prefix_space", scheme != PREPEND_NEVER, &prefix_space))
        return -1;
    if (!prefix_space && scheme != PREPEND_NEVER &&
        json_object_get(place->object, "prepend_scheme"))
        return error_set(place->err, ERROR_INVALID,
                         "%s: expected prepend_scheme \"never\" with add_prefix_space false, got "
                         "\"%s\"",
                         place->name, SCHEMES[scheme]);
    step->prepend = prefix_space ? (enum prepend_scheme)scheme : PREPEND_NEVER;
    return 0;
}

static int read_split(const struct place *place, struct pretokenizer_step *step)
{
    static const char *const BEHAVIORS[] = {"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    int behavior = place_choice(place, "behavior", BEHAVIORS, COUNT(BEHAVIORS));
    if (behavior < 0 || place_bool(place, "invert", false, &step->invert))
        return -1;
    step->behavior = (enum split_behavior)behavior;
    step->pattern = place_pattern(place);
    return step->pattern ? 0 : -1;
}

static int read_pretokenizer(void *part, const json_t *json, int depth, struct error *err)
{
    static const char *const NAMES[] = {"ByteLevel",  "Metaspace",       "Split",   "Digits",
                                        "Whitespace", "WhitespaceSplit", "Sequence"};
    enum { BYTE_LEVEL, METASPACE, SPLIT, DIGITS, WHITESPACE, WHITESPACE_SPLIT, SEQUENCE };
    static const enum pretokenizer_kind KINDS[] = {
        [BYTE_LEVEL] = PRETOKENIZER_GPT2,       [METASPACE] = PRETOKENIZER_METASPACE,
        [SPLIT] = PRETOKENIZER_SPLIT,           [DIGITS] = PRETOKENIZER_DIGITS,
        [WHITESPACE] = PRETOKENIZER_WHITESPACE, [WHITESPACE_SPLIT] = PRETOKENIZER_WHITESPACE_SPLIT};
    struct pretokenizer_target *target = part;
    struct place place = {json, "pre_tokenizer", err};
    int name = place_choice(&place, "type", NAMES, COUNT(NAMES));
    if (name < 0)
        return -1;
    if (name == SEQUENCE)
        return read_sequence(part, &place, "pretokenizers", depth, read_pretokenizer);
    if (target->byte_level)
        return error_set(err, ERROR_UNSUPPORTED,
                         "pre_tokenizer: expected nothing after ByteLevel, got %s", NAMES[name]);
    if (name == BYTE_LEVEL)
        return read_byte_level(target, &place);
    struct pretokenizer_step step = {.kind = KINDS[name]};
    if (name == METASPACE && read_metaspace(&place, &step))
        return -1;
    if (name == SPLIT && read_split(&place, &step))
        return -1;
    if (name == DIGITS) {
        bool individual;
        if (place_bool(&place, "individual_digits", false, &individual))
            return -1;
        step.behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    }
    return pretokenizer_push(target->pretokenizer, step, err);
}

int pretokenizer_read(struct pretokenizer *pretokenizer, const json_t *json, bool *byte_level,
                      struct error *err)
{
    struct pretokenizer_target target = {pretokenizer, false};
    if (json && !json_is_null(json) && read_pretokenizer(&target, json, 0, err))
        return -1;
    *byte_level = target.byte_level;
    return 0;
}

/* Where a decoder of steps has got to: they must come in this order. */
enum decoder_stage { STAGE_REPLACE, STAGE_BYTES, STAGE_FUSED, STAGE_STRIPPED, STAGE_WHOLE };

struct decoder_target {
    struct decoder *decoder;
    enum decoder_stage stage;
    bool any;
};

static int read_strip(struct decoder *decoder, const struct place *place)
{
    const json_t *start = json_object_get(place->object, "start");
    const json_t *stop = json_object_get(place->object, "stop");
    if (place_character(place, "content", decoder->strip))
        return -1;
    if (!json_is_integer(start) || json_integer_value(start) < 0 || !json_is_integer(stop) ||
        json_integer_value(stop) != 0)
        return error_set(place->err, ERROR_UNSUPPORTED,
                         "%s: Strip: expected start of 0 or more and stop of 0", place->name);
    decoder->strip_count = (size_t)json_integer_value(start);
    return 0;
}

static int read_replace_decoder(struct decoder *decoder, const struct place *place)
{
    size_t length;
    char *content = copy_content(place, "content", &length);
    struct pattern *pattern = content ? place_pattern(place) : NULL;
    if (!pattern) {
        free(content);
        return -1;
    }
    return decoder_add_replacement(decoder, pattern, content, length, place->err);
}

static int read_metaspace_decoder(struct decoder *decoder, const struct place *place)
{
    struct pretokenizer_step step = {0};
    if (read_metaspace(place, &step))
        return -1;
    memcpy(decoder->metaspace, step.replacement, sizeof decoder->metaspace);
    decoder->metaspace_prepends = step.prepend != PREPEND_NEVER;
    decoder->kind = DECODER_METASPACE;
    return 0;
}

static int read_decoder(void *part, const json_t *json, int depth, struct error *err)
{
    static const char *const NAMES[] = {"ByteLevel", "Metaspace", "Replace", "ByteFallback",
                                        "Fuse",      "Strip",     "Sequence"};
    enum { BYTE_LEVEL, METASPACE, REPLACE, BYTE_FALLBACK, FUSE, STRIP, SEQUENCE };
    static const enum decoder_stage NEEDS[] = {
        /* at most this stage before */
        [BYTE_LEVEL] = STAGE_REPLACE,    [METASPACE] = STAGE_REPLACE, [REPLACE] = STAGE_REPLACE,
        [BYTE_FALLBACK] = STAGE_REPLACE, [FUSE] = STAGE_FUSED,        [STRIP] = STAGE_FUSED};
    struct decoder_target *target = part;
    struct decoder *decoder = target->decoder;
    struct place place = {json, "decoder", err};
    int name = place_choice(&place, "type", NAMES, COUNT(NAMES));
    if (name < 0)
        return -1;
    if (name == SEQUENCE)
        return read_sequence(part, &place, "decoders", depth, read_decoder);
    bool alone = name == BYTE_LEVEL || name == METASPACE;
    if (target->stage > NEEDS[name] || (alone && target->any) ||
        (name == STRIP && target->stage != STAGE_FUSED))
        return error_set(err, ERROR_UNSUPPORTED,
                         "decoder: %s in this place (expected ByteLevel or Metaspace alone, or "
                         "Replace..., ByteFallback, Fuse, Strip in this order)",
                         NAMES[name]);
    target->any = true;
    decoder->kind = DECODER_STEPS;
    switch (name) {
    case BYTE_LEVEL:
        decoder->kind = DECODER_BYTE_LEVEL;
        target->stage = STAGE_WHOLE;
        return 0;
    case METASPACE:
        target->stage = STAGE_WHOLE;
        return read_metaspace_decoder(decoder, &place);
    case REPLACE:
        return read_replace_decoder(decoder, &place);
    case BYTE_FALLBACK:
        decoder->byte_fallback = true;
        target->stage = STAGE_BYTES;
        return 0;
    case FUSE:
        target->stage = STAGE_FUSED;
        return 0;
    }
    target->stage = STAGE_STRIPPED;
    return read_strip(decoder, &place);
}

int decoder_read(struct decoder *decoder, const json_t *json, struct error *err)
{
    struct decoder_target target = {.decoder = decoder};
    if (!json || json_is_null(json))
        return 0;
    if (read_decoder(&target, json, 0, err))
        return -1;
    if (!target.any)
        decoder->kind = DECODER_STEPS; /* an empty Sequence: tokens joined with nothing between */
    return 0;
}
