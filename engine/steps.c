/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/steps.h"

#include "engine/ops/sampler.h"
#include "engine/state.h"

#include <stdlib.h>
#include <string.h>

static int allocate(struct steps *steps, struct error *err)
{
    size_t tokens = (size_t)steps->info->max_step_tokens;
    const bool hidden = forward_program(steps->forward)->hidden.data != NULL;
    steps->seen_size = 16;
    while (steps->seen_size < 2 * (tokens + (size_t)steps->info->max_step_logits))
        steps->seen_size *= 2;
    steps->tokens = calloc(tokens, sizeof *steps->tokens);
    steps->positions = calloc(tokens, sizeof *steps->positions);
    steps->logit_rows = calloc((size_t)steps->info->max_step_logits, sizeof *steps->logit_rows);
    steps->draws = calloc((size_t)steps->info->max_step_logits, sizeof *steps->draws);
    steps->token_draws = calloc(tokens, sizeof *steps->token_draws);
    steps->spans = calloc(tokens, sizeof *steps->spans);
    steps->seen = calloc(steps->seen_size, sizeof *steps->seen);
    if (hidden)
        steps->hidden = calloc(tokens * (size_t)steps->hidden_size, sizeof(float));
    if ((hidden && steps->hidden == NULL) || steps->tokens == NULL || steps->positions == NULL ||
        steps->logit_rows == NULL || steps->draws == NULL || steps->token_draws == NULL ||
        steps->spans == NULL || steps->seen == NULL)
        return error_set(err, ERROR_NO_MEMORY, "max_step_tokens: no memory for %zu", tokens);
    return 0;
}

int steps_open(struct steps *steps, bool poison, struct error *err)
{
    if (allocate(steps, err) != 0)
        return -1;
    return kept_open(&steps->kept, forward_program(steps->forward), steps->info, poison, err);
}

void steps_close(struct steps *steps)
{
    kept_close(&steps->kept);
    free(steps->tokens);
    free(steps->positions);
    free(steps->logit_rows);
    free(steps->draws);
    free(steps->token_draws);
    free(steps->spans);
    free(steps->hidden);
    free(steps->seen);
}

/* ---- what a step may be ---- */

/* Whether the state or sampler is already in the step; remembers it. */
static bool seen_before(struct steps *steps, const void *object)
{
    size_t mask = steps->seen_size - 1;
    size_t at = ((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (steps->seen[at] != NULL) {
        if (steps->seen[at] == object)
            return true;
        at = (at + 1) & mask;
    }
    steps->seen[at] = object;
    return false;
}

/* The span of the same text in a step; its number is that of the span, or near. NULL: none. */
static struct span *span_of(const struct flight *flight, const struct state *state, int near)
{
    for (int i = 0; i < flight->num_spans; i++) {
        struct span *span = &flight->spans[(near + i) % flight->num_spans];
        if (span->state == state)
            return span;
    }
    return NULL;
}

/* A span whose token is still to be drawn by the step under way. */
static int check_ahead(const struct steps *steps, const struct span *span, int index,
                       struct error *err)
{
    const struct span *before =
        steps->num_flights == 1 ? span_of(&steps->flights[0], span->state, index) : NULL;
    if (before == NULL || before->draw == NULL || before->draw->dropped || span->num_tokens != 1)
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: no tokens, and no draw under way for one of them", index);
    if (span->draw == NULL || span->draw == before->draw ||
        span->draw->sampler != before->draw->sampler || sampler_looks_back(span->draw->sampler))
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: its draw cannot come before the token under way", index);
    return 0;
}

static int check_span(struct steps *steps, const struct span *span, int index, struct error *err)
{
    if (span->state == NULL || (span->tokens == NULL && steps->num_flights == 0))
        return error_set(err, ERROR_INVALID, "spans[%d]: no state or no tokens", index);
    if (span->state->memory != steps->memory)
        return error_set(err, ERROR_INVALID, "spans[%d]: the state is of another engine", index);
    if (seen_before(steps, span->state))
        return error_set(err, ERROR_INVALID, "spans[%d]: its state is in the step twice", index);
    if (span->draw != NULL && seen_before(steps, span->draw->sampler))
        return error_set(err, ERROR_INVALID, "spans[%d]: its draw's sampler is in the step twice",
                         index);
    if (span->draw != NULL && (span->draw->num_banned > (size_t)steps->info->vocab_size ||
                               span->draw->num_ends > (size_t)steps->info->vocab_size))
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: expected at most %d ids in a list of its draw, got %zu banned "
                         "and %zu ends",
                         index, steps->info->vocab_size, span->draw->num_banned,
                         span->draw->num_ends);
    if (span->num_tokens > span->state->max_tokens - span->state->position)
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: %d tokens at position %lld, memory is reserved for %lld",
                         index, span->num_tokens, (long long)span->state->position,
                         (long long)span->state->max_tokens);
    if (span->tokens == NULL)
        return check_ahead(steps, span, index, err);
    for (int i = 0; i < span->num_tokens; i++)
        if (span->tokens[i] < 0 || span->tokens[i] >= steps->info->vocab_size)
            return error_set(err, ERROR_INVALID, "spans[%d].tokens[%d]: expected 0 to %d, got %d",
                             index, i, steps->info->vocab_size - 1, span->tokens[i]);
    return 0;
}

