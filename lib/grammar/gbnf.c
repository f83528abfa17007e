/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/gbnf.h"

#include "lib/grammar/charset.h"
#include "lib/grammar/dfa_emit.h"
#include "lib/grammar/repeat.h"
#include "lib/text/buffer.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { CHARACTER_WORK = 8 };

struct parser {
    struct gbnf *gbnf;
    struct builder *builder;
    const char *text; /* [length] */
    size_t length, at;
    int depth;
};

static void find_place(const char *text, size_t at, size_t *line, size_t *column)
{
    size_t start = 0;
    *line = 1;
    for (size_t i = 0; i < at; i++)
        if (text[i] == '\n') {
            ++*line;
            start = i + 1;
        }
    *column = utf8_characters(text + start, at - start) + 1;
}

/* Sets the error "line 2, column 5: expected ..., got ...". Returns -1. */
static int expect(const struct parser *parser, const char *what)
{
    size_t line, column, used = 1;
    bool ended = parser->at >= parser->length;
    find_place(parser->text, parser->at, &line, &column);
    if (!ended)
        utf8_decode(parser->text + parser->at, &used);
    return error_set(parser->builder->err, ERROR_INVALID,
                     "line %zu, column %zu: expected %s, got %s%.*s%s", line, column, what,
                     ended ? "the end" : "'", ended ? 0 : (int)used, parser->text + parser->at,
                     ended ? "" : "'");
}

static bool follows(const struct parser *parser, const char *what)
{
    size_t length = strlen(what);
    return parser->length - parser->at >= length &&
           memcmp(parser->text + parser->at, what, length) == 0;
}

static bool take(struct parser *parser, const char *what)
{
    bool found = follows(parser, what);
    parser->at += found ? strlen(what) : 0;
    return found;
}

/* White space and comments; over the ends of lines if `lines`. */
static void skip(struct parser *parser, bool lines)
{
    while (parser->at < parser->length) {
        char c = parser->text[parser->at];
        if (c == '#')
            while (parser->at < parser->length && parser->text[parser->at] != '\n')
                parser->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            parser->at++;
        else
            return;
    }
}

/* --- Names --- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static uint64_t hash_of_name(const void *of, uint32_t item)
{
    const struct gbnf_name *name = (const struct gbnf_name *)of + item;
    return XXH3_64bits(name->name, name->length);
}

static bool is_named(const void *of, uint32_t item, const void *key)
{
    const struct gbnf_name *name = (const struct gbnf_name *)of + item, *wanted = key;
    return name->length == wanted->length && memcmp(name->name, wanted->name, name->length) == 0;
}

/* The name at the parser's place. NULL: there is none, or no memory. Valid until the next call. */
static struct gbnf_name *read_name(struct parser *parser)
{
    struct gbnf *gbnf = parser->gbnf;
    size_t start = parser->at;
    while (parser->at < parser->length && is_name(parser->text[parser->at]))
        parser->at++;
    const char *name = parser->text + start;
    size_t length = parser->at - start;
    if (length == 0) {
        expect(parser, "the name of a rule");
        return NULL;
    }
    const struct gbnf_name key = {.name = name, .length = length, .offset = start};
    uint32_t *slot = index_table_find(&gbnf->table, gbnf->count, XXH3_64bits(name, length), &key,
                                      hash_of_name, is_named, gbnf->names, parser->builder->err);
    if (!slot)
        return NULL;
    if (*slot)
        return &gbnf->names[*slot - 1];
    uint32_t rule = builder_rule(parser->builder);
    if (builder_failed(parser->builder) ||
        array_grow((void **)&gbnf->names, &gbnf->capacity, gbnf->count + 1, sizeof *gbnf->names,
                   parser->builder->err))
        return NULL;
    if (gbnf->count == 0)
        gbnf->first = rule;
    gbnf->names[gbnf->count++] = key;
    *slot = (uint32_t)gbnf->count;
    return &gbnf->names[gbnf->count - 1];
}

