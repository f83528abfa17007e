/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/normalize.h"

#include "lib/text/unicode.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Decomposed code points of one stretch of text. */
struct code_points {
    int32_t *items; /* [count] */
    size_t count;
    size_t capacity;
};

/* A text on its way through a step. */
struct passage {
    const char *text; /* [length] */
    size_t length;
    const char *marks; /* [length]: struct normalizer_marks' bytes; NULL: nobody asks */
    struct text_buffer *out, *out_marks;
    size_t limit; /* bytes that `out` may have */
};

/* Marks what `out` has gained since the last call. */
static int mark(const struct passage *in, bool input, struct error *err)
{
    if (!in->marks)
        return 0;
    size_t more = in->out->length - in->out_marks->length;
    if (text_buffer_reserve(in->out_marks, more, err))
        return -1;
    if (more > 0)
        memset(in->out_marks->data + in->out_marks->length, input, more);
    in->out_marks->length += more;
    return 0;
}

/* Whether any of the bytes [start, end) is input. */
static bool has_input(const struct passage *in, size_t start, size_t end)
{
    return in->marks && end > start && memchr(in->marks + start, 1, end - start);
}

/* Copies bytes [start, end). */
static int copy(const struct passage *in, size_t start, size_t end, struct error *err)
{
    if (text_buffer_append(in->out, in->text + start, end - start, err))
        return -1;
    return in->marks ? text_buffer_append(in->out_marks, in->marks + start, end - start, err) : 0;
}

int normalizer_push(struct normalizer *normalizer, struct normalizer_step step, struct error *err)
{
    if (array_grow((void **)&normalizer->steps, &normalizer->capacity, normalizer->count + 1,
                   sizeof *normalizer->steps, err)) {
        pattern_free(step.pattern);
        free(step.content);
        charsmap_free(step.charsmap);
        return -1;
    }
    normalizer->steps[normalizer->count++] = step;
    return 0;
}

void normalizer_clear(struct normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->count; i++) {
        pattern_free(normalizer->steps[i].pattern);
        free(normalizer->steps[i].content);
        charsmap_free(normalizer->steps[i].charsmap);
    }
    free(normalizer->steps);
    *normalizer = (struct normalizer){0};
}

