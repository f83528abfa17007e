/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_document.h"

#include <stdarg.h>
#include <stdio.h>

int schema_work(const struct schema_document *document, const struct schema_place *place,
                size_t steps)
{
    char text[SCHEMA_PLACE_BYTES];
    if (document->err->code != ERROR_NONE)
        return -1;
    if (work_add(document->work, steps, document->err) == 0)
        return 0;
    return error_prefix(document->err, "%s", schema_place_text(place, text));
}

static const struct schema_place *place_in(const struct schema_document *document,
                                           const struct schema_place *parent, const char *key,
                                           size_t index)
{
    if (schema_work(document, parent, SCHEMA_PLACE_WORK))
        return NULL;
    struct schema_place *place = arena_alloc(document->arena, 1, sizeof *place, document->err);
    if (place)
        *place = (struct schema_place){parent, key, index};
    return place;
}

const struct schema_place *schema_place_key(const struct schema_document *document,
                                            const struct schema_place *parent, const char *key)
{
    return place_in(document, parent, key, 0);
}

const struct schema_place *schema_place_index(const struct schema_document *document,
                                              const struct schema_place *parent, size_t index)
{
    return place_in(document, parent, NULL, index);
}

const char *schema_place_text(const struct schema_place *place, char text[SCHEMA_PLACE_BYTES])
{
    const struct schema_place *chain[SCHEMA_MOST_DEPTH];
    size_t count = 0, used;
    for (; place && place->parent && count < SCHEMA_MOST_DEPTH; place = place->parent)
        chain[count++] = place;
    bool cut = place && place->parent;
    used = (size_t)snprintf(text, SCHEMA_PLACE_BYTES, "%s", cut ? "$..." : "$");
    while (count > 0 && used < SCHEMA_PLACE_BYTES - 1) {
        const struct schema_place *at = chain[--count];
        int written = at->key
                          ? snprintf(text + used, SCHEMA_PLACE_BYTES - used, ".%.64s", at->key)
                          : snprintf(text + used, SCHEMA_PLACE_BYTES - used, "[%zu]", at->index);
        used += written > 0 ? (size_t)written : 0;
    }
    return text;
}

int schema_refuse(const struct schema_document *document, const struct schema_place *place,
                  const char *key, enum error_code code, const char *format, ...)
{
    char message[512], text[SCHEMA_PLACE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return error_set(document->err, code, "%s%s%.64s: %s", schema_place_text(place, text),
                     key ? "." : "", key ? key : "", message);
}
