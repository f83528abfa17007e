/* SPDX-License-Identifier: Apache-2.0 */
#include "server/http/wire.h"

#include <string.h>
#include <strings.h>

enum wire_state {
    BEFORE, /* a request; empty lines may come first */
    BEFORE_LF,
    METHOD,
    TARGET,
    VERSION,
    LINE_LF, /* at the end of a line that is not the last */
    LINE,    /* at the beginning of a header, or of the last line */
    NAME,
    VALUE,
    LAST_LF, /* of the last line */
    BODY,
    CHUNK_SIZE,
    CHUNK_EXTENSION,
    CHUNK_SIZE_LF,
    CHUNK,
    CHUNK_CR,
    CHUNK_LF
};

/* The bytes at hand. */
struct reading {
    char *bytes;
    size_t at;
    ptrdiff_t value; /* where the line's value begins; -1: before these bytes */
    struct api_error *err;
};

/* Section 5.6.2 of RFC 9110. */
static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_text(unsigned char c)
{
    return (c >= ' ' && c != 0x7f) || c == '\t';
}

static int hex(unsigned char c)
{
    return c >= '0' && c <= '9'                     ? c - '0'
           : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                    : -1;
}

/* What was expected here, and is not this byte. */
static int unexpected(const struct reading *reading, const char *where, const char *expected)
{
    unsigned char c = (unsigned char)reading->bytes[reading->at];
    return api_error_set(reading->err, API_MALFORMED, NULL, "%s: expected %s, got byte 0x%02x",
                         where, expected, c);
}

static int expect(struct wire *wire, const struct reading *reading, char wanted,
                  enum wire_state next, const char *where)
{
    if (reading->bytes[reading->at] != wanted)
        return unexpected(reading, where, "lines that end with CR LF");
    wire->state = (int)next;
    return 0;
}

/* ---- headers ---- */

static void keep(char *text, int *length, char c)
{
    if (*length < WIRE_VALUE_SIZE - 1) {
        text[*length] = c;
        text[*length + 1] = '\0';
    }
    (*length)++;
}

static void begin_line(struct wire *wire)
{
    wire->name_length = wire->value_length = wire->blanks = 0;
    wire->name[0] = wire->value[0] = '\0';
}

static int take_length(struct wire *wire, const struct reading *reading)
{
    wire->lengths++;
    wire->length = 0;
    for (int i = 0; i < wire->value_length; i++) {
        int digit = i < WIRE_VALUE_SIZE - 1 ? wire->value[i] - '0' : -1;
        if (digit < 0 || digit > 9 || wire->length > (UINT64_MAX - 9) / 10)
            return api_error_set(reading->err, API_MALFORMED, NULL,
                                 "Content-Length: expected digits, got \"%s\"", wire->value);
        wire->length = 10 * wire->length + (uint64_t)digit;
    }
    return wire->value_length > 0 ? 0
                                  : api_error_set(reading->err, API_MALFORMED, NULL,
                                                  "Content-Length: expected digits, got nothing");
}

/* Blanks at the end of the value go to its front. */
static int trim(struct wire *wire, const struct reading *reading, bool matters)
{
    if (wire->blanks == 0)
        return 0;
    if (reading->value < 0)
        return matters ? api_error_set(reading->err, API_MALFORMED, NULL,
                                       "%s: expected no white space at its end", wire->name)
                       : 0;
    char *value = reading->bytes + reading->value;
    size_t blanks = (size_t)wire->blanks;
    size_t length = reading->at - (size_t)reading->value - blanks;
    memmove(value + blanks, value, length);
    memset(value, ' ', blanks);
    return 0;
}

static int end_header(struct wire *wire, const struct reading *reading)
{
    bool length = strcasecmp(wire->name, "Content-Length") == 0;
    bool encoding = strcasecmp(wire->name, "Transfer-Encoding") == 0;
    wire->value_length -= wire->blanks;
    if (wire->value_length < WIRE_VALUE_SIZE)
        wire->value[wire->value_length] = '\0';
    if (trim(wire, reading, length || encoding) != 0)
        return -1;
    wire->state = LINE_LF;
    if (wire->trailer)
        return 0;
    if (encoding) {
        wire->encodings++;
        wire->chunked = strcasecmp(wire->value, "chunked") == 0;
        if (!wire->chunked && wire->encodings == 1)
            return api_error_set(reading->err, wire->value[0] ? API_NOT_IMPLEMENTED : API_MALFORMED,
                                 NULL, "Transfer-Encoding: expected chunked, got \"%s\"",
                                 wire->value);
    }
    wire->hosts += strcasecmp(wire->name, "Host") == 0;
    return length ? take_length(wire, reading) : 0;
}

