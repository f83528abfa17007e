/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/pattern_translate.h"

#include "lib/text/pattern_class.h"
#include "lib/text/unicode.h"

#include <stdio.h>
#include <string.h>

enum { MAX_GROUPS = 64 };

/* A group that is open, or at [0] the whole expression. */
struct group {
    size_t start;     /* where it begins in `out` */
    bool ignore_case; /* inside it, from here on */
    int isolated;     /* groups opened by an option like (?i), which end with it */
};

struct translator {
    struct pattern_source source;
    struct text_buffer *out;
    struct group groups[MAX_GROUPS + 1];
    int depth;
    size_t atom;  /* where what a quantifier repeats begins in `out`; SIZE_MAX: nothing */
    char literal; /* the ASCII letter before, in lower case, for foldings of two; 0: none */
    struct error *err;
};

static int put_text(struct translator *translator, const char *text, size_t length)
{
    return text_buffer_append(translator->out, text, length, translator->err);
}

static int put(struct translator *translator, const char *text)
{
    return put_text(translator, text, strlen(text));
}

static int refuse(struct translator *translator, const char *what)
{
    return pattern_refuse(&translator->source, what, translator->err);
}

static bool follows(const struct translator *translator, const char *what)
{
    return pattern_follows(&translator->source, what);
}

static bool ignores_case(const struct translator *translator)
{
    return translator->groups[translator->depth].ignore_case;
}

/* Under (?i) the libraries agree about ASCII only: Oniguruma also folds "ss" with U+00DF. */
static int check_folding(struct translator *translator, uint32_t c)
{
    static const char *const PAIRS[] = {"ss", "st", "ff", "fi", "fl"};
    char before = translator->literal;
    translator->literal = 0;
    if (!ignores_case(translator))
        return 0;
    if (c >= 0x80)
        return refuse(translator, "a character outside ASCII under (?i)");
    char letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (char)(c | 0x20) : 0;
    for (size_t i = 0; before && letter && i < sizeof PAIRS / sizeof *PAIRS; i++)
        if (PAIRS[i][0] == before && PAIRS[i][1] == letter)
            return refuse(translator, "ss, st, ff, fi or fl under (?i)");
    translator->literal = letter;
    return 0;
}

/* A character that stands for itself. */
static int put_literal(struct translator *translator, uint32_t c)
{
    char text[16];
    if (check_folding(translator, c))
        return -1;
    translator->atom = translator->out->length;
    snprintf(text, sizeof text, "\\x{%X}", (unsigned)c);
    return put(translator, text);
}

/* \b or \B: between a character of \w and one that is not. */
static int put_boundary(struct translator *translator, bool negated)
{
    static const char *const PARTS[2][4] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?="},
                                            {"(?:(?<=", ")(?=", ")|(?<!", ")(?!"}};
    translator->atom = translator->out->length;
    for (int i = 0; i < 4; i++)
        if (put(translator, PARTS[negated][i]) ||
            pattern_put_shorthand('w', translator->out, translator->err))
            return -1;
    return put(translator, "))");
}

static int put_escape(struct translator *translator)
{
    struct pattern_source *source = &translator->source;
    char letter = source->at + 1 < source->length ? source->text[source->at + 1] : 0;
    size_t atom = translator->out->length;
    if (letter && strchr("AzZG", letter)) {
        char anchor[3] = {'\\', letter, 0};
        source->at += 2;
        translator->literal = 0;
        translator->atom = SIZE_MAX;
        return put(translator, anchor);
    }
    if (letter == 'b' || letter == 'B') {
        source->at += 2;
        translator->literal = 0;
        return put_boundary(translator, letter == 'B');
    }
    if (letter && strchr("sShHdDwWpP", letter)) {
        translator->literal = 0;
        if (ignores_case(translator) && !strchr("sSdDhH", letter))
            return refuse(translator, "a property under (?i)");
        if (pattern_put_set(source, translator->out, translator->err))
            return -1;
        translator->atom = atom;
        return 0;
    }
    uint32_t c;
    return pattern_read_escape(source, &c, translator->err) ? -1 : put_literal(translator, c);
}

