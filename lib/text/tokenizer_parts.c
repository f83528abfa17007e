/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/tokenizer_parts.h"

#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NESTING = 4,
    MAX_STEPS = 64,
    MAX_CONTENT_BYTES = 256, /* of Prepend and Replace */
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The string "content" or "prepend" of a step, copied; NULL with the error set. */
static char *copy_content(const struct fields *fields, const char *key, size_t *length,
                          struct error *err)
{
    const char *text;
    if (fields_string(fields, key, FIELD_REQUIRED, &text, err) != 0)
        return NULL;
    *length = strlen(text);
    char *copy = *length <= MAX_CONTENT_BYTES ? strdup(text) : NULL;
    if (!copy)
        error_set(err, ERROR_INVALID, "%s: %s: expected at most %d bytes, got %zu", fields->place,
                  key, MAX_CONTENT_BYTES, *length);
    return copy;
}

/* The one character that the string `key` must be, as UTF-8 with a NUL. */
static int read_character(const struct fields *fields, const char *key, char character[5],
                          struct error *err)
{
    const char *text;
    if (fields_string(fields, key, FIELD_REQUIRED, &text, err) != 0)
        return -1;
    size_t used = 0;
    if (text[0])
        utf8_decode(text, &used);
    if (used == 0 || text[used])
        return error_set(err, ERROR_INVALID, "%s: %s: expected one character, got \"%.40s\"",
                         fields->place, key, text);
    memcpy(character, text, used + 1);
    return 0;
}

/* The pattern {"String": ...} or {"Regex": ...} of "pattern"; NULL with the error set. The caller
 * frees it. */
static struct pattern *read_pattern(const struct fields *fields, struct error *err)
{
    const json_t *value = json_object_get(fields->object, "pattern");
    const json_t *literal = json_object_get(value, "String");
    const json_t *regex = json_object_get(value, "Regex");
    if (json_object_size(value) != 1 || !json_is_string(literal ? literal : regex)) {
        error_set(err, ERROR_INVALID,
                  "%s: pattern: expected {\"String\": text} or {\"Regex\": text}, got %s",
                  fields->place, fields_kind(value));
        return NULL;
    }
    const json_t *text = literal ? literal : regex;
    struct pattern *pattern = NULL;
    if (pattern_create(&pattern, json_string_value(text), json_string_length(text), regex != NULL,
                       err))
        error_prefix(err, "%s", fields->place);
    return pattern;
}

int tokenizer_parts_choice(const struct fields *fields, const char *key, const char *const *names,
                           int count, struct error *err)
{
    int choice = -1;
    if (fields_choice(fields, key, FIELD_REQUIRED, names, count, &choice, err) != 0 && err &&
        json_is_string(json_object_get(fields->object, key)))
        err->code = ERROR_UNSUPPORTED;
    return choice;
}

int tokenizer_parts_byte_level(const struct fields *fields, struct byte_level *keys,
                               struct error *err)
{
    bool trim_offsets;
    keys->use_regex = true;
    return fields_bool(fields, "add_prefix_space", FIELD_REQUIRED, &keys->prefix_space, err) ||
                   fields_bool(fields, "trim_offsets", FIELD_REQUIRED, &trim_offsets, err) ||
                   fields_bool(fields, "use_regex", FIELD_NOT_NULL, &keys->use_regex, err)
               ? -1
               : 0;
}

/* Calls `read` for each element of the array `key`. */
static int read_sequence(void *part, const struct fields *fields, const char *key, int depth,
                         int (*read)(void *, const json_t *, int, struct error *),
                         struct error *err)
{
    const json_t *items;
    if (fields_list(fields, key, FIELD_REQUIRED, &items, err) != 0)
        return -1;
    if (depth == MAX_NESTING || json_array_size(items) > MAX_STEPS)
        return error_set(err, ERROR_UNSUPPORTED, "%s: expected at most %d steps, nested %d deep",
                         fields->place, MAX_STEPS, MAX_NESTING);
    for (size_t i = 0; i < json_array_size(items); i++)
        if (read(part, json_array_get(items, i), depth + 1, err))
            return error_prefix(err, "%s[%zu]", key, i);
    return 0;
}

