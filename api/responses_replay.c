/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_replay.h"

#include "api/request.h"
#include "api/responses_echo.h"
#include "api/responses_stream.h"
#include "api/responses_tools.h"
#include "api/responses_turns.h"

#include <stdlib.h>
#include <string.h>

/* A response on its way to events. */
struct replay {
    struct strbuf *out;
    json_t *object;
    const json_t *told; /* NULL: it had no stream */
    struct reply_head head;
    struct reply_blocks blocks;
    size_t items, calls; /* that were told */
    struct api_error *err;
};

static int damaged(struct api_error *err)
{
    return api_error_set(err, API_INTERNAL, NULL,
                         "what the response keeps of its stream is damaged");
}

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

/* ---- what a stream says of its request ---- */

/* By what the chat called a call: [name, namespace, whether it is custom]; NULL: by its name. */
static json_t *called_as(const json_t *item, bool custom)
{
    const json_t *space = json_object_get(item, "namespace");
    return space || custom ? json_pack("[O,O?,b]", json_object_get(item, "name"), space, custom)
                           : NULL;
}

static bool is_call(const json_t *item, bool *custom)
{
    const char *type = text_of(item, "type");
    *custom = type && strcmp(type, "custom_tool_call") == 0;
    return *custom || (type && strcmp(type, "function_call") == 0);
}

/* The name by which the chat called it. */
static json_t *called_of(const json_t *item)
{
    json_t *name = json_object_get(item, "name"), *space = json_object_get(item, "namespace");
    return json_is_string(name) ? responses_tools_called(json_is_string(space) ? space : NULL, name)
                                : NULL;
}

static int add_tool(json_t *tools, const json_t *called, json_t *tool)
{
    const char *name = json_string_value(called);
    if (!tool || !name)
        return 0;
    return json_object_set(tools, name, tool);
}

/* The tools that its calls name otherwise than the chat did. */
static int gather_tools(struct replay *replay, json_t *tools)
{
    const json_t *output = json_object_get(replay->object, "output");
    int failed = 0;
    bool custom;
    for (size_t i = 0; i < json_array_size(output) && !failed; i++) {
        const json_t *item = json_array_get(output, i);
        if (!is_call(item, &custom))
            continue;
        json_t *called = called_of(item), *tool = called_as(item, custom);
        failed = !called || add_tool(tools, called, tool);
        json_decref(called);
        json_decref(tool);
    }
    for (size_t i = 0; i < json_array_size(replay->told) && !failed; i++) {
        const json_t *cut = json_array_get(replay->told, i);
        failed = add_tool(tools, json_object_get(cut, "called"), json_object_get(cut, "tool"));
    }
    return failed ? request_no_memory(replay->err) : 0;
}

/* What the object has of its request: all but what is said of the reply. */
static json_t *members_of(const json_t *object)
{
    static const char *const OWN[] = {
        "id",     "object", "created_at",         "status", "error",   "completed_at",
        "output", "model",  "incomplete_details", "usage",  "warnings"};
    json_t *members = json_copy((json_t *)object);
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++)
        json_object_del(members, OWN[i]);
    return members;
}

/* Whether its thoughts were sealed. */
static bool seals(const json_t *object)
{
    const json_t *output = json_object_get(object, "output");
    for (size_t i = 0; i < json_array_size(output); i++)
        if (text_of(json_array_get(output, i), "encrypted_content"))
            return true;
    return false;
}

static int make_head(struct replay *replay)
{
    const json_t *object = replay->object;
    json_t *members = members_of(object), *tools = json_object();
    struct responses_echo *echo = NULL;
    int result = members && tools ? gather_tools(replay, tools) : request_no_memory(replay->err);
    if (result == 0)
        echo = responses_echo_make(members, tools, replay->err);
    json_decref(members);
    json_decref(tools);
    if (!echo)
        return -1;
    echo->seals = seals(object);
    replay->head =
        (struct reply_head){.id = text_of(object, "id"),
                            .created = json_integer_value(json_object_get(object, "created_at")),
                            .model = text_of(object, "model"),
                            .echo = echo};
    return replay->head.id ? 0 : damaged(replay->err);
}

