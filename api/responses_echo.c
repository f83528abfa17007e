/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_echo.h"

#include "api/request.h"

#include <stdlib.h>
#include <string.h>

/* NULL: out of memory, or no string. */
static char *copy_string(const json_t *string, size_t *length)
{
    const char *text = json_string_value(string);
    *length = json_string_length(string);
    char *copy = text ? malloc(*length + 1) : NULL;
    if (copy)
        memcpy(copy, text, *length + 1);
    return copy;
}

static int take_tool(struct responses_tool *tool, const char *called, const json_t *from)
{
    const json_t *space = json_array_get(from, 1);
    tool->called = strdup(called);
    tool->called_length = strlen(called);
    tool->name = copy_string(json_array_get(from, 0), &tool->name_length);
    tool->space = copy_string(space, &tool->space_length);
    tool->custom = json_is_true(json_array_get(from, 2));
    return tool->called && tool->name && (tool->space || !json_is_string(space)) ? 0 : -1;
}

/* The members without the braces around them. */
static int take_members(struct responses_echo *echo, const json_t *members, struct api_error *err)
{
    if (request_dump(members, &echo->members, &echo->length, err))
        return -1;
    echo->length -= 2;
    memmove(echo->members, echo->members + 1, echo->length);
    return 0;
}

static int compare(const void *a, const void *b)
{
    const struct responses_tool *one = a, *other = b;
    if (one->called_length != other->called_length)
        return one->called_length < other->called_length ? -1 : 1;
    return memcmp(one->called, other->called, one->called_length);
}

struct responses_echo *responses_echo_make(const json_t *members, const json_t *tools,
                                           struct api_error *err)
{
    struct responses_echo *echo = calloc(1, sizeof *echo);
    size_t count = json_object_size(tools);
    const char *called;
    json_t *tool;
    bool failed = !echo || take_members(echo, members, err);
    if (!failed && count > 0)
        failed = !(echo->tools = calloc(count, sizeof *echo->tools));
    json_object_foreach((json_t *)tools, called, tool)
    {
        if (!failed)
            failed = take_tool(&echo->tools[echo->num_tools++], called, tool) != 0;
    }
    if (!failed && count > 0)
        qsort(echo->tools, count, sizeof *echo->tools, compare);
    if (!failed)
        return echo;
    responses_echo_free(echo);
    request_no_memory(err);
    return NULL;
}

void responses_echo_free(struct responses_echo *echo)
{
    if (!echo)
        return;
    for (size_t i = 0; i < echo->num_tools; i++) {
        free(echo->tools[i].called);
        free(echo->tools[i].name);
        free(echo->tools[i].space);
    }
    free(echo->tools);
    free(echo->members);
    free(echo->asked);
    free(echo);
}

size_t responses_echo_bytes(const struct responses_echo *echo)
{
    size_t bytes = echo ? sizeof *echo + echo->length + echo->asked_length : 0;
    for (size_t i = 0; echo && i < echo->num_tools; i++)
        bytes += sizeof *echo->tools + echo->tools[i].called_length + echo->tools[i].name_length +
                 echo->tools[i].space_length;
    return bytes;
}

const struct responses_tool *responses_echo_tool(const struct responses_echo *echo,
                                                 const char *called, size_t length)
{
    const struct responses_tool key = {.called = (char *)called, .called_length = length};
    return echo && echo->num_tools > 0
               ? bsearch(&key, echo->tools, echo->num_tools, sizeof key, compare)
               : NULL;
}
