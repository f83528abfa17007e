/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/pretokenize.h"

#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

int pretokenizer_push(struct pretokenizer *pretokenizer, struct pretokenizer_step step,
                      struct error *err)
{
    if (array_grow((void **)&pretokenizer->steps, &pretokenizer->capacity, pretokenizer->count + 1,
                   sizeof *pretokenizer->steps, err)) {
        pattern_free(step.pattern);
        return -1;
    }
    pretokenizer->steps[pretokenizer->count++] = step;
    return 0;
}

void pretokenizer_clear(struct pretokenizer *pretokenizer)
{
    for (size_t i = 0; i < pretokenizer->count; i++)
        pattern_free(pretokenizer->steps[i].pattern);
    free(pretokenizer->steps);
    *pretokenizer = (struct pretokenizer){0};
}

void pieces_clear(struct pieces *pieces)
{
    span_list_clear(&pieces->spans);
    span_list_clear(&pieces->next);
    span_list_clear(&pieces->matches);
    text_buffer_clear(&pieces->rewritten[0]);
    text_buffer_clear(&pieces->rewritten[1]);
}

/* The class of the character at `at`, and where it ends. */
static unsigned class_at(const char *text, size_t at, size_t *end)
{
    size_t used;
    unsigned class = unicode_class(utf8_decode(text + at, &used));
    *end = at + used;
    return class;
}

/* 's 't 're 've 'm 'll 'd: the length of the one at text, or 0. */
static size_t contraction(const char *text, size_t length)
{
    if (length < 2 || text[0] != '\'')
        return 0;
    if (strchr("stmd", text[1]) && text[1])
        return 2;
    if (length < 3)
        return 0;
    bool three = (text[1] == 'r' && text[2] == 'e') || (text[1] == 'v' && text[2] == 'e') ||
                 (text[1] == 'l' && text[2] == 'l');
    return three ? 3 : 0;
}

/* The end of the first piece of text[at..end) under GPT-2's pattern,
 * 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t gpt2_piece(const char *text, size_t at, size_t end)
{
    enum { CLASSES = UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE };
    size_t short_form = contraction(text + at, end - at);
    if (short_form)
        return at + short_form;
    size_t next, after;
    unsigned class = class_at(text, at, &next) & CLASSES;
    if (text[at] == ' ' && next < end) {
        unsigned following = class_at(text, next, &after) & CLASSES;
        if (!(following & UNICODE_SPACE)) {
            class = following;
            next = after;
        }
    }
    size_t last = at; /* start of the last character of the run */
    while (next < end && (class_at(text, next, &after) & CLASSES) == class) {
        last = next;
        next = after;
    }
    /* Spaces before something else leave it their last one, when they have two. */
    if (class & UNICODE_SPACE && next < end && last > at)
        return last;
    return next;
}

static int split_gpt2(struct pieces *pieces, struct text_span span, struct error *err)
{
    for (size_t at = span.start; at < span.end;) {
        size_t end = gpt2_piece(pieces->text, at, span.end);
        if (span_list_push(&pieces->next, at, end, err))
            return -1;
        at = end;
    }
    return 0;
}

/* One stretch of text, matched by the pattern or between matches, as the library sees them. */
struct cutter {
    struct span_list *out;
    enum split_behavior behavior;
    bool invert;
    bool previous; /* whether the stretch before was a match */
    bool has_any;  /* whether `pending` holds one */
    struct text_span pending;
    struct error *err;
};

static int cutter_flush(struct cutter *cutter)
{
    bool had = cutter->has_any;
    cutter->has_any = false;
    return had ? span_list_push(cutter->out, cutter->pending.start, cutter->pending.end,
                                cutter->err)
               : 0;
}