/* ---- items ---- */

/* The next `bytes` of a text from *at on. -1: it has no more. */
static int next_delta(const json_t *text, size_t bytes, size_t *at, const char **delta)
{
    if (bytes > json_string_length(text) - *at)
        return -1;
    *delta = json_string_value(text) + *at;
    *at += bytes;
    return 0;
}

/* Tells a text in its deltas: of an item by `part`, of a call where that is REPLY_CALL. */
static int tell_deltas(struct replay *replay, enum reply_part part, const json_t *text,
                       const json_t *deltas)
{
    size_t at = 0;
    const char *delta;
    for (size_t i = 0; i < json_array_size(deltas); i++) {
        json_int_t bytes = json_integer_value(json_array_get(deltas, i));
        if (bytes < 0 || next_delta(text, (size_t)bytes, &at, &delta))
            return damaged(replay->err);
        if (part == REPLY_CALL)
            responses_call_events(replay->out, &replay->head, &replay->blocks,
                                  &(struct chat_call){.arguments = (char *)delta,
                                                      .arguments_length = (size_t)bytes,
                                                      .open = true},
                                  replay->calls);
        else
            responses_part_events(replay->out, &replay->head, &replay->blocks, part, delta,
                                  (size_t)bytes);
    }
    return at == json_string_length(text) ? 0 : damaged(replay->err);
}

static int tell_part(struct replay *replay, const json_t *item, const json_t *deltas)
{
    const char *type = text_of(item, "type");
    const json_t *part = json_array_get(json_object_get(item, "content"), 0);
    const json_t *text = json_object_get(part, "text");
    if (!type || !json_is_string(text))
        return damaged(replay->err);
    return tell_deltas(replay, strcmp(type, "reasoning") == 0 ? REPLY_THOUGHT : REPLY_TEXT, text,
                       deltas);
}

/* A call's name, its deltas, its end. arguments: where they are told without deltas. */
static int tell_call(struct replay *replay, const json_t *called, const json_t *told,
                     const json_t *deltas, const json_t *arguments, bool cut)
{
    struct chat_call call = {.name = (char *)json_string_value(called),
                             .name_length = json_string_length(called),
                             .open = true};
    if (!call.name)
        return damaged(replay->err);
    responses_call_events(replay->out, &replay->head, &replay->blocks, &call, replay->calls);
    if (told && tell_deltas(replay, REPLY_CALL, told, deltas))
        return -1;
    call = (struct chat_call){.arguments = (char *)json_string_value(arguments),
                              .arguments_length = json_string_length(arguments),
                              .cut = cut};
    responses_call_events(replay->out, &replay->head, &replay->blocks, &call, replay->calls);
    replay->calls++;
    return 0;
}

/* The arguments of a custom tool as the model writes them: they hold its text. */
static json_t *wrap(const json_t *input)
{
    char *text = NULL;
    size_t length;
    struct api_error err = {0};
    json_t *object = json_pack("{s:O}", RESPONSES_CUSTOM_ARGUMENT, input);
    json_t *wrapped = object && request_dump(object, &text, &length, &err) == 0
                          ? json_stringn(text, length)
                          : NULL;
    free(text);
    json_decref(object);
    return wrapped;
}

static int tell_item(struct replay *replay, const json_t *item, const json_t *deltas)
{
    bool custom;
    if (!is_call(item, &custom))
        return tell_part(replay, item, deltas);
    const json_t *text = json_object_get(item, custom ? "input" : "arguments");
    json_t *called = called_of(item), *wrapped = custom ? wrap(text) : NULL;
    int result = called && (wrapped || !custom)
                     ? tell_call(replay, called, custom ? NULL : text, deltas, wrapped, false)
                     : request_no_memory(replay->err);
    json_decref(called);
    json_decref(wrapped);
    return result;
}

/* One that had no stream: all of a text is a delta. */
static json_t *whole(const json_t *item)
{
    bool custom;
    const json_t *part = json_array_get(json_object_get(item, "content"), 0);
    const json_t *text = json_object_get(is_call(item, &custom) ? item : part,
                                         is_call(item, &custom) ? "arguments" : "text");
    size_t bytes = json_string_length(text);
    return bytes > 0 ? json_pack("[I]", (json_int_t)bytes) : json_array();
}