static bool wants_logits(const struct span *spans, int num_spans)
{
    for (int i = 0; i < num_spans; i++)
        if (spans[i].num_logits > 0)
            return true;
    return false;
}

static int check_hidden(const struct steps *steps, const struct span *span, int index,
                        struct error *err)
{
    if (span->num_hidden < 0 || span->num_hidden > span->num_tokens)
        return error_set(err, ERROR_INVALID, "spans[%d]: %d hidden rows of %d tokens", index,
                         span->num_hidden, span->num_tokens);
    if (span->num_hidden > 0 && steps->hidden == NULL)
        return error_set(err, ERROR_INVALID, "spans[%d]: the engine was opened without hidden rows",
                         index);
    if (span->num_hidden > 0 && steps->num_flights > 0)
        return error_set(err, ERROR_INVALID, "a step beside another has no hidden rows");
    return 0;
}

static int check_step(struct steps *steps, const struct span *spans, int num_spans,
                      struct error *err)
{
    const struct engine_info *info = steps->info;
    int64_t tokens = 0, logits = 0, pages = 0;
    if (num_spans < 1 || num_spans > info->max_step_tokens)
        return error_set(err, ERROR_INVALID, "num_spans: expected 1 to %d, got %d",
                         info->max_step_tokens, num_spans);
    for (int i = 0; i < num_spans; i++) {
        if (spans[i].num_tokens < 1 || spans[i].num_logits < 0 ||
            spans[i].num_logits > spans[i].num_tokens)
            return error_set(err, ERROR_INVALID, "spans[%d]: %d logits of %d tokens", i,
                             spans[i].num_logits, spans[i].num_tokens);
        if (spans[i].draw != NULL && spans[i].num_logits > 0)
            return error_set(err, ERROR_INVALID, "spans[%d]: a draw, expected 0 logits, got %d", i,
                             spans[i].num_logits);
        tokens += spans[i].num_tokens;
        logits += spans[i].num_logits + (spans[i].draw != NULL);
    }
    if (tokens > info->max_step_tokens || logits > info->max_step_logits)
        return error_set(
            err, ERROR_INVALID, "a step has at most %d tokens and %d logits, got %lld and %lld",
            info->max_step_tokens, info->max_step_logits, (long long)tokens, (long long)logits);
    if (steps->num_flights > 0 && wants_logits(spans, num_spans))
        return error_set(err, ERROR_INVALID, "a step beside another has draws only, no logits");
    if (kept_check(&steps->kept, spans, num_spans, steps->num_flights == 0, err) != 0)
        return -1;
    memset(steps->seen, 0, steps->seen_size * sizeof *steps->seen);
    for (int i = 0; i < num_spans; i++) {
        if (check_span(steps, &spans[i], i, err) != 0 ||
            check_hidden(steps, &spans[i], i, err) != 0)
            return -1;
        pages += state_pages(spans[i].state, spans[i].state->position + spans[i].num_tokens);
    }
    if (pages > info->max_step_pages)
        return error_set(err, ERROR_INVALID, "a step has at most %lld KV pages, got %lld",
                         (long long)info->max_step_pages, (long long)pages);
    return 0;
}

/* ---- a step begins ---- */

/* The rows that want logits, behind them those that are drawn from. */
static void fill_logit_rows(struct steps *steps, const struct span *spans, int num_spans,
                            struct batch *batch)
{
    int logits = 0, draws = 0;
    for (int i = 0; i < num_spans; i++)
        for (int j = spans[i].num_logits; j > 0; j--)
            steps->logit_rows[logits++] = steps->spans[i].first_row + steps->spans[i].num_rows - j;
    for (int i = 0; i < num_spans; i++)
        if (spans[i].draw != NULL) {
            steps->logit_rows[logits + draws] =
                steps->spans[i].first_row + steps->spans[i].num_rows - 1;
            spans[i].draw->number = draws;
            steps->draws[draws++] = spans[i].draw;
        }
    batch->num_logits = logits + draws;
    batch->num_draws = draws;
    batch->logit_rows = steps->logit_rows;
    batch->draws = steps->draws;
}