/* Takes the next stretch; `pending` is the piece that it may still join. */
static int cutter_take(struct cutter *cutter, size_t start, size_t end, bool is_match)
{
    is_match ^= cutter->invert;
    bool joins = false;
    switch (cutter->behavior) {
    case SPLIT_REMOVED:
        if (is_match)
            return 0;
        break;
    case SPLIT_ISOLATED:
        break;
    case SPLIT_CONTIGUOUS:
        joins = is_match == cutter->previous;
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        joins = is_match && !cutter->previous;
        break;
    case SPLIT_MERGED_WITH_NEXT: /* read from the end: a match joins what follows it */
        joins = !is_match && cutter->previous;
        break;
    }
    cutter->previous = is_match;
    if (joins && cutter->has_any) {
        cutter->pending.end = end;
        return 0;
    }
    if (cutter_flush(cutter))
        return -1;
    cutter->pending = (struct text_span){start, end};
    cutter->has_any = true;
    return 0;
}

/* Cuts `span` at pieces->matches, whose offsets count from its start. */
static int cut_at_matches(struct pieces *pieces, struct text_span span,
                          enum split_behavior behavior, bool invert, struct error *err)
{
    struct cutter cutter = {
        .out = &pieces->next, .behavior = behavior, .invert = invert, .err = err};
    size_t at = span.start;
    for (size_t i = 0; i < pieces->matches.count; i++) {
        size_t start = span.start + pieces->matches.items[i].start;
        size_t end = span.start + pieces->matches.items[i].end;
        if (at != start && cutter_take(&cutter, at, start, false))
            return -1;
        if (cutter_take(&cutter, start, end, true))
            return -1;
        at = end;
    }
    if (at != span.end && cutter_take(&cutter, at, span.end, false))
        return -1;
    return cutter_flush(&cutter);
}

static int split_pattern(const struct pretokenizer_step *step, struct pieces *pieces,
                         struct text_span span, struct error *err)
{
    pieces->matches.count = 0;
    if (pattern_find_all(step->pattern, pieces->text + span.start, span.end - span.start,
                         &pieces->matches, err))
        return -1;
    return cut_at_matches(pieces, span, step->behavior, step->invert, err);
}

/* Every character of `class` is a match. */
static int split_class(const struct pretokenizer_step *step, struct pieces *pieces,
                       struct text_span span, unsigned class, struct error *err)
{
    pieces->matches.count = 0;
    for (size_t at = span.start, end; at < span.end; at = end)
        if (class_at(pieces->text, at, &end) & class &&
            span_list_push(&pieces->matches, at - span.start, end - span.start, err))
            return -1;
    return cut_at_matches(pieces, span, step->behavior, false, err);
}

/* Runs of characters of one class of `classes`; those of UNICODE_SPACE go. */
static int split_runs(struct pieces *pieces, struct text_span span, unsigned classes,
                      struct error *err)
{
    for (size_t at = span.start, end; at < span.end; at = end) {
        unsigned class = class_at(pieces->text, at, &end) & classes;
        for (size_t next; end < span.end; end = next)
            if ((class_at(pieces->text, end, &next) & classes) != class)
                break;
        if (!(class & UNICODE_SPACE) && span_list_push(&pieces->next, at, end, err))
            return -1;
    }
    return 0;
}

static int cut_at_replacement(const struct pretokenizer_step *step, struct pieces *pieces,
                              struct text_span span, const char *text, struct error *err)
{
    size_t length = strlen(step->replacement);
    size_t at = span.start;
    for (size_t i = span.start + 1; step->split && i + length <= span.end; i++) {
        if (memcmp(text + i, step->replacement, length) != 0)
            continue;
        if (span_list_push(&pieces->next, at, i, err))
            return -1;
        at = i;
    }
    return span_list_push(&pieces->next, at, span.end, err);
}

/* Spaces become the replacement, one may be put in front, and pieces begin at each. */
static int rewrite_metaspace(const struct pretokenizer_step *step, struct pieces *pieces,
                             struct text_span span, bool at_start, struct text_buffer *out,
                             struct error *err)
{
    const char *text = pieces->text;
    size_t length = strlen(step->replacement);
    size_t start = out->length;
    bool has_one =
        text[span.start] == ' ' || (span.end - span.start >= length &&
                                    memcmp(text + span.start, step->replacement, length) == 0);
    bool wanted = step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && at_start);
    if (wanted && !has_one && text_buffer_append(out, step->replacement, length, err))
        return -1;
    for (size_t at = span.start; at < span.end;) {
        const char *space = memchr(text + at, ' ', span.end - at);
        size_t end = space ? (size_t)(space - text) : span.end;
        if (text_buffer_append(out, text + at, end - at, err) ||
            (space && text_buffer_append(out, step->replacement, length, err)))
            return -1;
        at = end + (space != NULL);
    }
    return cut_at_replacement(step, pieces, (struct text_span){start, out->length}, out->data, err);
}