/* Sections 3.2, 6.1 and 6.3. */
static int end_head(struct wire *wire, struct api_error *err)
{
    bool may_lack = wire->minor == 0;
    if (wire->lengths > 1)
        return api_error_set(err, API_MALFORMED, NULL, "Content-Length: expected one, got %d",
                             wire->lengths);
    if (wire->encodings > 1)
        return api_error_set(err, API_MALFORMED, NULL, "Transfer-Encoding: expected one, got %d",
                             wire->encodings);
    if (wire->encodings > 0 && wire->lengths > 0)
        return api_error_set(err, API_MALFORMED, NULL,
                             "expected Content-Length or Transfer-Encoding, got both");
    if (wire->encodings > 0 && wire->minor == 0)
        return api_error_set(err, API_MALFORMED, NULL, "expected no Transfer-Encoding in HTTP/1.0");
    if (wire->hosts != 1 && !(wire->hosts == 0 && may_lack))
        return api_error_set(err, API_MALFORMED, NULL, "Host: expected one, got %d", wire->hosts);
    wire->left = wire->length;
    wire->state = wire->chunked ? CHUNK_SIZE : wire->left > 0 ? BODY : BEFORE;
    wire->ended += wire->state == BEFORE;
    return 0;
}

static void begin_request(struct wire *wire)
{
    *wire = (struct wire){.state = METHOD, .ended = wire->ended};
}

/* ---- one byte each ---- */

static int before(struct wire *wire, const struct reading *reading, char c)
{
    if (c == '\r') {
        wire->state = BEFORE_LF;
        return 0;
    }
    begin_request(wire);
    return is_token((unsigned char)c) ? 0 : unexpected(reading, "request line", "a method");
}

static int request_line(struct wire *wire, const struct reading *reading, char c)
{
    static const char version[] = "HTTP/1.";
    const int length = sizeof version - 1;
    if (wire->state == METHOD) {
        wire->state = c == ' ' ? TARGET : METHOD;
        return c == ' ' || is_token((unsigned char)c)
                   ? 0
                   : unexpected(reading, "request line", "a method");
    }
    if (wire->state == TARGET) {
        bool first = wire->name_length == 0;
        keep(wire->name, &wire->name_length, c);
        wire->state = c == ' ' && !first ? VERSION : TARGET;
        return (c == ' ' && !first) || (c != ' ' && c != '\t' && is_text((unsigned char)c))
                   ? 0
                   : unexpected(reading, "request line", "a target and a version");
    }
    if (wire->matched > length && c == '\r') {
        wire->state = LINE_LF;
        return 0;
    }
    bool right = wire->matched < length    ? c == version[wire->matched]
                 : wire->matched == length ? c == '0' || c == '1'
                                           : false;
    if (!right)
        return unexpected(reading, "request line", "its version, HTTP 1.0 or 1.1, and its end");
    wire->minor = c - '0';
    wire->matched++;
    return 0;
}

static int header_line(struct wire *wire, struct reading *reading, char c)
{
    if (wire->state == LINE) {
        begin_line(wire);
        reading->value = -1;
        wire->state = c == '\r' ? LAST_LF : NAME;
        if (c == '\r')
            return 0;
        if (c == ' ' || c == '\t')
            return api_error_set(reading->err, API_MALFORMED, NULL,
                                 "expected no header that goes on in another line");
    }
    if (wire->state == NAME) {
        if (c == ':' && wire->name_length > 0) {
            wire->state = VALUE;
            return 0;
        }
        keep(wire->name, &wire->name_length, c);
        if (c == ' ' || c == '\t')
            return api_error_set(reading->err, API_MALFORMED, NULL,
                                 "expected no white space in the name of a header");
        return is_token((unsigned char)c) ? 0 : unexpected(reading, "header", "a name");
    }
    if (c == '\r')
        return end_header(wire, reading);
    bool blank = c == ' ' || c == '\t';
    if (wire->value_length == 0 && blank)
        return 0;
    if (wire->value_length == 0)
        reading->value = (ptrdiff_t)reading->at;
    wire->blanks = blank ? wire->blanks + 1 : 0;
    keep(wire->value, &wire->value_length, c);
    return is_text((unsigned char)c) ? 0 : unexpected(reading, wire->name, "no control character");
}

