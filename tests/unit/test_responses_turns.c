/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_turns.h"
#include "api/responses_turns.h"
#include "api/strbuf.h"

#include <criterion/criterion.h>
#include <string.h>

/* The object of a kept response whose line begins so. -1: it is damaged. */
static int object_of(const char *line, char object[16], int64_t *events)
{
    struct strbuf turns = {0};
    struct api_error err = {0};
    const char *found = NULL;
    size_t length = 0;
    chat_turns_head(&turns, &(struct chat_turn){.position = 3});
    strbuf_puts(&turns, line);
    strbuf_puts(&turns, "\n");
    int result = responses_turns_object(turns.data, turns.length, &found, &length, events, &err);
    if (result == 0 && length < 16)
        snprintf(object, 16, "%.*s", (int)length, found);
    strbuf_clear(&turns);
    return result;
}

Test(responses_turns, the_object_is_found_with_and_without_a_count_of_events)
{
    char object[16] = "";
    int64_t events = -1;
    cr_expect(object_of("{\"bytes\":7,\"events\":5,\"response\":{\"a\":1},\"b\":2}", object,
                        &events) == 0);
    cr_expect(strcmp(object, "{\"a\":1}") == 0 && events == 5, "%s", object);
    cr_expect(object_of("{\"bytes\":7,\"response\":{\"a\":1},\"b\":2}", object, &events) == 0);
    cr_expect(strcmp(object, "{\"a\":1}") == 0 && events == 0, "%s", object);
    cr_expect(object_of("{\"bytes\":700,\"response\":{\"a\":1}}", object, &events) == -1);
    cr_expect(object_of("{\"events\":5,\"response\":{\"a\":1}}", object, &events) == -1);
}
