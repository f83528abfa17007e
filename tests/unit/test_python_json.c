/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as Python writes it; and the sentences that a reader of files leaves behind. */
#include "lib/base/fields.h"
#include "lib/base/python_json.h"
#include "lib/base/warnings.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* What text means, written again as JSON; NULL: it is refused. */
static void expect_json(const char *text, const char *expected)
{
    json_t *document;
    struct error err = ERROR_INIT;
    int result = python_json_parse(&document, "f", text, strlen(text), &err);
    char *again = result == 0 ? json_dumps(document, JSON_COMPACT) : NULL;
    if (expected)
        cr_expect(again && strcmp(again, expected) == 0, "%s: got %s", text,
                  again ? again : err.message);
    else
        cr_expect(!again && strncmp(err.message, "f: line 1, ", 11) == 0, "%s: %s", text,
                  again ? again : err.message);
    free(again);
    json_decref(result == 0 ? document : NULL);
}

Test(python_json, numbers_that_json_does_not_have)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"[Infinity, -Infinity,NaN]",
         "[{\"__float__\":\"Infinity\"},{\"__float__\":\"-Infinity\"},{\"__float__\":\"NaN\"}]"},
        {"{\"a\":Infinity}", "{\"a\":{\"__float__\":\"Infinity\"}}"},
        {"[\"NaN\", \"\\\"Infinity\", \"\\\\\", NaN]",
         "[\"NaN\",\"\\\"Infinity\",\"\\\\\",{\"__float__\":\"NaN\"}]"},
        {"[1e999,-1e999]", "[{\"__float__\":\"Infinity\"},{\"__float__\":\"-Infinity\"}]"},
        {"[9223372036854775807,-9223372036854775808]",
         "[9223372036854775807,-9223372036854775808]"},
        {"[9223372036854775808]", "[9.2233720368547758e18]"},
        {"[0,-1,2.5,1e3,-0.5e-7]", "[0,-1,2.5,1000.0,-4.9999999999999998e-8]"},
        {"[NaNs]", NULL},
        {"[-]", NULL},
        {"[1.]", NULL},
        {"[Inf]", NULL},
        {"[\"a", NULL},
        {"[\"a\\", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_json(cases[i].text, cases[i].expected);
}

/* Neither as a number nor as an object. */
Test(python_json, no_field_is_infinite)
{
    static const char text[] = "{\"a\": Infinity, \"b\": {\"__float__\": \"NaN\"}, \"c\": null}";
    json_t *document;
    struct error err = ERROR_INIT;
    struct fields root, object;
    double number = 1;
    cr_assert(python_json_parse(&document, "f", text, strlen(text), &err) == 0, "%s", err.message);
    cr_assert(fields_root(&root, document, "f", &err) == 0);
    cr_expect(fields_double(&root, "a", FIELD_OPTIONAL, 0, 2, &number, &err) == -1);
    cr_expect_str_eq(err.message, "f: a: expected a number in [0, 2], got Infinity");
    error_clear(&err);
    cr_expect(fields_object(&root, "b", FIELD_OPTIONAL, &object, &err) == -1);
    cr_expect_str_eq(err.message, "f: b: expected an object, got NaN");
    error_clear(&err);
    cr_expect(fields_double(&root, "c", FIELD_NOT_NULL, 0, 2, &number, &err) == -1);
    cr_expect_str_eq(err.message, "f: c: expected a number in [0, 2], got null");
    error_clear(&err);
    cr_expect(fields_double(&root, "d", FIELD_NOT_NULL, 0, 2, &number, &err) == 0 && number == 1);
    json_decref(document);
}

Test(warnings, more_than_there_is_room_for)
{
    static struct warnings some, all;
    cr_expect_null(warnings_at(&some, 0));
    for (int i = 0; i < WARNINGS_MOST; i++)
        warnings_add(&some, "%d\n\x01%c", i, 0xff);
    cr_expect_str_eq(warnings_at(&some, 3), "3???");
    cr_expect_null(warnings_at(&some, WARNINGS_MOST));
    warnings_add(&all, "first");
    warnings_add_all(&all, &some);
    cr_expect_str_eq(warnings_at(&all, 0), "first");
    cr_expect(strstr(warnings_at(&all, WARNINGS_MOST), "more"));
    cr_expect_null(warnings_at(&all, WARNINGS_MOST + 1));
    char longest[2 * WARNING_BYTES];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    struct warnings one = {0};
    warnings_add(&one, "%s", longest);
    cr_expect_eq(strlen(warnings_at(&one, 0)), WARNING_BYTES - 1);
}
