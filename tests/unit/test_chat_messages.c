/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_messages.h"
#include "api/strbuf.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER = 77 }; /* of the mark */

static const char MESSAGES[] =
    "[{\"role\":\"system\",\"content\":\"first \\n\"},{\"role\":\"user\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"second\"}]},"
    "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"third\"}}]},"
    "{\"role\":\"user\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"fifth\"}]";

/* What a template would make of the messages, in the order of `order`: [content] of each. */
static void rendered(struct strbuf *out, const json_t *messages, const char *order)
{
    for (; *order; order++) {
        const json_t *message = json_array_get(messages, (size_t)(*order - '0'));
        const json_t *content = json_object_get(message, "content");
        const json_t *calls = json_object_get(message, "tool_calls");
        if (json_is_array(content))
            content = json_object_get(json_array_get(content, 1), "text");
        if (calls)
            content =
                json_object_get(json_object_get(json_array_get(calls, 0), "function"), "name");
        strbuf_puts(out, "[");
        strbuf_append(out, json_string_value(content), json_string_length(content));
        strbuf_puts(out, "]");
    }
}

static int64_t find(const char *order, const char *place)
{
    struct strbuf plain = {0}, marked = {0};
    struct api_error err = {0};
    json_t *list = json_loads(MESSAGES, 0, NULL);
    const struct chat_forms forms = {.parts = true};
    size_t broken;
    json_t *messages = chat_messages(list, &forms, &broken, &err);
    cr_assert(messages, "%s", err.message);
    rendered(&plain, messages, order);
    cr_assert(chat_messages_mark_all(messages, NUMBER, &err) == 0);
    rendered(&marked, messages, order);
    const char *at = memmem(plain.data, plain.length, place, strlen(place));
    cr_assert(at, "%s", place);
    int64_t found =
        chat_messages_find(marked.data, marked.length, NUMBER, (size_t)(at - plain.data));
    strbuf_clear(&plain);
    strbuf_clear(&marked);
    json_decref(messages);
    json_decref(list);
    return found;
}

Test(chat_messages, are_found_where_they_stand)
{
    static const char *const PLACES[] = {"first", "second", "third", "", "fifth"};
    for (int64_t i = 0; i < 5; i++)
        cr_expect(i == 3 || find("01234", PLACES[i]) == i, "%d", (int)i);
    cr_expect_eq(find("01234", "[first"), 0, "what opens a message is the message's");
    cr_expect_eq(find("01234", "[second"), 1);
    cr_expect_eq(find("01234", "econd"), 1);
    /* One that is no longer: where it ends now, another text went on. */
    cr_expect_eq(find("01234", "][third"), 1);
    cr_expect_eq(find("1204", "first"), 0, "one that was moved");
    cr_expect_eq(find("1204", "[fifth"), 4);
}

Test(chat_messages, a_developer_is_the_system_where_the_template_knows_none)
{
    struct api_error err = {0};
    size_t broken;
    for (int known = 0; known < 2; known++) {
        const struct chat_forms forms = {.developer = known};
        json_t *list = json_pack("[{s:s,s:s}]", "role", "developer", "content", "x");
        json_t *messages = chat_messages(list, &forms, &broken, &err);
        json_t *role = json_object_get(json_array_get(messages, 0), "role");
        cr_assert_str_eq(json_string_value(role), known ? "developer" : "system");
        json_decref(messages);
        json_decref(list);
    }
}

