/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat.h"

#include "api/chat_messages.h"
#include "api/chat_past.h"
#include "api/chat_rules.h"
#include "api/chat_thinking.h"
#include "api/parameters.h"
#include "api/reply_warnings.h"
#include "api/request.h"
#include "lib/jinja/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a rendering may take, and more for each byte of the request. */
enum { BASE_STEPS = 2 << 20, BASE_BYTES = 4 << 20, STEPS_OF_BYTE = 64, BYTES_OF_BYTE = 64 };
static const double BASE_SECONDS = 0.25, SECONDS_OF_BYTE = 0.5e-6;

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

/* Some templates know tools by another name. */
static const char TOOLS_ALIAS[] = "xml_tools";

/* Takes those out that a message shows. */
static int part_tools(json_t *context)
{
    const json_t *tools = json_object_get(context, "tools");
    json_t *shown = json_array();
    int failed = !shown;
    for (size_t i = 0; i < json_array_size(tools) && !failed; i++) {
        json_t *tool = json_array_get(tools, i);
        failed = !json_object_get(tool, CHAT_TOOL_APART) && json_array_append(shown, tool);
    }
    if (!failed && json_array_size(shown) < json_array_size(tools))
        failed = json_object_set(context, "tools", shown);
    json_decref(shown);
    return failed;
}

/* Tools that may be called. */
static int take_tools(json_t *context, const json_t *fields, const struct chat_template *chat,
                      struct api_error *err)
{
    if (take_list(context, fields, "tools", err))
        return -1;
    if (!chat_rules_tools(fields))
        return json_object_set_new(context, "tools", json_null()) ? request_no_memory(err) : 0;
    json_t *seen = chat_demand_tools(fields, err);
    if (!seen || json_object_set_new(context, "tools", seen))
        return seen ? request_no_memory(err) : -1;
    if (part_tools(context))
        return request_no_memory(err);
    if (!jinja_mentions(chat->with_tools ? chat->with_tools : chat->template, TOOLS_ALIAS))
        return 0;
    return json_object_set(context, TOOLS_ALIAS, json_object_get(context, "tools"))
               ? request_no_memory(err)
               : 0;
}

