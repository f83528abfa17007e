/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/batch.h"

#include "lib/base/clock.h"
#include "server/log.h"
#include "server/schedule/drafts.h"
#include "server/schedule/session_job.h"

#include <stdlib.h>
#include <string.h>

/* After so many failed steps in a row the engine counts as broken. */
enum { MAX_FAILED_STEPS = 3 };
/* After so many steps of readings (lib/grammar/readings.h) a turn makes no more masks. */
enum { MASK_WORK = 1 << 21 };

/* Those of served steps. */
static void count_experts(struct batch *batch)
{
    const int64_t read = engine_experts_read(batch->service->engine);
    atomic_store(&batch->service->metrics.experts_read,
                 read < 0 ? -1 : read - batch->experts_before);
}

int batch_init(struct batch *batch, struct service *service, struct inbox *inbox, int max_texts,
               int prefill_chunk, const struct pace *pace, struct error *err)
{
    const struct engine_info *info = engine_info(service->engine);
    *batch = (struct batch){
        .service = service,
        .pace = *pace,
        .tree = service->tree,
        .inbox = inbox,
        .limits = {info->max_step_tokens, info->max_step_logits, prefill_chunk,
                   info->max_step_pages, info->max_step_kept},
        .experts_before = engine_experts_read(service->engine),
    };
    count_experts(batch);
    for (int i = 0; i < (info->overlaps ? 2 : 1); i++) {
        struct step *step = &batch->steps[i];
        step->spans = calloc((size_t)info->max_step_tokens, sizeof *step->spans);
        step->stepped = calloc((size_t)info->max_step_tokens, sizeof *step->stepped);
        step->tokens = calloc((size_t)info->max_step_tokens, sizeof *step->tokens);
        if (!step->spans || !step->stepped || !step->tokens)
            return error_set(err, ERROR_NO_MEMORY, "out of memory for the scheduler");
    }
    return batch_reserve(batch, (size_t)max_texts, (size_t)max_texts, err);
}

void batch_clear(struct batch *batch)
{
    free(batch->running);
    free(batch->aside);
    free(batch->rows);
    free(batch->states);
    for (int i = 0; i < 2; i++) {
        free(batch->steps[i].spans);
        free(batch->steps[i].stepped);
        free(batch->steps[i].tokens);
    }
}

void batch_lose_waiters(struct batch *batch, struct sequence *leader, int64_t end)
{
    for (size_t i = 0; leader->prefix.waiters && i < batch->num_aside; i++) {
        struct prefix *prefix = &batch->aside[i]->prefix;
        if (prefix->leader != leader || prefix->wait_at > end)
            continue;
        prefix->leader = NULL;
        leader->prefix.waiters--;
    }
}

/* Puts it where its age has it in the list [count]. */
static void insert(struct sequence **list, size_t count, struct sequence *sequence)
{
    size_t at = count;
    for (; at > 0 && list[at - 1]->number > sequence->number; at--)
        list[at] = list[at - 1];
    list[at] = sequence;
}

static void take_out(struct sequence **list, size_t count, size_t at)
{
    memmove(list + at, list + at + 1, (count - at - 1) * sizeof *list);
}

void batch_open(struct batch *batch, struct sequence *sequence)
{
    struct job *job = sequence->job;
    insert(batch->aside, batch->num_aside++, sequence);
    job->run.num_open++;
    job->run.tenant->open++;
}

void batch_place(struct batch *batch, struct sequence *sequence)
{
    size_t at = 0;
    while (batch->aside[at] != sequence)
        at++;
    take_out(batch->aside, batch->num_aside--, at);
    insert(batch->running, batch->num_running++, sequence);
    sequence->job->run.tenant->places++;
    sequence->placed_at = sequence_length(sequence);
}

void batch_set_aside(struct batch *batch, size_t at)
{
    struct sequence *sequence = batch->running[at];
    batch_note_bytes(batch, sequence->job);
    prefix_set_aside(batch->tree, sequence);
    take_out(batch->running, batch->num_running--, at);
    sequence->job->run.tenant->places--;
    batch_lose_waiters(batch, sequence, INT64_MAX);
    insert(batch->aside, batch->num_aside++, sequence);
    atomic_fetch_add(&batch->service->metrics.set_aside, 1);
}

