/* SPDX-License-Identifier: Apache-2.0 */
#include "api/translation.h"

#include "api/chat.h"
#include "api/reply_warnings.h"
#include "api/request.h"
#include "lib/jinja/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int translation_begin(struct translation *to, const char *body, size_t length,
                      const struct completion_limits *limits, struct api_error *err)
{
    *to = (struct translation){.length = length,
                               .limits = limits,
                               .systems = CHAT_SYSTEMS_ALL,
                               .max_tokens = -1,
                               .err = err};
    to->fields = request_load(body, length, err);
    if (!to->fields)
        return -1;
    to->chat = json_object();
    return to->chat ? 0 : request_no_memory(err);
}

void translation_end(struct translation *to)
{
    json_decref(to->fields);
    json_decref(to->chat);
}

int translation_parse(const struct translation *to, struct completion_request *request)
{
    char *text = NULL;
    size_t length;
    int result = request_dump(to->chat, &text, &length, to->err);
    if (result == 0)
        result = chat_parse_fields(request, to->chat, text, length, to->limits, to->err);
    free(text);
    request->max_tokens_fit = result == 0;
    return result;
}

int translation_count(const struct translation *to, struct tokenize_request *request)
{
    struct completion_prompt prompt = {0};
    if (chat_render(&prompt, NULL, to->chat, to->length, NULL, to->limits, to->err))
        return -1;
    request->prompt = prompt.text;
    request->length = prompt.length;
    request->input = prompt.input;
    if (request_salt(to->chat, &request->cache_salt, &request->cache_salt_length, to->err) == 0)
        return 0;
    tokenize_request_clear(request);
    return -1;
}

int translation_set(const struct translation *to, const char *name, json_t *value)
{
    return json_object_set_new(to->chat, name, value) ? request_no_memory(to->err) : 0;
}

void translation_find_template(struct translation *to)
{
    const struct chat_template *chat = to->limits->chat;
    const char *choice = json_string_value(json_object_get(to->chat, "tool_choice"));
    bool tools = json_object_get(to->chat, "tools") && !(choice && strcmp(choice, "none") == 0);
    if (!chat)
        return;
    to->template = tools && chat->with_tools ? chat->with_tools : chat->template;
    if (to->limits->syntax)
        to->systems = to->limits->syntax[to->template != chat->template].systems;
}

bool translation_takes(const struct translation *to, const char *name)
{
    return to->template && jinja_mentions(to->template, name);
}

int translation_think(const struct translation *to, bool enabled)
{
    static const char kwargs_name[] = "chat_template_kwargs", name[] = "enable_thinking";
    json_t *given = request_field(to->fields, kwargs_name);
    if (given && (!json_is_object(given) || json_object_get(given, name)))
        return 0; /* if it is none, a chat refuses it */
    json_t *kwargs = given ? json_copy(given) : json_object();
    if (json_object_set_new(kwargs, name, json_boolean(enabled))) {
        json_decref(kwargs);
        return request_no_memory(to->err);
    }
    return translation_set(to, kwargs_name, kwargs);
}

int translation_effort(const struct translation *to, const char *effort, const char *place)
{
    if (request_field(to->fields, "reasoning_effort"))
        return 0;
    if (translation_takes(to, "reasoning_effort"))
        return translation_set(to, "reasoning_effort", json_string(effort));
    reply_warnings_note(to->limits->warnings, WARNING_TEMPLATE,
                        "%s: the model's chat template has no place for it: the model does not see "
                        "it",
                        place);
    return 0;
}

int translation_object(const struct translation *to, const char *name, const json_t **object)
{
    *object = request_field(to->fields, name);
    return *object && !json_is_object(*object)
               ? request_wrong_type(to->err, name, "an object", *object)
               : 0;
}

bool translation_one_of(const char *word, const char *const *words)
{
    while (*words && strcmp(*words, word) != 0)
        words++;
    return *words != NULL;
}

int translation_word(const struct translation *to, const char *field, const char *name,
                     const char *const *words, const char *expected, const char **word)
{
    const json_t *given = request_field(request_field(to->fields, field), name);
    char place[96];
    snprintf(place, sizeof place, "%s.%s", field, name);
    *word = json_string_value(given);
    if (given && !*word)
        return api_error_set(to->err, API_INVALID_TYPE, field, "%s: expected %s, got %s", place,
                             expected, json_is_object(given) ? "an object" : "no string");
    if (*word && !translation_one_of(*word, words))
        return api_error_set(to->err, API_INVALID_VALUE, field, "%s: expected %s, got \"%.40s\"",
                             place, expected, *word);
    return 0;
}
