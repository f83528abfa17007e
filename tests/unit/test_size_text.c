/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people read them. */
#include "lib/base/size_text.h"

#include <criterion/criterion.h>

Test(size_text, units_are_binary_and_small_numbers_exact)
{
    static const struct {
        double bytes;
        const char *text;
    } CASES[] = {
        {0, "0 bytes"},       {10239, "10239 bytes"}, {10240, "10.0 KiB"}, {1048575, "1024.0 KiB"},
        {1048576, "1.0 MiB"}, {15474688, "14.8 MiB"}, {1e10, "9.3 GiB"},   {4e15, "3638.0 TiB"},
    };
    char text[SIZE_TEXT];
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        cr_expect_str_eq(size_text(CASES[i].bytes, text), CASES[i].text);
}