static int rewrite_prefix_space(struct pieces *pieces, struct text_span span,
                                struct text_buffer *out, struct error *err)
{
    size_t start = out->length;
    if ((pieces->text[span.start] != ' ' && text_buffer_append(out, " ", 1, err)) ||
        text_buffer_append(out, pieces->text + span.start, span.end - span.start, err))
        return -1;
    return span_list_push(&pieces->next, start, out->length, err);
}

static int rewrite_byte_level(struct pieces *pieces, struct text_span span, struct text_buffer *out,
                              struct error *err)
{
    size_t start = out->length;
    if (text_buffer_reserve(out, 2 * (span.end - span.start), err))
        return -1;
    for (size_t at = span.start; at < span.end; at++)
        out->length += utf8_encode(byte_level_character((unsigned char)pieces->text[at]),
                                   out->data + out->length);
    return span_list_push(&pieces->next, start, out->length, err);
}

bool pretokenizer_rewrites(enum pretokenizer_kind kind)
{
    return kind == PRETOKENIZER_METASPACE || kind == PRETOKENIZER_PREFIX_SPACE ||
           kind == PRETOKENIZER_BYTE_LEVEL;
}

static int apply_to_span(const struct pretokenizer_step *step, struct pieces *pieces,
                         struct text_span span, bool at_start, struct text_buffer *out,
                         struct error *err)
{
    switch (step->kind) {
    case PRETOKENIZER_GPT2:
        return split_gpt2(pieces, span, err);
    case PRETOKENIZER_PREFIX_SPACE:
        return rewrite_prefix_space(pieces, span, out, err);
    case PRETOKENIZER_METASPACE:
        return rewrite_metaspace(step, pieces, span, at_start, out, err);
    case PRETOKENIZER_SPLIT:
        return split_pattern(step, pieces, span, err);
    case PRETOKENIZER_DIGITS:
        return split_class(step, pieces, span, UNICODE_NUMERIC, err);
    case PRETOKENIZER_PUNCTUATION:
        return split_class(step, pieces, span, UNICODE_PUNCTUATION, err);
    case PRETOKENIZER_WHITESPACE:
        return split_runs(pieces, span, UNICODE_WORD | UNICODE_SPACE, err);
    case PRETOKENIZER_WHITESPACE_SPLIT:
        return split_runs(pieces, span, UNICODE_SPACE, err);
    case PRETOKENIZER_BYTE_LEVEL:
        return rewrite_byte_level(pieces, span, out, err);
    }
    return error_set(err, ERROR_INTERNAL, "tokenizer: a pre-tokenizer of kind %d", step->kind);
}

int pretokenize(const struct pretokenizer *pretokenizer, const char *text, size_t length,
                bool at_start, struct pieces *pieces, struct error *err)
{
    pieces->text = text;
    pieces->spans.count = 0;
    if (span_list_push(&pieces->spans, 0, length, err))
        return -1;
    for (size_t i = 0; i < pretokenizer->count; i++) {
        const struct pretokenizer_step *step = &pretokenizer->steps[i];
        bool in_first = pieces->text == pieces->rewritten[0].data;
        struct text_buffer *out = &pieces->rewritten[in_first ? 1 : 0];
        out->length = 0;
        pieces->next.count = 0;
        for (size_t k = 0; k < pieces->spans.count; k++)
            if (apply_to_span(step, pieces, pieces->spans.items[k], at_start && k == 0, out, err))
                return -1;
        if (pretokenizer_rewrites(step->kind))
            pieces->text = out->data;
        else if (pieces->next.count > 0 && pieces->next.items[0].start > 0)
            at_start = false; /* what the text began with is gone */
        struct span_list done = pieces->spans;
        pieces->spans = pieces->next;
        pieces->next = done;
    }
    return 0;
}
