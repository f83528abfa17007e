/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat.h"

#include "api/chat_messages.h"
#include "api/chat_rules.h"
#include "api/parameters.h"
#include "api/request.h"
#include "engine/jinja/chat_template.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Tokens of a reply that names no number. */
enum { DEFAULT_MAX_TOKENS = 2048 };
/* What a rendering may take, and more for each byte of the request. */
enum { BASE_STEPS = 2 << 20, BASE_BYTES = 4 << 20, STEPS_OF_BYTE = 64, BYTES_OF_BYTE = 64 };

/* The template. */

/* Sets a variable that is a list, null if it is absent. */
static int take_list(json_t *context, const json_t *fields, const char *name, struct api_error *err)
{
    json_t *value = request_field(fields, name);
    if (value && !json_is_array(value))
        return request_wrong_type(err, name, "a list", value);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_object(json_array_get(value, i)))
            return api_error_set(err, API_INVALID_TYPE, name, "%s: item %zu: expected an object",
                                 name, i);
    return json_object_set(context, name, value ? value : json_null()) ? request_no_memory(err) : 0;
}

static int take_kwargs(json_t *context, const json_t *fields, struct api_error *err)
{
    static const char name[] = "chat_template_kwargs";
    json_t *kwargs = request_field(fields, name), *value;
    const char *key;
    if (kwargs && !json_is_object(kwargs))
        return request_wrong_type(err, name, "an object", kwargs);
    json_object_foreach(kwargs, key, value)
    {
        if (strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0)
            return api_error_set(err, API_INVALID_VALUE, name, "%s: %s is a field of the request",
                                 name, key);
        if (json_object_set(context, key, value))
            return request_no_memory(err);
    }
    return 0;
}

/* Tools that may be called. Some templates know them by another name. */
static int take_tools(json_t *context, const json_t *fields, const struct chat_template *chat,
                      struct api_error *err)
{
    static const char alias[] = "xml_tools";
    if (take_list(context, fields, "tools", err))
        return -1;
    if (!chat_rules_tools(fields))
        return json_object_set_new(context, "tools", json_null()) ? request_no_memory(err) : 0;
    if (!jinja_mentions(chat->with_tools ? chat->with_tools : chat->template, alias))
        return 0;
    return json_object_set(context, alias, json_object_get(context, "tools"))
               ? request_no_memory(err)
               : 0;
}

/* All that the template sees but the messages. */
static int take_variables(json_t *context, const json_t *fields, bool generation,
                          const struct chat_template *chat, struct api_error *err)
{
    json_t *effort = request_field(fields, "reasoning_effort");
    if (take_tools(context, fields, chat, err) || take_list(context, fields, "documents", err))
        return -1;
    if (json_object_set_new(context, "add_generation_prompt", json_boolean(generation)) ||
        (chat->bos_token &&
         json_object_set_new(context, "bos_token", json_string(chat->bos_token))) ||
        (chat->eos_token &&
         json_object_set_new(context, "eos_token", json_string(chat->eos_token))) ||
        (effort && json_object_set(context, "reasoning_effort", effort)))
        return request_no_memory(err);
    return take_kwargs(context, fields, err);
}

/* Makes what the template sees, and chooses the template. */
static int make_context(json_t *context, const struct jinja **template, const json_t *fields,
                        bool continues, const struct chat_template *chat, struct api_error *err)
{
    bool generation = !continues;
    if (request_bool(fields, "add_generation_prompt", &generation, err))
        return -1;
    if (generation && continues)
        return api_error_set(err, API_INVALID_VALUE, "continue_final_message",
                             "continue_final_message is not allowed with add_generation_prompt");
    if (take_variables(context, fields, generation, chat, err))
        return -1;
    bool tools = json_array_size(json_object_get(context, "tools")) > 0;
    *template = tools && chat->with_tools ? chat->with_tools : chat->template;
    json_t *messages = chat_messages(request_field(fields, "messages"),
                                     jinja_mentions(*template, "text"), continues, err);
    if (!messages)
        return -1;
    return json_object_set_new(context, "messages", messages) ? request_no_memory(err) : 0;
}

/* The memory of a rendering. */
struct rendering {
    int64_t held, refused; /* refused: what it would have held; 0: all was there */
};

static bool reserve(void *context, int64_t bytes)
{
    struct rendering *rendering = context;
    if (!request_reserve_memory(bytes)) {
        rendering->refused = rendering->held + bytes;
        return false;
    }
    rendering->held += bytes;
    return true;
}