static int combining_class(int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Sorts a run of combining marks by class, stably. utf8proc would do it, but in quadratic time. */
static int order_marks(int32_t *marks, size_t count, struct error *err)
{
    bool sorted = true;
    for (size_t i = 1; i < count && sorted; i++)
        sorted = combining_class(marks[i - 1]) <= combining_class(marks[i]);
    if (sorted)
        return 0;
    int32_t *copy = malloc(count * sizeof *copy);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "tokenizer: no memory to normalize %zu marks",
                         count);
    memcpy(copy, marks, count * sizeof *copy);
    size_t start[257] = {0};
    for (size_t i = 0; i < count; i++)
        start[combining_class(copy[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        start[i] += start[i - 1];
    for (size_t i = 0; i < count; i++)
        marks[start[combining_class(copy[i])]++] = copy[i];
    free(copy);
    return 0;
}

static int order_all(struct code_points *points, struct error *err)
{
    for (size_t i = 0; i < points->count; i++) {
        size_t start = i;
        while (i < points->count && combining_class(points->items[i]) > 0)
            i++;
        if (i - start > 1 && order_marks(points->items + start, i - start, err))
            return -1;
    }
    return 0;
}

/* The stretch text[0..length), without inert code points, in normal form onto out. */
static int normalize_stretch(const char *text, size_t length, bool compatible, bool compose,
                             struct code_points *points, struct text_buffer *out, struct error *err)
{
    enum { LONGEST_DECOMPOSITION = 32 };
    utf8proc_option_t options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    points->count = 0;
    for (size_t at = 0, used; at < length; at += used) {
        int32_t c = (int32_t)utf8_decode(text + at, &used);
        if (array_grow((void **)&points->items, &points->capacity,
                       points->count + LONGEST_DECOMPOSITION, sizeof *points->items, err))
            return -1;
        int boundary = 0;
        utf8proc_ssize_t count = utf8proc_decompose_char(c, points->items + points->count,
                                                         LONGEST_DECOMPOSITION, options, &boundary);
        if (count < 0 || count > LONGEST_DECOMPOSITION)
            return error_set(err, ERROR_INTERNAL, "tokenizer: U+%04X does not decompose", c);
        points->count += (size_t)count;
    }
    if (order_all(points, err))
        return -1;
    size_t count = points->count;
    if (compose) {
        utf8proc_ssize_t composed = utf8proc_normalize_utf32(points->items, (utf8proc_ssize_t)count,
                                                             UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (composed < 0)
            return error_set(err, ERROR_INTERNAL, "tokenizer: a text does not compose");
        count = (size_t)composed;
    }
    if (text_buffer_reserve(out, 4 * count, err))
        return -1;
    for (size_t i = 0; i < count; i++)
        out->length += utf8_encode((uint32_t)points->items[i], out->data + out->length);
    return 0;
}

/* Bytes from text on that no normal form changes: ASCII but the last, on which a mark may sit. */
static size_t plain_prefix(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && (unsigned char)text[at] < 0x80)
        at++;
    return at == length || at == 0 ? at : at - 1;
}

/* The stretch [start, end), which is of a kind as `unicode` says. Where input meets other text in
 * it, each is marked for itself, unless one has changed the other. */
static int pass_stretch(const struct passage *in, size_t start, size_t end, bool compatible,
                        bool compose, struct code_points *points, struct error *err)
{
    size_t before = in->out->length;
    if (normalize_stretch(in->text + start, end - start, compatible, compose, points, in->out, err))
        return -1;
    if (!has_input(in, start, end) || !memchr(in->marks + start, 0, end - start))
        return mark(in, has_input(in, start, end), err);
    struct text_buffer apart = {0}, marks = {0};
    const struct passage parts = {
        .text = in->text, .marks = in->marks, .out = &apart, .out_marks = &marks};
    int failed = 0;
    for (size_t at = start, next; !failed && at < end; at = next) {
        for (next = at; next < end && in->marks[next] == in->marks[at];)
            next++;
        failed =
            normalize_stretch(in->text + at, next - at, compatible, compose, points, &apart, err) ||
            mark(&parts, in->marks[at], err);
    }
    bool same = apart.length == in->out->length - before &&
                memcmp(apart.data, in->out->data + before, apart.length) == 0;
    if (!failed)
        failed = same ? text_buffer_append(in->out_marks, marks.data, marks.length, err)
                      : mark(in, true, err);
    text_buffer_clear(&apart);
    text_buffer_clear(&marks);
    return failed ? -1 : 0;
}

static int normalize_unicode(const struct passage *in, enum normalizer_kind kind, struct error *err)
{
    const char *text = in->text;
    const size_t length = in->length;
    bool compatible = kind == NORMALIZER_NFKC || kind == NORMALIZER_NFKD;
    bool compose = kind == NORMALIZER_NFC || kind == NORMALIZER_NFKC;
    struct code_points points = {0};
    int failed = 0;
    for (size_t at = 0; !failed && at < length;) {
        size_t plain = plain_prefix(text + at, length - at);
        failed = copy(in, at, at + plain, err);
        at += plain;
        size_t end = at, used = 0;
        uint32_t c = 0;
        bool inert = false;
        /* A stretch ends before an inert code point, or where two ASCII ones meet. */
        for (uint32_t before = 0x80; end < length; end += used, before = c) {
            c = utf8_decode(text + end, &used);
            inert = c >= 0x80 && unicode_is_inert(c);
            if (inert || (before < 0x80 && c < 0x80))
                break;
        }
        if (!failed && end > at)
            failed = pass_stretch(in, at, end, compatible, compose, &points, err);
        if (!failed && inert && end < length) {
            failed = copy(in, end, end + used, err);
            end += used;
        }
        at = end;
    }
    free(points.items);
    return failed;
}

static int map_characters(const struct passage *in, enum normalizer_kind kind, struct error *err)
{
    struct text_buffer *out = in->out;
    if (text_buffer_reserve(out, 2 * in->length + 8, err))
        return -1;
    for (size_t at = 0, used; at < in->length; at += used) {
        uint32_t c = utf8_decode(in->text + at, &used);
        if (kind == NORMALIZER_LOWERCASE) {
            uint32_t lower[2];
            int count = unicode_lowercase_of(c, lower);
            for (int i = 0; i < count; i++)
                out->length += utf8_encode(lower[i], out->data + out->length);
        } else if (!(unicode_class(c) & UNICODE_MARK)) {
            out->length += utf8_encode(c, out->data + out->length);
        }
        if (mark(in, has_input(in, at, at + used), err))
            return -1;
    }
    return 0;
}

static int strip(const struct normalizer_step *step, const struct passage *in, struct error *err)
{
    size_t start = 0, end = in->length, used;
    while (step->strip_left && start < end &&
           unicode_class(utf8_decode(in->text + start, &used)) & UNICODE_SPACE)
        start += used;
    while (step->strip_right && end > start) {
        size_t before = utf8_previous(in->text, end);
        if (!(unicode_class(utf8_decode(in->text + before, &used)) & UNICODE_SPACE))
            break;
        end = before;
    }
    return copy(in, start, end, err);
}

static int prepend(const struct normalizer_step *step, const struct passage *in, struct error *err)
{
    return text_buffer_append(in->out, step->content, step->content_length, err) ||
                   mark(in, false, err) || copy(in, 0, in->length, err)
               ? -1
               : 0;
}

static int replace(const struct normalizer_step *step, const struct passage *in, struct error *err)
{
    struct span_list matches = {0};
    int failed = pattern_find_all(step->pattern, in->text, in->length, &matches, err);
    size_t at = 0;
    for (size_t i = 0; !failed && i < matches.count; i++) {
        const struct text_span *match = &matches.items[i];
        failed = copy(in, at, match->start, err) ||
                 text_buffer_append(in->out, step->content, step->content_length, err) ||
                 mark(in, has_input(in, match->start, match->end), err);
        at = match->end;
    }
    if (!failed)
        failed = copy(in, at, in->length, err);
    span_list_clear(&matches);
    return failed ? -1 : 0;
}

/* Bytes [start, end), as the map has them; false: it does not. */
static bool map_part(const struct charsmap *map, const struct passage *in, size_t start, size_t end,
                     int *failed, struct error *err)
{
    size_t length;
    const char *text = charsmap_find(map, in->text + start, end - start, &length);
    if (text)
        *failed = text_buffer_append(in->out, text, length, err) ||
                  mark(in, has_input(in, start, end), err);
    return text != NULL;
}

/* The library looks up clusters of characters as a whole where they are this short. */
static int map_clusters(const struct charsmap *map, const struct passage *in, struct error *err)
{
    enum { LONGEST_WHOLE = 5 };
    int failed = 0;
    /* Beyond the limit it may stop: normalizer_apply refuses what has become so long. */
    for (size_t start = 0, end; !failed && start < in->length && in->out->length <= in->limit;
         start = end) {
        end = charsmap_cluster_end(in->text, in->length, start);
        if (end - start <= LONGEST_WHOLE && map_part(map, in, start, end, &failed, err))
            continue;
        for (size_t at = start, used; !failed && at < end && in->out->length <= in->limit;
             at += used) {
            utf8_decode(in->text + at, &used);
            if (!map_part(map, in, at, at + used, &failed, err))
                failed = copy(in, at, at + used, err);
        }
    }
    return failed;
}

static int apply_step(const struct normalizer_step *step, const struct passage *in,
                      struct error *err)
{
    switch (step->kind) {
    case NORMALIZER_NFC:
    case NORMALIZER_NFD:
    case NORMALIZER_NFKC:
    case NORMALIZER_NFKD:
        return normalize_unicode(in, step->kind, err);
    case NORMALIZER_LOWERCASE:
    case NORMALIZER_STRIP_ACCENTS:
        return map_characters(in, step->kind, err);
    case NORMALIZER_STRIP:
        return strip(step, in, err);
    case NORMALIZER_PREPEND:
        return prepend(step, in, err);
    case NORMALIZER_REPLACE:
        return replace(step, in, err);
    case NORMALIZER_PRECOMPILED:
        return map_clusters(step->charsmap, in, err);
    }
    return error_set(err, ERROR_INTERNAL, "tokenizer: a normalizer of kind %d", step->kind);
}

void normalizer_marks_clear(struct normalizer_marks *marks)
{
    span_list_clear(&marks->input);
    text_buffer_clear(&marks->bytes[0]);
    text_buffer_clear(&marks->bytes[1]);
}

/* The spans of a text [length] as a byte for each of its own. */
static int spread_marks(const struct span_list *input, size_t length, struct text_buffer *bytes,
                        struct error *err)
{
    bytes->length = 0;
    if (text_buffer_reserve(bytes, length, err))
        return -1;
    memset(bytes->data, 0, length);
    bytes->length = length;
    for (size_t i = 0; i < input->count; i++)
        memset(bytes->data + input->items[i].start, 1, input->items[i].end - input->items[i].start);
    return 0;
}

static int gather_marks(struct span_list *input, const struct text_buffer *bytes, struct error *err)
{
    input->count = 0;
    for (size_t at = 0, next; at < bytes->length; at = next) {
        for (next = at; next < bytes->length && bytes->data[next] == bytes->data[at];)
            next++;
        if (bytes->data[at] && span_list_push(input, at, next, err))
            return -1;
    }
    return 0;
}

int normalizer_apply(const struct normalizer *normalizer, const char *text, size_t length,
                     struct text_buffer buffers[2], struct normalizer_marks *marks,
                     const char **result, size_t *result_length, struct error *err)
{
    /* No real one multiplies a text; a chain of hostile ones could, without end. */
    const size_t limit = 64 * length + 4096;
    const bool marked = marks && normalizer->count > 0 && length > 0;
    if (marked && spread_marks(&marks->input, length, &marks->bytes[1], err))
        return -1;
    for (size_t i = 0; i < normalizer->count && length > 0; i++) {
        struct passage in = {
            .text = text, .length = length, .out = &buffers[i % 2], .limit = limit};
        in.out->length = 0;
        if (marked) {
            in.marks = marks->bytes[(i + 1) % 2].data;
            in.out_marks = &marks->bytes[i % 2];
            in.out_marks->length = 0;
        }
        if (apply_step(&normalizer->steps[i], &in, err))
            return -1;
        if (in.out->length > limit)
            return error_set(err, ERROR_INVALID,
                             "tokenizer: normalizers[%zu]: expected at most %zu bytes, got %zu", i,
                             limit, in.out->length);
        text = in.out->data;
        length = in.out->length;
        if (marked && gather_marks(&marks->input, in.out_marks, err))
            return -1;
    }
    *result = text;
    *result_length = length;
    return 0;
}
