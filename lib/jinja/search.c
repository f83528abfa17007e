/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/search.h"

#include <string.h>

void search_charge(struct run *run, const struct string *part, size_t begin, size_t end)
{
    heap_work(&run->heap, part->length + (end - begin));
}

size_t search_first(struct run *run, const struct string *string, const struct string *part,
                    size_t begin, size_t end)
{
    heap_work(&run->heap, 0);
    if (begin > end || part->length > end - begin)
        return SIZE_MAX;
    const char *found = memmem(string->bytes + begin, end - begin, part->bytes, part->length);
    return found ? (size_t)(found - string->bytes) : SIZE_MAX;
}

/* Bytes that are read from their end on. */
struct backwards {
    const char *last;
    int64_t length;
};

static unsigned char byte(struct backwards of, int64_t index)
{
    return (unsigned char)*(of.last - index);
}

/* Where the largest suffix of the part begins, less one, in the order of bytes or in the opposite
 * one. *period: that of this suffix. */
static int64_t largest_suffix(struct backwards part, bool opposite, int64_t *period)
{
    int64_t begin = -1, at = 0, ahead = 1;
    *period = 1;
    while (at + ahead < part.length) {
        unsigned char a = byte(part, at + ahead), b = byte(part, begin + ahead);
        if (a == b) {
            bool whole = ahead == *period;
            at += whole ? *period : 0;
            ahead = whole ? 1 : ahead + 1;
        } else if ((a < b) != opposite) {
            at += ahead;
            ahead = 1;
            *period = at - begin;
        } else {
            begin = at++;
            ahead = *period = 1;
        }
    }
    return begin;
}

/* Where the part is to be cut, less one. *period: the part's; 0: it has none that is short. */
static int64_t cut_of(struct backwards part, int64_t *period)
{
    int64_t other_period, cut = largest_suffix(part, false, period);
    int64_t other = largest_suffix(part, true, &other_period);
    if (other > cut) {
        cut = other;
        *period = other_period;
    }
    for (int64_t i = 0; i <= cut; i++)
        if (i + *period >= part.length || byte(part, i) != byte(part, i + *period)) {
            *period = 0;
            break;
        }
    return cut;
}

/* The first place of the part, or -1. */
static int64_t two_way(struct backwards text, struct backwards part)
{
    int64_t period, cut = cut_of(part, &period), known = -1;
    int64_t left = cut + 1, right = part.length - left;
    int64_t shift = period ? period : 1 + (left > right ? left : right);
    for (int64_t at = 0; at <= text.length - part.length;) {
        int64_t i = (cut > known ? cut : known) + 1;
        while (i < part.length && byte(part, i) == byte(text, at + i))
            i++;
        if (i < part.length) {
            at += i - cut;
            known = -1;
            continue;
        }
        for (i = cut; i > known && byte(part, i) == byte(text, at + i);)
            i--;
        if (i <= known)
            return at;
        at += shift;
        known = period ? part.length - period - 1 : -1;
    }
    return -1;
}

size_t search_last(struct run *run, const struct string *string, const struct string *part,
                   size_t begin, size_t end)
{
    heap_work(&run->heap, 0);
    if (begin > end || part->length > end - begin)
        return SIZE_MAX;
    if (part->length == 0)
        return end;
    int64_t at = two_way((struct backwards){string->bytes + end - 1, (int64_t)(end - begin)},
                         (struct backwards){part->bytes + part->length - 1, (int64_t)part->length});
    return at < 0 ? SIZE_MAX : end - (size_t)at - part->length;
}
