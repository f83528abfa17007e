/* SPDX-License-Identifier: Apache-2.0 */
/* The types of the parameters of many tools, and the memory that they take. */
#include "api/chat_types.h"

#include "api/request.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static unsigned kinds_of_parameter(const struct chat_types *types, const char *function,
                                   const char *key)
{
    return chat_types_of(types, function, strlen(function), key, strlen(key));
}

Test(chat_types, are_found_among_many)
{
    static const char *const KINDS[] = {"integer", "boolean", "object"};
    static const unsigned EXPECTED[] = {CHAT_INTEGER, CHAT_BOOLEAN, CHAT_OBJECT};
    enum { MANY = 1000 };
    struct chat_types types = {0};
    json_t *first = json_object(), *second = json_object();
    char key[16];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "p%d", i);
        json_object_set_new(first, key, json_pack("{s:s}", "type", KINDS[i % 3]));
        json_object_set_new(second, key, json_pack("{s:s}", "type", "null"));
    }
    json_object_set_new(second, "own", json_pack("{s:s}", "type", "number"));
    json_t *tools = json_pack("[{s:{s:s,s:{s:o}}},{s:{s:s,s:{s:O}}},{s:{s:s,s:{s:o}}}]", "function",
                              "name", "f", "parameters", "properties", first, "function", "name",
                              "f", "parameters", "properties", second, "function", "name", "g",
                              "parameters", "properties", second);
    cr_assert_eq(chat_types_take(&types, tools), 0);
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "p%d", i);
        cr_expect_eq(kinds_of_parameter(&types, "f", key), EXPECTED[i % 3], "%s", key);
        cr_expect_eq(kinds_of_parameter(&types, "g", key), CHAT_NULL, "%s", key);
    }
    cr_expect_eq(kinds_of_parameter(&types, "f", "own"), CHAT_NUMBER);
    cr_expect_eq(kinds_of_parameter(&types, "f", "p1000"), CHAT_STRING);
    cr_expect_eq(kinds_of_parameter(&types, "fp", "1"), CHAT_STRING);
    chat_types_clear(&types);
    json_decref(tools);
}

static int64_t most_reserved, reserved;

static bool reserve(void *context, int64_t bytes)
{
    (void)context;
    if (reserved + bytes > most_reserved)
        return false;
    reserved += bytes;
    return true;
}

static bool possible(void *context, int64_t bytes)
{
    (void)context;
    return bytes <= most_reserved;
}

Test(chat_types, reserve_their_memory)
{
    struct chat_types types = {0};
    json_t *tools = json_loads("[{\"function\": {\"name\": \"f\", \"parameters\": "
                               "{\"properties\": {\"a\": {}, \"b\": {}}}}}]",
                               0, NULL);
    request_bound_memory(reserve, possible, NULL);
    cr_expect_eq(chat_types_take(&types, tools), -1);
    chat_types_clear(&types);
    cr_expect_eq(reserved, 0);
    most_reserved = 1000;
    cr_expect_eq(chat_types_take(&types, tools), 0);
    cr_expect_eq(types.count, 2);
    cr_expect_geq(reserved, (int64_t)(2 * sizeof *types.items));
    chat_types_clear(&types);
    cr_expect_eq(reserved, 0);
    request_bound_memory(NULL, NULL, NULL);
    json_decref(tools);
}
