/* SPDX-License-Identifier: Apache-2.0 */
#include "server/names.h"

#include "lib/base/blanks.h"

#include <stdlib.h>
#include <string.h>

/* Room for one more. Doubles where it grows: there may be many. */
static int grow(struct names *names, struct error *err)
{
    if (names->count & (names->count - 1)) /* neither 0 nor a power of two */
        return 0;
    char **items = realloc(names->items, (names->count ? 2 * names->count : 1) * sizeof *items);
    if (!items)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a list");
    names->items = items;
    return 0;
}

int names_add(struct names *names, const char *text, size_t length, struct error *err)
{
    length = blanks_trim(&text, length);
    if (length == 0)
        return 0;
    if (grow(names, err))
        return -1;
    char *copy = malloc(length + 1); /* the text may end without a NUL, as a file does */
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a list");
    memcpy(copy, text, length);
    copy[length] = 0;
    names->items[names->count++] = copy;
    return 0;
}

int names_add_lists(struct names *names, const char *const *lists, size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        for (const char *at = lists[i]; at;) {
            const char *comma = strchr(at, ',');
            if (names_add(names, at, comma ? (size_t)(comma - at) : strlen(at), err))
                return -1;
            at = comma ? comma + 1 : NULL;
        }
    return 0;
}

void names_clear(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
    *names = (struct names){0};
}

void names_wipe_from(struct names *names, size_t first)
{
    for (; names->count > first; names->count--) {
        char *item = names->items[names->count - 1];
        explicit_bzero(item, strlen(item));
        free(item);
    }
}

void names_wipe(struct names *names)
{
    names_wipe_from(names, 0);
    names_clear(names);
}
