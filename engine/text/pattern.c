/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/pattern.h"

#include "engine/text/unicode.h"

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

/* The expression being rewritten. */
struct rewriter {
    const char *text;
    size_t length;
    size_t at;
    bool in_class;
    struct text_buffer out;
    struct error *err;
};

static int put(struct rewriter *rewriter, const char *text)
{
    return text_buffer_append(&rewriter->out, text, strlen(text), rewriter->err);
}

static int put_run(struct rewriter *rewriter, uint32_t first, uint32_t last)
{
    char text[40];
    snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", first, last);
    return put(rewriter, text);
}

static int refuse(struct rewriter *rewriter, const char *what)
{
    return error_set(rewriter->err, ERROR_UNSUPPORTED,
                     "pattern \"%.100s\": offset %zu: %s is not supported", rewriter->text,
                     rewriter->at, what);
}

/* The body of a class that equals \p{name} of the library: what PCRE2 takes for it and what was
 * assigned since the oldest Unicode version that PCRE2 may have. */
static int put_property(struct rewriter *rewriter, const char *name)
{
    if (put(rewriter, "\\p{") || put(rewriter, name) || put(rewriter, "}"))
        return -1;
    for (size_t i = 0; i < unicode_new_category_count; i++) {
        const struct unicode_category_run *run = &unicode_new_categories[i];
        if (strncmp(run->category, name, strlen(name)) == 0 &&
            put_run(rewriter, run->first, run->last))
            return -1;
    }
    return 0;
}

static int put_body(struct rewriter *rewriter, char kind)
{
    static const char SPACE[] = "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}"
                                "\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
    if (kind == 's')
        return put(rewriter, SPACE);
    if (kind == 'h')
        return put(rewriter, "0-9A-Fa-f");
    if (kind == 'd')
        return put_property(rewriter, "Nd");
    static const char *const WORD[] = {"L", "M", "Nd", "Pc"};
    for (size_t i = 0; i < sizeof WORD / sizeof *WORD; i++)
        if (put_property(rewriter, WORD[i]))
            return -1;
    for (size_t i = 0; i < unicode_pattern_word_count; i++)
        if (put_run(rewriter, unicode_pattern_word[i].first, unicode_pattern_word[i].last))
            return -1;
    return 0;
}

static bool follows(const struct rewriter *rewriter, const char *what)
{
    size_t length = strlen(what);
    return rewriter->length - rewriter->at >= length &&
           memcmp(rewriter->text + rewriter->at, what, length) == 0;
}

/* After a class within a class: a hyphen would become part of a range. */
static int check_no_range(struct rewriter *rewriter)
{
    if (follows(rewriter, "-") && !follows(rewriter, "-]"))
        return refuse(rewriter, "a range that begins with a class");
    return 0;
}

/* \s \S \h \H \d \D \w \W. */
static int put_shorthand(struct rewriter *rewriter, char letter)
{
    bool negated = letter < 'a';
    if (rewriter->in_class)
        return negated                      ? refuse(rewriter, "a negated class within a class")
               : put_body(rewriter, letter) ? -1
                                            : check_no_range(rewriter);
    return put(rewriter, negated ? "[^" : "[") || put_body(rewriter, (char)(letter | 0x20)) ||
                   put(rewriter, "]")
               ? -1
               : 0;
}

/* \p{name}, \p{^name}, \P{name}; rewriter->at is after the letter. */
static int put_named(struct rewriter *rewriter, bool negated)
{
    const char *text = rewriter->text + rewriter->at;
    const char *close = *text == '{' ? strchr(text, '}') : NULL;
    if (!close)
        return refuse(rewriter, "a property without braces");
    rewriter->at += (size_t)(close - text) + 1;
    text++;
    if (*text == '^') {
        negated = !negated;
        text++;
    }
    char name[40] = "";
    size_t length = (size_t)(close - text);
    if (length == 0 || length >= sizeof name)
        return refuse(rewriter, "a property of that name");
    memcpy(name, text, length);
    if (length > 2) { /* a script: as PCRE2 knows it */
        if (put(rewriter, negated ? "\\P{" : "\\p{") || put(rewriter, name))
            return -1;
        return put(rewriter, "}");
    }
    if (rewriter->in_class)
        return negated ? refuse(rewriter, "a negated property within a class")
               : put_property(rewriter, name) ? -1
                                              : check_no_range(rewriter);
    return put(rewriter, negated ? "[^" : "[") || put_property(rewriter, name) || put(rewriter, "]")
               ? -1
               : 0;
}

