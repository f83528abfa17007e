/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/dfa_emit.h"
#include "lib/grammar/json_rules.h"
#include "lib/grammar/schema_compiler.h"
#include "lib/grammar/schema_format.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* What all patterns, formats and lengths accept. */
struct text {
    const struct dfa *all; /* NULL: any */
    struct dfa own;        /* what `all` is, once two have been combined */
};

/* What another keyword accepts too. more: NULL after a failure. */
static int intersect(const struct schema_document *document, const struct schema_place *place,
                     struct text *text, const struct dfa *more)
{
    struct dfa both;
    char where[SCHEMA_PLACE_BYTES];
    if (!more)
        return -1;
    if (!text->all) {
        text->all = more;
        return 0;
    }
    if (dfa_combine(&both, text->all, more, false, document->work, document->err))
        return error_prefix(document->err, "%s", schema_place_text(place, where));
    dfa_clear(&text->own);
    text->own = both;
    text->all = &text->own;
    return 0;
}

static int read_patterns(const struct schema_document *document, const struct schema_parts *parts,
                         struct text *text)
{
    for (size_t i = 0; i < parts->count; i++) {
        const struct schema_part *part = &parts->items[i];
        const json_t *value;
        if (schema_has(part, "pattern", &value) &&
            intersect(document, part->place, text,
                      schema_pattern(document, part->place, "pattern", json_string_value(value),
                                     json_string_length(value), true)))
            return -1;
        if (schema_has(part, "format", &value) && schema_format_known(json_string_value(value)) &&
            intersect(document, part->place, text,
                      schema_format(document, part->place, json_string_value(value))))
            return -1;
    }
    return 0;
}

static int add_lengths(const struct schema_document *document, const struct schema_place *place,
                       struct text *text, int64_t least, int64_t most)
{
    struct dfa lengths;
    char where[SCHEMA_PLACE_BYTES];
    if (dfa_lengths(&lengths, least, most, document->work, document->err))
        return error_prefix(document->err, "%s", schema_place_text(place, where));
    if (!text->all) {
        text->own = lengths;
        text->all = &text->own;
        return 0;
    }
    int failed = intersect(document, place, text, &lengths);
    dfa_clear(&lengths);
    return failed;
}

/* An expression of the word: each sign of ASCII as a set of one. */
static void put_word(char *out, size_t size, const char *word)
{
    size_t at = 0;
    for (; *word && at + 4 < size; word++)
        at += (size_t)snprintf(out + at, size - at, ispunct((unsigned char)*word) ? "[%c]" : "%c",
                               *word);
    out[at] = 0;
}

/* Its end's marker ends a text, wherever it stands; and what begins as other values do reads as one
 * of them. */
const struct dfa *schema_text_barred(const struct schema_document *document,
                                     const struct schema_parts *parts)
{
#define ANY "[\\x00-\\u{10FFFF}]*"
#define SPACE "[ \\t\\r\\n]*"
    static const char others[] =
        "|" SPACE "[\\[{0-9-]" ANY "|" SPACE "(null|None|true|True|false|False)" SPACE;
    enum { MOST_WORD = 128 };
    char word[MOST_WORD];
    put_word(word, sizeof word, document->text_end);
    size_t size = sizeof others + 2 * sizeof ANY + MOST_WORD;
    char *barred = arena_alloc(document->arena, size, 1, document->err);
    if (!barred)
        return NULL;
    snprintf(barred, size, ANY "%s" ANY "%s", word,
             parts->spelling == SCHEMA_AS_TEXT ? "" : others);
#undef ANY
#undef SPACE
    return schema_pattern(document, parts->items[0].place, "type", barred, strlen(barred), false);
}

/* A string as text. */
static int bar(const struct schema_document *document, const struct schema_parts *parts,
               struct text *text)
{
    struct dfa left;
    char where[SCHEMA_PLACE_BYTES];
    const struct dfa *barred = schema_text_barred(document, parts);
    if (!barred)
        return -1;
    if (dfa_combine(&left, text->all, barred, true, document->work, document->err))
        return error_prefix(document->err, "%s", schema_place_text(parts->items[0].place, where));
    dfa_clear(&text->own);
    text->own = left;
    text->all = &text->own;
    return 0;
}

int schema_string_names(const struct schema_document *document, const struct schema_parts *parts,
                        struct dfa *out, bool *asks)
{
    struct text text = {0};
    struct dfa any;
    char where[SCHEMA_PLACE_BYTES];
    int64_t least = schema_counts(parts, "minLength", false);
    int64_t most = schema_counts(parts, "maxLength", true);
    *asks = false;
    int failed = read_patterns(document, parts, &text);
    if (!failed && (least > 0 || most >= 0))
        failed = add_lengths(document, parts->items[0].place, &text, least < 0 ? 0 : least, most);
    if (!failed && text.all && text.all != &text.own) { /* a copy, since it is the document's */
        failed = dfa_lengths(&any, 0, -1, document->work, document->err) ||
                 intersect(document, parts->items[0].place, &text, &any);
        if (failed)
            error_prefix(document->err, "%s", schema_place_text(parts->items[0].place, where));
        else
            dfa_clear(&any);
    }
    *asks = !failed && text.all;
    if (*asks)
        *out = text.own;
    else
        dfa_clear(&text.own);
    return failed ? -1 : 0;
}

void schema_string(struct schema_compiler *compiler, const struct schema_parts *parts,
                   uint32_t from, uint32_t to)
{
    struct builder *builder = compiler->builder;
    int64_t least = schema_counts(parts, "minLength", false);
    int64_t most = schema_counts(parts, "maxLength", true);
    struct text text = {0};
    const bool plain = parts->spelling != SCHEMA_AS_JSON;
    least = least < 0 ? 0 : least;
    int failed = read_patterns(&compiler->document, parts, &text);
    if (!failed &&
        (plain ? !text.all || least > 0 || most >= 0 : text.all && (least > 0 || most >= 0)))
        failed = add_lengths(&compiler->document, parts->items[0].place, &text, least, most);
    failed = failed || (plain && bar(&compiler->document, parts, &text));
    if (!failed && plain) {
        dfa_emit(builder, from, to, text.all, DFA_UTF8);
    } else if (!failed && text.all) {
        uint32_t inside = builder_state(builder), end = builder_state(builder);
        builder_byte(builder, from, inside, '"');
        dfa_emit(builder, inside, end, text.all, DFA_JSON);
        builder_byte(builder, end, to, '"');
    } else if (!failed && (most < 0 || most >= least)) {
        builder_call(builder, from, to, json_rules_id(builder, RULE_STRING), (int32_t)least,
                     most < 0 ? AUTOMATON_NO_LIMIT : (int32_t)most);
    }
    dfa_clear(&text.own);
}
