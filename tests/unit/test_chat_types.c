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
    struct api_error err = {0};
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
    cr_assert_eq(chat_types_take(&types, tools, &err), 0);
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "p%d", i);
        cr_expect_eq(kinds_of_parameter(&types, "f", key), EXPECTED[i % 3], "%s", key);
        cr_expect_eq(kinds_of_parameter(&types, "g", key), CHAT_NULL, "%s", key);
    }
    cr_expect_eq(kinds_of_parameter(&types, "f", "own"), CHAT_NUMBER);
    cr_expect_eq(kinds_of_parameter(&types, "f", "p1000"), CHAT_STRING);
    cr_expect_eq(kinds_of_parameter(&types, "fp", "1"), CHAT_STRING);
    cr_expect(chat_types_knows(&types, "f", 1) && chat_types_knows(&types, "g", 1));
    cr_expect_not(chat_types_knows(&types, "fp", 2) || chat_types_knows(&types, "own", 3));
    chat_types_clear(&types);
    json_decref(tools);
}

/* What the parameters of one tool are in the table, and for the grammar. */
static void expect_kinds(const char *parameters, const char *key, unsigned kinds, const char *names)
{
    struct chat_types types = {0};
    struct api_error err = {0};
    json_t *schema = json_loads(parameters, 0, NULL);
    json_t *tools = json_pack("[{s:{s:s,s:O}}]", "function", "name", "f", "parameters", schema);
    json_t *expected = json_loads(names, 0, NULL), *got = chat_types_names(schema, 0, &err);
    cr_assert(schema && expected && got, "%s: %s", parameters, err.message);
    cr_assert_eq(chat_types_take(&types, tools, &err), 0);
    cr_expect_eq(kinds_of_parameter(&types, "f", key), kinds, "%s: %u", parameters,
                 kinds_of_parameter(&types, "f", key));
    cr_expect(json_equal(json_object_get(got, key), expected), "%s", parameters);
    chat_types_clear(&types);
    json_decref(tools);
    json_decref(schema);
    json_decref(expected);
    json_decref(got);
}

Test(chat_types, are_those_behind_references)
{
#define DEFS                                                                            \
    "\"$defs\":{\"I\":{\"enum\":[1,2]},\"C\":{\"$ref\":\"#/$defs/D\"},"                 \
    "\"D\":{\"$ref\":\"#/$defs/C\"},\"T\":{\"anyOf\":[{\"type\":\"boolean\"},"          \
    "{\"$ref\":\"#/$defs/T\"},{\"$ref\":\"#/$defs/I\"}]},\"A\":{\"properties\":{\"x\":" \
    "{\"$ref\":\"#/$defs/I\"}}}}"
#define ONE(schema) "{" DEFS ",\"properties\":{\"x\":" schema "}}"
    expect_kinds(ONE("{\"$ref\":\"#/$defs/I\"}"), "x", CHAT_INTEGER, "[\"integer\"]");
    expect_kinds(ONE("{\"anyOf\":[{\"$ref\":\"#/$defs/I\"},{\"type\":\"null\"}]}"), "x",
                 CHAT_INTEGER | CHAT_NULL, "[\"integer\",\"null\"]");
    expect_kinds(ONE("{\"$ref\":\"#/$defs/T\"}"), "x", CHAT_BOOLEAN | CHAT_INTEGER,
                 "[\"integer\",\"boolean\"]");
    expect_kinds(ONE("{\"$ref\":\"#/$defs/C\"}"), "x", CHAT_STRING, "[\"string\"]");
    expect_kinds(ONE("{\"$ref\":\"#/$defs/none\"}"), "x", CHAT_OBJECT | CHAT_LIST | CHAT_STRING,
                 "[\"string\",\"array\",\"object\"]");
    expect_kinds(ONE("{\"anyOf\":[{\"maxLength\":2},{\"type\":\"null\"},false]}"), "x",
                 CHAT_STRING | CHAT_NULL, "[\"string\",\"null\"]");
    expect_kinds("{" DEFS ",\"allOf\":[{\"$ref\":\"#/$defs/A\"},{\"$ref\":\"#\"}]}", "x",
                 CHAT_INTEGER, "[\"integer\"]");
#undef ONE
#undef DEFS
}

/* Also where nothing but `false` is met, over and over. */
Test(chat_types, choices_that_say_no_are_bounded)
{
    enum { LISTS = 1200, CHOICES = 1200 };
    struct api_error err = {0};
    json_t *none = json_array(), *properties = json_object();
    for (int i = 0; i < CHOICES; i++)
        json_array_append_new(none, json_false());
    for (int i = 0; i < LISTS; i++) {
        char key[16];
        snprintf(key, sizeof key, "p%d", i);
        json_object_set_new(properties, key, json_pack("{s:s}", "$ref", "#/$defs/a"));
    }
    json_t *schema =
        json_pack("{s:{s:{s:o}},s:o}", "$defs", "a", "anyOf", none, "properties", properties);
    cr_expect_null(chat_types_names(schema, 0, &err));
    cr_expect_eq(err.code, API_UNSUPPORTED);
    json_decref(schema);
}

/* A schema that leads to itself in ever more ways ends; too long a way is refused. */
Test(chat_types, are_bounded)
{
    enum { MANY = 300 };
    json_t *defs = json_object(), *both;
    char key[16], next[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof key, "d%d", i);
        snprintf(next, sizeof next, "#/$defs/d%d", i + 1 < MANY ? i + 1 : 0);
        both = json_pack("{s:[{s:s},{s:s}]}", "anyOf", "$ref", next, "$ref", next);
        json_object_set_new(defs, key, both);
    }
    for (int from = 0; from < MANY; from += 200) {
        struct api_error err = {0};
        snprintf(next, sizeof next, "#/$defs/d%d", from);
        json_object_set_new(defs, "d299", json_pack("{s:s}", "type", "integer"));
        json_t *schema =
            json_pack("{s:O,s:{s:{s:s}}}", "$defs", defs, "properties", "x", "$ref", next);
        json_t *names = chat_types_names(schema, 3, &err);
        if (from == 0) {
            cr_expect_null(names);
            cr_expect_eq(err.code, API_UNSUPPORTED);
            cr_expect(strstr(err.message, "tools[3].function.parameters: expected at most"), "%s",
                      err.message);
        } else {
            cr_expect_eq(json_array_size(json_object_get(names, "x")), 1);
        }
        json_decref(names);
        json_decref(schema);
    }
    json_decref(defs);
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
    struct api_error err = {0};
    json_t *tools = json_loads("[{\"function\": {\"name\": \"f\", \"parameters\": "
                               "{\"properties\": {\"a\": {}, \"b\": {}}}}}]",
                               0, NULL);
    request_bound_memory(reserve, possible, NULL);
    cr_expect_eq(chat_types_take(&types, tools, &err), -1);
    chat_types_clear(&types);
    cr_expect_eq(reserved, 0);
    most_reserved = 1000;
    cr_expect_eq(chat_types_take(&types, tools, &err), 0);
    cr_expect_eq(types.count, 3); /* the function is one */
    cr_expect_geq(reserved, (int64_t)(3 * sizeof *types.items));
    chat_types_clear(&types);
    cr_expect_eq(reserved, 0);
    request_bound_memory(NULL, NULL, NULL);
    json_decref(tools);
}
