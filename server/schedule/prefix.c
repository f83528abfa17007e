/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/prefix.h"

#include "server/schedule/chat_job.h"
#include "server/schedule/session_job.h"
#include "server/states/shared_prefixes.h"

#include <stdlib.h>
#include <string.h>

/* Fewer tokens than that are not worth waiting for, nor a checkpoint. */
enum { WORTH_SHARING = 16 };

static bool reuses(const struct state_tree *tree, const struct job *job)
{
    return state_tree_reuses(tree) || session_job(job);
}

/* Whether there is an assistant's message before the last ones. */
static bool chat_goes_on(const struct job *job)
{
    return job->asked.request.chat_replied || job->chat.turns_length > 0;
}

/* How much of a prompt may come from the tree. With log-probabilities of the prompt, only what a
 * session held before it; the last token of that is computed for their sake. */
static int64_t reusable(const struct job_prompt *prompt)
{
    if (!prompt->logprobs || prompt->context == prompt->count)
        return (int64_t)prompt->count;
    return prompt->context ? (int64_t)prompt->context + 1 : 0;
}

void prefix_match(struct state_tree *tree, struct space *space, const struct job *job,
                  const struct job_prompt *prompt, struct state_match *match)
{
    int64_t count = reusable(prompt);
    if (reuses(tree, job) && count > 0)
        state_tree_match(tree, space, prompt->ids, count,
                         prompt->logprobs ? MATCH_NONE : MATCH_WITH_LOGITS, match);
    else
        *match = (struct state_match){.reason = MISS_DISABLED};
    /* A chat that has been answered before was known: what parts from it is not new. */
    if (match->reason == MISS_NO_CHECKPOINT && match->parts && chat_goes_on(job))
        match->reason = MISS_DIVERGED;
    if (prompt->logprobs && !prompt->context)
        match->reason = MISS_DISABLED;
}

bool prefix_is_coming(struct sequence *sequence, const struct state_match *match)
{
    struct shared_prefixes *shared = sequence->job->task.service->prefixes;
    const struct job_prompt *prompt = sequence->prompt;
    struct prefix *prefix = &sequence->prefix;
    if (!shared || prompt->logprobs)
        return false;
    if (!prefix->asked) {
        prefix->asked = true;
        prefix->ask = shared_prefixes_ask(shared, prefix->space, prompt->ids,
                                          (int64_t)prompt->count - 1, match->position);
    }
    return shared_prefixes_waits(shared, prefix->ask);
}

/* What a session's text says may be deleted with it: others get prompts without a session alone. */
static void publish(const struct sequence *sequence, int64_t position)
{
    struct shared_prefixes *shared = sequence->job->task.service->prefixes;
    if (shared && sequence->prefix.keeps && !session_job(sequence->job))
        shared_prefixes_publish(shared, sequence->prefix.space, sequence->prompt->ids, position);
}

static void set_match(struct sequence *sequence, const struct state_match *match)
{
    struct prefix *prefix = &sequence->prefix;
    int64_t count = (int64_t)sequence->prompt->count;
    sequence->taken = prefix->cached = match->position;
    prefix->miss = match->reason;
    prefix->diverged_at = match->reason == MISS_DIVERGED ? match->shared : -1;
    /* Of its session, whatever other texts there are. */
    if (sequence->prompt->replaces) {
        prefix->miss = MISS_DIVERGED;
        prefix->diverged_at = (int64_t)sequence->prompt->context;
    } else if (prefix->miss == MISS_DIVERGED && sequence->prompt->context > 0 &&
               match->position + 1 >= (int64_t)sequence->prompt->context) {
        prefix->miss = MISS_NONE;
        prefix->diverged_at = -1;
    }
    prefix->branch_at = match->shared >= match->position + WORTH_SHARING && match->shared < count
                            ? match->shared
                            : 0;
}

void prefix_open(struct state_tree *tree, struct sequence *sequence, struct space *space)
{
    sequence->prefix.space = space;
    sequence->prefix.diverged_at = -1;
    sequence->prefix.miss = MISS_DISABLED;
    /* Prompts that are only scored come once. */
    sequence->prefix.keeps =
        reuses(tree, sequence->job) && (!sequence->prompt->logprobs || session_job(sequence->job));
}

void prefix_begin(struct sequence *sequence, const struct state_match *match)
{
    set_match(sequence, match);
    publish(sequence, match->position); /* a second text begins so */
}

