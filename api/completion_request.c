/* SPDX-License-Identifier: Apache-2.0 */
#include "api/completion_request.h"

#include "api/chat_rules.h"
#include "api/responses_echo.h"

#include <stdlib.h>

static void free_strings(struct completion_string *strings, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(strings[i].text);
    free(strings);
}

void completion_request_clear(struct completion_request *request)
{
    for (size_t i = 0; i < request->num_prompts; i++) {
        free(request->prompts[i].text);
        span_list_clear(&request->prompts[i].input);
        free(request->prompts[i].ids);
    }
    free(request->prompts);
    free_strings(request->stops, request->num_stops);
    free_strings(request->bad_words, request->num_bad_words);
    free(request->stop_token_ids);
    free(request->logprob_token_ids);
    free(request->draft_token_ids);
    free((void *)request->sampling.logit_bias);
    free((void *)request->sampling.allowed);
    constraint_clear(&request->constraint);
    free(request->model);
    free(request->user);
    free(request->request_id);
    free(request->cache_salt);
    free(request->session_id);
    free(request->begins_with);
    chat_rules_free(request->chat_rules);
    responses_echo_free(request->echoed);
    free(request->chat.text);
    *request = (struct completion_request){0};
}
