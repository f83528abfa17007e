/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_rules.h"

#include "api/chat_calls.h"
#include "api/chat_messages.h"
#include "api/request.h"

#include <stdlib.h>
#include <string.h>

int chat_rules_check_tools(const json_t *fields, struct api_error *err)
{
    static const char name[] = "tools";
    const json_t *tools = request_field(fields, name);
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_object_get(json_array_get(tools, i), CHAT_TOOL_APART))
            return api_error_set(err, API_UNSUPPORTED, name,
                                 "tools[%zu]: \"" CHAT_TOOL_APART "\" is not a client's word", i);
    return 0;
}

bool chat_rules_tools(const json_t *fields)
{
    const char *choice = json_string_value(request_field(fields, "tool_choice"));
    return json_array_size(request_field(fields, "tools")) > 0 &&
           !(choice && strcmp(choice, "none") == 0);
}

/* The text at the end of the last message. */
static const json_t *last_text(const json_t *fields)
{
    const json_t *messages = request_field(fields, "messages");
    const json_t *message = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(message, "content");
    if (!json_is_array(content))
        return content;
    return chat_messages_part_text(json_array_get(content, json_array_size(content) - 1));
}

/* Whether the last marker opens; *behind is where the text behind it begins. */
static bool opens(const char *text, size_t length, const struct chat_markers *markers,
                  size_t *behind)
{
    size_t open = strlen(markers->open), close = strlen(markers->close);
    for (size_t at = length; at-- > 0;) {
        if (at + close <= length && memcmp(text + at, markers->close, close) == 0)
            return false;
        *behind = at + open;
        if (*behind <= length && memcmp(text + at, markers->open, open) == 0)
            return true;
    }
    return false;
}

/* Whether the prompt ends inside reasoning: nothing follows its opening marker, or only what the
 * last message has, where that goes on. A marker that a user wrote is followed by more. */
static bool ends_inside(const json_t *fields, const char *text, size_t length, bool continues,
                        const struct chat_markers *markers)
{
    size_t behind;
    if (!opens(text, length, markers, &behind))
        return false;
    size_t at = chat_calls_skip(text, length, behind);
    if (at == length || !continues)
        return at == length;
    const json_t *last = last_text(fields);
    const char *content = json_string_value(last);
    size_t own = chat_calls_trim(content, 0, json_string_length(last)); /* as templates trim it */
    size_t rest = chat_calls_trim(text, at, length) - at;
    return rest <= own && memcmp(content + own - rest, text + at, rest) == 0;
}

/* Whether the text ends with the marker, and perhaps white space. */
static bool ends_with(const char *text, size_t length, const char *marker)
{
    size_t end = chat_calls_trim(text, 0, length), size = strlen(marker);
    return size > 0 && end >= size && memcmp(text + end - size, marker, size) == 0;
}

static void keep(struct chat_rules *rules, const int32_t *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++)
        rules->kept[rules->num_kept++] = tokens[i];
}

/* Values in XML have no types but these. Others stay as they are written where a schema asks too
 * much. */
static int take_types(struct chat_rules *rules, const json_t *fields, struct api_error *err)
{
    struct api_error own = {0};
    if (chat_types_take(&rules->types, request_field(fields, "tools"), &own) == 0)
        return 0;
    if (chat_words(rules->syntax->format)->kind != CHAT_KIND_XML && own.code != API_OUT_OF_MEMORY) {
        chat_types_clear(&rules->types);
        return 0;
    }
    *err = own;
    return -1;
}

static int fill(struct chat_rules *rules, const json_t *fields, const char *text, size_t length,
                bool continues, struct api_error *err)
{
    const struct chat_syntax *syntax = rules->syntax;
    bool several = true, told = true;
    if (request_bool(fields, "parallel_tool_calls", &several, err) ||
        request_bool(fields, "include_reasoning", &told, err))
        return -1;
    rules->one_call = !several;
    rules->hide_reasoning = !told;
    rules->calls = syntax->format != CHAT_CALLS_NONE && chat_rules_tools(fields);
    if (rules->calls && take_types(rules, fields, err))
        return -1;
    if (rules->calls || syntax->channels)
        keep(rules, syntax->call_tokens, syntax->num_call_tokens);
    /* Also where reasoning stays in the content. */
    keep(rules, syntax->reasoning_tokens, syntax->num_reasoning_tokens);
    rules->inside =
        rules->reasoning && ends_inside(fields, text, length, continues, &syntax->reasoning);
    rules->answering = syntax->channels && continues && !rules->inside;
    rules->demand.begun = rules->inside;
    rules->demand.may_open =
        rules->reasoning && !rules->inside && !continues &&
        (syntax->channels || !ends_with(text, length, syntax->reasoning.close));
    rules->demand.heads = syntax->channels && !rules->answering;
    return chat_demand_read(&rules->demand, fields, syntax, rules->one_call, err);
}

int chat_rules_make(struct chat_rules **out, const json_t *fields, const char *text, size_t length,
                    bool continues, const struct chat_syntax *syntax, bool reasoning,
                    struct api_error *err)
{
    struct chat_rules *rules = calloc(1, sizeof *rules);
    *out = NULL;
    if (!rules)
        return request_no_memory(err);
    rules->syntax = syntax;
    rules->reasoning = reasoning && *syntax->reasoning.open;
    if (fill(rules, fields, text, length, continues, err)) {
        chat_rules_free(rules);
        return -1;
    }
    *out = rules;
    return 0;
}

void chat_rules_free(struct chat_rules *rules)
{
    if (!rules)
        return;
    chat_types_clear(&rules->types);
    chat_demand_clear(&rules->demand);
    free(rules);
}