static uint32_t rule_of(const struct parser *parser, const struct gbnf_name *name)
{
    return parser->gbnf->first + (uint32_t)(name - parser->gbnf->names);
}

/* --- Items --- */

static int read_hex(struct parser *parser, int count, uint32_t *c)
{
    *c = 0;
    for (int i = 0; i < count; i++) {
        char digit = parser->at < parser->length ? parser->text[parser->at] : 0;
        int value = charset_hex_digit(digit);
        if (value < 0)
            return expect(parser, "hex digits");
        *c = *c << 4 | (uint32_t)value;
        parser->at++;
    }
    if (*c > CHARSET_LAST || (*c >= 0xD800 && *c <= 0xDFFF)) {
        parser->at -= (size_t)count;
        return expect(parser, "a character's code point");
    }
    return 0;
}

/* A character of a literal or a class. */
static int read_character(struct parser *parser, uint32_t *c)
{
    static const char escapes[] = "nrt\\\"[]-^'", values[] = "\n\r\t\\\"[]-^'";
    if (parser->at >= parser->length || parser->text[parser->at] == '\n')
        return expect(parser, "a character");
    if (!take(parser, "\\")) {
        size_t used;
        *c = utf8_decode(parser->text + parser->at, &used);
        parser->at += used;
        return 0;
    }
    if (take(parser, "x"))
        return read_hex(parser, 2, c);
    if (take(parser, "u"))
        return read_hex(parser, 4, c);
    if (take(parser, "U"))
        return read_hex(parser, 8, c);
    const char *found =
        parser->at < parser->length ? strchr(escapes, parser->text[parser->at]) : NULL;
    if (!found || !*found)
        return expect(parser, "n, r, t, \\, \", [, ], -, ^, x, u or U behind a backslash");
    *c = (uint32_t)(unsigned char)values[found - escapes];
    parser->at++;
    return 0;
}

static int parse_literal(struct parser *parser, uint32_t from, uint32_t to)
{
    while (!take(parser, "\"")) {
        uint32_t c;
        if (read_character(parser, &c))
            return -1;
        char bytes[4];
        size_t length = utf8_encode(c, bytes);
        uint32_t next = builder_state(parser->builder);
        builder_text(parser->builder, from, next, bytes, length);
        from = next;
    }
    builder_jump(parser->builder, from, to);
    return 0;
}

static int read_class(struct parser *parser, struct charset *set)
{
    struct error *err = parser->builder->err;
    bool negated = take(parser, "^");
    while (!take(parser, "]")) {
        uint32_t first, last;
        if (read_character(parser, &first))
            return -1;
        last = first;
        if (follows(parser, "-") && !follows(parser, "-]")) {
            parser->at++;
            size_t at = parser->at;
            if (read_character(parser, &last))
                return -1;
            if (last < first) {
                parser->at = at;
                return expect(parser, "a range that does not fall");
            }
        }
        if (charset_add(set, first, last, err))
            return -1;
    }
    charset_normalize(set);
    return negated ? charset_negate(set, err) : 0;
}

static int parse_class(struct parser *parser, uint32_t from, uint32_t to)
{
    struct charset set = {0};
    int failed = read_class(parser, &set);
    for (size_t i = 0; i < set.count && !failed; i++)
        dfa_emit_range(parser->builder, from, to, set.ranges[i].first, set.ranges[i].last);
    charset_clear(&set);
    return failed;
}

static int parse_choice(struct parser *parser, uint32_t from, uint32_t to, bool nested);

static int parse_group(struct parser *parser, uint32_t from, uint32_t to)
{
    if (parser->depth >= GBNF_MOST_DEPTH)
        return expect(parser, "at most 100 groups in each other");
    parser->depth++;
    int failed = parse_choice(parser, from, to, true);
    parser->depth--;
    if (!failed && !take(parser, ")"))
        return expect(parser, "')'");
    return failed;
}

