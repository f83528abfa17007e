/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/jinja/characters.h"

#include "lib/jinja/characters_data.h"
#include "lib/text/unicode.h"

#include <utf8proc.h>

bool characters_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t characters_leading_space(const char *text, size_t length)
{
    size_t at = 0, bytes;
    while (at < length && characters_is_space(utf8_decode(text + at, &bytes)))
        at += bytes;
    return at;
}

size_t characters_trailing_space(const char *text, size_t length)
{
    size_t end = length, bytes;
    while (end > 0) {
        size_t start = utf8_previous(text, end);
        if (!characters_is_space(utf8_decode(text + start, &bytes)))
            break;
        end = start;
    }
    return length - end;
}

static bool in_runs(const struct characters_run *runs, size_t count, uint32_t c)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > runs[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && c >= runs[low].first;
}

static int cased(const struct characters_case *cases, size_t count, uint32_t c,
                 utf8proc_int32_t simple, uint32_t out[3])
{
    for (size_t i = 0; i < count; i++)
        if (cases[i].c == c) {
            int used = 0;
            while (used < 3 && cases[i].to[used]) {
                out[used] = cases[i].to[used];
                used++;
            }
            return used;
        }
    out[0] = (uint32_t)simple;
    return 1;
}

int characters_upper(uint32_t c, uint32_t out[3])
{
    return cased(characters_to_upper, c < 0x80 ? 0 : characters_to_upper_count, c,
                 utf8proc_toupper((utf8proc_int32_t)c), out);
}

int characters_title(uint32_t c, uint32_t out[3])
{
    return cased(characters_to_title, c < 0x80 ? 0 : characters_to_title_count, c,
                 utf8proc_totitle((utf8proc_int32_t)c), out);
}

int characters_lower(uint32_t c, uint32_t out[3])
{
    enum { CAPITAL_I_WITH_DOT = 0x130, DOT_ABOVE = 0x307 };
    if (c == CAPITAL_I_WITH_DOT) {
        out[0] = 'i';
        out[1] = DOT_ABOVE;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return 1;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool characters_is_alpha(uint32_t c)
{
    utf8proc_category_t of = category(c);
    return of >= UTF8PROC_CATEGORY_LU && of <= UTF8PROC_CATEGORY_LO;
}

bool characters_is_decimal(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool characters_is_digit_of(uint32_t c)
{
    return characters_is_decimal(c) || in_runs(characters_digits, characters_digits_count, c);
}

bool characters_is_numeric(uint32_t c)
{
    utf8proc_category_t of = category(c);
    return (of >= UTF8PROC_CATEGORY_ND && of <= UTF8PROC_CATEGORY_NO) ||
           in_runs(characters_numerals, characters_numerals_count, c);
}

bool characters_is_upper(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LU ||
           in_runs(characters_more_upper, characters_more_upper_count, c);
}

bool characters_is_lower(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_LL ||
           in_runs(characters_more_lower, characters_more_lower_count, c);
}

bool characters_is_printable(uint32_t c)
{
    utf8proc_category_t of = category(c);
    return c == ' ' ||
           (of != UTF8PROC_CATEGORY_CN && (of < UTF8PROC_CATEGORY_ZS || of > UTF8PROC_CATEGORY_CO));
}
