/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/regex_tree.h"

#include "lib/grammar/repeat.h"
#include "lib/text/buffer.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

struct parser {
    struct regex_tree *tree;
    const char *text; /* [length] */
    size_t length, at;
    int depth, aheads; /* groups around this; lookaheads */
    bool wide;         /* in what must not follow: . and shorthands mean the most they may */
    struct error *err;
};

/* `what` says what was there. Returns -1. */
static int refuse(const struct parser *parser, const char *what)
{
    return error_set(parser->err, ERROR_UNSUPPORTED, "offset %zu: %s is not supported",
                     utf8_characters(parser->text, parser->at), what);
}

static int expect(const struct parser *parser, const char *what)
{
    size_t used = 1;
    bool ended = parser->at >= parser->length;
    if (!ended)
        utf8_decode(parser->text + parser->at, &used);
    return error_set(parser->err, ERROR_INVALID, "offset %zu: expected %s, got %s%.*s%s",
                     utf8_characters(parser->text, parser->at), what, ended ? "the end" : "'",
                     ended ? 0 : (int)used, parser->text + parser->at, ended ? "" : "'");
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

struct regex_node *regex_tree_node(struct regex_tree *tree, enum regex_kind kind, size_t offset,
                                   struct error *err)
{
    size_t first = 16; /* of the block that the node is in, counted from 16 */
    int block = 0;
    while (tree->num_nodes + 16 >= 2 * first && block < 23) {
        first *= 2;
        block++;
    }
    if (!tree->nodes[block])
        tree->nodes[block] = calloc(first, sizeof **tree->nodes);
    if (!tree->nodes[block]) {
        error_set(err, ERROR_NO_MEMORY, "no memory for an expression");
        return NULL;
    }
    struct regex_node *node = &tree->nodes[block][tree->num_nodes++ + 16 - first];
    *node = (struct regex_node){.kind = kind, .offset = offset};
    return node;
}

void regex_tree_append(struct regex_node *parent, struct regex_node *child)
{
    *(parent->child ? &parent->last->next : &parent->child) = child;
    parent->last = child;
}

void regex_tree_clear(struct regex_tree *tree)
{
    for (size_t i = 0; i < sizeof tree->nodes / sizeof *tree->nodes; i++)
        free(tree->nodes[i]);
    for (size_t i = 0; i < tree->num_sets; i++)
        charset_clear(&tree->sets[i]);
    free(tree->sets);
    *tree = (struct regex_tree){0};
}

static struct regex_node *node(struct parser *parser, enum regex_kind kind)
{
    return regex_tree_node(parser->tree, kind, parser->at, parser->err);
}

/* A node of a set, which it takes over. */
static struct regex_node *set_node(struct parser *parser, struct charset *set)
{
    struct regex_tree *tree = parser->tree;
    struct regex_node *made = node(parser, REGEX_SET);
    charset_normalize(set);
    if (!made || array_grow((void **)&tree->sets, &tree->sets_capacity, tree->num_sets + 1,
                            sizeof *tree->sets, parser->err)) {
        charset_clear(set);
        return NULL;
    }
    made->set = tree->num_sets;
    tree->sets[tree->num_sets++] = *set;
    return made;
}

/* Exactly `count` digits, or with a brace behind as many as there are until it closes. */
static int read_hex(struct parser *parser, int count, uint32_t *c)
{
    bool braced = count == 4 && take(parser, "{");
    int digits = 0;
    for (*c = 0; digits < (braced ? 6 : count) && parser->at < parser->length; digits++) {
        int value = charset_hex_digit(parser->text[parser->at]);
        if (value < 0)
            break;
        *c = *c * 16 + (uint32_t)value;
        parser->at++;
    }
    if ((braced ? digits == 0 || !take(parser, "}") : digits < count))
        return expect(parser, "hex digits");
    if (*c > CHARSET_LAST)
        return expect(parser, "a code point up to 10FFFF before this");
    return 0;
}

/* \uD83D\uDE00 is one character. */
static int read_unicode_escape(struct parser *parser, uint32_t *c)
{
    if (read_hex(parser, 4, c))
        return -1;
    if (*c >= 0xD800 && *c < 0xDC00 && take(parser, "\\u")) {
        uint32_t low;
        if (read_hex(parser, 4, &low))
            return -1;
        if (low >= 0xDC00 && low <= 0xDFFF)
            *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
    }
    return *c >= 0xD800 && *c <= 0xDFFF ? refuse(parser, "a surrogate by itself") : 0;
}

/* Behind a backslash: a shorthand (*shorthand: its letter), or one character. */
static int read_escape(struct parser *parser, char *shorthand, uint32_t *c)
{
    static const char letters[] = "nrtfv", values[] = "\n\r\t\f\v";
    *shorthand = 0;
    if (parser->at >= parser->length)
        return expect(parser, "a character behind the backslash");
    char letter = parser->text[parser->at];
    const char *found = strchr(letters, letter);
    if (letter && strchr("dDwWsS", letter)) { /* strchr finds its string's end */
        *shorthand = letter;
        parser->at++;
    } else if (found && *found) {
        *c = (uint32_t)values[found - letters];
        parser->at++;
    } else if (letter == 'x' || letter == 'u') {
        parser->at++;
        return letter == 'x' ? read_hex(parser, 2, c) : read_unicode_escape(parser, c);
    } else if (letter == '0' &&
               !(parser->at + 1 < parser->length && parser->text[parser->at + 1] >= '0' &&
                 parser->text[parser->at + 1] <= '9')) {
        *c = 0;
        parser->at++;
    } else if (letter >= '0' && letter <= '9') {
        return refuse(parser, "a backreference");
    } else if (letter == 'b' || letter == 'B') {
        return refuse(parser, "a boundary of words (\\b)");
    } else if (letter == 'p' || letter == 'P') {
        return refuse(parser, "a property (\\p)");
    } else if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')) {
        char what[] = "the escape \\?";
        what[sizeof what - 2] = letter;
        return refuse(parser, what);
    } else {
        size_t used;
        *c = utf8_decode(parser->text + parser->at, &used);
        parser->at += used;
    }
    return 0;
}

