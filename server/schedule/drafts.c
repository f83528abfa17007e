/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/drafts.h"

#include "server/schedule/prefix.h"

#include <string.h>

/* Guesses of the request that are still to come. */
static int64_t left(const struct sequence *sequence)
{
    const struct completion_request *request = &sequence->job->asked.request;
    return (int64_t)request->num_draft_token_ids - sequence->choice->generated;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int drafts_most(const struct state_tree *tree, const struct sequence *sequence)
{
    const struct completion_request *request = &sequence->job->asked.request;
    if (!sequence->decoding || !sequence->state || left(sequence) <= 0)
        return 0;
    /* one token less than each of these, which is the text's own */
    int64_t most = least(SEQUENCE_ROOM, request->max_tokens - sequence->choice->generated);
    most = least(most, state_reserved(sequence->state) - state_position(sequence->state));
    most = least(most, prefix_room(tree, sequence));
    return most > 1 ? (int)least(least(most - 1, left(sequence)), ENGINE_MOST_KEPT) : 0;
}

void drafts_write(const struct sequence *sequence, int count, int32_t *tokens)
{
    const struct completion_request *request = &sequence->job->asked.request;
    tokens[0] = sequence->next_token;
    memcpy(tokens + 1, request->draft_token_ids + sequence->choice->generated,
           (size_t)count * sizeof *tokens);
}

static int go_back(struct sequence *sequence, int tokens, struct error *err)
{
    struct engine *engine = sequence->job->task.service->engine;
    return tokens == 0 ? 0 : engine_go_back(engine, sequence->state, tokens, err);
}

/* Whether the token that was taken last is the draft at this place of the span, and another may be
 * drawn behind it. -1: the text cannot continue. */
static int goes_on(struct sequence *sequence, const struct span *span, int place, struct error *err)
{
    size_t work = 0;
    if (sequence->choice->finish != FINISH_NONE || place == span->num_tokens ||
        sequence->next_token != span->tokens[place])
        return 0;
    return !sequence->mask_due || sequence_mask(sequence, &work, err) == 0 ? 1 : -1;
}

int drafts_take(struct sequence *sequence, const struct span *span, double now, int *generated,
                struct error *err)
{
    const size_t vocab_size = (size_t)sequence->job->task.service->limits.vocab_size;
    int taken = 0, goes = 1; /* tokens of the span that the text has */
    for (; goes == 1; taken++) {
        sampler_draw(sequence_draw(sequence, false), span->logits + (size_t)taken * vocab_size);
        goes = sequence_take(sequence, now, generated, err) == 0
                   ? goes_on(sequence, span, taken + 1, err)
                   : -1;
    }
    struct error failed = ERROR_INIT;
    if (go_back(sequence, span->num_tokens - taken, &failed) == 0)
        return goes;
    if (goes == 0)
        error_set(err, failed.code, "%s", failed.message);
    return -1;
}

int drafts_drop(struct sequence *sequence, const struct span *span, struct error *err)
{
    return go_back(sequence, span->num_kept, err);
}
