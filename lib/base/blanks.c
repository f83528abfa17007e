/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/blanks.h"

#include <stdbool.h>
#include <string.h>

static const char MARK[] = "\xef\xbb\xbf";
enum { MARK_BYTES = sizeof MARK - 1 };

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_mark(const char *text)
{
    return memcmp(text, MARK, MARK_BYTES) == 0;
}

size_t blanks_trim(const char **text, size_t length)
{
    for (size_t skip = 1; skip > 0 && length > 0; *text += skip, length -= skip)
        skip = is_blank(**text) ? 1 : length >= MARK_BYTES && is_mark(*text) ? MARK_BYTES : 0;
    for (size_t skip = 1; skip > 0 && length > 0; length -= skip)
        skip = is_blank((*text)[length - 1])                                  ? 1
               : length >= MARK_BYTES && is_mark(*text + length - MARK_BYTES) ? MARK_BYTES
                                                                              : 0;
    return length;
}