/* One end of a range in a class, or a shorthand. */
static int read_class_item(struct parser *parser, char *shorthand, uint32_t *c)
{
    *shorthand = 0;
    if (follows(parser, "[:"))
        return refuse(parser, "a class by name ([:)");
    if (take(parser, "\\")) {
        if (take(parser, "b")) {
            *c = '\b';
            return 0;
        }
        return read_escape(parser, shorthand, c);
    }
    size_t used;
    *c = utf8_decode(parser->text + parser->at, &used);
    parser->at += used;
    return 0;
}

static int read_class_part(struct parser *parser, struct charset *set, bool negated)
{
    char shorthand, last_shorthand;
    uint32_t first = 0, last;
    if (read_class_item(parser, &shorthand, &first))
        return -1;
    if (shorthand)
        return charset_add_shorthand(set, shorthand, negated != parser->wide, parser->err);
    last = first;
    if (follows(parser, "-") && !follows(parser, "-]") && parser->at + 1 < parser->length) {
        parser->at++;
        if (read_class_item(parser, &last_shorthand, &last))
            return -1;
        if (last_shorthand)
            return refuse(parser, "a range that ends with a set");
        if (last < first)
            return expect(parser, "a range that does not fall before this");
    }
    return charset_add(set, first, last, parser->err);
}

static struct regex_node *read_class(struct parser *parser)
{
    struct charset set = {0};
    bool negated = take(parser, "^");
    int failed = follows(parser, "]") ? refuse(parser, "an empty class") : 0;
    while (!failed && !take(parser, "]"))
        failed = parser->at >= parser->length ? expect(parser, "']'")
                                              : read_class_part(parser, &set, negated);
    if (!failed && negated)
        failed = charset_negate(&set, parser->err);
    if (failed) {
        charset_clear(&set);
        return NULL;
    }
    return set_node(parser, &set);
}

static struct regex_node *read_choice(struct parser *parser);

