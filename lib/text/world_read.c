/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/text/unicode.h"
#include "lib/text/world.h"

#include <stdio.h>
#include <string.h>

/* The token of id 0, which ends a text: no line has it. So transformers' classes call it. */
#define END "<|rwkv_tokenizer_end_of_text|>"

/* A line, "id literal length", from the left. */
struct line {
    const char *at, *end;
};

struct reader {
    json_t *vocab;                     /* {spelled token: id} */
    int64_t id;                        /* of the next line */
    struct text_buffer bytes, spelled; /* of the token at hand */
    struct error *err;
};

static int hex_digits(const char *at, const char *end, int count, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < count; i++) {
        if (at + i == end)
            return -1;
        const char c = at[i], lower = c | 0x20;
        if (!(c >= '0' && c <= '9') && !(lower >= 'a' && lower <= 'f'))
            return -1;
        *value = *value << 4 | (uint32_t)(c <= '9' ? c - '0' : lower - 'a' + 10);
    }
    return 0;
}

/* The character or byte of an escape, behind its backslash; *used: how many characters it has. */
static int unescape(const char *at, const char *end, bool text, size_t *used, uint32_t *value,
                    struct error *err)
{
    static const char NAMES[] = "\\'\"nrt", VALUES[] = "\\'\"\n\r\t";
    const char *name = at < end && *at ? strchr(NAMES, *at) : NULL;
    const int digits = at == end ? 0 : *at == 'x' ? 2 : *at == 'u' ? 4 : *at == 'U' ? 8 : 0;
    *used = 1 + (size_t)digits;
    if (name) {
        *value = (unsigned char)VALUES[name - NAMES];
        return 0;
    }
    if (digits == 0 || (digits > 2 && !text) || hex_digits(at + 1, end, digits, value) != 0)
        return error_set(err, ERROR_INVALID,
                         "expected \\\\, \\', \\\", \\n, \\r, \\t, \\x and two digits%s, got "
                         "\"\\%.*s\"",
                         text ? ", \\u and four or \\U and eight" : "",
                         (int)(end - at < 10 ? end - at : 10), at);
    if (*value > 0x10FFFF || (*value >= 0xD800 && *value <= 0xDFFF))
        return error_set(err, ERROR_INVALID, "expected a character, got \"\\%.*s\"", digits + 1,
                         at);
    return 0;
}

int world_unescape(const char *escaped, size_t length, bool text, struct text_buffer *bytes,
                   struct error *err)
{
    const char *const end = escaped + length;
    size_t used;
    if (text_buffer_reserve(bytes, length, err))
        return -1; /* no escape is shorter than what it stands for */
    for (const char *at = escaped; at < end; at += used) {
        uint32_t value = 0;
        used = 1;
        if (*at != '\\') {
            if (!text && (unsigned char)*at >= 0x80)
                return error_set(err, ERROR_INVALID,
                                 "expected ASCII and escapes in bytes, got byte 0x%02X",
                                 (unsigned char)*at);
            bytes->data[bytes->length++] = *at;
            continue;
        }
        if (unescape(++at, end, text, &used, &value, err))
            return -1;
        if (text)
            bytes->length += utf8_encode(value, bytes->data + bytes->length);
        else
            bytes->data[bytes->length++] = (char)value;
    }
    return 0;
}

/* A number up to the line's next space, or its end; -1: none such below 2^31. */
static int64_t take_number(struct line *line)
{
    int64_t number = -1;
    for (; line->at < line->end && *line->at >= '0' && *line->at <= '9'; line->at++) {
        number = (number < 0 ? 0 : number) * 10 + (*line->at - '0');
        if (number > INT32_MAX)
            return -1;
    }
    return number;
}

static int take_id(struct reader *r, struct line *line)
{
    const struct line whole = *line;
    const int64_t id = take_number(line);
    if (id < 0 || line->at == line->end || *line->at != ' ')
        return error_set(r->err, ERROR_INVALID,
                         "expected an id below %d, a space, a token in quotes, a space and its "
                         "number of bytes, got \"%.*s\"",
                         VOCABULARY_MAX_IDS,
                         (int)(whole.end - whole.at < 40 ? whole.end - whole.at : 40), whole.at);
    if (id != r->id)
        return error_set(r->err, ERROR_INVALID, "expected id %lld, got %lld: %s", (long long)r->id,
                         (long long)id,
                         id < r->id ? "it is there already" : "those between are missing");
    if (id >= VOCABULARY_MAX_IDS)
        return error_set(r->err, ERROR_INVALID, "expected an id below %d, got %lld",
                         VOCABULARY_MAX_IDS, (long long)id);
    line->at++;
    return 0;
}

