/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_literals.h"

#include "lib/text/unicode.h"

#include <string.h>

void chat_literals_clear(struct chat_literals *r)
{
    strbuf_clear(&r->out);
    strbuf_clear(&r->string);
}

bool chat_literals_failed(const struct chat_literals *r)
{
    return r->out.failed || r->string.failed;
}

void chat_literals_skip(struct chat_literals *r)
{
    r->at = chat_calls_skip(r->text, r->length, r->at);
}

bool chat_literals_cut_off(struct chat_literals *r)
{
    chat_literals_skip(r);
    return r->end && r->at == r->length;
}

bool chat_literals_take(struct chat_literals *r, char byte)
{
    chat_literals_skip(r);
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

struct chat_part chat_literals_name(struct chat_literals *r)
{
    chat_literals_skip(r);
    struct chat_part part = {r->at, r->at};
    while (part.end < r->length && is_name(r->text[part.end], part.end == part.begin))
        part.end++;
    r->at = part.end;
    return part;
}

struct chat_part chat_literals_key(struct chat_literals *r)
{
    if (!r->quote)
        return chat_literals_name(r);
    chat_literals_skip(r);
    struct chat_part part = {r->at, r->at};
    while (r->at < r->length && r->text[r->at] && !strchr(",:{}[]\"\n", r->text[r->at]))
        r->at++;
    part.end = chat_calls_trim(r->text, part.begin, r->at);
    return part;
}

/* Strings. */

static int hex(struct chat_literals *r, int digits)
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
static bool code_point(struct chat_literals *r, int digits)
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

static bool escape(struct chat_literals *r)
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

static bool string(struct chat_literals *r)
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
            if (!escape(r) && (!r->end || r->at < r->length))
                return false;
        }
    }
    bool cut = r->at == r->length;
    if (cut && !r->end)
        return false;
    r->at += !cut;
    strbuf_json_string(&r->out, r->string.length ? r->string.data : "", r->string.length);
    if (cut && r->end == CHAT_LITERALS_OPEN && !r->out.failed)
        r->out.length--; /* the quote */
    r->out.failed |= r->string.failed;
    return true;
}

static bool quoted(const struct chat_literals *r)
{
    return r->quote && chat_calls_match(r->text, r->length, r->at, r->quote) == CHAT_MATCH_WHOLE;
}

/* A string between two of the quotes. Of one that is cut off, without a part of the second. */
static bool quoted_string(struct chat_literals *r)
{
    size_t size = strlen(r->quote), begin = r->at + size;
    const char *found = memmem(r->text + begin, r->length - begin, r->quote, size);
    size_t end = found ? (size_t)(found - r->text) : r->length, part = end;
    if (!found && !r->end)
        return false;
    while (!found && part > begin && end - part < size) {
        part--;
        if (chat_calls_match(r->text, r->length, part, r->quote) == CHAT_MATCH_BEGINS)
            end = part;
    }
    strbuf_json_string(&r->out, r->text + begin, end - begin);
    if (!found && r->end == CHAT_LITERALS_OPEN && !r->out.failed)
        r->out.length--; /* the quote */
    r->at = found ? end + size : r->length;
    return true;
}

/* Values. */

static bool word(struct chat_literals *r)
{
    static const struct {
        const char *word, *json;
    } WORDS[] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                 {"true", "true"}, {"false", "false"}, {"null", "null"}};
    struct chat_part part = chat_literals_name(r);
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (part.end - part.begin == strlen(WORDS[i].word) &&
            memcmp(r->text + part.begin, WORDS[i].word, part.end - part.begin) == 0) {
            strbuf_puts(&r->out, WORDS[i].json);
            return true;
        }
    return false;
}

/* Whether it is a number of JSON's is seen when the arguments are read as JSON. */
static bool number(struct chat_literals *r)
{
    size_t begin = r->at;
    while (r->at < r->length && r->text[r->at] && strchr("+-.0123456789eE", r->text[r->at]))
        r->at++;
    size_t end = r->at;
    if (r->at == r->length && r->end)
        while (end > begin && strchr("+-.eE", r->text[end - 1]))
            end--;
    strbuf_append(&r->out, r->text + begin, end - begin);
    return end > begin;
}

static bool pair(struct chat_literals *r)
{
    chat_literals_skip(r);
    char byte = r->at < r->length ? r->text[r->at] : 0;
    bool well = true;
    if (byte == '"' || byte == '\'') {
        well = string(r);
    } else if (quoted(r)) {
        well = quoted_string(r);
    } else {
        struct chat_part key = r->quote ? chat_literals_key(r) : (struct chat_part){0};
        well = key.end > key.begin;
        strbuf_json_string(&r->out, r->text + key.begin, key.end - key.begin);
    }
    if (!well || !chat_literals_take(r, ':'))
        return false;
    strbuf_puts(&r->out, ": ");
    return chat_literals_value(r);
}

bool chat_literals_items(struct chat_literals *r, char close, bool (*item)(struct chat_literals *r),
                         bool *closed)
{
    bool first = true;
    while (!(*closed = chat_literals_take(r, close)) && !chat_literals_cut_off(r)) {
        size_t before = r->out.length;
        if (!first && !chat_literals_take(r, ','))
            return false;
        if (!first && ((*closed = chat_literals_take(r, close)) || chat_literals_cut_off(r)))
            break;
        strbuf_puts(&r->out, first ? "" : ", ");
        if (!item(r)) {
            if (!chat_literals_cut_off(r))
                return false;
            r->out.length = before;
        }
        first = false;
    }
    return true;
}

static bool container(struct chat_literals *r, char open, char close,
                      bool (*item)(struct chat_literals *r))
{
    bool closed;
    r->at++;
    strbuf_append(&r->out, &open, 1);
    if (!chat_literals_items(r, close, item, &closed))
        return false;
    if (closed || r->end == CHAT_LITERALS_CLOSED)
        strbuf_append(&r->out, &close, 1);
    return true;
}

bool chat_literals_value(struct chat_literals *r)
{
    chat_literals_skip(r);
    char byte = r->at < r->length ? r->text[r->at] : 0;
    if (byte == '"' || byte == '\'')
        return string(r);
    if (quoted(r))
        return quoted_string(r);
    if (byte != '[' && byte != '{')
        return is_name(byte, true) ? word(r) : number(r);
    if (r->depth == CHAT_CALLS_DEPTH)
        return false;
    r->depth++;
    bool well =
        byte == '[' ? container(r, '[', ']', chat_literals_value) : container(r, '{', '}', pair);
    r->depth--;
    return well;
}
