/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls as Python writes them: [name(key=value, ...), ...], or one after the other without the
 * brackets. Values are literals of Python's or words of JSON's; they become JSON. */
#include "api/chat_formats.h"
#include "api/strbuf.h"
#include "engine/text/unicode.h"

#include <string.h>

struct reader {
    const char *text; /* [length] */
    size_t length, at;
    int depth;
    struct strbuf out;
    struct strbuf string; /* of the string that is being read */
};

static void skip(struct reader *r)
{
    r->at = chat_calls_skip(r->text, r->length, r->at);
}

static bool take(struct reader *r, char byte)
{
    skip(r);
    if (r->at == r->length || r->text[r->at] != byte)
        return false;
    r->at++;
    return true;
}

static bool is_name(char byte, bool first)
{
    char lower = (char)(byte | 0x20);
    return byte == '_' || (lower >= 'a' && lower <= 'z') ||
           (!first && ((byte >= '0' && byte <= '9') || byte == '.' || byte == '-'));
}

static struct chat_part name(struct reader *r)
{
    skip(r);
    struct chat_part part = {r->at, r->at};
    while (part.end < r->length && is_name(r->text[part.end], part.end == part.begin))
        part.end++;
    r->at = part.end;
    return part;
}

/* Strings. */

static int hex(struct reader *r, int digits)
{
    int value = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        char byte = r->at < r->length ? r->text[r->at] : 0, lower = (char)(byte | 0x20);
        int digit = byte >= '0' && byte <= '9'     ? byte - '0'
                    : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                   : -1;
        if (digit < 0 || value > 0x110000 / 16)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* A code point in so many digits; as JSON does, also in two halves. */
static bool code_point(struct reader *r, int digits)
{
    int c = hex(r, digits);
    if (c >= 0xD800 && c < 0xDC00 && r->length - r->at > 2 && r->text[r->at] == '\\' &&
        r->text[r->at + 1] == 'u') {
        r->at += 2;
        int low = hex(r, 4);
        if (low < 0xDC00 || low > 0xDFFF)
            return false;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c < 0 || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return false;
    char bytes[4];
    strbuf_append(&r->string, bytes, utf8_encode((uint32_t)c, bytes));
    return true;
}

static bool escape(struct reader *r)
{
    static const char FROM[] = "ntrabfv\\'\"/", TO[] = "\n\t\r\a\b\f\v\\'\"/";
    if (r->at == r->length)
        return false;
    char byte = r->text[r->at++];
    const char *known = byte ? strchr(FROM, byte) : NULL;
    if (known) {
        strbuf_append(&r->string, TO + (known - FROM), 1);
        return true;
    }
    if (byte == 'x' || byte == 'u' || byte == 'U')
        return code_point(r, byte == 'x' ? 2 : byte == 'u' ? 4 : 8);
    if (byte == '\n') /* the line goes on */
        return true;
    strbuf_append(&r->string, "\\", 1);
    strbuf_append(&r->string, &byte, 1);
    return byte != 0;
}

static bool string(struct reader *r)
{
    char quote = r->text[r->at++];
    strbuf_reset(&r->string);
    while (r->at < r->length && r->text[r->at] != quote) {
        size_t begin = r->at;
        while (r->at < r->length && r->text[r->at] != quote && r->text[r->at] != '\\')
            r->at++;
        strbuf_append(&r->string, r->text + begin, r->at - begin);
        if (r->at < r->length && r->text[r->at] == '\\') {
            r->at++;
            if (!escape(r))
                return false;
        }
    }
    if (r->at == r->length)
        return false;
    r->at++;
    strbuf_json_string(&r->out, r->string.length ? r->string.data : "", r->string.length);
    r->out.failed |= r->string.failed;
    return true;
}

/* Values. */

static bool value(struct reader *r);

static bool word(struct reader *r)
{
    static const struct {
        const char *word, *json;
    } WORDS[] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                 {"true", "true"}, {"false", "false"}, {"null", "null"}};
    struct chat_part part = name(r);
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (part.end - part.begin == strlen(WORDS[i].word) &&
            memcmp(r->text + part.begin, WORDS[i].word, part.end - part.begin) == 0) {
            strbuf_puts(&r->out, WORDS[i].json);
            return true;
        }
    return false;
}

/* Whether it is a number of JSON's is seen when the arguments are read as JSON. */
static bool number(struct reader *r)
{
    size_t begin = r->at;
    while (r->at < r->length && r->text[r->at] && strchr("+-.0123456789eE", r->text[r->at]))
        r->at++;
    strbuf_append(&r->out, r->text + begin, r->at - begin);
    return r->at > begin;
}

static bool pair(struct reader *r)
{
    skip(r);
    if (r->at == r->length || (r->text[r->at] != '"' && r->text[r->at] != '\''))
        return false;
    if (!string(r) || !take(r, ':'))
        return false;
    strbuf_puts(&r->out, ": ");
    return value(r);
}

/* Items up to `close`, with commas between them and perhaps one at the end. */
static bool items(struct reader *r, char open, char close, bool (*item)(struct reader *r))
{
    r->at++;
    strbuf_append(&r->out, &open, 1);
    for (bool first = true; !take(r, close); first = false) {
        if (!first && !take(r, ','))
            return false;
        if (!first && take(r, close))
            break;
        strbuf_puts(&r->out, first ? "" : ", ");
        if (!item(r))
            return false;
    }
    strbuf_append(&r->out, &close, 1);
    return true;
}

static bool value(struct reader *r)
{
    skip(r);
    char byte = r->at < r->length ? r->text[r->at] : 0;
    if (byte == '"' || byte == '\'')
        return string(r);
    if (byte != '[' && byte != '{')
        return is_name(byte, true) ? word(r) : number(r);
    if (r->depth == CHAT_CALLS_DEPTH)
        return false;
    r->depth++;
    bool well = byte == '[' ? items(r, '[', ']', value) : items(r, '{', '}', pair);
    r->depth--;
    return well;
}

/* Calls. */

static bool argument(struct reader *r)
{
    struct chat_part key = name(r);
    if (key.end == key.begin || !take(r, '='))
        return false;
    strbuf_json_string(&r->out, r->text + key.begin, key.end - key.begin);
    strbuf_puts(&r->out, ": ");
    return value(r);
}

static int call(struct reader *r, struct chat_calls *calls)
{
    struct chat_part function = name(r);
    strbuf_reset(&r->out);
    strbuf_puts(&r->out, "{");
    if (function.end == function.begin || !take(r, '('))
        return 0;
    for (bool first = true; !take(r, ')'); first = false) {
        if (!first && !take(r, ','))
            return 0;
        if (!first && take(r, ')'))
            break;
        strbuf_puts(&r->out, first ? "" : ", ");
        if (!argument(r))
            return r->out.failed || r->string.failed ? -1 : 0;
    }
    strbuf_puts(&r->out, "}");
    if (r->out.failed || r->string.failed)
        return -1;
    return chat_calls_add(calls, r->text + function.begin, function.end - function.begin,
                          r->out.data, r->out.length);
}

static int read_calls(struct reader *r, struct chat_calls *calls)
{
    bool list = take(r, '[');
    int result = 0; /* an empty list is no call */
    for (;;) {
        if (list && take(r, ']')) {
            skip(r);
            return r->at == r->length ? result : 0;
        }
        skip(r);
        if (!list && r->at == r->length)
            return result;
        if (result > 0 && !take(r, ',') && list)
            return 0;
        skip(r);
        if (list && r->at < r->length && r->text[r->at] == ']')
            continue;
        result = call(r, calls);
        if (result <= 0)
            return result;
    }
}

int chat_calls_python_read(struct chat_calls *calls, const char *body, size_t length)
{
    struct reader reader = {.text = body, .length = length};
    int result = read_calls(&reader, calls);
    strbuf_clear(&reader.out);
    strbuf_clear(&reader.string);
    return result;
}
