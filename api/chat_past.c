/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_past.h"

#include "api/chat_parser.h"
#include "api/request.h"

#include <stdio.h>

static json_t *text_of(const struct strbuf *text)
{
    return json_stringn(text->length > 0 ? text->data : "", text->length);
}

static json_t *calls_of(const struct chat_calls *calls)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < calls->count; i++) {
        const struct chat_call *call = &calls->items[i];
        char id[32];
        snprintf(id, sizeof id, "call_%zu", i);
        json_t *item = json_pack("{s:s,s:s,s:{s:s%,s:s%}}", "id", id, "type", "function",
                                 "function", "name", call->name, call->name_length, "arguments",
                                 call->arguments, call->arguments_length);
        if (json_array_append_new(list, item)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int split(json_t *message, const struct chat_syntax *syntax, struct api_error *err)
{
    const json_t *content = json_object_get(message, "content");
    const struct chat_rules rules = {.syntax = syntax, .reasoning = true, .calls = true};
    struct chat_parser parser = {.rules = &rules};
    struct chat_output output = {0};
    chat_parser_push(&parser, json_string_value(content), json_string_length(content), &output);
    chat_parser_finish(&parser, &output);
    bool failed = output.failed ||
                  json_object_set_new(message, "content", text_of(&output.content)) ||
                  (output.reasoning.length > 0 &&
                   json_object_set_new(message, "reasoning_content", text_of(&output.reasoning))) ||
                  (output.calls.count > 0 &&
                   json_object_set_new(message, "tool_calls", calls_of(&output.calls)));
    chat_output_clear(&output);
    chat_parser_clear(&parser);
    return failed ? request_no_memory(err) : 0;
}

int chat_past_split(json_t *messages, struct chat_specials *specials,
                    const struct chat_syntax *syntax, struct api_error *err)
{
    int result = 0;
    for (size_t i = 0; i < specials->count && result == 0; i++)
        if (i == 0 || specials->items[i].message != specials->items[i - 1].message)
            result = split(json_array_get(messages, specials->items[i].message), syntax, err);
    specials->count = 0;
    return result;
}
