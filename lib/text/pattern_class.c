/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/pattern_class.h"

#include "lib/text/unicode.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_NESTING = 8, LAST_CODE_POINT = 0x10FFFF };

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A union of sets, as parts of an expression of PCRE2. */
struct class
{
    struct text_buffer body;         /* what stands between the brackets of a plain class */
    struct text_buffer alternatives; /* "|" and an expression for each other set */
    struct text_buffer absent;       /* lookaheads that the character is in none of these */
};

bool pattern_follows(const struct pattern_source *source, const char *what)
{
    size_t length = strlen(what);
    return source->length - source->at >= length &&
           memcmp(source->text + source->at, what, length) == 0;
}

int pattern_refuse(const struct pattern_source *source, const char *what, struct error *err)
{
    return error_set(err, ERROR_UNSUPPORTED, "pattern \"%.100s\": offset %zu: %s is not supported",
                     source->text, source->at, what);
}

static int put(struct text_buffer *out, const char *text, struct error *err)
{
    return text_buffer_append(out, text, strlen(text), err);
}

static int put_all(struct text_buffer *out, const struct text_buffer *more, struct error *err)
{
    return text_buffer_append(out, more->data, more->length, err);
}

static int put_run(struct text_buffer *body, uint32_t first, uint32_t last, struct error *err)
{
    char text[40];
    if (first == last)
        snprintf(text, sizeof text, "\\x{%X}", (unsigned)first);
    else
        snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", (unsigned)first, (unsigned)last);
    return put(body, text, err);
}

/* The body of a class that equals \p{name} of the library: what PCRE2 takes for it and what was
 * assigned since the oldest Unicode version that PCRE2 may have. */
static int put_category(struct text_buffer *body, const char *name, struct error *err)
{
    if (put(body, "\\p{", err) || put(body, name, err) || put(body, "}", err))
        return -1;
    for (size_t i = 0; i < unicode_new_category_count; i++) {
        const struct unicode_category_run *run = &unicode_new_categories[i];
        if (strncmp(run->category, name, strlen(name)) == 0 &&
            put_run(body, run->first, run->last, err))
            return -1;
    }
    return 0;
}

/* \w. Within brackets Oniguruma leaves out the superscripts and fractions of Latin-1. */
static int put_word(struct text_buffer *body, bool in_class, struct error *err)
{
    static const char *const WORD[] = {"L", "M", "Nd", "Pc"};
    for (size_t i = 0; i < COUNT(WORD); i++)
        if (put_category(body, WORD[i], err))
            return -1;
    for (size_t i = 0; i < unicode_pattern_word_count; i++) {
        const struct unicode_run *run = &unicode_pattern_word[i];
        if (!(in_class && run->last <= 0xFF) && put_run(body, run->first, run->last, err))
            return -1;
    }
    return 0;
}

/* Runs in order; the last is followed by one with first > LAST_CODE_POINT. */
static const struct unicode_run SPACES[] = {{0x9, 0xD},
                                            {0x20, 0x20},
                                            {0x85, 0x85},
                                            {0xA0, 0xA0},
                                            {0x1680, 0x1680},
                                            {0x2000, 0x200A},
                                            {0x2028, 0x2029},
                                            {0x202F, 0x202F},
                                            {0x205F, 0x205F},
                                            {0x3000, 0x3000},
                                            {LAST_CODE_POINT + 1, 0}};
static const struct unicode_run HEX_DIGITS[] = {
    {'0', '9'}, {'A', 'F'}, {'a', 'f'}, {LAST_CODE_POINT + 1, 0}};

static int put_runs(struct text_buffer *body, const struct unicode_run *runs, bool negated,
                    struct error *err)
{
    uint32_t after = 0;
    for (; runs->first <= LAST_CODE_POINT; runs++) {
        if (negated ? put_run(body, after, runs->first - 1, err)
                    : put_run(body, runs->first, runs->last, err))
            return -1;
        after = runs->last + 1;
    }
    return negated ? put_run(body, after, LAST_CODE_POINT, err) : 0;
}