static int tell_items(struct replay *replay)
{
    const json_t *output = json_object_get(replay->object, "output");
    size_t count = json_array_size(replay->told ? replay->told : output);
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        const json_t *told = json_array_get(replay->told, i);
        const json_t *text = json_object_get(told, "arguments");
        if (json_is_object(told)) {
            result = tell_call(replay, json_object_get(told, "called"), text,
                               json_object_get(told, "deltas"), NULL, true);
            continue;
        }
        const json_t *item = json_array_get(output, replay->items++);
        json_t *deltas = replay->told ? json_incref((json_t *)told) : whole(item);
        result = deltas ? tell_item(replay, item, deltas) : request_no_memory(replay->err);
        json_decref(deltas);
    }
    return result == 0 && replay->items != json_array_size(output) ? damaged(replay->err) : result;
}

/* ---- the stream ---- */

static enum finish_reason finish_of(const char *status)
{
    return strcmp(status, responses_status_name(RESPONSES_COMPLETED)) == 0    ? FINISH_STOP
           : strcmp(status, responses_status_name(RESPONSES_INCOMPLETE)) == 0 ? FINISH_LENGTH
                                                                              : FINISH_NONE;
}

/* The last event has the object byte for byte. */
static int tell(struct replay *replay, const char *object, size_t length)
{
    const struct sse_stream stream = {&replay->head, &replay->blocks, NULL};
    const char *status = text_of(replay->object, "status");
    if (!status)
        return damaged(replay->err);
    responses_pause_events(replay->out, &stream);
    if (tell_items(replay))
        return -1;
    enum finish_reason finish = finish_of(status);
    responses_finish_events(replay->out, &replay->head, &replay->blocks, finish);
    responses_event_begin(replay->out, &replay->blocks,
                          finish == FINISH_STOP ? "response.completed" : "response.incomplete");
    strbuf_puts(replay->out, ",\"response\":");
    strbuf_append(replay->out, object, length);
    responses_event_end(replay->out);
    return replay->out->failed || replay->blocks.text.failed || replay->blocks.output.failed
               ? request_no_memory(replay->err)
               : 0;
}

/* Each event ends with an empty line, and has no other. */
void responses_drop_events(struct strbuf *out, size_t from, int64_t count)
{
    static const char END[] = "\n\n";
    size_t at = from;
    for (; count > 0 && at < out->length; count--) {
        const char *end = memmem(out->data + at, out->length - at, END, sizeof END - 1);
        at = end ? (size_t)(end - out->data) + sizeof END - 1 : out->length;
    }
    if (at == from) /* also of no buffer */
        return;
    memmove(out->data + from, out->data + at, out->length - at);
    out->length -= at - from;
}

int responses_replay(struct strbuf *out, const char *turns, size_t length, int64_t after,
                     struct api_error *err)
{
    const char *object;
    size_t object_length, from = out->length;
    int64_t events;
    struct replay replay = {.out = out, .err = err};
    if (responses_turns_object(turns, length, &object, &object_length, &events, err))
        return -1;
    json_t *line = responses_turns_line(turns, length, err);
    if (!line)
        return -1;
    replay.object = json_object_get(line, "response");
    replay.told = events > 0 ? json_object_get(line, "told") : NULL;
    int result = make_head(&replay);
    if (result == 0)
        result = tell(&replay, object, object_length);
    if (result == 0 && events > 0 && replay.blocks.events != events)
        result = damaged(err);
    if (result == 0)
        responses_drop_events(out, from, after + 1);
    responses_echo_free((struct responses_echo *)replay.head.echo);
    reply_blocks_clear(&replay.blocks);
    json_decref(line);
    return result;
}

size_t responses_replay_bytes(size_t object_length, int64_t events)
{
    enum { OBJECTS = 8, EVENT_BYTES = 256 };
    return OBJECTS * object_length + (size_t)events * EVENT_BYTES;
}