static int put_class(struct translator *translator)
{
    size_t atom = translator->out->length;
    translator->literal = 0;
    if (pattern_put_class(&translator->source, ignores_case(translator), translator->out,
                          translator->err))
        return -1;
    translator->atom = atom;
    return 0;
}

static bool is_quantifier(char c)
{
    return c == '*' || c == '+' || c == '?' || c == '{';
}

/* Puts text in front of the last atom. */
static int open_atom(struct translator *translator)
{
    struct text_buffer *out = translator->out;
    if (text_buffer_reserve(out, 3, translator->err))
        return -1;
    char *atom = out->data + translator->atom;
    memmove(atom + 3, atom, out->length - translator->atom);
    memcpy(atom, "(?:", 3);
    out->length += 3;
    return 0;
}

/* {n}, {n,}, {,m}, {n,m}. To Oniguruma a + behind one repeats the repetition (to PCRE2 it makes it
 * possessive), and so does a ? behind {n}. */
static int put_braces(struct translator *translator)
{
    struct pattern_source *source = &translator->source;
    size_t end = source->at + 1, digits = 0, commas = 0;
    for (; end < source->length; end++) {
        char c = source->text[end];
        if (c != ',' && !(c >= '0' && c <= '9'))
            break;
        commas += c == ',';
        digits += c != ',';
    }
    if (end == source->length || source->text[end] != '}' || commas > 1 || digits == 0)
        return refuse(translator, "a brace that is not a repetition");
    if (translator->atom == SIZE_MAX)
        return refuse(translator, "a repetition of nothing");
    const char *rest = source->text + source->at + 1;
    size_t length = end - source->at; /* with the closing brace */
    char next = end + 1 < source->length ? source->text[end + 1] : 0;
    bool lazy = next == '?' && commas == 1;
    bool again = is_quantifier(next) && !lazy;
    if (again && open_atom(translator))
        return -1;
    if (put(translator, *rest == ',' ? "{0" : "{") || put_text(translator, rest, length))
        return -1;
    source->at = end + 1 + lazy;
    if (lazy && put(translator, "?"))
        return -1;
    if (lazy && source->at < source->length && is_quantifier(source->text[source->at]))
        return refuse(translator, "a repetition of a repetition");
    if (!again)
        translator->atom = SIZE_MAX;
    return again ? put(translator, ")") : 0;
}

/* *, +, ?, with the ? or + of a lazy or possessive one. */
static int put_quantifier(struct translator *translator)
{
    struct pattern_source *source = &translator->source;
    if (translator->atom == SIZE_MAX)
        return refuse(translator, "a repetition of nothing, or of a repetition");
    size_t length = 1;
    char next = source->at + 1 < source->length ? source->text[source->at + 1] : 0;
    if (next == '?' || next == '+')
        length = 2;
    if (put_text(translator, source->text + source->at, length))
        return -1;
    source->at += length;
    translator->atom = SIZE_MAX;
    return 0;
}

static int open_group(struct translator *translator, size_t start, bool ignore_case)
{
    if (translator->depth == MAX_GROUPS)
        return refuse(translator, "such deep nesting");
    translator->groups[++translator->depth] = (struct group){start, ignore_case, 0};
    translator->atom = SIZE_MAX;
    translator->literal = 0;
    return 0;
}

/* (?i), (?m-i:...) and the like. An option without a colon reaches to the end of its group, over
 * the alternatives that follow: it opens a group. */
