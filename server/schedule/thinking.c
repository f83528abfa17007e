/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/thinking.h"

#include "engine/ops/sampler.h"

#include <stdlib.h>
#include <string.h>

size_t thinking_bytes(int32_t vocab_size)
{
    return sampler_mask_words(vocab_size) * sizeof(uint32_t);
}

int thinking_open(struct thinking *thinking, const struct chat_rules *rules, int64_t budget,
                  int32_t vocab_size, struct error *err)
{
    if (budget < 0 || !rules || !rules->reasoning || rules->syntax->num_closing_tokens == 0)
        return 0;
    thinking->mask_words = sampler_mask_words(vocab_size);
    thinking->mask = malloc(thinking->mask_words * sizeof *thinking->mask);
    if (!thinking->mask)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    thinking->on = true;
    thinking->inside = rules->inside;
    thinking->left = budget;
    thinking->syntax = rules->syntax;
    /* Calls, too: a message to a function is none of the thoughts, whatever its channel. */
    thinking->rules = (struct chat_rules){.syntax = rules->syntax,
                                          .reasoning = true,
                                          .inside = rules->inside,
                                          .calls = rules->calls,
                                          .types = rules->types};
    thinking->parser.rules = &thinking->rules;
    return 0;
}

void thinking_close(struct thinking *thinking)
{
    chat_parser_clear(&thinking->parser);
    chat_output_clear(&thinking->output);
    free(thinking->mask);
    *thinking = (struct thinking){0};
}

static bool forces(const struct thinking *thinking)
{
    return thinking->on && thinking->inside && thinking->left <= 0 && !thinking->waits;
}

/* Those of the tokens that may come, as a mask; NULL: none of them. */
static const uint32_t *mask_of(struct thinking *thinking, const int32_t *tokens, size_t count,
                               const uint32_t *may)
{
    const uint32_t *mask = NULL;
    memset(thinking->mask, 0, thinking->mask_words * sizeof *thinking->mask);
    for (size_t i = 0; i < count; i++) {
        uint32_t id = (uint32_t)tokens[i];
        if (may && !(may[id / 32] >> id % 32 & 1))
            continue;
        thinking->mask[id / 32] |= (uint32_t)1 << id % 32;
        mask = thinking->mask;
    }
    return mask;
}

const uint32_t *thinking_mask(struct thinking *thinking, const uint32_t *may)
{
    const struct chat_syntax *syntax = thinking->syntax;
    thinking->waits = false;
    if (thinking->on && thinking->left <= 0 && chat_parser_channel(&thinking->parser))
        return mask_of(thinking, syntax->channel_tokens, syntax->num_channel_tokens, may);
    if (!forces(thinking))
        return NULL;
    const uint32_t *mask = mask_of(thinking, &syntax->closing_tokens[thinking->forced], 1, may);
    thinking->waits = !mask;
    return mask;
}

int thinking_take(struct thinking *thinking, const char *text, size_t length, struct error *err)
{
    struct chat_parser *parser = &thinking->parser;
    if (!thinking->on)
        return 0;
    bool was_forced = forces(thinking);
    bool channels = thinking->syntax->channels;
    thinking->forced += was_forced;
    thinking->left -= thinking->inside && !was_forced;
    chat_output_reset(&thinking->output);
    chat_parser_push(parser, text, length, &thinking->output);
    if (thinking->output.failed)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    bool ended = thinking->forced == thinking->syntax->num_closing_tokens;
    if (channels) { /* another thought may follow */
        thinking->forced = ended ? 0 : thinking->forced;
        thinking->inside = parser->reasoning_ends == INT64_MAX || thinking->forced > 0;
        return 0;
    }
    if (!chat_parser_undecided(parser))
        thinking->on = thinking->inside = parser->reasoning_ends == INT64_MAX;
    if (ended)
        thinking->on = false;
    return 0;
}