static int put_escape(struct rewriter *rewriter)
{
    rewriter->at++;
    if (rewriter->at == rewriter->length)
        return refuse(rewriter, "a lone backslash");
    char letter = rewriter->text[rewriter->at];
    if (strchr("sShHdDwW", letter)) {
        rewriter->at++;
        return put_shorthand(rewriter, letter);
    }
    if (letter == 'p' || letter == 'P') {
        rewriter->at++;
        return put_named(rewriter, letter == 'P');
    }
    bool plain =
        strchr("nrtfaex", letter) || (unsigned char)letter >= 0x80 ||
        !((letter >= '0' && letter <= '9') || ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z'));
    if (!plain && (rewriter->in_class || !strchr("AzZbBG", letter)))
        return refuse(rewriter, "this escape");
    if (letter == 'b' || letter == 'B')
        return refuse(rewriter, "a word boundary");
    char escape[3] = {'\\', letter, 0};
    rewriter->at++;
    return put(rewriter, escape);
}

/* {n}, {n,}, {,m}, {n,m}; a + after one is greedy repetition to Oniguruma, possessive to PCRE2. */
static int put_braces(struct rewriter *rewriter)
{
    size_t at = rewriter->at + 1;
    size_t digits = 0, commas = 0;
    for (; at < rewriter->length; at++) {
        char c = rewriter->text[at];
        if (c == ',')
            commas++;
        else if (c >= '0' && c <= '9')
            digits++;
        else
            break;
    }
    if (at == rewriter->length || rewriter->text[at] != '}' || commas > 1 || digits == 0)
        return refuse(rewriter, "a brace that is not a repetition");
    char next = at + 1 < rewriter->length ? rewriter->text[at + 1] : 0;
    if (next == '+' || (next == '?' && commas == 0))
        return refuse(rewriter, "a repetition of a repetition");
    const char *rest = rewriter->text + rewriter->at + 1;
    if (put(rewriter, *rest == ',' ? "{0" : "{") ||
        text_buffer_append(&rewriter->out, rest, at - rewriter->at, rewriter->err))
        return -1;
    rewriter->at = at + 1;
    return 0;
}

static int put_group(struct rewriter *rewriter)
{
    static const char *const KNOWN[] = {"(?:", "(?=",  "(?!",  "(?<=",  "(?<!",
                                        "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"};
    if (follows(rewriter, "(*"))
        return refuse(rewriter, "a PCRE2 verb");
    if (!follows(rewriter, "(?")) {
        rewriter->at++;
        return put(rewriter, "(");
    }
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (follows(rewriter, KNOWN[i])) {
            rewriter->at += strlen(KNOWN[i]);
            return put(rewriter, KNOWN[i]);
        }
    return refuse(rewriter, "this kind of group");
}

/* One item at rewriter->at. */
static int put_item(struct rewriter *rewriter)
{
    char c = rewriter->text[rewriter->at];
    if (c == '\\')
        return put_escape(rewriter);
    if (rewriter->in_class) {
        if (c == '[' || follows(rewriter, "&&"))
            return refuse(rewriter, "a class within a class");
        rewriter->in_class = c != ']';
    } else if (c == '[') {
        rewriter->in_class = true;
        bool negated = follows(rewriter, "[^");
        rewriter->at += negated ? 2 : 1;
        if (follows(rewriter, "]"))
            return refuse(rewriter, "an empty class");
        return put(rewriter, negated ? "[^" : "[");
    } else if (c == '(') {
        return put_group(rewriter);
    } else if (c == '{') {
        return put_braces(rewriter);
    }
    rewriter->at++;
    return text_buffer_append(&rewriter->out, &c, 1, rewriter->err);
}

static int compile(struct pattern *pattern, const char *text, size_t length, struct error *err)
{
    struct rewriter rewriter = {.text = text, .length = length, .err = err};
    int failed = 0;
    while (!failed && rewriter.at < length)
        failed = put_item(&rewriter);
    if (!failed && rewriter.out.length == 0)
        failed = error_set(err, ERROR_UNSUPPORTED, "pattern: expected an expression, got \"\"");
    if (!failed) {
        int code;
        PCRE2_SIZE offset;
        /* Oniguruma's Ruby syntax: ^ and $ are about lines, . is not a line feed. */
        pattern->code =
            pcre2_compile((PCRE2_SPTR)rewriter.out.data, rewriter.out.length,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                          &offset, NULL);
        if (!pattern->code) {
            char reason[160] = "";
            pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
            failed = error_set(err, ERROR_INVALID, "pattern \"%.100s\": %s", text, reason);
        }
    }
    text_buffer_clear(&rewriter.out);
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
