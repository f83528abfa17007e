/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/chat_choice.h"

void chat_choice_clear(struct chat_choice *choice)
{
    chat_parser_clear(&choice->parser);
    chat_output_clear(&choice->output);
}

/* A token is reasoning if it begins before the last reasoning ends, markers included. */
static void count_tokens(struct chat_choice *choice, const struct piece *piece)
{
    int64_t ends = choice->parser.reasoning_ends, count = 0;
    for (size_t i = 0; i < piece->num_tokens; i++)
        count += piece->tokens[i].text_offset < ends;
    if (ends > choice->reasoning_ends || ends == INT64_MAX || count > 0)
        choice->reasoning_tokens = choice->tokens + count;
    choice->reasoning_ends = ends == INT64_MAX ? choice->reasoning_ends : ends;
    choice->tokens += (int64_t)piece->num_tokens;
}

int chat_choice_take(struct chat_choice *choice, const struct chat_rules *rules,
                     const struct piece *piece, bool last)
{
    choice->parser.rules = rules;
    choice->calls_before = choice->parser.num_calls;
    chat_output_reset(&choice->output);
    chat_parser_push(&choice->parser, piece->text.data, piece->text.length, &choice->output);
    if (last)
        chat_parser_finish(&choice->parser, &choice->output);
    if (rules && rules->hide_reasoning)
        strbuf_reset(&choice->output.reasoning);
    count_tokens(choice, piece);
    return choice->output.failed ? -1 : 0;
}

bool chat_choice_new(const struct chat_choice *choice)
{
    const struct chat_output *output = &choice->output;
    return output->content.length > 0 || output->reasoning.length > 0 || output->calls.count > 0;
}

void chat_choice_fill(const struct chat_choice *choice, struct reply_choice *reply)
{
    const struct chat_output *output = &choice->output;
    reply->text = output->content.data;
    reply->text_length = output->content.length;
    reply->reasoning = output->reasoning.length > 0 ? output->reasoning.data : NULL;
    reply->reasoning_length = output->reasoning.length;
    reply->calls = output->calls.items;
    reply->num_calls = output->calls.count;
    reply->first_call = choice->calls_before;
    reply->text_from = chat_parser_text_from(&choice->parser);
    if (output->calls.count > 0 && !output->calls.items[0].name) /* of the pieces before */
        reply->first_call--;
    reply->demanded = choice->parser.rules && choice->parser.rules->demand.calls;
    if (reply->finish_reason == FINISH_STOP && choice->parser.num_calls > 0 && !choice->parser.cut)
        reply->finish_reason = FINISH_TOOL_CALLS;
}