/* The literal, into r->bytes. */
static int take_token(struct reader *r, struct line *line)
{
    const char *const first = line->at;
    const bool text = line->at == line->end || *line->at != 'b';
    line->at += !text;
    const char quote = line->at < line->end ? *line->at++ : 0;
    const char *const start = line->at;
    if (quote != '\'' && quote != '"')
        return error_set(r->err, ERROR_INVALID, "expected a token in quotes, got \"%.*s\"",
                         (int)(line->end - first < 40 ? line->end - first : 40), first);
    while (line->at < line->end && *line->at != quote)
        line->at += *line->at == '\\' && line->at + 1 < line->end ? 2 : 1;
    if (line->at == line->end)
        return error_set(r->err, ERROR_INVALID, "the token is cut off: expected %c at its end",
                         quote);
    r->bytes.length = 0;
    if (world_unescape(start, (size_t)(line->at++ - start), text, &r->bytes, r->err))
        return -1;
    if (!text && utf8_valid_length(r->bytes.data, r->bytes.length) == r->bytes.length)
        return error_set(r->err, ERROR_INVALID, "expected text, got bytes that are UTF-8: %.*s",
                         (int)(line->at - first < 40 ? line->at - first : 40), first);
    return 0;
}

static int take_length(struct reader *r, struct line *line)
{
    const char *const first = line->at;
    line->at += line->at < line->end && *line->at == ' ';
    const int64_t length = line->at > first ? take_number(line) : -1;
    if (length < 0 || line->at < line->end)
        return error_set(r->err, ERROR_INVALID,
                         "expected a space and the token's number of bytes, got \"%.*s\"",
                         (int)(line->end - first < 40 ? line->end - first : 40), first);
    if ((size_t)length != r->bytes.length)
        return error_set(r->err, ERROR_INVALID, "expected %lld bytes, as the line says, got %zu",
                         (long long)length, r->bytes.length);
    if (length == 0 || length > TOKEN_TRIE_MAX_LENGTH)
        return error_set(r->err, ERROR_INVALID, "expected a token of 1 to %d bytes, got %lld",
                         TOKEN_TRIE_MAX_LENGTH, (long long)length);
    return 0;
}

static int take_line(struct reader *r, struct line line)
{
    const size_t length = (size_t)(line.end - line.at);
    const size_t valid = utf8_valid_length(line.at, length);
    if (valid < length)
        return error_set(r->err, ERROR_INVALID, "expected UTF-8, got byte 0x%02X in column %zu",
                         (unsigned char)line.at[valid], valid + 1);
    if (take_id(r, &line) || take_token(r, &line) || take_length(r, &line))
        return -1;
    r->spelled.length = 0;
    if (world_spell(r->bytes.data, r->bytes.length, &r->spelled, r->err))
        return -1;
    const json_t *other = json_object_getn(r->vocab, r->spelled.data, r->spelled.length);
    if (other)
        return error_set(r->err, ERROR_INVALID, "expected another token, got that of id %lld",
                         (long long)json_integer_value(other));
    if (json_object_setn_new(r->vocab, r->spelled.data, r->spelled.length, json_integer(r->id++)) !=
        0)
        return error_set(r->err, ERROR_NO_MEMORY, "out of memory");
    return 0;
}

json_t *world_document(void)
{
    return json_pack("{s{ss sb sb sb}}", "decoder", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", 0);
}

static int read_lines(struct reader *r, const char *text, size_t length)
{
    const char *const end = text + length;
    size_t number = 1;
    for (const char *at = text; at < end; number++) {
        const char *const newline = memchr(at, '\n', (size_t)(end - at));
        struct line line = {at, newline ? newline : end};
        at = newline ? newline + 1 : end;
        line.end -= line.end > line.at && line.end[-1] == '\r';
        if (take_line(r, line))
            return error_prefix(r->err, "line %zu", number);
    }
    return 0;
}

int world_read(json_t **root, const char *text, size_t length, const char *file, struct error *err)
{
    struct reader r = {.vocab = json_pack("{si}", END, 0), .id = 1, .err = err};
    json_t *added = json_pack("[{si ss sb sb sb sb sb}]", "id", 0, "content", END, "single_word", 0,
                              "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    *root = world_document();
    int failed = !*root || !r.vocab || !added ? error_set(err, ERROR_NO_MEMORY, "out of memory")
                                              : read_lines(&r, text, length);
    if (!failed && (json_object_set(*root, "added_tokens", added) ||
                    json_object_set_new(*root, "model",
                                        json_pack("{ss sO}", "type", "World", "vocab", r.vocab))))
        failed = error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (failed) {
        error_prefix(err, "%s", file);
        json_decref(*root);
        *root = NULL;
    }
    json_decref(added);
    json_decref(r.vocab);
    text_buffer_clear(&r.bytes);
    text_buffer_clear(&r.spelled);
    return failed;
}
