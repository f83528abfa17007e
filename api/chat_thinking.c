/* SPDX-License-Identifier: Apache-2.0 */
#include "api/chat_thinking.h"

#include "api/request.h"

#include <stdio.h>
#include <string.h>

#define MOST_TOKENS (INT64_C(1) << 53)

static const char FIELD[] = "thinking";

/* {"type": "enabled", "budget_tokens": N}. */
static int read_object(const json_t *fields, int64_t *budget, struct api_error *err)
{
    const json_t *thinking = request_field(fields, FIELD);
    if (!thinking)
        return 0;
    if (!json_is_object(thinking))
        return request_wrong_type(err, FIELD, "an object", thinking);
    const char *type = json_string_value(request_field(thinking, "type"));
    if (!type || strcmp(type, "enabled") != 0)
        return api_error_set(err, API_UNSUPPORTED, FIELD,
                             "thinking.type: expected \"enabled\", got \"%.40s\": "
                             "chat_template_kwargs reach the template",
                             type ? type : "");
    if (request_int(thinking, "budget_tokens", 0, MOST_TOKENS, budget, err) == 0)
        return 0;
    snprintf(err->param, sizeof err->param, "%s", FIELD);
    return -1;
}

int chat_thinking_read(const json_t *fields, int64_t max_tokens, int64_t *budget,
                       struct api_error *err)
{
    static const char *const NAMES[] = {"thinking_token_budget", "reasoning_budget_tokens", FIELD};
    enum { COUNT = sizeof NAMES / sizeof *NAMES };
    int64_t given[COUNT] = {-1, -1, -1};
    *budget = -1;
    /* llama.cpp's -1 is no limit. */
    if (request_int(fields, NAMES[0], 0, MOST_TOKENS, &given[0], err) ||
        request_int(fields, NAMES[1], -1, MOST_TOKENS, &given[1], err) ||
        read_object(fields, &given[2], err))
        return -1;
    for (int i = 0; i < COUNT; i++) {
        if (given[i] < 0)
            continue;
        if (*budget >= 0 && given[i] != *budget)
            return api_error_set(err, API_INVALID_VALUE, NAMES[i],
                                 "%s: expected the same budget as in the other field, %lld, got "
                                 "%lld",
                                 NAMES[i], (long long)*budget, (long long)given[i]);
        if (max_tokens >= 0 && given[i] > max_tokens)
            return api_error_set(err, API_INVALID_VALUE, NAMES[i],
                                 "%s: expected at most max_tokens, %lld, got %lld", NAMES[i],
                                 (long long)max_tokens, (long long)given[i]);
        *budget = given[i];
    }
    return 0;
}