/* The prompt and `generated` tokens after it; the caller frees it. NULL: no memory. */
static int32_t *whole_text(const struct sequence *sequence, int64_t generated)
{
    size_t count = sequence->prompt->count;
    int32_t *tokens = malloc((count + (size_t)generated + 1) * sizeof *tokens);
    if (!tokens)
        return NULL;
    memcpy(tokens, sequence->prompt->ids, count * sizeof *tokens);
    if (generated)
        memcpy(tokens + count, sequence->prefix.ids.ids, (size_t)generated * sizeof *tokens);
    return tokens;
}

/* Whether the states that the job's texts have computed can be trusted. */
static bool sound(const struct job *job)
{
    return job->task.error.code == API_OK || job->task.error.code == API_CANCELLED ||
           job->task.error.code == API_DRAINING;
}

/* What it left behind when it was set aside is for nobody else. */
static void forget(struct state_tree *tree, const struct sequence *sequence)
{
    const struct prefix *prefix = &sequence->prefix;
    int32_t *tokens = whole_text(sequence, (int64_t)prefix->ids.count);
    if (tokens)
        state_tree_forget(tree, prefix->space, tokens,
                          (int64_t)(sequence->prompt->count + prefix->ids.count));
    free(tokens);
}

void prefix_end(struct state_tree *tree, struct sequence *sequence)
{
    struct prefix *prefix = &sequence->prefix;
    struct job *job = sequence->job;
    if (prefix->keeps && sound(job)) {
        int64_t generated = (int64_t)prefix->ids.count;
        int32_t *tokens = whole_text(sequence, generated);
        if (tokens && sequence->state) {
            state_tree_give(tree, prefix->space, tokens, sequence->state, NULL);
            sequence->state = NULL;
        }
        if (sequence->decoding && job->bound.session)
            session_job_take(job, tokens, (int64_t)sequence->prompt->count + generated);
        else
            free(tokens);
    } else if (prefix->left) {
        forget(tree, sequence);
    }
    if (sequence->decoding && sound(job))
        chat_job_say(job, sequence->choice, &prefix->ids);
    if (prefix->leader)
        prefix->leader->prefix.waiters--;
    state_tree_space_release(tree, prefix->space);
    prefix->leader = NULL;
    prefix->space = NULL;
}

void prefix_set_aside(struct state_tree *tree, struct sequence *sequence)
{
    int64_t fed = state_position(sequence->state) - (int64_t)sequence->prompt->count;
    int32_t *tokens = whole_text(sequence, fed > 0 ? fed : 0);
    if (tokens)
        state_tree_give(tree, sequence->prefix.space, tokens, sequence->state, NULL);
    else
        state_free(sequence->state);
    free(tokens);
    sequence->state = NULL;
    sequence->prefix.left = true;
}

int prefix_match_own(struct state_tree *tree, struct sequence *sequence, struct state_match *match,
                     struct error *err)
{
    int64_t count = (int64_t)sequence->prompt->count, length = sequence_length(sequence);
    int32_t *tokens = whole_text(sequence, length > count ? length - count : 0);
    if (!tokens)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    /* Others may have computed more of its prompt by now. */
    if (!sequence->decoding && !sequence->prompt->logprobs)
        length = count - 1;
    state_tree_match(tree, sequence->prefix.space, tokens, length, MATCH_ANY, match);
    free(tokens);
    return 0;
}

void prefix_follow(struct sequence *sequence, struct sequence *leader, int64_t at)
{
    sequence->prefix.leader = leader;
    sequence->prefix.wait_at = at;
    leader->prefix.waiters++;
}

/* How far the text would follow the other; 0: not at all. */
static int64_t follows_to(const struct sequence *sequence, const struct sequence *other)
{
    const struct job_prompt *mine = sequence->prompt, *theirs = other->prompt;
    if (other->decoding || (!other->state && !other->prefix.leader) || other->job->failed ||
        other->prefix.space != sequence->prefix.space || other->number >= sequence->number)
        return 0;
    size_t least = mine->count < theirs->count ? mine->count : theirs->count, equal = 0;
    while (equal < least && mine->ids[equal] == theirs->ids[equal])
        equal++;
    /* The last token is computed here, unless the other draws from its logits too. */
    bool whole =
        mine->count == theirs->count && equal == least && other->job->asked.request.max_tokens > 0;
    if (equal == mine->count && !whole)
        equal--;
    int64_t gain = (int64_t)equal - sequence->taken;
    /* A text that waits itself will go on from wait_at, and from nowhere before. */
    int64_t from = other->prefix.leader ? other->prefix.wait_at - 1 : other->taken;
    if ((int64_t)equal <= from || gain < (whole ? 1 : WORTH_SHARING))
        return 0;
    return (int64_t)equal;
}

