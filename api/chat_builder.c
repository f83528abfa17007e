/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_builder.h"

#include "api/request.h"

#include <stdio.h>
#include <string.h>

int chat_builder_begin(struct chat_builder *builder)
{
    builder->list = json_array();
    builder->ids = json_object();
    return builder->list && builder->ids ? 0 : request_no_memory(builder->err);
}

void chat_builder_clear(struct chat_builder *builder)
{
    json_decref(builder->list);
    json_decref(builder->calls);
    json_decref(builder->ids);
    strbuf_clear(&builder->text);
    strbuf_clear(&builder->reasoning);
}

static json_t *string_of(const struct strbuf *text)
{
    return text->failed ? NULL : json_stringn(text->data ? text->data : "", text->length);
}

int chat_builder_flush(struct chat_builder *builder)
{
    static const char *const NAMES[] = {NULL, "system", "developer", "user", "assistant"};
    bool some = builder->begun || builder->calls || builder->reasoning.length > 0;
    json_t *message = NULL;
    int failed = 0;
    if (some) {
        message = json_pack("{s:s,s:o}", "role", NAMES[builder->role], "content",
                            string_of(&builder->text));
        failed = !message || builder->reasoning.failed;
    }
    if (!failed && builder->reasoning.length > 0)
        failed = json_object_set_new(message, "reasoning_content", string_of(&builder->reasoning));
    if (!failed && builder->calls)
        failed = json_object_set(message, "tool_calls", builder->calls);
    if (!failed && some)
        failed = json_array_append(builder->list, message);
    json_decref(message);
    json_decref(builder->calls);
    builder->calls = NULL;
    builder->role = CHAT_NOBODY;
    builder->begun = false;
    builder->texts = 0;
    strbuf_reset(&builder->text);
    strbuf_reset(&builder->reasoning);
    return failed ? request_no_memory(builder->err) : 0;
}

static bool of_system(enum chat_role role)
{
    return role == CHAT_SYSTEM || role == CHAT_DEVELOPER;
}

enum chat_role chat_builder_role(const struct chat_builder *builder, enum chat_role role)
{
    bool first = json_array_size(builder->list) == 0 &&
                 (builder->role == CHAT_NOBODY || of_system(builder->role));
    bool taken =
        builder->systems == CHAT_SYSTEMS_ALL || (builder->systems == CHAT_SYSTEMS_FIRST && first);
    if (!of_system(role))
        return role;
    if (!taken)
        return CHAT_USER;
    return of_system(builder->role) ? builder->role : role; /* one message has one role */
}

int chat_builder_turn(struct chat_builder *builder, enum chat_role role)
{
    if (builder->role != role && chat_builder_flush(builder))
        return -1;
    builder->role = role;
    return 0;
}

void chat_builder_text(struct chat_builder *builder, struct strbuf *to, size_t *texts,
                       const char *text, size_t length)
{
    if (to != &builder->text || builder->role != CHAT_ASSISTANT)
        strbuf_puts(to, *texts > 0 ? "\n" : "");
    strbuf_append(to, text, length);
    (*texts)++;
}

bool chat_builder_leave(struct chat_builder *builder, struct strbuf *to, size_t *texts,
                        const char *type, const char *name)
{
    char line[200];
    for (size_t i = 0; builder->left[i]; i++) {
        if (strcmp(type, builder->left[i]) != 0)
            continue;
        snprintf(line, sizeof line, "[%s%s%.120s]", type, name ? ": " : " left out",
                 name ? name : "");
        chat_builder_text(builder, to, texts, line, strlen(line));
        builder->num_left[i]++;
        return true;
    }
    return false;
}

int chat_builder_call(struct chat_builder *builder, const json_t *id, json_t *name,
                      json_t *arguments)
{
    if (!builder->calls)
        builder->calls = json_array();
    json_t *call = json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    if (json_array_append_new(builder->calls, call) ||
        json_object_set_new(builder->ids, json_string_value(id), json_true()))
        return request_no_memory(builder->err);
    return 0;
}

bool chat_builder_called(const struct chat_builder *builder, const char *id)
{
    return json_object_get(builder->ids, id) != NULL;
}

int chat_builder_result(struct chat_builder *builder, const json_t *id, const struct strbuf *text)
{
    json_t *result =
        json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", string_of(text));
    return json_array_append_new(builder->list, result) ? request_no_memory(builder->err) : 0;
}

void chat_builder_warn(const struct chat_builder *builder, struct reply_warnings *warnings)
{
    for (size_t i = 0; builder->left[i]; i++)
        if (builder->num_left[i] > 0)
            reply_warnings_add(warnings, WARNING_CONTENT,
                               "%s: %zu of %s: this model reads text; a line stands in the place "
                               "of each",
                               builder->field, builder->num_left[i], builder->left[i]);
}