static struct regex_node *read_group(struct parser *parser)
{
    static const struct {
        const char *begin, *what;
    } others[] = {{"?<=", "a lookbehind"},
                  {"?<!", "a lookbehind"},
                  {"?>", "an atomic group"},
                  {"?P=", "a backreference"}};
    if (parser->depth >= REGEX_MOST_DEPTH) {
        refuse(parser, "a group that deep in others");
        return NULL;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (follows(parser, others[i].begin)) {
            refuse(parser, others[i].what);
            return NULL;
        }
    struct regex_node *ahead = NULL;
    if (follows(parser, "?=") || follows(parser, "?!")) {
        if (++parser->aheads > REGEX_MOST_AHEAD) {
            refuse(parser, "more than 32 lookaheads");
            return NULL;
        }
        ahead = node(parser, follows(parser, "?=") ? REGEX_AHEAD : REGEX_NOT_AHEAD);
        if (!ahead)
            return NULL;
        parser->at += 2;
    } else if (take(parser, "?P<") || take(parser, "?<")) {
        while (parser->at < parser->length && parser->text[parser->at] != '>')
            parser->at++;
        if (!take(parser, ">")) {
            expect(parser, "'>' behind the group's name");
            return NULL;
        }
    } else if (!take(parser, "?:") && follows(parser, "?")) {
        refuse(parser, "such a group (?...)");
        return NULL;
    }
    parser->depth++;
    bool flips = ahead && ahead->kind == REGEX_NOT_AHEAD;
    parser->wide = parser->wide != flips;
    struct regex_node *inside = read_choice(parser);
    parser->wide = parser->wide != flips;
    parser->depth--;
    if (inside && !take(parser, ")")) {
        expect(parser, "')'");
        return NULL;
    }
    if (!inside || !ahead)
        return inside;
    regex_tree_append(ahead, inside);
    return ahead;
}

static struct regex_node *read_dot(struct parser *parser)
{
    struct charset set = {0};
    if (charset_add(&set, '\n', '\n', parser->err) ||
        (!parser->wide && (charset_add(&set, '\r', '\r', parser->err) ||
                           charset_add(&set, 0x2028, 0x2029, parser->err))) ||
        charset_negate(&set, parser->err)) {
        charset_clear(&set);
        return NULL;
    }
    return set_node(parser, &set);
}

/* A literal character or an escape. */
static struct regex_node *read_character(struct parser *parser)
{
    struct charset set = {0};
    char shorthand = 0;
    uint32_t c;
    int failed;
    if (take(parser, "\\")) {
        failed = read_escape(parser, &shorthand, &c);
    } else {
        size_t used;
        c = utf8_decode(parser->text + parser->at, &used);
        parser->at += used;
        failed = 0;
    }
    if (!failed)
        failed = shorthand ? charset_add_shorthand(&set, shorthand, parser->wide, parser->err)
                           : charset_add(&set, c, c, parser->err);
    if (failed) {
        charset_clear(&set);
        return NULL;
    }
    return set_node(parser, &set);
}

static int read_number(struct parser *parser)
{
    return repeat_number(parser->text, parser->length, &parser->at, REGEX_MOST_REPEAT);
}

/* {2} {2,} {2,5}. Returns 0 when the brace is no repetition, 1 when it is. */
static int read_braces(struct parser *parser, int *least, int *most)
{
    size_t start = parser->at;
    parser->at++;
    *least = read_number(parser);
    *most = *least;
    if (take(parser, ","))
        *most = read_number(parser);
    else if (*least < 0)
        *most = -2; /* no number at all */
    if (!take(parser, "}") || *most == -2 || (*least < 0 && *most < 0)) {
        parser->at = start;
        return 0;
    }
    if (*least < 0)
        return refuse(parser, "a repetition without a least number");
    if (*least > REGEX_MOST_REPEAT || *most > REGEX_MOST_REPEAT)
        return error_set(parser->err, ERROR_UNSUPPORTED,
                         "offset %zu: expected at most %d repetitions, got more",
                         utf8_characters(parser->text, start), REGEX_MOST_REPEAT);
    if (*most >= 0 && *most < *least)
        return error_set(parser->err, ERROR_INVALID,
                         "offset %zu: expected {least,most}, got {%d,%d}",
                         utf8_characters(parser->text, start), *least, *most);
    return 1;
}

/* Whether a repetition comes where there is nothing to repeat; then the error says so. */
static bool repeats_nothing(struct parser *parser)
{
    size_t at = parser->at;
    int least, most, found = follows(parser, "{") ? read_braces(parser, &least, &most) : 0;
    if (found < 0)
        return true;
    parser->at = at;
    if (!found && !follows(parser, "*") && !follows(parser, "+") && !follows(parser, "?"))
        return false;
    expect(parser, "something to repeat");
    return true;
}

static struct regex_node *read_atom(struct parser *parser)
{
    if (follows(parser, "^") || follows(parser, "$")) {
        struct regex_node *anchor = node(parser, follows(parser, "^") ? REGEX_START : REGEX_END);
        parser->at++;
        return anchor;
    }
    if (take(parser, "("))
        return read_group(parser);
    if (take(parser, "["))
        return read_class(parser);
    if (take(parser, "."))
        return read_dot(parser);
    return repeats_nothing(parser) ? NULL : read_character(parser);
}

/* 1: there is a quantifier, 0: there is none. */
static int read_quantifier(struct parser *parser, int *least, int *most)
{
    *most = -1;
    if (take(parser, "*")) {
        *least = 0;
    } else if (take(parser, "+")) {
        *least = 1;
    } else if (take(parser, "?")) {
        *least = 0;
        *most = 1;
    } else if (follows(parser, "{")) {
        int found = read_braces(parser, least, most);
        if (found <= 0)
            return found;
    } else {
        return 0;
    }
    take(parser, "?"); /* lazy: the same texts */
    if (follows(parser, "+"))
        return refuse(parser, "a possessive quantifier");
    return 1;
}

static struct regex_node *read_repeated(struct parser *parser)
{
    struct regex_node *atom = read_atom(parser);
    int least, most, found;
    if (!atom || (found = read_quantifier(parser, &least, &most)) == 0)
        return atom;
    if (found < 0)
        return NULL;
    if (atom->kind != REGEX_SET && atom->kind != REGEX_CHOICE) {
        refuse(parser, "a repeated ^, $ or lookahead");
        return NULL;
    }
    struct regex_node *repeat = node(parser, REGEX_REPEAT);
    if (!repeat)
        return NULL;
    repeat->least = least;
    repeat->most = most;
    regex_tree_append(repeat, atom);
    return repeats_nothing(parser) ? NULL : repeat;
}

static struct regex_node *read_sequence(struct parser *parser)
{
    struct regex_node *sequence = node(parser, REGEX_SEQUENCE);
    while (sequence && parser->at < parser->length && !follows(parser, "|") &&
           !follows(parser, ")")) {
        struct regex_node *item = read_repeated(parser);
        if (!item)
            return NULL;
        regex_tree_append(sequence, item);
    }
    return sequence;
}

static struct regex_node *read_choice(struct parser *parser)
{
    struct regex_node *choice = node(parser, REGEX_CHOICE);
    if (!choice)
        return NULL;
    do {
        struct regex_node *sequence = read_sequence(parser);
        if (!sequence)
            return NULL;
        regex_tree_append(choice, sequence);
    } while (take(parser, "|"));
    return choice;
}

int regex_tree_parse(struct regex_tree *tree, const char *text, size_t length, struct error *err)
{
    struct parser parser = {.tree = tree, .text = text, .length = length, .err = err};
    if (length > REGEX_MOST_BYTES)
        return error_set(err, ERROR_UNSUPPORTED, "expected at most %d bytes, got %zu",
                         REGEX_MOST_BYTES, length);
    tree->root = read_choice(&parser);
    if (tree->root && parser.at < length)
        return expect(&parser, "the end");
    return tree->root ? 0 : -1;
}