static int parse_item(struct parser *parser, uint32_t from, uint32_t to)
{
    if (take(parser, "\""))
        return parse_literal(parser, from, to);
    if (take(parser, "["))
        return parse_class(parser, from, to);
    if (take(parser, "("))
        return parse_group(parser, from, to);
    if (take(parser, ".")) {
        dfa_emit_range(parser->builder, from, to, 0, CHARSET_LAST);
        return 0;
    }
    const struct gbnf_name *name = read_name(parser);
    if (!name)
        return -1;
    builder_call(parser->builder, from, to, rule_of(parser, name), 0, AUTOMATON_NO_LIMIT);
    return 0;
}

/* --- Repetitions --- */

static int read_number(struct parser *parser)
{
    return repeat_number(parser->text, parser->length, &parser->at, GBNF_MOST_REPEAT);
}

/* most < 0: no limit. */
static int read_repeat(struct parser *parser, int *least, int *most)
{
    size_t start = parser->at;
    *least = *most = 1;
    if (take(parser, "*")) {
        *least = 0;
        *most = -1;
    } else if (take(parser, "+")) {
        *most = -1;
    } else if (take(parser, "?")) {
        *least = 0;
    } else if (take(parser, "{")) {
        skip(parser, false);
        *least = *most = read_number(parser);
        skip(parser, false);
        if (take(parser, ",")) {
            skip(parser, false);
            *most = read_number(parser);
            skip(parser, false);
        }
        if (*least < 0)
            return expect(parser, "a number of repetitions");
        if (!take(parser, "}"))
            return expect(parser, "'}'");
        if (*least > GBNF_MOST_REPEAT || *most > GBNF_MOST_REPEAT ||
            (*most >= 0 && *most < *least)) {
            parser->at = start;
            return expect(parser, "{least,most} up to 16384");
        }
    }
    return 0;
}

/* Reads an item, perhaps again. What is read counts as work. */
static int parse_copy(struct parser *parser, uint32_t from, uint32_t to)
{
    struct builder *builder = parser->builder;
    size_t start = parser->at, line, column;
    if (parse_item(parser, from, to))
        return -1;
    if (work_add(&builder->work, CHARACTER_WORK * (parser->at - start), builder->err) == 0)
        return 0;
    find_place(parser->text, start, &line, &column);
    return error_prefix(builder->err, "line %zu, column %zu", line, column);
}

/* An item with what repeats it. Each copy of it is read again. */
static int parse_repeated(struct parser *parser, uint32_t from, uint32_t to, bool nested)
{
    struct builder *builder = parser->builder;
    size_t start = parser->at;
    uint32_t begin = builder_state(builder), end = builder_state(builder);
    int least, most;
    if (parse_copy(parser, begin, end))
        return -1;
    skip(parser, nested);
    if (read_repeat(parser, &least, &most))
        return -1;
    size_t behind = parser->at;
    int copies = most >= 0 ? most : least > 0 ? least : 1;
    if (least == 0 || copies == 0)
        builder_jump(builder, from, to);
    for (int i = 0; i < copies && !builder_failed(builder); i++) {
        if (i > 0) {
            begin = builder_state(builder);
            end = builder_state(builder);
            parser->at = start;
            if (parse_copy(parser, begin, end))
                return -1;
        }
        builder_jump(builder, from, begin);
        if (i + 1 >= least)
            builder_jump(builder, end, to);
        if (most < 0 && i + 1 == copies)
            builder_jump(builder, end, begin);
        from = end;
    }
    parser->at = behind;
    return builder_failed(builder) ? -1 : 0;
}

static bool at_item(const struct parser *parser)
{
    char c = parser->at < parser->length ? parser->text[parser->at] : 0;
    return c && (is_name(c) || strchr("\"[(.", c));
}

