/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/pattern.h"

#include "lib/text/pattern_translate.h"
#include "lib/text/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_PATTERN_BYTES = 1 << 16,
    MATCHES_PER_CLOCK_CHECK = 256,
};

/* A text is given this long, and this much more per MiB: a hundred times what the patterns of known
 * tokenizers take. One match attempt is bounded by MATCH_STEPS. */
static const double ALLOWED_SECONDS = 5, ALLOWED_SECONDS_PER_MIB = 20;
static const uint32_t MATCH_STEPS = 20000000;

struct pattern {
    char *literal; /* [literal_length], or NULL: code */
    size_t literal_length;
    pcre2_code *code;
    pcre2_match_context *limits;
};

static int compile(struct pattern *pattern, const char *text, size_t length, struct error *err)
{
    struct text_buffer translated = {0};
    int failed = pattern_translate(text, length, &translated, err);
    if (!failed && translated.length == 0)
        failed = error_set(err, ERROR_UNSUPPORTED, "pattern: expected an expression, got \"\"");
    if (!failed) {
        int code;
        PCRE2_SIZE offset;
        /* Oniguruma's Ruby syntax: ^ and $ are about lines, . is not a line feed. */
        pattern->code =
            pcre2_compile((PCRE2_SPTR)translated.data, translated.length,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                          &offset, NULL);
        if (!pattern->code) {
            char reason[160] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
            failed = error_set(err, ERROR_INVALID, "pattern \"%.100s\": %s", text, reason);
        }
    }
    text_buffer_clear(&translated);
    return failed ? -1 : 0;
}

int pattern_create(struct pattern **out, const char *text, size_t length, bool is_regex,
                   struct error *err)
{
    if (length == 0 || length > MAX_PATTERN_BYTES || memchr(text, 0, length))
        return error_set(err, ERROR_UNSUPPORTED, "pattern: expected 1 to %d bytes, got %zu",
                         MAX_PATTERN_BYTES, length);
    struct pattern *pattern = calloc(1, sizeof *pattern);
    if (!pattern)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a pattern");
    int failed;
    if (is_regex) {
        failed = compile(pattern, text, length, err);
        pattern->limits = failed ? NULL : pcre2_match_context_create(NULL);
        if (!failed && !pattern->limits)
            failed = error_set(err, ERROR_NO_MEMORY, "no memory for a pattern");
        if (!failed) {
            pcre2_set_match_limit(pattern->limits, MATCH_STEPS);
            pcre2_set_heap_limit(pattern->limits, 64 * 1024); /* KiB */
            /* Without it, or where it can not be had, matching is only slower. */
            pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);
        }
    } else {
        pattern->literal = malloc(length);
        pattern->literal_length = length;
        failed = pattern->literal ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for a pattern");
        if (!failed)
            memcpy(pattern->literal, text, length);
    }
    if (failed) {
        pattern_free(pattern);
        return -1;
    }
    *out = pattern;
    return 0;
}

void pattern_free(struct pattern *pattern)
{
    if (!pattern)
        return;
    free(pattern->literal);
    pcre2_code_free(pattern->code);
    pcre2_match_context_free(pattern->limits);
    free(pattern);
}

bool pattern_may_be_empty(const struct pattern *pattern)
{
    uint32_t empty = 0;
    if (pattern->code)
        pcre2_pattern_info(pattern->code, PCRE2_INFO_MATCHEMPTY, &empty);
    return empty != 0;
}

static int push_match(struct span_list *matches, size_t start, size_t end, struct error *err)
{
    if (array_grow((void **)&matches->items, &matches->capacity, matches->count + 1,
                   sizeof *matches->items, err))
        return -1;
    matches->items[matches->count++] = (struct text_span){start, end};
    return 0;
}

static int find_literal(const struct pattern *pattern, const char *text, size_t length,
                        struct span_list *matches, struct error *err)
{
    size_t at = 0;
    const char *found;
    while ((found = memmem(text + at, length - at, pattern->literal, pattern->literal_length))) {
        size_t start = (size_t)(found - text);
        at = start + pattern->literal_length;
        if (push_match(matches, start, at, err))
            return -1;
    }
    return 0;
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int match_once(const struct pattern *pattern, const char *text, size_t length, size_t at,
                      pcre2_match_data *data)
{
    int count = pcre2_match(pattern->code, (PCRE2_SPTR)text, length, at, PCRE2_NO_UTF_CHECK, data,
                            pattern->limits);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter uses the heap */
        count = pcre2_match(pattern->code, (PCRE2_SPTR)text, length, at,
                            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, pattern->limits);
    return count;
}

/* The rule of the library for empty matches: none right behind the match before. */
static int find_regex(const struct pattern *pattern, const char *text, size_t length,
                      pcre2_match_data *data, struct span_list *matches, struct error *err)
{
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(data);
    double deadline =
        cpu_seconds() + ALLOWED_SECONDS + ALLOWED_SECONDS_PER_MIB * (double)length / (1024 * 1024);
    size_t at = 0, last_end = SIZE_MAX, attempts = 0;
    while (at <= length) {
        int count = match_once(pattern, text, length, at, data);
        if (count == PCRE2_ERROR_NOMATCH)
            return 0;
        bool slow = ++attempts % MATCHES_PER_CLOCK_CHECK == 0 && cpu_seconds() > deadline;
        if (count < 0 || slow)
            return error_set(err, ERROR_INVALID,
                             "tokenizer: the pattern takes too long on this text (offset %zu of "
                             "%zu, PCRE2 error %d)",
                             at, length, slow ? 0 : count);
        /* \K within a lookahead could make a match end before it starts; \K is refused. */
        size_t start = found[0], end = found[1];
        if (start == end && start == last_end) {
            size_t step = 1;
            if (at < length)
                utf8_decode(text + at, &step);
            at += step;
            continue;
        }
        at = last_end = end;
        if (push_match(matches, start, end, err))
            return -1;
    }
    return 0;
}

int pattern_find_all(const struct pattern *pattern, const char *text, size_t length,
                     struct span_list *matches, struct error *err)
{
    if (pattern->literal)
        return find_literal(pattern, text, length, matches, err);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (!data)
        return error_set(err, ERROR_NO_MEMORY, "tokenizer: no memory to match a pattern");
    int result = find_regex(pattern, text, length, data, matches, err);
    pcre2_match_data_free(data);
    return result;
}
