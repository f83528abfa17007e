/* SPDX-License-Identifier: Apache-2.0 */
#include "api/responses_turns.h"

#include "api/request.h"
#include "api/responses_items.h"
#include "api/sessions.h"
#include "api/translation.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int damaged(struct api_error *err)
{
    return api_error_set(err, API_INTERNAL, NULL, "the turns that the response keeps are damaged");
}

/* ---- writing ---- */

/* Of the last turn in its object; of those before beside their input. */
static json_t *output_of(const json_t *line)
{
    const json_t *response = json_object_get(line, "response");
    return json_object_get(response ? response : line, "output");
}

/* The line of a turn that another now follows: its items are enough. */
static int append_items(struct strbuf *out, const char *text, size_t length, struct api_error *err)
{
    char *kept = NULL;
    size_t bytes = 0;
    json_t *line = request_load_dump(text, length, err);
    if (!line)
        return -1;
    json_t *output = output_of(line);
    json_t *items =
        json_pack("{s:O,s:O}", "input", json_object_get(line, "input"), "output", output);
    int result = items ? request_dump(items, &kept, &bytes, err) : damaged(err);
    strbuf_append(out, kept ? kept : "", bytes);
    strbuf_puts(out, "\n");
    free(kept);
    json_decref(items);
    json_decref(line);
    return result;
}

int responses_turns_inherit(struct strbuf *out, const char *turns, size_t length, int64_t position,
                            struct api_error *err)
{
    struct chat_turn turn;
    struct chat_turns_text text;
    int result = 0;
    for (size_t at = 0; at < length && result == 0;) {
        if (chat_turns_next(turns, length, &at, &turn, &text))
            return damaged(err);
        turn.position = position;
        chat_turns_head(out, &turn);
        result = append_items(out, text.bytes, text.length, err);
    }
    return result == 0 && out->failed ? request_no_memory(err) : result;
}

int responses_turns_write(struct strbuf *out, const struct chat_turn *turn,
                          const struct responses_echo *asked,
                          const struct responses_telling *telling, struct api_error *err)
{
    char *input = NULL;
    size_t bytes;
    json_t *fields = request_load_dump(asked->asked, asked->asked_length, err);
    if (!fields)
        return -1;
    json_t *items = json_object_get(fields, "input");
    json_t *line = json_pack("{s:O}", "input", items);
    int result = line ? request_dump(line, &input, &bytes, err) : request_no_memory(err);
    json_decref(line);
    json_decref(fields);
    if (result)
        return -1;
    chat_turns_head(out, turn);
    strbuf_printf(out, "{\"bytes\":%zu,\"events\":%lld,\"response\":", telling->length,
                  (long long)telling->events);
    strbuf_append(out, telling->object, telling->length);
    strbuf_puts(out, ",\"told\":[");
    strbuf_append(out, telling->told->data, telling->told->length);
    strbuf_puts(out, "],");
    strbuf_append(out, input + 1, bytes - 1); /* without the brace */
    strbuf_puts(out, "\n");
    free(input);
    return out->failed ? request_no_memory(err) : 0;
}

/* ---- going on ---- */

static int add_items(json_t *items, json_t *input, json_t *output, struct api_error *err)
{
    int failed = json_is_array(input)
                     ? json_array_extend(items, input)
                     : json_array_append_new(
                           items, json_pack("{s:s,s:O}", "role", "user", "content", input));
    if (!failed && output)
        failed = json_array_extend(items, output);
    return failed ? request_no_memory(err) : 0;
}

static int add_turns(json_t *items, const char *turns, size_t length, struct api_error *err)
{
    struct chat_turn turn;
    struct chat_turns_text text;
    int result = 0;
    for (size_t at = 0; at < length && result == 0;) {
        if (chat_turns_next(turns, length, &at, &turn, &text))
            return damaged(err);
        json_t *line = request_load_dump(text.bytes, text.length, err);
        json_t *input = json_object_get(line, "input");
        json_t *output = output_of(line);
        result = line && input && output ? add_items(items, input, output, err) : damaged(err);
        json_decref(line);
    }
    return result;
}

/* The messages of all items, as the template of the chat takes them. */
static json_t *messages_of(json_t *chat, json_t *items, const json_t *instructions,
                           const struct completion_limits *limits, struct api_error *err)
{
    struct translation to = {
        .chat = chat, .limits = limits, .systems = CHAT_SYSTEMS_ALL, .max_tokens = -1, .err = err};
    translation_find_template(&to);
    const struct responses_template template = {.systems = to.systems,
                                                .developer = translation_takes(&to, "developer")};
    return responses_items(instructions, items, &template, limits->warnings, err);
}