static int run_template(char **text, size_t *text_length, const json_t *context, size_t length,
                        const struct jinja *template, struct api_error *err)
{
    struct error error = ERROR_INIT;
    struct rendering rendering = {0};
    struct jinja_limits limits = {.steps = BASE_STEPS + STEPS_OF_BYTE * (int64_t)length,
                                  .memory = BASE_BYTES + BYTES_OF_BYTE * length,
                                  .reserve = reserve,
                                  .context = &rendering};
    int result =
        jinja_render(template, context, &limits, (int64_t)time(NULL), text, text_length, &error);
    if (result && !request_memory_possible(rendering.refused))
        return api_error_set(err, API_BODY_TOO_LARGE, "messages",
                             "messages: the template takes %lld bytes or more, more than "
                             "--max-body-memory",
                             (long long)rendering.refused);
    return result ? api_error_from_engine(err, &error, "messages") : 0;
}

static int check_template(const struct chat_template *chat, struct api_error *err)
{
    if (chat && chat->template)
        return 0;
    return api_error_set(err, API_UNSUPPORTED, "messages", "messages: %s",
                         chat ? chat->why : "this model has no tokenizer, so no chat template");
}

int chat_render(char **text, size_t *text_length, struct chat_rules **rules, const json_t *fields,
                size_t length, const struct completion_limits *limits, struct api_error *err)
{
    const struct jinja *template = NULL;
    bool continues = false;
    *text = NULL;
    if (check_template(limits->chat, err) ||
        request_bool(fields, "continue_final_message", &continues, err))
        return -1;
    json_t *context = json_object();
    int result = context ? make_context(context, &template, fields, continues, limits->chat, err)
                         : request_no_memory(err);
    if (result == 0)
        result = run_template(text, text_length, context, length, template, err);
    if (result == 0 && continues)
        result = chat_messages_cut(*text, text_length, err);
    if (result == 0 && rules)
        result = chat_rules_make(rules, fields, *text, *text_length, continues,
                                 &limits->syntax[template != limits->chat->template],
                                 limits->reasoning, err);
    json_decref(context);
    if (result) {
        free(*text);
        *text = NULL;
    }
    return result;
}

/* The request. */

/* {logprobs: true, top_logprobs: k} is k of a completion request. */
static int take_logprobs(json_t *plain, const json_t *fields, struct api_error *err)
{
    bool wanted = false;
    int64_t top = -1;
    if (request_bool(fields, "logprobs", &wanted, err) ||
        request_int(fields, "top_logprobs", 0, SAMPLER_MOST_TOP, &top, err))
        return -1;
    if (top > 0 && !wanted)
        return api_error_set(err, API_INVALID_VALUE, "top_logprobs",
                             "top_logprobs is only allowed with logprobs");
    if (!wanted)
        return 0;
    return json_object_set_new(plain, "logprobs", json_integer(top > 0 ? top : 0))
               ? request_no_memory(err)
               : 0;
}

/* Makes of the copy `plain` the fields of a completion request. */
static int make_plain(json_t *plain, struct chat_rules **rules, const json_t *fields, size_t length,
                      const struct completion_limits *limits, struct api_error *err)
{
    char *text;
    size_t text_length;
    parameters_drop_chat(plain);
    if (take_logprobs(plain, fields, err) ||
        chat_render(&text, &text_length, rules, fields, length, limits, err))
        return -1;
    int failed = json_object_set_new(plain, "prompt", json_stringn(text, text_length));
    free(text);
    if (!failed && !request_field(plain, "add_special_tokens"))
        failed = json_object_set_new(plain, "add_special_tokens", json_false());
    return failed ? request_no_memory(err) : 0;
}

static int take_default_length(json_t *plain, struct api_error *err)
{
    int64_t least = 0;
    if (request_int(plain, "min_tokens", 0, INT64_MAX, &least, err))
        return -1;
    int64_t most = least > DEFAULT_MAX_TOKENS ? least : DEFAULT_MAX_TOKENS;
    return json_object_set_new(plain, "max_tokens", json_integer(most)) ? request_no_memory(err)
                                                                        : 0;
}

static int parse(struct completion_request *request, const json_t *fields, size_t length,
                 const struct completion_limits *limits, struct api_error *err)
{
    if (request_model(fields, limits->models, limits->num_models, err) ||
        parameters_check_chat(fields, err))
        return -1;
    struct chat_rules *rules = NULL;
    json_t *plain = json_copy((json_t *)fields);
    if (!plain)
        return request_no_memory(err);
    bool any_length =
        !request_field(fields, "max_tokens") && !request_field(fields, "max_completion_tokens");
    int result = any_length ? take_default_length(plain, err) : 0;
    if (result == 0)
        result = make_plain(plain, &rules, fields, length, limits, err);
    if (result == 0)
        result = completion_parse_fields(request, plain, limits, err);
    json_decref(plain);
    if (result) {
        chat_rules_free(rules);
        return -1;
    }
    request->max_tokens_fit = any_length;
    request->chat = rules;
    return 0;
}

int chat_parse(struct completion_request *request, const char *body, size_t length,
               const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct completion_request){0};
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return -1;
    int result = parse(request, fields, length, limits, err);
    json_decref(fields);
    return result;
}