static int read_charsmap(const struct fields *fields, struct charsmap **map, struct error *err)
{
    const char *text;
    if (fields_string(fields, "precompiled_charsmap", FIELD_REQUIRED, &text, err) != 0)
        return -1;
    return charsmap_create(map, text, strlen(text), err)
               ? error_prefix(err, "%s: precompiled_charsmap", fields->place)
               : 0;
}

static int read_normalizer(void *part, const json_t *json, int depth, struct error *err)
{
    static const char *const NAMES[] = {"NFC",       "NFD",          "NFKC",    "NFKD",
                                        "Lowercase", "StripAccents", "Strip",   "Prepend",
                                        "Replace",   "Precompiled",  "Sequence"};
    enum { SEQUENCE = COUNT(NAMES) - 1 }; /* the others are enum normalizer_kind */
    struct normalizer *normalizer = part;
    struct fields fields = {json, "normalizer"};
    int kind = tokenizer_parts_choice(&fields, "type", NAMES, COUNT(NAMES), err);
    if (kind < 0)
        return -1;
    if (kind == SEQUENCE)
        return read_sequence(part, &fields, "normalizers", depth, read_normalizer, err);
    struct normalizer_step step = {.kind = (enum normalizer_kind)kind};
    int failed = 0;
    if (step.kind == NORMALIZER_STRIP) {
        failed = fields_bool(&fields, "strip_left", FIELD_REQUIRED, &step.strip_left, err) ||
                 fields_bool(&fields, "strip_right", FIELD_REQUIRED, &step.strip_right, err);
    }
    if (step.kind == NORMALIZER_REPLACE)
        failed = !(step.pattern = read_pattern(&fields, err));
    /* Where it matches nothing at the start of a text, the library replaces it twice. */
    if (!failed && step.pattern && pattern_may_be_empty(step.pattern))
        failed = error_set(err, ERROR_UNSUPPORTED,
                           "normalizer: pattern: one that may match nothing is not supported");
    if (!failed && (step.kind == NORMALIZER_REPLACE || step.kind == NORMALIZER_PREPEND)) {
        const char *key = step.kind == NORMALIZER_PREPEND ? "prepend" : "content";
        failed = !(step.content = copy_content(&fields, key, &step.content_length, err));
    }
    if (!failed && step.kind == NORMALIZER_PREPEND && step.content_length == 0)
        failed = error_set(err, ERROR_INVALID, "normalizer: prepend: expected a text, got \"\"");
    if (!failed && step.kind == NORMALIZER_PRECOMPILED)
        failed = read_charsmap(&fields, &step.charsmap, err);
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
    const struct normalizer *normalizer;
};

static int read_byte_level(const struct pretokenizer_target *target, const struct fields *fields,
                           struct error *err)
{
    struct byte_level keys;
    if (tokenizer_parts_byte_level(fields, &keys, err))
        return -1;
    struct pretokenizer_step space = {.kind = PRETOKENIZER_PREFIX_SPACE};
    struct pretokenizer_step split = {.kind = PRETOKENIZER_GPT2};
    struct pretokenizer_step spell = {.kind = PRETOKENIZER_BYTE_LEVEL};
    if ((keys.prefix_space && pretokenizer_push(target->pretokenizer, space, err)) ||
        (keys.use_regex && pretokenizer_push(target->pretokenizer, split, err)))
        return -1;
    return pretokenizer_push(target->pretokenizer, spell, err);
}