void batch_note_bytes(struct batch *batch, struct job *job)
{
    size_t count = 0;
    for (size_t i = 0; i < batch->num_running; i++)
        if (batch->running[i]->job == job && batch->running[i]->state)
            batch->states[count++] = batch->running[i]->state;
    int64_t bytes = (int64_t)state_bytes(batch->states, count);
    if (bytes > job->run.peak_state_bytes)
        job->run.peak_state_bytes = bytes;
}

/* The text is in no list any more. */
static void close_text(struct batch *batch, struct sequence *sequence)
{
    struct job *job = sequence->job;
    if (sequence->choice->finish != FINISH_NONE && sequence->choice->generated)
        metrics_text(
            &batch->service->metrics,
            &(struct metrics_text){.prompt_tokens = (int64_t)sequence->prompt->count,
                                   .generated = sequence->choice->generated,
                                   .max_tokens = job->asked.request.max_tokens,
                                   .prefill_s = sequence->first_token - sequence->opened,
                                   .decode_s = sequence->last_token - sequence->first_token,
                                   .state_bytes = job->run.peak_state_bytes});
    prefix_end(batch->tree, sequence);
    job->run.num_open--;
    job->run.tenant->open--;
    batch_lose_waiters(batch, sequence, INT64_MAX);
    sequence_close(sequence);
}

void batch_close(struct batch *batch, size_t at)
{
    struct sequence *sequence = batch->running[at];
    take_out(batch->running, batch->num_running--, at);
    sequence->job->run.tenant->places--;
    close_text(batch, sequence);
}

void batch_close_aside(struct batch *batch, size_t at)
{
    struct sequence *sequence = batch->aside[at];
    take_out(batch->aside, batch->num_aside--, at);
    close_text(batch, sequence);
}

/* Each text with a place may be set aside. */
static int reserve_aside(struct batch *batch, size_t count, struct error *err)
{
    if (count <= batch->aside_capacity)
        return 0;
    struct sequence **aside = realloc(batch->aside, 2 * count * sizeof(*aside));
    if (!aside)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %zu texts", count);
    batch->aside = aside;
    batch->aside_capacity = 2 * count;
    return 0;
}

int batch_reserve(struct batch *batch, size_t count, size_t more, struct error *err)
{
    if (reserve_aside(batch, count + batch->num_aside + more, err))
        return -1;
    if (count <= batch->capacity)
        return 0;
    size_t capacity = 2 * count;
    struct sequence **running = realloc(batch->running, capacity * sizeof(*running));
    if (running)
        batch->running = running;
    struct plan_row *rows = realloc(batch->rows, capacity * sizeof *rows);
    if (rows)
        batch->rows = rows;
    struct state **states = realloc(batch->states, capacity * sizeof(*states));
    if (states)
        batch->states = states;
    if (!running || !rows || !states)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %zu texts", count);
    batch->capacity = capacity;
    return 0;
}

bool batch_pauses(const struct sequence *sequence, double now)
{
    struct job *job = sequence->job;
    if (!job->asked.request.stream || job->task.ticket.runs_on || ticket_gone(&job->task.ticket))
        return false;
    ticket_lock(&job->task.ticket);
    bool full = outbox_full(&job->shared.outbox);
    ticket_unlock(&job->task.ticket);
    bool read = atomic_exchange(&job->shared.read, false);
    if (!full)
        job->run.behind_since = 0;
    else if (job->run.behind_since == 0 || read)
        job->run.behind_since = now;
    else if (now - job->run.behind_since > job->task.service->stall_timeout_s)
        ticket_cancel(&job->task.ticket, CANCEL_SLOW);
    return full;
}

/* Log-probabilities of what a session held before are not asked for. */
static bool wants_all(const struct sequence *sequence)
{
    return sequence->prompt->logprobs && sequence->taken >= (int64_t)sequence->prompt->context;
}

/* Makes the leader of a text stop where the text waits for it. A leader that is aside waits for
 * another itself. */