/* Gives every state its pages and lays the spans' tokens one after the other. */
static void fill_batch(struct steps *steps, const struct span *spans, int num_spans,
                       struct batch *batch)
{
    int row = 0;
    for (int i = 0; i < num_spans; i++) /* all before any: what they have may move */
        state_grow(spans[i].state, spans[i].state->position + spans[i].num_tokens);
    for (int i = 0; i < num_spans; i++) {
        const struct span *span = &spans[i];
        const struct state *state = span->state;
        steps->spans[i] = (struct batch_span){.first_row = row,
                                              .num_rows = span->num_tokens,
                                              .position = state->position,
                                              .slot = state->slot,
                                              .pages = state->pages,
                                              .num_pages = state->num_pages};
        for (int j = 0; j < span->num_tokens; j++) {
            steps->tokens[row + j] = span->tokens != NULL ? span->tokens[j] : 0;
            steps->token_draws[row + j] = -1;
            steps->positions[row + j] = state->position + j;
        }
        if (span->draw != NULL) {
            span->draw->ahead = span->tokens == NULL;
            span->draw->dropped = false;
        }
        row += span->num_tokens;
    }
    *batch = (struct batch){.num_rows = row,
                            .num_spans = num_spans,
                            .tokens = steps->tokens,
                            .positions = steps->positions,
                            .spans = steps->spans};
    for (int i = 0; i < num_spans; i++)
        batch->wants_hidden |= spans[i].num_hidden > 0;
    fill_logit_rows(steps, spans, num_spans, batch);
    if (steps->kept.max_rows > 0)
        kept_begin(&steps->kept, spans, batch);
}

/* Which draws of the step under way give the spans without tokens theirs. */
static void fill_token_draws(struct steps *steps, const struct span *spans, int num_spans,
                             struct batch *batch)
{
    for (int i = 0; i < num_spans; i++) {
        if (spans[i].tokens != NULL)
            continue;
        const struct span *before = span_of(&steps->flights[0], spans[i].state, i);
        steps->token_draws[steps->spans[i].first_row] = before->draw->number;
        batch->token_draws = steps->token_draws;
    }
}

int steps_submit(struct steps *steps, struct span *spans, int num_spans, struct error *err)
{
    if (steps->num_flights == (steps->info->overlaps ? 2 : 1))
        return error_set(err, ERROR_INVALID, "a step is under way, and must be collected first");
    if (check_step(steps, spans, num_spans, err) != 0)
        return -1;
    struct batch batch;
    fill_batch(steps, spans, num_spans, &batch);
    fill_token_draws(steps, spans, num_spans, &batch);
    forward_submit(steps->forward, &batch);
    if (steps->ops->status(steps->backend, err) != 0)
        return -1;
    for (int i = 0; i < num_spans; i++)
        spans[i].state->position += spans[i].num_tokens;
    steps->flights[steps->num_flights++] = (struct flight){spans, num_spans};
    return 0;
}

/* ---- and ends ---- */

/* A text is where it was before the span. */
static void undo(const struct span *span)
{
    span->state->position -= span->num_tokens;
    state_shrink(span->state, span->state->position);
}

/* Texts that have ended by their draws in a step have not moved in the one after it. */
static void drop_ended(const struct flight *flight, const struct flight *after)
{
    for (int i = 0; i < after->num_spans; i++) {
        const struct span *span = &after->spans[i];
        if (span->tokens != NULL || !draw_ends(span_of(flight, span->state, i)->draw))
            continue;
        span->draw->dropped = true;
        undo(span);
    }
}

/* The hidden rows that spans asked for. */
static void collect_hidden(struct steps *steps, const struct flight *flight)
{
    const struct rows hidden = forward_program(steps->forward)->hidden;
    const size_t size = (size_t)steps->hidden_size;
    int row = 0;
    for (int i = 0; i < flight->num_spans; i++) {
        struct span *span = &flight->spans[i];
        row += span->num_tokens;
        if (span->num_hidden == 0)
            continue;
        const int first = row - span->num_hidden;
        steps->ops->copy_out(steps->backend, steps->hidden + (size_t)first * size,
                             hidden.data + first * hidden.stride,
                             (size_t)span->num_hidden * size * sizeof(float));
        span->hidden = steps->hidden + (size_t)first * size;
    }
}

int steps_go_back(struct steps *steps, struct state *state, int tokens, struct error *err)
{
    if (steps->num_flights > 0)
        return error_set(err, ERROR_INVALID, "a step is under way, and must be collected first");
    if (kept_go_back(&steps->kept, state, tokens, err) != 0)
        return -1;
    return steps->ops->status(steps->backend, err);
}

int steps_collect(struct steps *steps, struct error *err)
{
    if (steps->num_flights == 0)
        return error_set(err, ERROR_INVALID, "no step is under way");
    struct flight flight = steps->flights[0];
    const float *logits = forward_collect(steps->forward);
    collect_hidden(steps, &flight);
    if (steps->ops->status(steps->backend, err) != 0) {
        for (; steps->num_flights > 0; steps->num_flights--)
            for (int i = 0; i < steps->flights[steps->num_flights - 1].num_spans; i++)
                undo(&steps->flights[steps->num_flights - 1].spans[i]);
        return -1;
    }
    for (int i = 0; i < flight.num_spans; i++) {
        flight.spans[i].logits = flight.spans[i].num_logits > 0 ? logits : NULL;
        logits += (size_t)flight.spans[i].num_logits * (size_t)steps->info->vocab_size;
    }
    steps->flights[0] = steps->flights[1];
    if (--steps->num_flights > 0)
        drop_ended(&flight, &steps->flights[0]);
    return 0;
}