static int read_metaspace(const struct fields *fields, struct pretokenizer_step *step,
                          struct error *err)
{
    static const char *const SCHEMES[] = {"always", "first", "never"}; /* enum prepend_scheme */
    bool prefix_space;
    int scheme = PREPEND_ALWAYS;
    if (json_object_get(fields->object, "prepend_scheme"))
        scheme = tokenizer_parts_choice(fields, "prepend_scheme", SCHEMES, COUNT(SCHEMES), err);
    prefix_space = scheme != PREPEND_NEVER;
    step->split = true;
    if (scheme < 0 || read_character(fields, "replacement", step->replacement, err) ||
        fields_bool(fields, "split", FIELD_OPTIONAL, &step->split, err) ||
        fields_bool(fields, "add_prefix_space", FIELD_OPTIONAL, &prefix_space, err))
        return -1;
    if (!prefix_space && scheme != PREPEND_NEVER)
        return error_set(err, ERROR_INVALID,
                         "%s: expected prepend_scheme \"never\" with add_prefix_space false, got "
                         "\"%s\"",
                         fields->place, SCHEMES[scheme]);
    step->prepend = prefix_space ? (enum prepend_scheme)scheme : PREPEND_NEVER;
    return 0;
}

static const char *const BEHAVIORS[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"}; /* enum split_behavior */

static int read_split(const struct fields *fields, struct pretokenizer_step *step,
                      struct error *err)
{
    int behavior = tokenizer_parts_choice(fields, "behavior", BEHAVIORS, COUNT(BEHAVIORS), err);
    if (behavior < 0 || fields_bool(fields, "invert", FIELD_REQUIRED, &step->invert, err))
        return -1;
    step->behavior = (enum split_behavior)behavior;
    step->pattern = read_pattern(fields, err);
    return step->pattern ? 0 : -1;
}

/* "first" looks at where a piece begins in the text before it was normalized. We know that where
 * nothing can have been put or taken there. */
static int check_first(const struct pretokenizer_target *target, struct error *err)
{
    bool known = true;
    for (size_t i = 0; i < target->pretokenizer->count; i++)
        known &= !pretokenizer_rewrites(target->pretokenizer->steps[i].kind);
    for (size_t i = 0; i < target->normalizer->count; i++) {
        const struct normalizer_step *step = &target->normalizer->steps[i];
        known &= !step->strip_left && step->kind != NORMALIZER_STRIP_ACCENTS &&
                 step->kind != NORMALIZER_PRECOMPILED &&
                 (step->kind != NORMALIZER_REPLACE || step->content_length > 0);
    }
    return known ? 0
                 : error_set(err, ERROR_UNSUPPORTED,
                             "pre_tokenizer: prepend_scheme \"first\" behind a step that changes "
                             "where a text begins");
}

static int read_pretokenizer(void *part, const json_t *json, int depth, struct error *err)
{
    static const char *const NAMES[] = {"ByteLevel",   "Metaspace",  "Split",           "Digits",
                                        "Punctuation", "Whitespace", "WhitespaceSplit", "Sequence"};
    enum {
        BYTE_LEVEL,
        METASPACE,
        SPLIT,
        DIGITS,
        PUNCTUATION,
        WHITESPACE,
        WHITESPACE_SPLIT,
        SEQUENCE
    };
    static const enum pretokenizer_kind KINDS[] = {
        [METASPACE] = PRETOKENIZER_METASPACE,   [SPLIT] = PRETOKENIZER_SPLIT,
        [DIGITS] = PRETOKENIZER_DIGITS,         [PUNCTUATION] = PRETOKENIZER_PUNCTUATION,
        [WHITESPACE] = PRETOKENIZER_WHITESPACE, [WHITESPACE_SPLIT] = PRETOKENIZER_WHITESPACE_SPLIT};
    struct pretokenizer_target *target = part;
    struct fields fields = {json, "pre_tokenizer"};
    int name = tokenizer_parts_choice(&fields, "type", NAMES, COUNT(NAMES), err);
    if (name < 0)
        return -1;
    if (name == SEQUENCE)
        return read_sequence(part, &fields, "pretokenizers", depth, read_pretokenizer, err);
    if (name == BYTE_LEVEL)
        return read_byte_level(target, &fields, err);
    struct pretokenizer_step step = {.kind = KINDS[name], .behavior = SPLIT_ISOLATED};
    if (name == METASPACE && (read_metaspace(&fields, &step, err) ||
                              (step.prepend == PREPEND_FIRST && check_first(target, err))))
        return -1;
    if (name == SPLIT && read_split(&fields, &step, err))
        return -1;
    if (name == PUNCTUATION && json_object_get(json, "behavior")) {
        int behavior =
            tokenizer_parts_choice(&fields, "behavior", BEHAVIORS, COUNT(BEHAVIORS), err);
        if (behavior < 0)
            return -1;
        step.behavior = (enum split_behavior)behavior;
    }
    if (name == DIGITS) {
        bool individual;
        if (fields_bool(&fields, "individual_digits", FIELD_REQUIRED, &individual, err))
            return -1;
        step.behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    }
    return pretokenizer_push(target->pretokenizer, step, err);
}

int pretokenizer_read(struct pretokenizer *pretokenizer, const struct normalizer *normalizer,
                      const json_t *json, bool *byte_level, struct error *err)
{
    struct pretokenizer_target target = {pretokenizer, normalizer};
    if (json && !json_is_null(json) && read_pretokenizer(&target, json, 0, err))
        return -1;
    if (!byte_level)
        return 0;
    /* BPE takes the bytes themselves where nothing comes between. */
    size_t count = pretokenizer->count;
    *byte_level = count > 0 && pretokenizer->steps[count - 1].kind == PRETOKENIZER_BYTE_LEVEL;
    pretokenizer->count -= *byte_level;
    return 0;
}

/* Where a decoder of steps has got to: they must come in this order. */
enum decoder_stage { STAGE_REPLACE, STAGE_BYTES, STAGE_FUSED, STAGE_STRIPPED, STAGE_WHOLE };

struct decoder_target {
    struct decoder *decoder;
    enum decoder_stage stage;
    bool any;
};

static int read_strip(struct decoder *decoder, const struct fields *fields, struct error *err)
{
    const json_t *start = json_object_get(fields->object, "start");
    const json_t *stop = json_object_get(fields->object, "stop");
    if (read_character(fields, "content", decoder->strip, err))
        return -1;
    if (!json_is_integer(start) || json_integer_value(start) < 0 || !json_is_integer(stop) ||
        json_integer_value(stop) != 0)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: Strip: expected start of 0 or more and stop of 0", fields->place);
    decoder->strip_count = (size_t)json_integer_value(start);
    return 0;
}

static int read_replace_decoder(struct decoder *decoder, const struct fields *fields,
                                struct error *err)
{
    size_t length;
    char *content = copy_content(fields, "content", &length, err);
    struct pattern *pattern = content ? read_pattern(fields, err) : NULL;
    if (!pattern) {
        free(content);
        return -1;
    }
    return decoder_add_replacement(decoder, pattern, content, length, err);
}

static int read_metaspace_decoder(struct decoder *decoder, const struct fields *fields,
                                  struct error *err)
{
    struct pretokenizer_step step = {0};
    if (read_metaspace(fields, &step, err))
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
    struct fields fields = {json, "decoder"};
    struct byte_level unused;
    int name = tokenizer_parts_choice(&fields, "type", NAMES, COUNT(NAMES), err);
    if (name < 0)
        return -1;
    if (name == SEQUENCE)
        return read_sequence(part, &fields, "decoders", depth, read_decoder, err);
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
        return tokenizer_parts_byte_level(&fields, &unused, err);
    case METASPACE:
        target->stage = STAGE_WHOLE;
        return read_metaspace_decoder(decoder, &fields, err);
    case REPLACE:
        return read_replace_decoder(decoder, &fields, err);
    case BYTE_FALLBACK:
        decoder->byte_fallback = true;
        target->stage = STAGE_BYTES;
        return 0;
    case FUSE:
        target->stage = STAGE_FUSED;
        return 0;
    }
    target->stage = STAGE_STRIPPED;
    return read_strip(decoder, &fields, err);
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
