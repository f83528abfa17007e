/* SPDX-License-Identifier: Apache-2.0 */
#include "api/lark.h"

#include "lib/grammar/regex_tree.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RULES = 1024, MOST_DEPTH = 40 };

/* Some bytes of the grammar. */
struct span {
    const char *at, *end;
};

struct rule {
    struct span name;
    struct span body;
    const char *regex; /* of an imported terminal; else NULL */
    bool open;         /* it is being written */
};

struct lark {
    struct span text;
    struct rule *rules; /* [count], with room for MOST_RULES */
    size_t count;
    struct strbuf *out;
    int depth;
    struct work *work; /* borrowed */
    struct error *err;
};

/* The terminals of Lark's module `common`. */
static const struct {
    const char *name, *regex;
} COMMON[] = {
    {"LF", "\\n"},
    {"CR", "\\r"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"WS_INLINE", "[ \\t]+"},
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+\\-]?[0-9]+"},
    {"DECIMAL", "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)"},
    {"FLOAT", "(?:[0-9]+[eE][+\\-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?)"},
    {"NUMBER", "(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+\\-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+\\-]?[0-9]+)?"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\""},
};

static int refuse(const struct lark *lark, const char *at, const char *expected)
{
    size_t line = 1;
    for (const char *c = lark->text.at; c < at; c++)
        line += *c == '\n';
    return error_set(lark->err, ERROR_UNSUPPORTED, "line %zu: expected %s", line, expected);
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static bool same(struct span a, const char *word)
{
    return (size_t)(a.end - a.at) == strlen(word) && memcmp(a.at, word, strlen(word)) == 0;
}

/* Past spaces, line ends and comments. */
static void skip(struct span *in)
{
    while (in->at < in->end) {
        bool comment = in->end - in->at > 1 && in->at[0] == '/' && in->at[1] == '/';
        if (comment) {
            while (in->at < in->end && *in->at != '\n')
                in->at++;
        } else if (isspace((unsigned char)*in->at)) {
            in->at++;
        } else {
            return;
        }
    }
}

static void skip_blanks(struct span *in)
{
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\r'))
        in->at++;
}

static bool take(struct span *in, const char *what)
{
    size_t length = strlen(what);
    if ((size_t)(in->end - in->at) < length || memcmp(in->at, what, length) != 0)
        return false;
    in->at += length;
    return true;
}

/* An empty one: there is none. */
static struct span take_name(struct span *in)
{
    struct span name = {in->at, in->at};
    while (name.end < in->end && is_name(*name.end))
        name.end++;
    in->at = name.end;
    return name;
}

/* --- Which rules there are --- */

static int add_rule(struct lark *lark, struct span name, struct span body, const char *regex)
{
    if (lark->count == MOST_RULES)
        return refuse(lark, name.at, "at most 1024 rules");
    lark->rules[lark->count++] = (struct rule){.name = name, .body = body, .regex = regex};
    return 0;
}

static int import_one(struct lark *lark, struct span terminal, struct span name)
{
    for (size_t i = 0; i < sizeof COMMON / sizeof *COMMON; i++)
        if (same(terminal, COMMON[i].name))
            return add_rule(lark, name, terminal, COMMON[i].regex);
    return refuse(lark, terminal.at, "a terminal of common");
}

/* "common.NAME", perhaps "-> OTHER"; or "common (A, B)". */
static int import(struct lark *lark, struct span line)
{
    skip_blanks(&line);
    if (!take(&line, "common"))
        return refuse(lark, line.at, "the module common");
    if (take(&line, ".")) {
        struct span terminal = take_name(&line), name = terminal;
        skip_blanks(&line);
        if (take(&line, "->")) {
            skip_blanks(&line);
            name = take_name(&line);
        }
        return import_one(lark, terminal, name);
    }
    skip_blanks(&line);
    if (!take(&line, "("))
        return refuse(lark, line.at, "a terminal of common");
    do {
        skip_blanks(&line);
        struct span terminal = take_name(&line);
        if (import_one(lark, terminal, terminal))
            return -1;
        skip_blanks(&line);
    } while (take(&line, ","));
    return 0;
}

/* "name:" of a line that begins a rule; the rest of it stays in *line. */
static bool takes_head(struct span *line, struct span *name)
{
    struct span in = *line;
    while (take(&in, "?") || take(&in, "!"))
        continue;
    *name = take_name(&in);
    if (take(&in, "."))
        while (in.at < in.end && (isdigit((unsigned char)*in.at) || *in.at == '-'))
            in.at++;
    skip_blanks(&in);
    if (name->at == name->end || !take(&in, ":"))
        return false;
    *line = in;
    return true;
}

static int read_line(struct lark *lark, struct span line)
{
    struct span name;
    skip_blanks(&line);
    bool comment = line.at < line.end &&
                   (*line.at == '#' || (line.end - line.at > 1 && memcmp(line.at, "//", 2) == 0));
    if (line.at == line.end || comment)
        return 0;
    if (take(&line, "%import"))
        return import(lark, line);
    if (*line.at == '%')
        return refuse(lark, line.at, "no directive but %import");
    if (takes_head(&line, &name))
        return add_rule(lark, name, line, NULL);
    if (lark->count == 0 || lark->rules[lark->count - 1].regex)
        return refuse(lark, line.at, "a rule");
    lark->rules[lark->count - 1].body.end = line.end;
    return 0;
}

static int read_rules(struct lark *lark)
{
    for (const char *at = lark->text.at; at < lark->text.end;) {
        const char *end = memchr(at, '\n', (size_t)(lark->text.end - at));
        struct span line = {at, end ? end : lark->text.end};
        if (read_line(lark, line))
            return -1;
        at = line.end + 1;
    }
    return 0;
}

/* --- Writing --- */

static int write_choices(struct lark *lark, struct span *in, char close);

/* at: where it is named. */
static int write_rule(struct lark *lark, struct span name, const char *at)
{
    for (size_t i = 0; i < lark->count; i++) {
        struct rule *rule = &lark->rules[i];
        struct span body = rule->body;
        if (name.end - name.at != rule->name.end - rule->name.at ||
            memcmp(name.at, rule->name.at, (size_t)(name.end - name.at)) != 0)
            continue;
        if (rule->open)
            return refuse(lark, at, "a rule that does not come to itself again");
        if (rule->regex) {
            strbuf_printf(lark->out, "(?:%s)", rule->regex);
            return work_add(lark->work, lark->count, lark->err);
        }
        if (work_add(lark->work, lark->count + (size_t)(body.end - body.at), lark->err))
            return -1;
        rule->open = true;
        int result = write_choices(lark, &body, 0);
        rule->open = false;
        return result;
    }
    return refuse(lark, at, "a name that is defined");
}

static void write_character(struct lark *lark, char c, bool both)
{
    if (both && isalpha((unsigned char)c))
        strbuf_printf(lark->out, "[%c%c]", tolower((unsigned char)c), toupper((unsigned char)c));
    else if (is_name(c) || (unsigned char)c >= 0x80 || c == ' ')
        strbuf_append(lark->out, &c, 1);
    else if (ispunct((unsigned char)c))
        strbuf_printf(lark->out, "\\%c", c);
    else
        strbuf_printf(lark->out, "\\x%02x", (unsigned char)c);
}

/* An escape of a string behind its backslash: what regular expressions have in the same way. */
static int write_escape(struct lark *lark, struct span *in, bool both)
{
    static const char SAME[] = "nrtfvxu";
    char c = *in->at++;
    if (strchr(SAME, c))
        strbuf_printf(lark->out, "\\%c", c);
    else if (ispunct((unsigned char)c))
        write_character(lark, c, both);
    else
        return refuse(lark, in->at - 1, "an escape of \\n \\r \\t \\f \\v \\x \\u or a sign");
    return 0;
}

/* The end of a string or an expression that `quote` ends; NULL: there is none. */
static const char *find_end(struct span in, char quote)
{
    for (; in.at < in.end && *in.at != '\n'; in.at++) {
        if (*in.at == quote)
            return in.at;
        if (*in.at == '\\')
            in.at++;
    }
    return NULL;
}

/* What stands between quotes; *in is behind them. */
static int take_quoted(const struct lark *lark, struct span *in, struct span *quoted)
{
    char quote = *in->at++;
    const char *end = find_end(*in, quote);
    *quoted = (struct span){in->at, in->at};
    if (!end)
        return refuse(lark, in->at, "an end of what is quoted");
    quoted->end = end;
    in->at = end + 1;
    return 0;
}

/* "a".."z": both are one character. */
static int write_range(struct lark *lark, struct span first, struct span *in)
{
    struct span last;
    skip(in);
    if (in->at == in->end || *in->at != '"')
        return refuse(lark, in->at, "a string behind ..");
    if (take_quoted(lark, in, &last))
        return -1;
    if (last.end - last.at != 1 || first.end - first.at != 1)
        return refuse(lark, last.at, "a range of single characters");
    strbuf_puts(lark->out, "[");
    write_character(lark, *first.at, false);
    strbuf_puts(lark->out, "-");
    write_character(lark, *last.at, false);
    strbuf_puts(lark->out, "]");
    return 0;
}

static int write_string(struct lark *lark, struct span *in)
{
    struct span text;
    if (take_quoted(lark, in, &text))
        return -1;
    if (take(in, ".."))
        return write_range(lark, text, in);
    bool both = take(in, "i");
    strbuf_puts(lark->out, "(?:");
    while (text.at < text.end) {
        char c = *text.at++;
        if (c != '\\')
            write_character(lark, c, both);
        else if (write_escape(lark, &text, both))
            return -1;
    }
    strbuf_puts(lark->out, ")");
    return 0;
}

static int write_expression(struct lark *lark, struct span *in)
{
    struct span text;
    if (take_quoted(lark, in, &text))
        return -1;
    if (in->at < in->end && is_name(*in->at))
        return refuse(lark, in->at, "an expression without flags");
    strbuf_puts(lark->out, "(?:");
    strbuf_append(lark->out, text.at, (size_t)(text.end - text.at));
    strbuf_puts(lark->out, ")");
    return 0;
}

static int write_group(struct lark *lark, struct span *in, char close)
{
    in->at++;
    if (write_choices(lark, in, close))
        return -1;
    strbuf_puts(lark->out, close == ']' ? "?" : "");
    return 0;
}

static int write_atom(struct lark *lark, struct span *in)
{
    switch (*in->at) {
    case '"':
        return write_string(lark, in);
    case '/':
        return write_expression(lark, in);
    case '(':
        return write_group(lark, in, ')');
    case '[':
        return write_group(lark, in, ']');
    }
    struct span name = take_name(in);
    if (name.at == name.end || (in->at < in->end && *in->at == '{'))
        return refuse(lark, in->at, "a name, a string, an expression or a group");
    return write_rule(lark, name, name.at);
}

/* A number of a repetition, of up to 5 digits; -1: there is none. */
static int take_number(struct span *in)
{
    int number = -1;
    skip_blanks(in);
    for (int i = 0; i < 5 && in->at < in->end && isdigit((unsigned char)*in->at); i++)
        number = (number < 0 ? 0 : number * 10) + (*in->at++ - '0');
    return number;
}

/* What may stand behind an atom. [x] has a quantifier already: Lark allows no second one. */
static int write_quantifier(struct lark *lark, struct span *in)
{
    skip_blanks(in);
    if (take(in, "?") || take(in, "*") || take(in, "+")) {
        strbuf_append(lark->out, in->at - 1, 1);
    } else if (take(in, "~")) {
        int least = take_number(in), most = least;
        if (take(in, ".."))
            most = take_number(in);
        if (least < 0 || most < least)
            return refuse(lark, in->at, "a number of times");
        strbuf_printf(lark->out, "{%d,%d}", least, most);
    }
    return 0;
}

/* Items up to a bar or the end. */
static int write_sequence(struct lark *lark, struct span *in, char close)
{
    for (skip(in); in->at < in->end && *in->at != '|' && *in->at != close; skip(in)) {
        if (take(in, "->")) {
            skip_blanks(in);
            take_name(in); /* of the tree that nobody makes */
            continue;
        }
        if (lark->out->length > REGEX_MOST_BYTES)
            return refuse(lark, in->at, "a grammar that is a shorter expression");
        if (write_atom(lark, in) || write_quantifier(lark, in))
            return -1;
    }
    return 0;
}

/* Alternatives up to `close`, which is taken; 0: up to the end. */
static int write_choices(struct lark *lark, struct span *in, char close)
{
    if (++lark->depth > MOST_DEPTH)
        return refuse(lark, in->at, "rules and groups that nest less deep");
    strbuf_puts(lark->out, "(?:");
    skip(in);
    take(in, "|"); /* before the first, as on a line of its own */
    for (;;) {
        if (write_sequence(lark, in, close))
            return -1;
        if (!take(in, "|"))
            break;
        strbuf_puts(lark->out, "|");
    }
    if (close && in->at == in->end)
        return refuse(lark, in->at, "the end of a group");
    in->at += close != 0;
    strbuf_puts(lark->out, ")");
    lark->depth--;
    return 0;
}

int lark_to_regex(struct strbuf *out, const char *text, size_t length, struct work *work,
                  struct error *err)
{
    static const char START[] = "start";
    if (work_add(work, MOST_RULES + length, err))
        return -1;
    struct lark lark = {.text = {text, text + length},
                        .rules = calloc(MOST_RULES, sizeof *lark.rules),
                        .out = out,
                        .work = work,
                        .err = err};
    int result = lark.rules ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory for a grammar");
    if (result == 0 && memchr(text, 0, length))
        result = refuse(&lark, memchr(text, 0, length), "no U+0000");
    if (result == 0)
        result = read_rules(&lark);
    if (result == 0)
        result = write_rule(&lark, (struct span){START, START + strlen(START)}, text + length);
    free(lark.rules);
    if (result == 0 && out->failed)
        result = error_set(err, ERROR_NO_MEMORY, "out of memory for a grammar");
    return result;
}