/* What the name of a property without spaces, hyphens and underscores is, for Oniguruma. */
static const char *const CATEGORIES[][2] = {
    {"L", "Letter"},
    {"Lu", "UppercaseLetter"},
    {"Ll", "LowercaseLetter"},
    {"Lt", "TitlecaseLetter"},
    {"Lm", "ModifierLetter"},
    {"Lo", "OtherLetter"},
    {"M", "Mark"},
    {"Mc", "SpacingMark"},
    {"Me", "EnclosingMark"},
    {"N", "Number"},
    {"Nd", "DecimalNumber"},
    {"Nl", "LetterNumber"},
    {"No", "OtherNumber"},
    {"P", "Punctuation"},
    {"Pc", "ConnectorPunctuation"},
    {"Pd", "DashPunctuation"},
    {"Ps", "OpenPunctuation"},
    {"Pe", "ClosePunctuation"},
    {"Pi", "InitialPunctuation"},
    {"Pf", "FinalPunctuation"},
    {"Po", "OtherPunctuation"},
    {"S", "Symbol"},
    {"Sm", "MathSymbol"},
    {"Sc", "CurrencySymbol"},
    {"Sk", "ModifierSymbol"},
    {"So", "OtherSymbol"},
    {"Z", "Separator"},
    {"Zs", "SpaceSeparator"},
    {"Zl", "LineSeparator"},
    {"Zp", "ParagraphSeparator"},
    {"Cc", "Control"},
    {"Cf", "Format"},
    {"Co", "PrivateUse"},
};

/* 1: put, 0: not a category. */
static int put_named_category(struct text_buffer *body, const char *name, struct error *err)
{
    for (size_t i = 0; i < COUNT(CATEGORIES); i++)
        if (strcasecmp(name, CATEGORIES[i][0]) == 0 || strcasecmp(name, CATEGORIES[i][1]) == 0)
            return put_category(body, CATEGORIES[i][0], err) ? -1 : 1;
    return 0;
}

static int put_named_script(struct text_buffer *body, const char *name, struct error *err)
{
    size_t script = 0;
    while (script < unicode_script_count && strcasecmp(name, unicode_script_names[script]) != 0)
        script++;
    for (size_t i = 0; i < unicode_script_run_count; i++) {
        const struct unicode_script_run *run = &unicode_script_runs[i];
        if ((size_t)run->script == script && put_run(body, run->first, run->last, err))
            return -1;
    }
    return script < unicode_script_count;
}

/* Reads {name} or {^name}, after \p or \P, onto the body. */
static int read_property(struct pattern_source *source, struct text_buffer *body, bool *negated,
                         struct error *err)
{
    const char *text = source->text + source->at;
    const char *close = *text == '{' ? strchr(text, '}') : NULL;
    if (!close)
        return pattern_refuse(source, "a property without braces", err);
    text++;
    if (*text == '^') {
        *negated = !*negated;
        text++;
    }
    char name[40];
    size_t length = 0;
    for (; text < close && length < sizeof name - 1; text++)
        if (!strchr(" _-", *text))
            name[length++] = *text;
    name[length] = 0;
    int found = text == close ? put_named_category(body, name, err) : 0;
    if (found == 0 && text == close)
        found = put_named_script(body, name, err);
    if (found == 0)
        return pattern_refuse(source, "a property of that name", err);
    source->at = (size_t)(close - source->text) + 1;
    return found < 0 ? -1 : 0;
}

/* Reads \s ... \P{...}: the body of a class, and whether it means the characters outside it. */
static int read_set(struct pattern_source *source, bool in_class, struct text_buffer *body,
                    bool *negated, struct error *err)
{
    char letter = source->text[source->at + 1];
    source->at += 2;
    *negated = letter < 'a';
    switch (letter | 0x20) {
    case 's':
        return put_runs(body, SPACES, false, err);
    case 'h':
        return put_runs(body, HEX_DIGITS, false, err);
    case 'd':
        return put_category(body, "Nd", err);
    case 'w':
        return put_word(body, in_class, err);
    }
    return read_property(source, body, negated, err);
}

int pattern_put_set(struct pattern_source *source, struct text_buffer *out, struct error *err)
{
    struct text_buffer body = {0};
    bool negated;
    int failed = read_set(source, false, &body, &negated, err) ||
                 put(out, negated ? "[^" : "[", err) || put_all(out, &body, err) ||
                 put(out, "]", err);
    text_buffer_clear(&body);
    return failed ? -1 : 0;
}

int pattern_put_shorthand(char letter, struct text_buffer *out, struct error *err)
{
    char text[] = {'\\', letter, 0};
    struct pattern_source source = {.text = text, .length = 2};
    return pattern_put_set(&source, out, err);
}

/* The hexadecimal number of `most` digits at most; source->at is behind it. */
static int read_hex(struct pattern_source *source, size_t least, size_t most, uint32_t *c)
{
    size_t digits = 0;
    *c = 0;
    for (; digits < most && source->at < source->length; digits++, source->at++) {
        char x = source->text[source->at];
        char letter = (char)(x | 0x20);
        if (x >= '0' && x <= '9')
            *c = *c * 16 + (uint32_t)(x - '0');
        else if (letter >= 'a' && letter <= 'f')
            *c = *c * 16 + (uint32_t)(letter - 'a' + 10);
        else
            break;
    }
    return digits < least ? -1 : 0;
}