/* gpt-oss's template joins to what a function's description is: without one it would refuse. */
static int describe_tools(json_t *context, struct api_error *err)
{
    static const char name[] = "description";
    json_t *tools = json_object_get(context, "tools"), *described = json_array();
    bool failed = !described;
    for (size_t i = 0; i < json_array_size(tools) && !failed; i++) {
        json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        if (!json_is_object(function) || json_is_string(json_object_get(function, name))) {
            failed = json_array_append(described, tool);
            continue;
        }
        tool = json_copy(tool);
        function = json_copy(function);
        failed = json_object_set_new(function, name, json_string("")) ||
                 json_object_set(tool, "function", function) || json_array_append(described, tool);
        json_decref(function);
        json_decref(tool);
    }
    failed = failed || (tools && json_object_set(context, "tools", described));
    json_decref(described);
    return failed ? request_no_memory(err) : 0;
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

static void warn_untaken(const char *field, const char *name, const struct jinja *template,
                         struct reply_warnings *warnings)
{
    if (!jinja_mentions(template, name))
        reply_warnings_add(warnings, WARNING_TEMPLATE,
                           "%s: the model's chat template has no place for it: the model does not "
                           "see it",
                           field);
}

/* Warns of what a request has for its template, which does not take it. */
static void warn_of_template(const json_t *fields, const struct jinja *template,
                             struct reply_warnings *warnings)
{
    enum { MOST_VARIABLES = 64, FIELD_BYTES = 100 }; /* variables: how many are looked for */
    const json_t *documents = request_field(fields, "documents");
    json_t *kwargs = request_field(fields, "chat_template_kwargs"), *value;
    const char *key;
    int left = MOST_VARIABLES;
    if (!warnings)
        return;
    if (chat_rules_tools(fields) && !jinja_mentions(template, TOOLS_ALIAS))
        warn_untaken("tools", "tools", template, warnings);
    if (json_array_size(documents) > 0)
        warn_untaken("documents", "documents", template, warnings);
    if (request_field(fields, "reasoning_effort"))
        warn_untaken("reasoning_effort", "reasoning_effort", template, warnings);
    json_object_foreach(kwargs, key, value)
    {
        char field[FIELD_BYTES];
        snprintf(field, sizeof field, "chat_template_kwargs.%.60s", key);
        if (left-- > 0)
            warn_untaken(field, key, template, warnings);
    }
}

/* A rendering: which messages, how, and with what. */
struct conversation {
    const json_t *fields;
    size_t length;                      /* bytes of the request */
    const struct chat_history *history; /* NULL: none */
    bool continues;                     /* the last message goes on */
    uint64_t mark;                      /* for chat_messages_find; 0: no marks */
    size_t broken;                      /* out: calls that were left broken */
    struct chat_specials specials;      /* out: of the history; render clears it */
};

/* Those of the history, and the request's. specials: NULL, or where those of the history go. */
static json_t *all_messages(const struct conversation *what, struct chat_specials *specials,
                            struct api_error *err)
{
    json_t *messages = request_field(what->fields, "messages");
    if (!what->history || what->history->length == 0)
        return json_incref(messages);
    json_t *all = chat_turns_messages(what->history->turns, what->history->length, specials, err);
    if (all && json_array_extend(all, messages)) {
        json_decref(all);
        request_no_memory(err);
        return NULL;
    }
    return all;
}

static int take_messages(json_t *context, const struct jinja *template,
                         const struct chat_syntax *syntax, struct conversation *what,
                         struct api_error *err)
{
    json_t *all = all_messages(what, &what->specials, err);
    if (!all && request_field(what->fields, "messages"))
        return -1;
    if (syntax && syntax->channels && chat_past_split(all, &what->specials, syntax, err)) {
        json_decref(all);
        return -1;
    }
    const struct chat_forms forms = {.parts = jinja_mentions(template, "text"),
                                     .developer = jinja_mentions(template, "developer"),
                                     .texts = syntax && syntax->texts,
                                     .broken = syntax && syntax->broken,
                                     .either = syntax && syntax->either};
    json_t *messages = chat_messages(all, &forms, &what->broken, err);
    json_decref(all);
    if (!messages ||
        (syntax && chat_ids_take(messages, syntax->ids, chat_words(syntax->format), err)) ||
        (what->continues && chat_messages_mark_last(messages, err)) ||
        (what->mark && chat_messages_mark_all(messages, what->mark, err))) {
        json_decref(messages);
        return -1;
    }
    return json_object_set_new(context, "messages", messages) ? request_no_memory(err) : 0;
}

/* Makes what the template sees, and chooses the template. *syntax: its own, if that is known. */
static int make_context(json_t *context, const struct jinja **template,
                        const struct chat_syntax **syntax, struct conversation *what,
                        const struct completion_limits *limits, struct api_error *err)
{
    const struct chat_template *chat = limits->chat;
    bool generation = !what->continues;
    if (request_bool(what->fields, "add_generation_prompt", &generation, err))
        return -1;
    if (generation && what->continues)
        return api_error_set(err, API_INVALID_VALUE, "continue_final_message",
                             "continue_final_message is not allowed with add_generation_prompt");
    if (take_variables(context, what->fields, generation, chat, err))
        return -1;
    bool tools = json_array_size(json_object_get(context, "tools")) > 0;
    *template = tools && chat->with_tools ? chat->with_tools : chat->template;
    *syntax = limits->syntax ? &limits->syntax[*template != chat->template] : NULL;
    if (tools && *syntax && (*syntax)->channels && describe_tools(context, err))
        return -1;
    return take_messages(context, *template, *syntax, what, err);
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

/* What the context has of the template's own. */

static const char *const TOKENS[] = {"bos_token", "eos_token"};

static void add_own(struct origin_marks *marks, const json_t *string, struct text_span bytes)
{
    if (bytes.end > bytes.start && bytes.end <= json_string_length(string))
        marks->own[marks->num_own++] = (struct origin_own){string, bytes};
}

static void add_all(struct origin_marks *marks, const json_t *string)
{
    add_own(marks, string, (struct text_span){0, json_string_length(string)});
}

/* Whether it is a word: templates make special tokens of roles, as "<|" + role + "|>". */
static bool is_word(const json_t *string)
{
    enum { MOST = 64 };
    static const char CHARACTERS[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const char *text = json_string_value(string);
    return text && json_string_length(string) <= MOST &&
           strspn(text, CHARACTERS) == json_string_length(string);
}

/* Roles, special tokens of this server's own replies, and the BOS and EOS token where no client has
 * given others by their names. marks->own has room. */
static void find_own(struct origin_marks *marks, const json_t *context, const json_t *fields,
                     const struct chat_specials *specials)
{
    const json_t *kwargs = request_field(fields, "chat_template_kwargs");
    const json_t *messages = json_object_get(context, "messages");
    for (size_t i = 0; i < sizeof TOKENS / sizeof *TOKENS; i++)
        if (!json_object_get(kwargs, TOKENS[i]))
            add_all(marks, json_object_get(context, TOKENS[i]));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *role = json_object_get(json_array_get(messages, i), "role");
        if (is_word(role))
            add_all(marks, role);
    }
    for (size_t i = 0; i < specials->count; i++)
        add_own(marks,
                json_object_get(json_array_get(messages, specials->items[i].message), "content"),
                specials->items[i].bytes);
}

static int run_template(struct completion_prompt *out, const json_t *context, size_t length,
                        const struct jinja *template, struct origin_marks *marks,
                        struct api_error *err)
{
    struct error error = ERROR_INIT;
    struct rendering rendering = {0};
    struct jinja_limits limits = {.steps = BASE_STEPS + STEPS_OF_BYTE * (int64_t)length,
                                  .seconds = BASE_SECONDS + SECONDS_OF_BYTE * (double)length,
                                  .memory = BASE_BYTES + BYTES_OF_BYTE * length,
                                  .reserve = reserve,
                                  .context = &rendering};
    int result = jinja_render(template, context, &limits, (int64_t)time(NULL), &out->text,
                              &out->length, marks, &error);
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

/* Renders, with what is the template's own told apart from what clients wrote. */
static int run_apart(struct completion_prompt *out, const json_t *context,
                     const struct conversation *what, size_t length, const struct jinja *template,
                     struct api_error *err)
{
    struct origin_marks marks = {0};
    const struct chat_specials *specials =
        what->history && what->history->said ? what->history->said : &what->specials;
    size_t most = sizeof TOKENS / sizeof *TOKENS +
                  json_array_size(json_object_get(context, "messages")) + specials->count;
    int64_t bytes = (int64_t)(most * sizeof *marks.own);
    if (!request_reserve_memory(bytes))
        return request_no_memory(err);
    marks.own = malloc(most * sizeof *marks.own);
    int result = marks.own ? 0 : request_no_memory(err);
    if (result == 0) {
        find_own(&marks, context, what->fields, specials);
        result = run_template(out, context, length, template, &marks, err);
    }
    free(marks.own);
    request_reserve_memory(-bytes);
    out->input = marks.input;
    return result;
}

static int warn_of_budget(const json_t *fields, const struct chat_rules *rules,
                          struct reply_warnings *warnings, struct api_error *err)
{
    int64_t budget;
    if (chat_thinking_read(fields, -1, &budget, err))
        return -1;
    if (budget >= 0 && (!rules->reasoning || rules->syntax->num_closing_tokens == 0))
        reply_warnings_add(warnings, WARNING_TEMPLATE,
                           "thinking_token_budget: no thoughts are known of the model's chat "
                           "template: it is not enforced");
    return 0;
}

static int render(struct completion_prompt *out, struct chat_rules **rules,
                  struct conversation *what, const struct completion_limits *limits,
                  struct api_error *err)
{
    const struct jinja *template = NULL;
    const struct chat_syntax *syntax = NULL;
    size_t length = what->length + (what->history ? what->history->length : 0);
    *out = (struct completion_prompt){0};
    if (check_template(limits->chat, err) ||
        request_bool(what->fields, "continue_final_message", &what->continues, err))
        return -1;
    json_t *context = json_object();
    int result = context ? make_context(context, &template, &syntax, what, limits, err)
                         : request_no_memory(err);
    if (result == 0)
        result = limits->content_tokens ? run_template(out, context, length, template, NULL, err)
                                        : run_apart(out, context, what, length, template, err);
    if (result == 0)
        warn_of_template(what->fields, template, limits->warnings);
    if (result == 0 && what->broken)
        reply_warnings_add(limits->warnings, WARNING_CALL,
                           "messages: %zu tool_calls with no name, or with arguments that are no "
                           "JSON object: the model sees what can be read of them, or their text",
                           what->broken);
    if (result == 0 && what->continues)
        result = chat_messages_cut(out->text, &out->length, err);
    span_list_cut(&out->input, 0, out->length);
    if (result == 0 && rules)
        result = chat_rules_make(rules, what->fields, out->text, out->length, what->continues,
                                 syntax, limits->reasoning, err);
    if (result == 0 && rules)
        result = warn_of_budget(what->fields, *rules, limits->warnings, err);
    json_decref(context);
    chat_specials_clear(&what->specials);
    if (result) {
        free(out->text);
        span_list_clear(&out->input);
        *out = (struct completion_prompt){0};
    }
    return result;
}

int chat_render(struct completion_prompt *out, struct chat_rules **rules, const json_t *fields,
                size_t length, const struct chat_history *history,
                const struct completion_limits *limits, struct api_error *err)
{
    struct conversation what = {.fields = fields, .length = length, .history = history};
    return render(out, rules, &what, limits, err);
}

int chat_render_body(struct completion_prompt *out, struct chat_rules **rules,
                     const struct completion_string *body, const struct chat_history *history,
                     const struct completion_limits *limits, struct api_error *err)
{
    json_t *fields = request_load_dump(body->text, body->length, err);
    if (!fields)
        return -1;
    int result = chat_render(out, rules, fields, body->length, history, limits, err);
    json_decref(fields);
    return result;
}

static int locate(int64_t *index, struct conversation *what, size_t offset,
                  const struct completion_limits *limits, struct api_error *err)
{
    struct completion_prompt prompt;
    if (render(&prompt, NULL, what, limits, err))
        return -1;
    *index = chat_messages_find(prompt.text, prompt.length, what->mark, offset);
    free(prompt.text);
    span_list_clear(&prompt.input);
    if (*index >= 0)
        return 0;
    json_t *all = all_messages(what, NULL, err);
    if (!all)
        return -1;
    *index = (int64_t)json_array_size(all);
    json_decref(all);
    return 0;
}

int chat_locate(int64_t *index, const struct completion_string *body,
                const struct chat_history *history, size_t offset,
                const struct completion_limits *limits, struct api_error *err)
{
    json_t *fields = request_load_dump(body->text, body->length, err);
    if (!fields)
        return -1;
    /* A hash of the messages stands in none of them. */
    struct conversation what = {
        .fields = fields,
        .length = body->length,
        .history = history,
        .mark = 1 | chat_turns_hash(body->text, body->length, history->turns, history->length)};
    int result = locate(index, &what, offset, limits, err);
    json_decref(fields);
    return result;
}

int chat_write_turn(struct strbuf *out, const struct chat_turn *turn,
                    const struct completion_string *body, const struct chat_turn_reply *reply,
                    struct api_error *err)
{
    json_t *fields = request_load_dump(body->text, body->length, err);
    if (!fields)
        return -1;
    int result = chat_turns_write(out, turn, request_field(fields, "messages"), reply, err);
    json_decref(fields);
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

/* Of a chat with a session the messages are only checked: the text is made behind its history. */
static int check_session(const json_t *fields, const struct completion_limits *limits,
                         struct api_error *err)
{
    static const char *const REFUSED[] = {"continue_final_message", "truncate_prompt_tokens"};
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        const json_t *value = request_field(fields, REFUSED[i]);
        if (value && !json_is_false(value))
            return api_error_set(err, API_INVALID_VALUE, REFUSED[i],
                                 "%s is not allowed with session_id", REFUSED[i]);
    }
    if (check_template(limits->chat, err))
        return -1;
    const struct chat_forms any = {.parts = true, .developer = true, .broken = true};
    size_t broken;
    json_t *messages = chat_messages(request_field(fields, "messages"), &any, &broken, err);
    json_decref(messages);
    return messages ? 0 : -1;
}

/* input: where what is to be the prompt's goes. */
static int set_prompt(json_t *plain, struct span_list *input, struct chat_rules **rules,
                      const json_t *fields, size_t length, const struct completion_limits *limits,
                      struct api_error *err)
{
    struct completion_prompt prompt;
    if (request_field(fields, "session_id") || limits->response) {
        if (check_session(fields, limits, err))
            return -1;
        return json_object_set_new(plain, "prompt", json_string("")) ? request_no_memory(err) : 0;
    }
    if (json_is_true(request_field(fields, "store")))
        return api_error_set(err, API_UNSUPPORTED, "store",
                             "store is not supported: no chats are stored without session_id");
    if (chat_render(&prompt, rules, fields, length, NULL, limits, err))
        return -1;
    int failed = json_object_set_new(plain, "prompt", json_stringn(prompt.text, prompt.length));
    free(prompt.text);
    *input = prompt.input;
    return failed ? request_no_memory(err) : 0;
}

/* Makes of the copy `plain` the fields of a completion request. */
static int make_plain(json_t *plain, struct span_list *input, struct chat_rules **rules,
                      const json_t *fields, size_t length, const struct completion_limits *limits,
                      struct api_error *err)
{
    parameters_drop_chat(plain);
    if (take_logprobs(plain, fields, err) ||
        set_prompt(plain, input, rules, fields, length, limits, err))
        return -1;
    return !request_field(plain, "add_special_tokens") &&
                   json_object_set_new(plain, "add_special_tokens", json_false())
               ? request_no_memory(err)
               : 0;
}

/* To the end of the context: when the prompt's length is known it becomes what there is room for.
 */
static int take_default_length(json_t *plain, const struct completion_limits *limits,
                               struct api_error *err)
{
    int64_t least = 0, most = limits->max_model_len;
    if (request_int(plain, "min_tokens", 0, INT64_MAX, &least, err))
        return -1;
    if (most == 0)
        most = limits->default_max_tokens;
    most = most > least ? most : least;
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
    struct span_list input = {0};
    json_t *plain = json_copy((json_t *)fields);
    if (!plain)
        return request_no_memory(err);
    bool any_length =
        !request_field(fields, "max_tokens") && !request_field(fields, "max_completion_tokens");
    int result = any_length ? take_default_length(plain, limits, err) : 0;
    if (result == 0)
        result = make_plain(plain, &input, &rules, fields, length, limits, err);
    if (result == 0)
        result = completion_parse_fields(request, plain, limits, err);
    json_decref(plain);
    if (result) {
        span_list_clear(&input);
        chat_rules_free(rules);
        return -1;
    }
    request->prompts[0].input = input;
    request->max_tokens_fit |= any_length;
    request->any_length |= any_length;
    request->chat_rules = rules;
    if (chat_thinking_read(fields, request->max_tokens_fit ? -1 : request->max_tokens,
                           &request->thinking_budget, err)) {
        completion_request_clear(request);
        return -1;
    }
    if (!rules ||
        chat_demand_constrain(&rules->demand, rules->syntax, &request->constraint, err) == 0)
        return 0;
    completion_request_clear(request);
    return -1;
}

/* Keeps the body, and says of it what others need to know. */
static int keep_body(struct completion_request *request, const json_t *fields, const char *body,
                     size_t length, struct api_error *err)
{
    const json_t *messages = request_field(fields, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *role = json_object_get(json_array_get(messages, i), "role");
        request->chat_replied |= strcmp(json_string_value(role), "assistant") == 0;
    }
    request->chat = (struct completion_string){malloc(length + 1), length};
    if (!request->chat.text)
        return request_no_memory(err);
    memcpy(request->chat.text, body, length);
    request->chat.text[length] = 0;
    return 0;
}

int chat_parse_fields(struct completion_request *request, json_t *fields, const char *body,
                      size_t length, const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct completion_request){0};
    if (completion_take_session(fields, limits, err) || parse(request, fields, length, limits, err))
        return -1;
    if (keep_body(request, fields, body, length, err) == 0)
        return 0;
    completion_request_clear(request);
    return -1;
}

int chat_parse(struct completion_request *request, const char *body, size_t length,
               const struct completion_limits *limits, struct api_error *err)
{
    *request = (struct completion_request){0};
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return -1;
    int result = chat_rules_check_tools(fields, err);
    if (result == 0)
        result = chat_parse_fields(request, fields, body, length, limits, err);
    json_decref(fields);
    return result;
}
