/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/warnings.h"

#include "lib/base/error.h"

#include <stdarg.h>
#include <stdio.h>

void warnings_add(struct warnings *warnings, const char *format, ...)
{
    char text[WARNING_BYTES];
    struct error clean = ERROR_INIT;
    size_t i = warnings->count++;
    if (i >= WARNINGS_MOST)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    error_set(&clean, ERROR_INVALID, "%s", text);
    snprintf(warnings->texts[i], WARNING_BYTES, "%.*s", WARNING_BYTES - 1, clean.message);
}

void warnings_add_all(struct warnings *warnings, const struct warnings *more)
{
    for (size_t i = 0; i < more->count; i++)
        warnings_add(warnings, "%s", i < WARNINGS_MOST ? more->texts[i] : "");
}

const char *warnings_at(const struct warnings *warnings, size_t i)
{
    if (i >= warnings->count || i > WARNINGS_MOST)
        return NULL;
    return i < WARNINGS_MOST ? warnings->texts[i] : "there are more warnings than these";
}