/* Arguments as the template sees them, and whether they were broken. */
static const struct {
    const char *arguments, *taken; /* JSON; NULL: there are none */
    bool broken;
} ARGUMENTS[] = {
    {"{\"a\": 1}", "{\"a\": 1}", false},
    {"\"{\\\"a\\\": 1}\"", "{\"a\": 1}", false},
    {"\" \"", "{}", false},
    {"null", "{}", false},
    {NULL, "{}", false},
    /* Cut off. */
    {"\"{\\\"a\\\": 1, \\\"b\\\": [2, {\\\"c\\\": \\\"x\"",
     "{\"a\": 1, \"b\": [2, {\"c\": \"x\"}]}", true},
    {"\"{\\\"a\\\": 1, \\\"b\\\":\"", "{\"a\": 1}", true},
    {"\"{\\\"a\\\": -2.5e\"", "{\"a\": -2.5}", true},
    {"\"{\\\"a\\\": -\"", "{}", true},
    {"\"{\\\"a\\\": tru\"", "{}", true},
    {"\"{\\\"a\\\": \\\"x\\\\u00\"", "{\"a\": \"x\"}", true},
    {"\"{\"", "{}", true},
    /* What other parsers forgive. */
    {"\"{\\\"a\\\": 1, \\\"a\\\": 2}\"", "{\"a\": 2}", true},
    {"\"{'a': True, 'b': None,}\"", "{\"a\": true, \"b\": null}", true},
    {"\"{\\\"a\\\": \\\"x\\ny\\\"}\"", "{\"a\": \"x\\ny\"}", true},
    {"\"{\\\"a\\\": 1}}]\\n\"", "{\"a\": 1}", true},
    /* What nobody can read. */
    {"\"{\\\"a\\\": \\\"say \\\"x\\\" twice\\\"}\"", NULL, true},
    {"\"{\\\"a\\\": 1} and more\"", NULL, true},
    {"\"{\\\"a\\\": 01}\"", NULL, true},
    {"\"ls -l\"", NULL, true},
    {"\"[1]\"", NULL, true},
    {"[1]", NULL, true},
    {"7", NULL, true},
};

static void expect_arguments(size_t i, bool takes_broken)
{
    const struct chat_forms forms = {.broken = takes_broken};
    struct api_error err = {0};
    size_t broken;
    json_t *given =
        ARGUMENTS[i].arguments ? json_loads(ARGUMENTS[i].arguments, JSON_DECODE_ANY, NULL) : NULL;
    json_t *list = json_pack("[{s:s,s:[{s:{s:s,s:O*}}]}]", "role", "assistant", "tool_calls",
                             "function", "name", "f", "arguments", given);
    json_t *messages = chat_messages(list, &forms, &broken, &err);
    cr_assert(messages, "%zu: %s", i, err.message);
    json_t *calls = json_object_get(json_array_get(messages, 0), "tool_calls");
    json_t *got =
        json_object_get(json_object_get(json_array_get(calls, 0), "function"), "arguments");
    json_t *taken = ARGUMENTS[i].taken ? json_loads(ARGUMENTS[i].taken, 0, NULL)
                    : takes_broken     ? json_incref(given)
                                       : json_pack("{s:O}", "arguments", given);
    char *text = json_dumps(got, JSON_ENCODE_ANY);
    cr_expect(json_equal(got, taken), "%zu: %s", i, text);
    cr_expect_eq(broken, ARGUMENTS[i].broken, "%zu", i);
    free(text);
    json_decref(taken);
    json_decref(messages);
    json_decref(list);
    json_decref(given);
}

Test(chat_messages, calls_that_a_model_left_broken_are_read_as_far_as_they_can_be)
{
    for (size_t i = 0; i < sizeof ARGUMENTS / sizeof *ARGUMENTS; i++)
        for (int takes_broken = 0; takes_broken < 2; takes_broken++)
            expect_arguments(i, takes_broken);
}

Test(chat_messages, behind_the_last_there_is_none)
{
    static const char TEXT[] =
        "no marks, and MESSAGE_000000000000004c_WITH_THE_INDEX_1_ is another";
    cr_expect_eq(chat_messages_find(TEXT, sizeof TEXT - 1, NUMBER, 5), -1);
    cr_expect_eq(chat_messages_find(TEXT, sizeof TEXT - 1, NUMBER - 1, 5), 1);
    cr_expect_eq(chat_messages_find(TEXT, 0, NUMBER, 0), -1);
}