int responses_turns_gather(struct completion_string *body, const char *turns, size_t length,
                           const struct responses_echo *asked,
                           const struct completion_limits *limits, struct api_error *err)
{
    char *text;
    size_t bytes;
    json_t *chat = request_load_dump(body->text, body->length, err);
    json_t *fields = chat ? request_load_dump(asked->asked, asked->asked_length, err) : NULL;
    json_t *items = fields ? json_array() : NULL, *messages = NULL;
    int result = items ? add_turns(items, turns, length, err) : request_no_memory(err);
    if (result == 0)
        result = add_items(items, json_object_get(fields, "input"), NULL, err);
    if (result == 0)
        messages = messages_of(chat, items, request_field(fields, "instructions"), limits, err);
    result = -1;
    if (messages)
        result = json_object_set_new(chat, "messages", messages)
                     ? request_no_memory(err)
                     : request_dump(chat, &text, &bytes, err);
    if (result == 0) {
        free(body->text);
        *body = (struct completion_string){text, bytes};
    }
    json_decref(items);
    json_decref(fields);
    json_decref(chat);
    return result;
}

/* ---- reading ---- */

/* The last turn's line. */
static int find_last(const char *turns, size_t length, struct chat_turns_text *text,
                     struct api_error *err)
{
    struct chat_turn turn;
    *text = (struct chat_turns_text){0};
    for (size_t at = 0; at < length;)
        if (chat_turns_next(turns, length, &at, &turn, text))
            return damaged(err);
    return text->bytes ? 0 : damaged(err);
}

int responses_turns_object(const char *turns, size_t length, const char **object,
                           size_t *object_length, int64_t *events, struct api_error *err)
{
    enum { MOST_HEAD = 80 };
    struct chat_turns_text text;
    char head[MOST_HEAD + 1] = "";
    int used = 0;
    if (find_last(turns, length, &text, err))
        return -1;
    memcpy(head, text.bytes, text.length < MOST_HEAD ? text.length : MOST_HEAD);
    if (sscanf(head, "{\"bytes\":%zu,\"events\":%" SCNd64 ",\"response\":%n", object_length, events,
               &used) != 2) { /* kept by a server that noted no events */
        *events = 0;
        used = 0;
        if (sscanf(head, "{\"bytes\":%zu,\"response\":%n", object_length, &used) != 1)
            return damaged(err);
    }
    if (used == 0 || *object_length > text.length - (size_t)used)
        return damaged(err);
    *object = text.bytes + used;
    return 0;
}

json_t *responses_turns_line(const char *turns, size_t length, struct api_error *err)
{
    struct chat_turns_text text;
    return find_last(turns, length, &text, err) ? NULL
                                                : request_load_dump(text.bytes, text.length, err);
}

/* What the ids of the items of a type begin with. */
static const char *id_prefix(const char *type)
{
    static const struct {
        const char *type, *prefix;
    } TYPES[] = {{"reasoning", "rs"},
                 {"function_call", "fc"},
                 {"custom_tool_call", "ctc"},
                 {"function_call_output", "fco"},
                 {"custom_tool_call_output", "ctco"}};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(type, TYPES[i].type) == 0)
            return TYPES[i].prefix;
    return "msg";
}

/* A text becomes a list of parts, as replies have them. */
static int spread_content(json_t *item)
{
    json_t *content = json_object_get(item, "content");
    const char *role = json_string_value(json_object_get(item, "role"));
    bool said = role && strcmp(role, "assistant") == 0;
    if (!role || !json_is_string(content))
        return 0;
    json_t *part =
        said ? json_pack("{s:s,s:O,s:[]}", "type", "output_text", "text", content, "annotations")
             : json_pack("{s:s,s:O}", "type", "input_text", "text", content);
    return json_object_set_new(item, "content", json_pack("[o]", part));
}

/* Fills in what a client may leave out. */
static int complete(json_t *item, const char *id, size_t index)
{
    char own[160];
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *bare = id + strlen(RESPONSES_ID_PREFIX);
    if (!type && json_object_set_new(item, "type", json_string("message")))
        return -1;
    snprintf(own, sizeof own, "%s_%.100s_in_%zu", id_prefix(type ? type : "message"), bare, index);
    if (!request_field(item, "id") && json_object_set_new(item, "id", json_string(own)))
        return -1;
    if (!request_field(item, "status") &&
        json_object_set_new(item, "status", json_string("completed")))
        return -1;
    return spread_content(item);
}

int responses_turns_asked(const char *turns, size_t length, const char **asked,
                          size_t *asked_length, struct api_error *err)
{
    struct chat_turns_text text;
    int result = find_last(turns, length, &text, err);
    *asked = text.bytes;
    *asked_length = text.length;
    return result;
}

json_t *responses_turns_input(const char *asked, size_t length, const char *id,
                              struct api_error *err)
{
    json_t *line = request_load_dump(asked, length, err);
    if (!line)
        return NULL;
    json_t *items = json_array();
    json_t *input = json_object_get(line, "input");
    int failed = !input || !items || add_items(items, input, NULL, err);
    for (size_t i = 0; i < json_array_size(items) && !failed; i++)
        failed = complete(json_array_get(items, i), id, i);
    json_decref(line);
    if (!failed)
        return items;
    json_decref(items);
    request_no_memory(err);
    return NULL;
}
