/* SPDX-License-Identifier: Apache-2.0 */
#include "api/parameters.h"

#include "api/request.h"
#include "lib/base/fields.h"

#include <stdbool.h>
#include <string.h>

/* The APIs whose fields a body of completions, or of a chat, can have. */
enum { OF_TEXTS = PARAMETERS_COMPLETIONS | PARAMETERS_CHATS };

/* The row of one of the APIs; NULL: they have it not. */
static const struct parameter *find(unsigned apis, const char *name)
{
    for (int i = 0; i < parameter_count; i++)
        if ((parameter_table[i].apis & apis) && strcmp(parameter_table[i].name, name) == 0)
            return &parameter_table[i];
    return NULL;
}

/* A chat has it beside those of completions, or in another sense. */
static bool is_of_chats(const struct parameter *row)
{
    return (row->apis & OF_TEXTS) == PARAMETERS_CHATS;
}

/* The members of a family that no table can have all of. */
static bool is_guided(const char *name)
{
    return strncmp(name, "guided_", strlen("guided_")) == 0;
}

static bool refuses(const struct parameter *parameter, const json_t *value)
{
    return parameter->kind == PARAMETER_REFUSED && !fields_ask_nothing(value, parameter->nothing);
}

static int refuse(const char *name, const char *note, struct api_error *err)
{
    return api_error_set(err, API_UNSUPPORTED, name, "%.60s is not supported%s%s", name,
                         *note ? ": " : "", note);
}

int parameters_check(const json_t *fields, struct reply_warnings *warnings, struct api_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        const struct parameter *parameter = find(PARAMETERS_COMPLETIONS, key);
        if (json_is_null(value))
            continue;
        if (parameter ? refuses(parameter, value) : is_guided(key))
            return refuse(key, parameter ? parameter->note : "of structured output", err);
        if (!parameter && strcmp(key, COMPLETION_DRAFTS) != 0) /* refused or honoured */
            reply_warnings_unknown(warnings, key);
    }
    return 0;
}

void parameters_warn_chat(const json_t *fields, struct reply_warnings *warnings)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        if (!json_is_null(value) && !find(OF_TEXTS, key) && !is_guided(key))
            reply_warnings_unknown(warnings, key);
    }
}

int parameters_check_chat(const json_t *fields, struct api_error *err)
{
    for (int i = 0; i < parameter_count; i++) {
        const struct parameter *row = &parameter_table[i];
        if (is_of_chats(row) && refuses(row, json_object_get(fields, row->name)))
            return refuse(row->name, row->note, err);
    }
    return 0;
}

void parameters_drop_chat(json_t *fields)
{
    for (int i = 0; i < parameter_count; i++)
        if (is_of_chats(&parameter_table[i]))
            json_object_del(fields, parameter_table[i].name);
}

int parameters_check_all(enum parameters_api api, const json_t *fields,
                         struct reply_warnings *warnings, struct api_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)fields, key, value)
    {
        const struct parameter *parameter = find(api, key);
        if (json_is_null(value) || strcmp(key, COMPLETION_DRAFTS) == 0)
            continue;
        if (parameter && refuses(parameter, value))
            return refuse(key, parameter->note, err);
        if (!parameter && (find(OF_TEXTS, key) || is_guided(key)))
            return refuse(key,
                          api == PARAMETERS_MESSAGES ? "this is the messages API"
                                                     : "this is the responses API",
                          err);
        if (!parameter)
            reply_warnings_unknown(warnings, key);
    }
    return 0;
}

int parameters_pass(enum parameters_api api, json_t *chat, const json_t *fields,
                    struct api_error *err)
{
    json_t *of_tests = json_object_get(fields, COMPLETION_DRAFTS);
    bool failed = of_tests && json_object_set(chat, COMPLETION_DRAFTS, of_tests);
    for (int i = 0; i < parameter_count && !failed; i++) {
        const struct parameter *row = &parameter_table[i];
        json_t *value = json_object_get(fields, row->name);
        failed = value && (row->apis & api) && (row->apis & OF_TEXTS) &&
                 row->kind == PARAMETER_HONOURED && json_object_set(chat, row->name, value);
    }
    return failed ? request_no_memory(err) : 0;
}