static void stop_for(struct batch *batch, const struct sequence *sequence)
{
    const struct sequence *leader = sequence->prefix.leader;
    if (!leader || !leader->state)
        return;
    struct plan_row *row = &batch->rows[leader->prefix.row];
    int64_t until = sequence->prefix.wait_at - leader->taken;
    if (row->until > until)
        row->until = until;
}

/* Most KV pages that the text may hold in a step and those that overlap it. */
static int64_t most_pages(const struct batch *batch, const struct sequence *sequence,
                          int64_t prefill)
{
    const struct state *state = sequence->state;
    if (!state)
        return 0;
    int64_t most = prefill ? batch->limits.max_tokens : BATCH_MOST_STEPS;
    return state_pages(state, state_position(state) + (prefill && prefill < most ? prefill : most));
}

/* Makes masks that are due. Where they would take too long, the texts that are left wait for later
 * turns; each turn begins behind the last one that has got its mask. False: some are left. */
static bool make_masks(struct batch *batch)
{
    const size_t count = batch->num_running, start = batch->mask_row;
    size_t work = 0, due = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = (start + i) % count;
        struct sequence *sequence = batch->running[at];
        struct error err = ERROR_INIT;
        if (!sequence->mask_due || sequence->job->failed)
            continue;
        if (work >= MASK_WORK) {
            due++;
            continue;
        }
        batch->mask_row = at + 1;
        if (sequence_mask(sequence, &work, &err))
            job_fail_engine(sequence->job, &err);
    }
    return due == 0;
}

static void make_row(struct batch *batch, struct sequence *sequence, double now,
                     struct plan_row *row)
{
    const struct job *job = sequence->job;
    int64_t behind = sequence->state ? sequence_behind(sequence) : 0;
    *row =
        (struct plan_row){.tenant = job->run.tenant->name,
                          .served = job->run.tenant->served,
                          .stepped = sequence->stepped,
                          .prefill = behind,
                          .position = behind ? state_position(sequence->state) : sequence->taken};
    if (!sequence->decoding)
        row->prefill = (int64_t)sequence->prompt->count - sequence->taken;
    row->wants_all = wants_all(sequence) && !sequence->decoding;
    row->wants_none =
        sequence->decoding || (job->asked.request.max_tokens == 0 && !session_job(job));
    /* A prompt goes on: others may wait for it. */
    row->idle =
        sequence->mask_due || job->failed || (sequence->decoding && batch_pauses(sequence, now));
    row->pages = most_pages(batch, sequence, row->prefill);
    if (row->prefill)
        row->until = prefix_until(batch->tree, sequence);
    else
        row->drafts = drafts_most(batch->tree, sequence);
}

/* The tokens that the text takes next of those that it has. */
static const int32_t *next_tokens(const struct sequence *sequence)
{
    const struct job_prompt *prompt = sequence->prompt;
    if (!sequence->decoding)
        return prompt->ids + sequence->taken;
    size_t position = (size_t)state_position(sequence->state);
    return position < prompt->count ? prompt->ids + position
                                    : sequence->prefix.ids.ids + (position - prompt->count);
}

static void make_plan(struct batch *batch, struct step *step)
{
    double now = clock_seconds();
    for (size_t i = 0; i < batch->num_running; i++) {
        make_row(batch, batch->running[i], now, &batch->rows[i]);
        batch->running[i]->prefix.row = i;
    }
    for (size_t i = 0; i < batch->num_aside; i++)
        stop_for(batch, batch->aside[i]);
    /* Who waits is bound to a session or prepared between steps: short ones let it in. */
    const bool waited = atomic_load(&batch->service->metrics.waiting) > 0;
    const bool alone = !waited && batch->num_running == 1 && batch->rows[0].prefill > 0;
    if (!alone && batch->num_running > 0)
        batch->shared_s = now;
    const struct plan_time time = pace_plan(&batch->pace, now - batch->shared_s);
    plan_step(batch->rows, batch->num_running, &batch->limits, &time, &batch->turn);
    int32_t *tokens = step->tokens;
    step->num_spans = 0;
    step->prompt_s = 0;
    step->drafts = false;
    for (size_t i = 0; i < batch->num_running; i++) {
        struct sequence *sequence = batch->running[i];
        const struct plan_row *row = &batch->rows[i];
        sequence->stepped = row->stepped;
        if (!row->tokens)
            continue;
        struct span span = {.state = sequence->state, .num_tokens = row->tokens};
        if (row->prefill == 0 && row->tokens > 1) {
            drafts_write(sequence, row->tokens - 1, tokens);
            span.tokens = tokens;
            span.num_logits = row->logits;
            span.num_kept = row->tokens - 1;
            step->drafts = true;
            tokens += row->tokens;
        } else if (row->prefill == 0) {
            span.tokens = &sequence->next_token;
            span.draw = sequence_draw(sequence, false);
        } else {
            /* kept with the prompt, whose texts all draw from them */
            span.tokens = next_tokens(sequence);
            span.num_logits = row->logits;
            step->prompt_s += plan_seconds(&time, row, row->tokens);
        }
        step->stepped[step->num_spans] = sequence;
        step->spans[step->num_spans++] = span;
    }
}

