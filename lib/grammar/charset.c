/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/charset.h"

#include "lib/text/buffer.h"
#include "lib/text/unicode.h"

#include <stdlib.h>
#include <string.h>

int charset_add(struct charset *set, uint32_t first, uint32_t last, struct error *err)
{
    if (array_grow((void **)&set->ranges, &set->capacity, set->count + 1, sizeof *set->ranges, err))
        return -1;
    set->ranges[set->count++] = (struct charset_range){first, last};
    return 0;
}

int charset_add_all(struct charset *set, const struct charset *other, struct error *err)
{
    for (size_t i = 0; i < other->count; i++)
        if (charset_add(set, other->ranges[i].first, other->ranges[i].last, err))
            return -1;
    return 0;
}

static int rising(const void *a, const void *b)
{
    const struct charset_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

void charset_normalize(struct charset *set)
{
    size_t count = 0;
    if (set->count > 0)
        qsort(set->ranges, set->count, sizeof *set->ranges, rising);
    for (size_t i = 0; i < set->count; i++) {
        struct charset_range range = set->ranges[i];
        if (count > 0 && range.first <= set->ranges[count - 1].last + 1) {
            if (range.last > set->ranges[count - 1].last)
                set->ranges[count - 1].last = range.last;
        } else {
            set->ranges[count++] = range;
        }
    }
    set->count = count;
}

int charset_negate(struct charset *set, struct error *err)
{
    struct charset out = {0};
    uint32_t from = 0;
    int failed = charset_add(set, 0xD800, 0xDFFF, err);
    charset_normalize(set);
    for (size_t i = 0; i < set->count && !failed; i++) {
        if (set->ranges[i].first > from)
            failed = charset_add(&out, from, set->ranges[i].first - 1, err);
        from = set->ranges[i].last + 1;
    }
    if (!failed && from <= CHARSET_LAST)
        failed = charset_add(&out, from, CHARSET_LAST, err);
    charset_clear(set);
    *set = out;
    return failed;
}

int charset_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool charset_has(const struct charset *set, uint32_t c)
{
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (set->ranges[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < set->count && set->ranges[low].first <= c;
}

bool charset_equal(const struct charset *a, const struct charset *b)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->ranges, b->ranges, a->count * sizeof *a->ranges) == 0);
}

void charset_clear(struct charset *set)
{
    free(set->ranges);
    *set = (struct charset){0};
}

enum { SHORT_GAP = 128 };

/* Fills short gaps between characters beyond ASCII, so that few ranges are left. */
static void fill_gaps(struct charset *set)
{
    size_t count = 0;
    charset_normalize(set);
    for (size_t i = 0; i < set->count; i++) {
        struct charset_range range = set->ranges[i];
        if (count > 0 && set->ranges[count - 1].last >= 0x80 &&
            range.first - set->ranges[count - 1].last < SHORT_GAP)
            set->ranges[count - 1].last = range.last;
        else
            set->ranges[count++] = range;
    }
    set->count = count;
}

/* Adds the characters beyond ASCII of any of the classes. */
static int add_classes(struct charset *set, unsigned classes, struct error *err)
{
    for (size_t i = 0; i < unicode_class_edge_count; i++) {
        uint32_t first = unicode_class_edges[i] >> 8;
        uint32_t next =
            i + 1 < unicode_class_edge_count ? unicode_class_edges[i + 1] >> 8 : CHARSET_LAST + 1;
        first = first < 0x80 ? 0x80 : first;
        if (unicode_class_edges[i] & classes && next > first &&
            charset_add(set, first, next - 1, err))
            return -1;
    }
    return 0;
}

static const struct charset_range DIGITS[] = {{'0', '9'}},
                                  WORDS[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                  SPACES[] = {{'\t', '\r'}, {' ', ' '}},
                                  MORE_SPACES[] = {{0x1C, 0x1F}, {0xFEFF, 0xFEFF}};

/* The least that the shorthand means anywhere. */
static int add_least(struct charset *set, char letter, struct error *err)
{
    const struct charset_range *ranges = letter == 'd' ? DIGITS : letter == 'w' ? WORDS : SPACES;
    size_t count = letter == 'd' ? 1 : letter == 'w' ? 4 : 2;
    for (size_t i = 0; i < count; i++)
        if (charset_add(set, ranges[i].first, ranges[i].last, err))
            return -1;
    return 0;
}

/* The most that it means, and some more beyond ASCII. */
static int add_most(struct charset *set, char letter, struct error *err)
{
    unsigned classes = letter == 's' ? UNICODE_SPACE : UNICODE_NUMBER | UNICODE_NUMERIC;
    if (letter == 'w')
        classes |= UNICODE_WORD | UNICODE_LETTER | UNICODE_MARK;
    struct charset most = {0};
    int failed = add_least(&most, letter, err) || add_classes(&most, classes, err);
    for (size_t i = 0; letter == 's' && i < 2 && !failed; i++)
        failed = charset_add(&most, MORE_SPACES[i].first, MORE_SPACES[i].last, err);
    fill_gaps(&most);
    failed = failed || charset_add_all(set, &most, err);
    charset_clear(&most);
    return failed ? -1 : 0;
}

int charset_add_shorthand(struct charset *set, char letter, bool negated, struct error *err)
{
    char lower = (char)(letter | 0x20);
    if (letter == lower)
        return negated ? add_most(set, lower, err) : add_least(set, lower, err);
    struct charset inside = {0};
    int failed = (negated ? add_least(&inside, lower, err) : add_most(&inside, lower, err)) ||
                 charset_negate(&inside, err) || charset_add_all(set, &inside, err);
    charset_clear(&inside);
    return failed ? -1 : 0;
}
