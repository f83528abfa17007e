/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reply_warnings.h"

#include "engine/base/warnings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void reply_warnings_clear(struct reply_warnings *warnings)
{
    free(warnings->texts);
    *warnings = (struct reply_warnings){0};
}

void reply_warnings_add(struct reply_warnings *warnings, enum warning_kind kind, const char *format,
                        ...)
{
    char text[WARNING_BYTES];
    if (!warnings)
        return;
    warnings->counts[kind]++;
    if (!warnings->texts)
        warnings->texts = calloc(1, sizeof *warnings->texts);
    if (!warnings->texts)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    warnings_add(warnings->texts, "%s", text);
}

/* NULL past the last. */
static const char *text_of(const struct reply_warnings *warnings, size_t i)
{
    return warnings && warnings->texts ? warnings_at(warnings->texts, i) : NULL;
}

const char *reply_warnings_first(const struct reply_warnings *warnings)
{
    return text_of(warnings, 0);
}

void reply_warnings_encode(struct strbuf *buf, const struct reply_warnings *warnings)
{
    const char *text;
    for (size_t i = 0; (text = text_of(warnings, i)) != NULL; i++) {
        strbuf_puts(buf, i ? "," : ",\"warnings\":[");
        strbuf_json_cstring(buf, text);
    }
    if (reply_warnings_first(warnings))
        strbuf_puts(buf, "]");
}

/* Each character that is not ASCII becomes a question mark. */
static void make_ascii(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++)
        if ((*from & 0xC0) != 0x80)
            *to++ = (char)(*from & 0x80 ? '?' : *from);
    *to = 0;
}

void reply_warnings_header(char header[REPLY_WARNINGS_HEADER_SIZE],
                           const struct reply_warnings *warnings)
{
    static const char MORE[] = "; ...";
    size_t at = 0;
    const char *text;
    header[0] = 0;
    for (size_t i = 0; (text = text_of(warnings, i)) != NULL; i++) {
        bool fits = at + strlen("; ") + strlen(text) + sizeof MORE <= REPLY_WARNINGS_HEADER_SIZE;
        at += (size_t)snprintf(header + at, REPLY_WARNINGS_HEADER_SIZE - at, "%s%s",
                               fits && i ? "; " : "", fits ? text : MORE);
        if (!fits)
            break;
    }
    make_ascii(header);
}

const char *reply_warnings_kind(enum warning_kind kind)
{
    static const char *const names[NUM_WARNING_KINDS] = {
        [WARNING_FIELD] = "field", [WARNING_TEMPLATE] = "template", [WARNING_SCHEMA] = "schema",
        [WARNING_CALL] = "call",   [WARNING_CONTENT] = "content",
    };
    return names[kind];
}
