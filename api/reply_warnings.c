/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reply_warnings.h"

#include "lib/base/warnings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void reply_warnings_clear(struct reply_warnings *warnings)
{
    free(warnings->texts);
    free(warnings->notes);
    *warnings = (struct reply_warnings){0};
}

static void add(struct warnings **list, const char *format, va_list args)
{
    char text[WARNING_BYTES];
    if (!*list)
        *list = calloc(1, sizeof **list);
    if (!*list)
        return;
    vsnprintf(text, sizeof text, format, args);
    warnings_add(*list, "%s", text);
}

void reply_warnings_add(struct reply_warnings *warnings, enum warning_kind kind, const char *format,
                        ...)
{
    va_list args;
    if (!warnings)
        return;
    warnings->counts[kind]++;
    va_start(args, format);
    add(&warnings->texts, format, args);
    va_end(args);
}

void reply_warnings_note(struct reply_warnings *warnings, enum warning_kind kind,
                         const char *format, ...)
{
    va_list args;
    if (!warnings)
        return;
    warnings->counts[kind]++;
    va_start(args, format);
    add(&warnings->notes, format, args);
    va_end(args);
}

static const char *text_of(const struct warnings *list, size_t i)
{
    return list ? warnings_at(list, i) : NULL;
}

void reply_warnings_unknown(struct reply_warnings *warnings, const char *name)
{
    reply_warnings_add(warnings, WARNING_FIELD, "%.60s: no field that is known here; it is ignored",
                       name);
}

void reply_warnings_others(struct reply_warnings *warnings, const json_t *fields,
                           const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        size_t i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i] && !json_is_null(value))
            reply_warnings_unknown(warnings, key);
    }
}

const char *reply_warnings_first(const struct reply_warnings *warnings)
{
    return warnings ? text_of(warnings->texts, 0) : NULL;
}

const char *reply_warnings_noted(const struct reply_warnings *warnings, size_t i)
{
    return warnings ? text_of(warnings->notes, i) : NULL;
}

void reply_warnings_encode(struct strbuf *buf, const struct reply_warnings *warnings)
{
    const char *text;
    for (size_t i = 0; warnings && (text = text_of(warnings->texts, i)) != NULL; i++) {
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

/* Appends them to the header at *at. False: there is no room for all. */
static bool tell(char header[REPLY_WARNINGS_HEADER_SIZE], size_t *at, const struct warnings *list)
{
    static const char MORE[] = "; ...";
    const char *text;
    for (size_t i = 0; (text = text_of(list, i)) != NULL; i++) {
        bool fits = *at + strlen("; ") + strlen(text) + sizeof MORE <= REPLY_WARNINGS_HEADER_SIZE;
        *at += (size_t)snprintf(header + *at, REPLY_WARNINGS_HEADER_SIZE - *at, "%s%s",
                                fits && *at ? "; " : "", fits ? text : MORE);
        if (!fits)
            return false;
    }
    return true;
}

void reply_warnings_header(char header[REPLY_WARNINGS_HEADER_SIZE],
                           const struct reply_warnings *warnings)
{
    size_t at = 0;
    header[0] = 0;
    if (!warnings)
        return;
    if (tell(header, &at, warnings->texts))
        tell(header, &at, warnings->notes);
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