/* Items up to a bar, a bracket or the end of the rule. */
static int parse_sequence(struct parser *parser, uint32_t from, uint32_t to, bool nested)
{
    skip(parser, nested);
    while (at_item(parser)) {
        uint32_t next = builder_state(parser->builder);
        if (parse_repeated(parser, from, next, nested))
            return -1;
        from = next;
        skip(parser, nested);
    }
    builder_jump(parser->builder, from, to);
    return builder_failed(parser->builder) ? -1 : 0;
}

static int parse_choice(struct parser *parser, uint32_t from, uint32_t to, bool nested)
{
    for (;;) {
        if (parse_sequence(parser, from, to, nested))
            return -1;
        size_t at = parser->at;
        skip(parser, true);
        if (!take(parser, "|")) {
            parser->at = at;
            return 0;
        }
        skip(parser, true); /* a rule goes on behind a bar */
    }
}

static int parse_rule(struct parser *parser)
{
    size_t start = parser->at;
    struct gbnf_name *name = read_name(parser);
    if (!name)
        return -1;
    if (name->defined) {
        parser->at = start;
        return expect(parser, "a rule that is not defined yet");
    }
    name->defined = true;
    struct builder_rule rule = parser->builder->rules[rule_of(parser, name)];
    skip(parser, false);
    if (!take(parser, "::="))
        return expect(parser, "'::='");
    skip(parser, true);
    if (parse_choice(parser, rule.start, rule.final, false))
        return -1;
    skip(parser, false);
    if (parser->at < parser->length && !follows(parser, "\n") && !follows(parser, "\r"))
        return expect(parser, "a string, a class, a rule, '(', '|' or the end of the line");
    return 0;
}

static int check_names(const struct parser *parser, uint32_t *root)
{
    bool found = false;
    for (size_t i = 0; i < parser->gbnf->count; i++) {
        const struct gbnf_name *name = &parser->gbnf->names[i];
        if (!name->defined) {
            size_t line, column;
            gbnf_place(parser->gbnf, name, &line, &column);
            return error_set(parser->builder->err, ERROR_INVALID,
                             "line %zu, column %zu: expected a rule that is defined, got %.*s",
                             line, column, (int)(name->length < 64 ? name->length : 64),
                             name->name);
        }
        if (name->length == 4 && memcmp(name->name, "root", 4) == 0) {
            *root = rule_of(parser, name);
            found = true;
        }
    }
    return found ? 0
                 : error_set(parser->builder->err, ERROR_INVALID,
                             "expected a rule with the name root, got none");
}

/* What the builder refuses, which knows no places, gets the parser's. All others begin with "line".
 */
static int name_place(const struct parser *parser)
{
    struct error *err = parser->builder->err;
    size_t line, column;
    if (strncmp(err->message, "line ", 5) == 0)
        return -1;
    find_place(parser->text, parser->at, &line, &column);
    return error_prefix(err, "line %zu, column %zu", line, column);
}

int gbnf_compile(struct gbnf *gbnf, struct builder *builder, const char *text, size_t length,
                 uint32_t *root)
{
    struct parser parser = {.gbnf = gbnf, .builder = builder, .text = text, .length = length};
    *gbnf = (struct gbnf){.text = text};
    if (length > GBNF_MOST_BYTES)
        return error_set(builder->err, ERROR_UNSUPPORTED, "expected at most %d bytes, got %zu",
                         GBNF_MOST_BYTES, length);
    for (skip(&parser, true); parser.at < length; skip(&parser, true))
        if (parse_rule(&parser))
            return name_place(&parser);
    return check_names(&parser, root);
}

void gbnf_place(const struct gbnf *gbnf, const struct gbnf_name *name, size_t *line, size_t *column)
{
    find_place(gbnf->text, name->offset, line, column);
}

void gbnf_clear(struct gbnf *gbnf)
{
    free(gbnf->names);
    index_table_clear(&gbnf->table);
    *gbnf = (struct gbnf){0};
}