/* The next token of every text of a step that is under way. */
static void make_next(const struct step *step, struct step *next)
{
    next->num_spans = step->num_spans;
    next->prompt_s = 0;
    next->drafts = false;
    for (size_t i = 0; i < step->num_spans; i++) {
        struct sequence *sequence = step->stepped[i];
        next->stepped[i] = sequence;
        next->spans[i] = (struct span){
            .state = sequence->state, .num_tokens = 1, .draw = sequence_draw(sequence, true)};
    }
}

/* Whether the text goes on whatever the step under way draws for it, so that its next token needs
 * nothing of the host first. Tokens that end the text do not count: the engine knows them. */
static bool goes_on(const struct batch *batch, const struct sequence *sequence, double now)
{
    struct job *job = sequence->job;
    const struct job_choice *choice = sequence->choice;
    return sequence->decoding && choice->finish == FINISH_NONE && !job->failed &&
           !job->prepared.stops && choice->generated + 1 < job->asked.request.max_tokens &&
           !sampler_looks_back(sequence->sampler) && !job->prepared.words &&
           !prefix_due(batch->tree, sequence) &&
           ticket_cancelled(&job->task.ticket) == CANCEL_NONE && !batch_pauses(sequence, now);
}

/* Whether a step of the same texts may begin before the one under way has been looked at. */
static bool may_follow(struct batch *batch, const struct step *step)
{
    if (!engine_info(batch->service->engine)->overlaps || step->num_spans != batch->num_running ||
        inbox_pending(batch->inbox))
        return false;
    double now = clock_seconds();
    for (size_t i = 0; i < step->num_spans; i++)
        if (!step->spans[i].draw || !goes_on(batch, step->stepped[i], now))
            return false;
    return true;
}

/* Takes log-probabilities of the prompt's own tokens. The logits of a position tell of the next
 * token. */
static void take_prompt_logprobs(struct sequence *sequence, const struct span *span)
{
    struct job_prompt *prompt = sequence->prompt;
    int32_t vocab_size = sequence->job->task.service->limits.vocab_size;
    const struct completion_request *request = &sequence->job->asked.request;
    int count = prompt->num_top;
    size_t position = (size_t)(sequence->taken + span->num_tokens - span->num_logits);
    for (int i = 0; i < span->num_logits; i++, position++) {
        if (position + 1 == prompt->count)
            break;
        const float *logits = span->logits + (size_t)i * (size_t)vocab_size;
        size_t at = position + 1 - prompt->context;
        struct reply_token *token = &prompt->logprobs[at];
        token->has_logprob = true;
        token->num_top = request->echo && request->logprobs > 0 ? request->logprobs : 0;
        if (count > 0)
            token->top = prompt->tops + at * (size_t)count;
        if (request->prompt_logprobs >= 0)
            token->rank = logprob_rank(logits, vocab_size, token->id);
        token->logprob = count > 0 ? logprobs_top(logits, vocab_size, token->id, count,
                                                  prompt->tops + at * (size_t)count)
                                   : logprob_of(logits, vocab_size, token->id);
    }
}

/* Counts how much of a prompt had been computed before; called for its first text. */
static void count_cached(struct sequence *sequence)
{
    struct job *job = sequence->job;
    const struct prefix *prefix = &sequence->prefix;
    job->shared.cached_tokens += prefix->cached;
    if (job->shared.miss == MISS_NONE) {
        job->shared.diverged_at = prefix->diverged_at;
        job->shared.miss = prefix->miss;
    }
    metrics_lookup(&job->task.service->metrics, (int64_t)sequence->prompt->count, prefix->cached,
                   prefix->miss);
}

