/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the table of parameters: what no compiler checks. That each does what it says, the tests
 * of completions and tests/http/test_parameters.py try. */
#include "api/completion_request.h"
#include "api/parameter_table.h"

#include <criterion/criterion.h>
#include <string.h>

Test(parameter_table, an_api_has_a_name_once)
{
    for (int i = 0; i < parameter_count; i++)
        for (int j = 0; j < i; j++)
            cr_expect(strcmp(parameter_table[i].name, parameter_table[j].name) != 0 ||
                          !(parameter_table[i].apis & parameter_table[j].apis),
                      "%s is there twice", parameter_table[i].name);
}

Test(parameter_table, a_row_is_whole)
{
    for (int i = 0; i < parameter_count; i++) {
        const struct parameter *row = &parameter_table[i];
        cr_expect(row->from && row->note && row->apis, "%s", row->name);
        cr_expect_eq(row->kind == PARAMETER_REFUSED, row->nothing != NULL, "%s", row->name);
        cr_expect_eq(row->authors & ~row->apis, 0, "%s: authors whose API has it not", row->name);
        if (row->kind != PARAMETER_HONOURED)
            cr_expect(row->size == 0 && !row->read, "%s is not read", row->name);
        if (row->type == PARAMETER_NUMBER)
            cr_expect_str_eq(row->name, sampling_rows[row->number].name);
    }
}

Test(parameter_table, a_member_is_of_its_rows_type)
{
    for (int i = 0; i < parameter_count; i++) {
        const struct parameter *row = &parameter_table[i];
        bool right = row->size == sizeof(void *);
        if (row->size == 0)
            continue;
        if (row->type == PARAMETER_BOOLEAN)
            right = row->size == sizeof(bool);
        else if (row->type == PARAMETER_INTEGER)
            right = row->size == sizeof(int64_t) ||
                    (row->size == sizeof(int32_t) && row->low >= INT32_MIN &&
                     row->high <= INT32_MAX && row->usual == (int32_t)row->usual);
        cr_expect(right, "%s: %zu bytes", row->name, row->size);
    }
}