/* Section 7.1. */
static int chunk_size(struct wire *wire, const struct reading *reading, char c)
{
    int digit = hex((unsigned char)c);
    if (wire->state == CHUNK_EXTENSION) {
        wire->state = c == '\r' ? CHUNK_SIZE_LF : CHUNK_EXTENSION;
        return c == '\r' || is_text((unsigned char)c)
                   ? 0
                   : unexpected(reading, "chunk", "lines that end with CR LF");
    }
    if (digit >= 0 && wire->left <= UINT64_MAX >> 5) {
        wire->left = wire->left << 4 | (uint64_t)digit;
        wire->digits = 1;
        return 0;
    }
    if (wire->digits == 0 || (c != '\r' && c != ';'))
        return unexpected(reading, "chunk", "its size in hexadecimal digits, and CR LF");
    wire->state = c == '\r' ? CHUNK_SIZE_LF : CHUNK_EXTENSION;
    return 0;
}

static int begin_chunk(struct wire *wire, const struct reading *reading)
{
    wire->trailer = wire->left == 0;
    return expect(wire, reading, '\n', wire->trailer ? LINE : CHUNK, "chunk");
}

static int end_chunk(struct wire *wire, const struct reading *reading)
{
    wire->digits = 0;
    return expect(wire, reading, '\n', CHUNK_SIZE, "chunk");
}

static int last_line(struct wire *wire, const struct reading *reading)
{
    if (expect(wire, reading, '\n', BEFORE, "head") != 0)
        return -1;
    if (!wire->trailer)
        return end_head(wire, reading->err);
    wire->ended++;
    return 0;
}

static int take(struct wire *wire, struct reading *reading)
{
    char c = reading->bytes[reading->at];
    switch ((enum wire_state)wire->state) {
    case BEFORE:
        return before(wire, reading, c);
    case BEFORE_LF:
        return expect(wire, reading, '\n', BEFORE, "request line");
    case METHOD:
    case TARGET:
    case VERSION:
        return request_line(wire, reading, c);
    case LINE_LF:
        return expect(wire, reading, '\n', LINE, "head");
    case LINE:
    case NAME:
    case VALUE:
        return header_line(wire, reading, c);
    case LAST_LF:
        return last_line(wire, reading);
    case CHUNK_SIZE:
    case CHUNK_EXTENSION:
        return chunk_size(wire, reading, c);
    case CHUNK_SIZE_LF:
        return begin_chunk(wire, reading);
    case CHUNK_CR:
        return expect(wire, reading, '\r', CHUNK_LF, "chunk");
    case CHUNK_LF:
        return end_chunk(wire, reading);
    case BODY:
    case CHUNK:
        break; /* skip takes these */
    }
    return 0;
}

/* Bytes of a body or a chunk, which may be anything. */
static size_t skip(struct wire *wire, size_t length)
{
    size_t count = wire->left < length ? (size_t)wire->left : length;
    wire->left -= count;
    if (wire->left == 0) {
        wire->ended += wire->state == BODY;
        wire->state = wire->state == BODY ? BEFORE : CHUNK_CR;
    }
    return count;
}

size_t wire_read(struct wire *wire, char *bytes, size_t length, struct api_error *err)
{
    struct reading reading = {.bytes = bytes, .value = -1, .err = err};
    size_t begin = 0; /* of the request that is being read */
    while (reading.at < length) {
        if (wire->state == BEFORE)
            begin = reading.at;
        if (wire->state == BODY || wire->state == CHUNK)
            reading.at += skip(wire, length - reading.at);
        else if (take(wire, &reading) != 0)
            return begin;
        else
            reading.at++;
    }
    return length;
}