/* The text has taken its whole prompt: draws its first token from these logits. NULL: no token is
 * asked for. */
static int begin_text(struct batch *batch, struct sequence *sequence, const float *logits,
                      double now, struct error *err)
{
    struct job *job = sequence->job;
    bool first = sequence->index % job->asked.request.best_of == 0;
    if (first)
        count_cached(sequence);
    if (sequence_begin(sequence, err))
        return -1;
    if (sequence->choice->finish != FINISH_NONE)
        logits = NULL;
    if (logits)
        sampler_draw(sequence_draw(sequence, false), logits);
    if (logits && sequence_take(sequence, now, &batch->generated, err))
        return -1;
    job->run.prefilled = now;
    job->run.prefill_generated = job->run.generated;
    if (logits && first)
        histogram_observe(&job->task.service->metrics.time_to_first_token,
                          now - job->asked.received);
    return 0;
}

/* Texts that wait for this one where it is now can go on from there. With the last logits of its
 * prompt, texts of the same prompt begin. */
static void wake_waiters(struct batch *batch, struct sequence *leader, const float *logits,
                         double now)
{
    for (size_t i = 0; leader->prefix.waiters && i < batch->num_aside; i++) {
        struct sequence *sequence = batch->aside[i];
        if (sequence->prefix.leader != leader || sequence->prefix.wait_at != leader->taken)
            continue;
        if (leader->state)
            prefix_share(batch->tree, leader, logits);
        struct error err = ERROR_INIT;
        prefix_reached(sequence);
        bool whole = sequence->taken == (int64_t)sequence->prompt->count;
        if (whole && begin_text(batch, sequence, logits, now, &err))
            job_fail_engine(sequence->job, &err);
        else
            wake_waiters(batch, sequence, whole ? logits : NULL, now);
    }
}

/* The text has more of its prompt, perhaps all of it. */
static int advance_prompt(struct batch *batch, struct sequence *sequence, const float *last,
                          double now, struct error *err)
{
    bool whole = sequence->taken == (int64_t)sequence->prompt->count;
    if (whole && begin_text(batch, sequence, last, now, err))
        return -1;
    prefix_keep(batch->tree, sequence, whole ? last : NULL);
    wake_waiters(batch, sequence, whole ? last : NULL, now);
    return 0;
}

/* The state may be one step ahead, if a step is under way. That step feeds the token that is taken
 * here. */
static int take_result(struct batch *batch, struct sequence *sequence, const struct span *span,
                       double now, struct error *err)
{
    size_t vocab_size = (size_t)batch->service->limits.vocab_size;
    if (sequence->decoding && !span->draw && span->num_kept == 0) {
        prefix_keep(batch->tree, sequence, NULL);
        return 0;
    }
    if (sequence->decoding) {
        if (span->num_kept > 0 ? drafts_take(sequence, span, now, &batch->generated, err)
                               : sequence_take(sequence, now, &batch->generated, err))
            return -1;
        if (sequence->choice->finish == FINISH_NONE)
            prefix_keep(batch->tree, sequence, NULL);
        return 0;
    }
    if (sequence->prompt->logprobs)
        take_prompt_logprobs(sequence, span);
    sequence->taken += span->num_tokens;
    const float *last =
        span->num_logits ? span->logits + (size_t)(span->num_logits - 1) * vocab_size : NULL;
    return advance_prompt(batch, sequence, last, now, err);
}

int batch_begin_whole(struct batch *batch, struct sequence *sequence, const float *logits,
                      struct error *err)
{
    double now = clock_seconds();
    if (begin_text(batch, sequence, logits, now, err))
        return -1;
    wake_waiters(batch, sequence, logits, now);
    return 0;
}