int pattern_read_escape(struct pattern_source *source, uint32_t *c, struct error *err)
{
    static const char LETTERS[] = "nrtfvae", MEANINGS[] = "\n\r\t\f\v\a\x1B";
    if (source->at + 1 >= source->length)
        return pattern_refuse(source, "a lone backslash", err);
    size_t start = source->at++, used;
    char letter = source->text[source->at];
    const char *known = strchr(LETTERS, letter);
    bool bad = false;
    if (known) {
        *c = (uint32_t)MEANINGS[known - LETTERS];
        source->at++;
    } else if (pattern_follows(source, "x{")) {
        source->at += 2;
        bad = read_hex(source, 1, 6, c) || !pattern_follows(source, "}");
        source->at++;
    } else if (letter == 'x') { /* a byte */
        source->at++;
        bad = read_hex(source, 2, 2, c) || *c >= 0x80;
    } else if (letter == 'u') {
        source->at++;
        bad = read_hex(source, 4, 4, c) != 0;
    } else if ((letter >= '0' && letter <= '9') ||
               ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z')) {
        bad = true;
    } else {
        *c = utf8_decode(source->text + source->at, &used);
        source->at += used;
    }
    if (bad || *c > LAST_CODE_POINT || (*c >= 0xD800 && *c < 0xE000)) {
        source->at = start;
        return pattern_refuse(source, "this escape", err);
    }
    return 0;
}

static void class_clear(struct class *class)
{
    text_buffer_clear(&class->body);
    text_buffer_clear(&class->alternatives);
    text_buffer_clear(&class->absent);
}

/* An expression for one character of the class, or for one that is not in it. */
static int class_put(const struct class *class, bool negated, struct text_buffer *out,
                     struct error *err)
{
    bool plain = class->alternatives.length == 0;
    if (!plain && (put(out, "(?:", err) || (negated && put_all(out, &class->absent, err))))
        return -1;
    if (class->body.length > 0) {
        if (put(out, negated ? "[^" : "[", err) || put_all(out, &class->body, err) ||
            put(out, "]", err))
            return -1;
    } else if (negated && put(out, "(?s:.)", err)) {
        return -1;
    }
    if (plain)
        return 0;
    size_t skip = class->body.length == 0; /* the first "|" */
    if (!negated && text_buffer_append(out, class->alternatives.data + skip,
                                       class->alternatives.length - skip, err))
        return -1;
    return put(out, ")", err);
}

/* Adds a set that is no part of a plain class; expression: one character of it. */
static int class_add(struct class *class, const struct text_buffer *expression, struct error *err)
{
    return put(&class->alternatives, "|", err) || put_all(&class->alternatives, expression, err) ||
                   put(&class->absent, "(?!", err) || put_all(&class->absent, expression, err) ||
                   put(&class->absent, ")", err)
               ? -1
               : 0;
}

/* \s ... \P{...} within a class. Where it is negated and not a list of runs, it needs an
 * alternative of its own. */
static int class_read_set(struct class *class, struct pattern_source *source, struct error *err)
{
    char letter = source->text[source->at + 1];
    if (strchr("SH", letter)) {
        source->at += 2;
        return put_runs(&class->body, letter == 'S' ? SPACES : HEX_DIGITS, true, err);
    }
    struct text_buffer body = {0}, expression = {0};
    bool negated;
    int failed = read_set(source, true, &body, &negated, err);
    if (!failed && !negated)
        failed = put_all(&class->body, &body, err);
    if (!failed && negated)
        failed = put(&expression, "[^", err) || put_all(&expression, &body, err) ||
                 put(&expression, "]", err) || class_add(class, &expression, err);
    text_buffer_clear(&body);
    text_buffer_clear(&expression);
    return failed ? -1 : 0;
}

/* The character at source->at, escaped or not. */
static int read_character(struct pattern_source *source, uint32_t *c, struct error *err)
{
    if (pattern_follows(source, "\\b")) { /* within a class it is a backspace */
        *c = '\b';
        source->at += 2;
        return 0;
    }
    if (source->text[source->at] == '\\')
        return pattern_read_escape(source, c, err);
    size_t used;
    *c = utf8_decode(source->text + source->at, &used);
    source->at += used;
    return 0;
}

