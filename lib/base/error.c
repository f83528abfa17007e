/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Length of the valid UTF-8 sequence at s, or 0. */
static size_t sequence_length(const unsigned char *s)
{
    size_t length = s[0] < 0x80                   ? 1
                    : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
                    : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
                    : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                                  : 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return length;
}

static void sanitize(char *message)
{
    unsigned char *in = (unsigned char *)message;
    unsigned char *out = in;
    while (*in) {
        size_t length = sequence_length(in);
        bool control = *in < 0x20 || *in == 0x7F || (in[0] == 0xC2 && in[1] < 0xA0);
        if (length == 0 || control) {
            *out++ = '?';
            in++;
        } else {
            memmove(out, in, length);
            out += length;
            in += length;
        }
    }
    *out = 0;
}

int error_set(struct error *err, enum error_code code, const char *format, ...)
{
    if (!err || err->code != ERROR_NONE)
        return -1;
    err->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    sanitize(err->message);
    return -1;
}

int error_prefix(struct error *err, const char *format, ...)
{
    if (!err || err->code == ERROR_NONE)
        return -1;
    char tail[sizeof err->message];
    memcpy(tail, err->message, sizeof tail);
    va_list args;
    va_start(args, format);
    int used = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    size_t at = used < 0 ? 0 : (size_t)used;
    for (const char *from = ": "; *from && at + 1 < sizeof err->message;)
        err->message[at++] = *from++;
    for (const char *from = tail; *from && at + 1 < sizeof err->message;)
        err->message[at++] = *from++;
    if (at >= sizeof err->message)
        at = sizeof err->message - 1;
    err->message[at] = 0;
    sanitize(err->message);
    return -1;
}

void error_clear(struct error *err)
{
    if (err) {
        err->code = ERROR_NONE;
        err->message[0] = 0;
    }
}