/* No state has moved. Nobody knows which span was at fault, so all of them end. */
static void fail_step(struct batch *batch, const struct step *step, const struct error *err)
{
    log_message(LOG_LEVEL_ERROR, "the engine failed a step of %zu texts: %s", step->num_spans,
                err->message);
    for (size_t i = 0; i < step->num_spans; i++)
        job_fail_engine(step->stepped[i]->job, err);
    if (++batch->failed_steps >= MAX_FAILED_STEPS || engine_failed(batch->service->engine)) {
        log_message(LOG_LEVEL_ERROR, "giving up after %d failed steps", batch->failed_steps);
        int ready = SERVICE_READY; /* a drain goes on as one */
        atomic_compare_exchange_strong(&batch->service->phase, &ready, SERVICE_FAILED);
    }
}

static void take_results(struct batch *batch, const struct step *step)
{
    struct metrics *metrics = &batch->service->metrics;
    double now = clock_seconds();
    int tokens = 0, of_prompts = 0;
    batch->generated = 0;
    batch->failed_steps = 0;
    count_experts(batch);
    for (size_t i = 0; i < step->num_spans; i++) {
        struct sequence *sequence = step->stepped[i];
        struct error err = ERROR_INIT;
        /* An earlier step that this one did not wait for may have ended it. */
        if (sequence->choice->finish != FINISH_NONE)
            continue;
        tokens += step->spans[i].num_tokens;
        of_prompts +=
            step->spans[i].draw || step->spans[i].num_kept > 0 ? 0 : step->spans[i].num_tokens;
        sequence->job->run.tenant->served += step->spans[i].num_tokens;
        const struct span *span = &step->spans[i];
        const int result = !sequence->job->failed ? take_result(batch, sequence, span, now, &err)
                           : span->num_kept > 0   ? drafts_drop(sequence, span, &err)
                                                  : 0;
        if (result)
            job_fail_engine(sequence->job, &err);
    }
    atomic_fetch_add(&metrics->steps, 1);
    histogram_observe(&metrics->batch_tokens, tokens);
    histogram_observe(&metrics->step_tokens, of_prompts + batch->generated);
}

/* Part of a step on this thread: engine_submit with the step, or engine_collect with NULL. */
static int run_part(struct batch *batch, const struct step *step, struct error *err)
{
    struct engine *engine = batch->service->engine;
    int64_t cpu = clock_nanos(CLOCK_THREAD_CPUTIME_ID);
    int result = step ? engine_submit(engine, step->spans, (int)step->num_spans, err)
                      : engine_collect(engine, err);
    atomic_fetch_add(&batch->service->metrics.step_cpu_nanos,
                     clock_nanos(CLOCK_THREAD_CPUTIME_ID) - cpu);
    return result;
}

/* Waits for a step and takes its results. */
static int end_step(struct batch *batch, const struct step *step, int64_t *began)
{
    struct error err = ERROR_INIT;
    int result = run_part(batch, NULL, &err);
    int64_t ended = clock_nanos(CLOCK_MONOTONIC);
    atomic_fetch_add(&batch->service->metrics.step_nanos, ended - *began);
    const double took = (double)(ended - *began) * 1e-9;
    *began = ended;
    if (result) {
        fail_step(batch, step, &err);
        return result;
    }
    if (!step->drafts)
        pace_learn(&batch->pace, took, step->prompt_s);
    take_results(batch, step);
    return 0;
}

/* Runs steps one after the other. As long as it may, it begins each before it looks at the last
 * one. */
static void run_steps(struct batch *batch, struct step *step)
{
    int64_t began = clock_nanos(CLOCK_MONOTONIC);
    struct step *before = NULL;
    for (int i = 1; step; i++) {
        struct error err = ERROR_INIT;
        int result = run_part(batch, step, &err);
        if (before && end_step(batch, before, &began))
            return;
        if (result) {
            fail_step(batch, step, &err);
            return;
        }
        before = step;
        step = NULL;
        if (i < BATCH_MOST_STEPS && may_follow(batch, before)) {
            step = &batch->steps[i % 2];
            make_next(before, step);
        }
    }
    end_step(batch, before, &began);
}

void batch_step(struct batch *batch)
{
    struct step *step = &batch->steps[0];
    bool masked = make_masks(batch);
    make_plan(batch, step);
    batch->stalled = masked && step->num_spans == 0 && batch->num_running > 0;
    if (step->num_spans > 0)
        run_steps(batch, step);
}