void prefix_wait(struct state_tree *tree, struct sequence *sequence, struct sequence **others,
                 size_t count)
{
    if (!reuses(tree, sequence->job) || sequence->prompt->logprobs)
        return;
    struct sequence *leader = NULL;
    int64_t best = sequence->prefix.leader ? sequence->prefix.wait_at : 0;
    for (size_t i = 0; i < count; i++) {
        int64_t at = follows_to(sequence, others[i]);
        if (at > best) {
            best = at;
            leader = others[i];
        }
    }
    if (!leader)
        return;
    if (sequence->prefix.leader)
        sequence->prefix.leader->prefix.waiters--;
    prefix_follow(sequence, leader, best);
}

void prefix_share(struct state_tree *tree, struct sequence *leader, const float *logits)
{
    if (leader->prefix.keeps && prefix_due(tree, leader))
        return; /* it is there, if there was room */
    state_tree_keep(tree, leader->prefix.space, leader->prompt->ids, leader->state, logits);
    leader->prefix.left = leader->prefix.left || !leader->prefix.keeps;
}

void prefix_reached(struct sequence *sequence)
{
    struct prefix *prefix = &sequence->prefix;
    prefix->leader->prefix.waiters--;
    prefix->leader = NULL;
    sequence->taken = prefix->cached = prefix->wait_at;
    if (sequence->taken >= (int64_t)sequence->prompt->count - 1) {
        prefix->miss = MISS_NONE;
        prefix->diverged_at = -1;
    }
}

/* Where the text is: a decoding one that takes tokens once more may still be in its prompt. */
static int64_t position_of(const struct sequence *sequence)
{
    return sequence->decoding ? state_position(sequence->state) : sequence->taken;
}

int64_t prefix_until(const struct state_tree *tree, const struct sequence *sequence)
{
    const struct prefix *prefix = &sequence->prefix;
    int64_t taken = position_of(sequence), count = (int64_t)sequence->prompt->count;
    int64_t context = (int64_t)sequence->prompt->context;
    int64_t end = taken < count ? count : sequence_length(sequence);
    if (sequence->prompt->logprobs && taken < context)
        end = context; /* from there on every token has logits */
    if (!prefix->keeps)
        return end - taken;
    int64_t interval = state_tree_interval(tree);
    int64_t due = (taken / interval + 1) * interval;
    if (due < end)
        end = due;
    if (prefix->branch_at > taken && prefix->branch_at < end)
        end = prefix->branch_at;
    if (taken < count - 1 && end == count && !state_tree_keeps_logits(tree))
        end = count - 1;
    return end - taken;
}

int64_t prefix_room(const struct state_tree *tree, const struct sequence *sequence)
{
    const int64_t interval = state_tree_interval(tree);
    return sequence->prefix.keeps ? interval - state_position(sequence->state) % interval
                                  : INT64_MAX;
}

bool prefix_due(const struct state_tree *tree, const struct sequence *sequence)
{
    if (!sequence->prefix.keeps)
        return false;
    int64_t position = state_position(sequence->state), count = (int64_t)sequence->prompt->count;
    return position % state_tree_interval(tree) == 0 || position == sequence->prefix.branch_at ||
           position == count || (position == count - 1 && !state_tree_keeps_logits(tree));
}

void prefix_keep(struct state_tree *tree, struct sequence *sequence, const float *logits)
{
    struct prefix *prefix = &sequence->prefix;
    if (!prefix_due(tree, sequence))
        return;
    int64_t generated = state_position(sequence->state) - (int64_t)sequence->prompt->count;
    if (generated <= 0) {
        int64_t position = state_position(sequence->state);
        const struct shared_prefixes *shared = sequence->job->task.service->prefixes;
        state_tree_keep(tree, prefix->space, sequence->prompt->ids, sequence->state, logits);
        if (shared &&
            position == shared_prefixes_deepest(shared, (int64_t)sequence->prompt->count - 1))
            publish(sequence, position);
        return;
    }
    int32_t *tokens = whole_text(sequence, generated);
    if (tokens)
        state_tree_keep(tree, prefix->space, tokens, sequence->state, NULL);
    free(tokens);
}
