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
    thinking->rules =
        (struct chat_rules){.syntax = rules->syntax, .reasoning = true, .inside = rules->inside};
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

const uint32_t *thinking_mask(struct thinking *thinking, const uint32_t *may)
{
    thinking->waits = false;
    if (!forces(thinking))
        return NULL;
    uint32_t id = (uint32_t)thinking->syntax->closing_tokens[thinking->forced];
    thinking->waits = may && !(may[id / 32] >> id % 32 & 1);
    if (thinking->waits)
        return NULL;
    memset(thinking->mask, 0, thinking->mask_words * sizeof *thinking->mask);
    thinking->mask[id / 32] |= (uint32_t)1 << id % 32;
    return thinking->mask;
}

int thinking_take(struct thinking *thinking, const char *text, size_t length, struct error *err)
{
    struct chat_parser *parser = &thinking->parser;
    if (!thinking->on)
        return 0;
    bool was_forced = forces(thinking);
    thinking->forced += was_forced;
    thinking->left -= thinking->inside && !was_forced;
    chat_output_reset(&thinking->output);
    chat_parser_push(parser, text, length, &thinking->output);
    if (thinking->output.failed)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    if (!chat_parser_undecided(parser)) {
        thinking->inside = parser->reasoning_ends == INT64_MAX;
        thinking->on = thinking->inside;
    }
    if (thinking->forced == thinking->syntax->num_closing_tokens)
        thinking->on = false;
    return 0;
}