static int put_options(struct translator *translator)
{
    struct pattern_source *source = &translator->source;
    bool on = true, ignore_case = ignores_case(translator);
    size_t at = source->at + 2, start = translator->out->length;
    if (put(translator, "(?"))
        return -1;
    for (; at < source->length && strchr("im-", source->text[at]); at++) {
        char c = source->text[at];
        if (c == 'i')
            ignore_case = on;
        if (c == '-' && !on)
            return refuse(translator, "this kind of group");
        on &= c != '-';
        if (put(translator, c == 'm' ? "s" : c == 'i' ? "i" : "-")) /* (?m): . is any character */
            return -1;
    }
    char end = at < source->length ? source->text[at] : 0;
    if ((end != ':' && end != ')') || at == source->at + 2)
        return refuse(translator, "this kind of group");
    source->at = at + 1;
    if (put(translator, ":"))
        return -1;
    if (end == ':')
        return open_group(translator, start, ignore_case);
    struct group *group = &translator->groups[translator->depth];
    group->ignore_case = ignore_case;
    group->isolated++;
    translator->atom = SIZE_MAX;
    translator->literal = 0;
    return 0;
}

static int put_group(struct translator *translator)
{
    static const char *const KNOWN[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    struct pattern_source *source = &translator->source;
    size_t start = translator->out->length;
    if (follows(translator, "(*"))
        return refuse(translator, "a PCRE2 verb");
    if (follows(translator, "(?#")) {
        const char *end = strchr(source->text + source->at, ')');
        if (!end ||
            memchr(source->text + source->at, '\\', (size_t)(end - source->text) - source->at))
            return refuse(translator, "this comment");
        source->at = (size_t)(end - source->text) + 1;
        return 0;
    }
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (follows(translator, KNOWN[i])) {
            source->at += strlen(KNOWN[i]);
            return put(translator, KNOWN[i]) ||
                           open_group(translator, start, ignores_case(translator))
                       ? -1
                       : 0;
        }
    if (follows(translator, "(?<")) { /* a name, for what nothing here refers to */
        const char *end = strchr(source->text + source->at, '>');
        if (!end)
            return refuse(translator, "this kind of group");
        source->at = (size_t)(end - source->text) + 1;
    } else if (follows(translator, "(?")) {
        return put_options(translator);
    } else {
        source->at++;
    }
    return put(translator, "(?:") || open_group(translator, start, ignores_case(translator)) ? -1
                                                                                             : 0;
}

/* Ends the groups that options opened in the innermost group. */
static int close_isolated(struct translator *translator)
{
    struct group *group = &translator->groups[translator->depth];
    for (; group->isolated > 0; group->isolated--)
        if (put(translator, ")"))
            return -1;
    return 0;
}

static int close_group(struct translator *translator)
{
    if (translator->depth == 0)
        return refuse(translator, "a closing parenthesis without an opening one");
    if (close_isolated(translator) || put(translator, ")"))
        return -1;
    translator->source.at++;
    translator->atom = translator->groups[translator->depth--].start;
    translator->literal = 0;
    return 0;
}

static int put_item(struct translator *translator)
{
    struct pattern_source *source = &translator->source;
    char c = source->text[source->at];
    switch (c) {
    case '\\':
        return put_escape(translator);
    case '[':
        return put_class(translator);
    case '(':
        return put_group(translator);
    case ')':
        return close_group(translator);
    case '{':
        return put_braces(translator);
    case '*':
    case '+':
    case '?':
        return put_quantifier(translator);
    case '.':
        translator->atom = translator->out->length;
        break;
    case '|':
    case '^':
    case '$':
        translator->atom = SIZE_MAX;
        break;
    default: {
        size_t used;
        uint32_t point = utf8_decode(source->text + source->at, &used);
        source->at += used;
        return put_literal(translator, point);
    }
    }
    translator->literal = 0;
    source->at++;
    return put_text(translator, &c, 1);
}

int pattern_translate(const char *text, size_t length, struct text_buffer *out, struct error *err)
{
    struct translator translator = {
        .source = {.text = text, .length = length}, .out = out, .atom = SIZE_MAX, .err = err};
    while (translator.source.at < length)
        if (put_item(&translator))
            return -1;
    if (translator.depth > 0)
        return refuse(&translator, "an opening parenthesis without a closing one");
    return close_isolated(&translator);
}