static bool at_set(const struct pattern_source *source)
{
    char letter = source->at + 1 < source->length ? source->text[source->at + 1] : 0;
    return source->text[source->at] == '\\' && letter && strchr("sShHdDwWpP", letter);
}

/* One character, or a range of them. */
static int class_read_range(struct class *class, struct pattern_source *source, bool ignore_case,
                            struct error *err)
{
    uint32_t first, last;
    if (read_character(source, &first, err))
        return -1;
    last = first;
    if (pattern_follows(source, "-") && !pattern_follows(source, "-]")) {
        source->at++;
        if (source->at >= source->length || at_set(source) || pattern_follows(source, "[") ||
            pattern_follows(source, "&&"))
            return pattern_refuse(source, "this range", err);
        if (read_character(source, &last, err))
            return -1;
        if (last < first)
            return pattern_refuse(source, "an empty range", err);
    }
    if (ignore_case && last >= 0x80)
        return pattern_refuse(source, "a character outside ASCII under (?i)", err);
    return put_run(&class->body, first, last, err);
}

static int put_class(struct pattern_source *source, bool ignore_case, int depth,
                     struct text_buffer *out, struct error *err);

static int class_read_nested(struct class *class, struct pattern_source *source, bool ignore_case,
                             int depth, struct error *err)
{
    struct text_buffer expression = {0};
    int failed = put_class(source, ignore_case, depth, &expression, err) ||
                 class_add(class, &expression, err);
    text_buffer_clear(&expression);
    return failed ? -1 : 0;
}

/* What stands between two "&&", or a "&&" and a bracket. */
static int class_read(struct class *class, struct pattern_source *source, bool ignore_case,
                      int depth, struct error *err)
{
    size_t start = source->at;
    while (source->at < source->length && !pattern_follows(source, "]") &&
           !pattern_follows(source, "&&")) {
        int failed;
        if (pattern_follows(source, "[:"))
            return pattern_refuse(source, "a class of POSIX", err);
        if (pattern_follows(source, "["))
            failed = class_read_nested(class, source, ignore_case, depth, err);
        else if (at_set(source))
            failed = ignore_case && !strchr("sSdDhH", source->text[source->at + 1])
                         ? pattern_refuse(source, "a property under (?i)", err)
                         : class_read_set(class, source, err);
        else if (pattern_follows(source, "-") && source->at > start &&
                 !pattern_follows(source, "-]"))
            failed = pattern_refuse(source, "a hyphen behind a range or a class", err);
        else
            failed = class_read_range(class, source, ignore_case, err);
        if (failed)
            return -1;
    }
    if (source->at == start)
        return pattern_refuse(source, "an empty class", err);
    return source->at < source->length ? 0 : pattern_refuse(source, "an open class", err);
}

/* Reads the sets of [A&&B...]. The last class is *class; for the others there are lookaheads. */
static int read_intersection(struct class *class, struct pattern_source *source, bool ignore_case,
                             int depth, struct text_buffer *lookaheads, struct error *err)
{
    for (;;) {
        if (class_read(class, source, ignore_case, depth, err))
            return -1;
        if (!pattern_follows(source, "&&"))
            return 0;
        source->at += 2;
        if (put(lookaheads, "(?=", err) || class_put(class, false, lookaheads, err) ||
            put(lookaheads, ")", err))
            return -1;
        class_clear(class);
    }
}

static int put_class(struct pattern_source *source, bool ignore_case, int depth,
                     struct text_buffer *out, struct error *err)
{
    if (depth == MAX_NESTING)
        return pattern_refuse(source, "such deep nesting", err);
    bool negated = pattern_follows(source, "[^");
    source->at += negated ? 2 : 1;
    if (negated && ignore_case)
        return pattern_refuse(source, "a negated class under (?i)", err);
    struct class class = {0};
    struct text_buffer lookaheads = {0};
    int failed = read_intersection(&class, source, ignore_case, depth + 1, &lookaheads, err);
    if (!failed) {
        source->at++;
        if (lookaheads.length == 0)
            failed = class_put(&class, negated, out, err);
        else
            failed = put(out, negated ? "(?:(?!" : "(?:", err) || put_all(out, &lookaheads, err) ||
                     class_put(&class, false, out, err) ||
                     put(out, negated ? ")(?s:.))" : ")", err);
    }
    class_clear(&class);
    text_buffer_clear(&lookaheads);
    return failed ? -1 : 0;
}

int pattern_put_class(struct pattern_source *source, bool ignore_case, struct text_buffer *out,
                      struct error *err)
{
    return put_class(source, ignore_case, 0, out, err);
}
