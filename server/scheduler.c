#include "server/scheduler.h"

#include "engine/base/clock.h"
#include "server/inbox.h"
#include "server/log.h"
#include "server/plan.h"
#include "server/prefix.h"
#include "server/session_job.h"
#include "server/state_task.h"

#include <stdlib.h>
#include <string.h>

/* Steps that fail one after another until the engine counts as broken. */
enum { MAX_FAILED_STEPS = 3 };
/* How often texts that wait for their readers are looked at, unless something happens. */
enum { STALL_TICK_MS = 50 };

struct scheduler {
    struct service *service;
    struct state_tree *tree;
    pthread_t thread;
    bool stopped; /* it has ended */
    int max_texts;
    struct inbox inbox;

    /* The engine thread's. */
    struct job_list waiting;   /* have prompts to start, oldest first */
    struct job_list aside;     /* of these, what waits for a file */
    struct sequence **running; /* [num_running], oldest first */
    size_t num_running, capacity;
    struct plan_row *rows; /* [capacity] */
    struct plan_limits limits;
    size_t turn;
    struct span *spans;        /* [max_tokens]: a span has at least one token */
    struct sequence **stepped; /* [max_tokens]: whose span it is */
    float *logits;             /* [vocab_size]: of a prompt that is there as a whole */
    int failed_steps;
    bool stalled;          /* texts run, but all of them wait for their readers */
    bool lost;             /* some have lost their leaders */
    double sessions_due_s; /* until sessions_poll wants to be called again; < 0: it does not */
};

void scheduler_submit(struct scheduler *scheduler, struct job *job)
{
    inbox_put_job(&scheduler->inbox, job);
}

void scheduler_post(struct scheduler *scheduler, struct work *work)
{
    inbox_put_work(&scheduler->inbox, work);
}

void scheduler_poke(struct scheduler *scheduler)
{
    inbox_poke(&scheduler->inbox);
}

/* How long the thread may sleep: < 0 until something comes. */
static double may_sleep(const struct scheduler *scheduler)
{
    if (scheduler->stalled)
        return STALL_TICK_MS / 1e3;
    return scheduler->waiting.head || scheduler->num_running ? 0 : scheduler->sessions_due_s;
}

/* Takes what has come; sleeps while there is nothing to do. False: time to end. */
static bool take_inbox(struct scheduler *scheduler)
{
    struct inbox_taken taken;
    inbox_take(&scheduler->inbox, may_sleep(scheduler), &taken);
    for (struct work *work = taken.work, *next; work; work = next) {
        next = work->next;
        work->run(work);
    }
    struct service *service = scheduler->service;
    if (service->store)
        store_poll(service->store);
    state_tree_poll(scheduler->tree);
    bool parked = state_task_poll(service);
    scheduler->sessions_due_s = sessions_poll(service->sessions);
    /* A file may have been read. */
    if (taken.poked)
        job_list_prepend(&scheduler->waiting, &scheduler->aside);
    for (struct job *job = taken.jobs.head, *next; job; job = next) {
        next = job->next;
        job_list_append(&scheduler->waiting, job);
    }
    return !taken.closing || taken.work || scheduler->waiting.head || scheduler->aside.head ||
           scheduler->num_running || parked || sessions_pending(service->sessions);
}

void scheduler_publish(struct scheduler *scheduler)
{
    struct metrics_memory memory;
    engine_memory(scheduler->service->engine, &memory.device);
    state_tree_report(scheduler->tree, &memory.tree);
    metrics_set_memory(&scheduler->service->metrics, &memory);
}

/* A text of the job is about to end: notes the most state that its texts held together. */
static void note_state_bytes(struct scheduler *scheduler, struct job *job)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < scheduler->num_running; i++)
        if (scheduler->running[i]->job == job && scheduler->running[i]->state)
            bytes += (int64_t)state_bytes(scheduler->running[i]->state);
    if (bytes > job->peak_state_bytes)
        job->peak_state_bytes = bytes;
}

/* Whether it stands in the line: it does until its last prompt has started. */
static bool job_waits(const struct job *job)
{
    return job->next_prompt < job->request.num_prompts;
}

/* Ends the job once none of its texts run and none is to start. The states are free and the
 * numbers say so before the client can know. */
static void end_if_done(struct scheduler *scheduler, struct job *job)
{
    if (job->num_running || (job_waits(job) && !job->failed))
        return;
    scheduler_publish(scheduler);
    job_finish(job);
}

/* Texts that wait for this one to come to one of its first `end` tokens wait in vain. */
static void lose_waiters(struct scheduler *scheduler, struct sequence *leader, int64_t end)
{
    for (size_t i = 0; leader->prefix.waiters && i < scheduler->num_running; i++) {
        struct prefix *prefix = &scheduler->running[i]->prefix;
        if (prefix->leader != leader || prefix->wait_at > end)
            continue;
        prefix->leader = NULL;
        prefix->lost = scheduler->lost = true;
        leader->prefix.waiters--;
    }
}

/* Takes a text out of the batch, in place. */
static void close_running(struct scheduler *scheduler, size_t at)
{
    struct sequence *sequence = scheduler->running[at];
    struct job *job = sequence->job;
    if (sequence->choice->finish != FINISH_NONE && sequence->choice->generated)
        metrics_generation(&scheduler->service->metrics, sequence->choice->generated,
                           sequence->last_token - sequence->first_token, job->peak_state_bytes);
    prefix_end(scheduler->tree, sequence);
    scheduler->num_running--;
    memmove(scheduler->running + at, scheduler->running + at + 1,
            (scheduler->num_running - at) * sizeof *scheduler->running);
    job->num_running--;
    lose_waiters(scheduler, sequence, INT64_MAX);
    sequence_close(sequence);
}

/* Ends a job that has failed or was cancelled, wherever it stands. */
static void abandon(struct scheduler *scheduler, struct job *job)
{
    job->failed = true;
    note_state_bytes(scheduler, job);
    if (job_waits(job) && !job_list_remove(&scheduler->waiting, job))
        job_list_remove(&scheduler->aside, job);
    for (size_t i = scheduler->num_running; i-- > 0;)
        if (scheduler->running[i]->job == job)
            close_running(scheduler, i);
    end_if_done(scheduler, job);
}

static void drop_from(struct scheduler *scheduler, const struct job_list *list)
{
    for (struct job *job = list->head, *next; job; job = next) {
        next = job->next;
        if (ticket_cancelled(&job->ticket)) {
            job_fail_cancelled(job);
            abandon(scheduler, job);
        }
    }
}

static void drop_cancelled(struct scheduler *scheduler)
{
    drop_from(scheduler, &scheduler->waiting);
    drop_from(scheduler, &scheduler->aside);
    for (size_t i = 0; i < scheduler->num_running;) {
        struct job *job = scheduler->running[i]->job;
        if (!ticket_cancelled(&job->ticket)) {
            i++;
            continue;
        }
        job_fail_cancelled(job);
        abandon(scheduler, job);
        i = 0;
    }
}

static int reserve_rows(struct scheduler *scheduler, size_t count, struct error *err)
{
    if (count <= scheduler->capacity)
        return 0;
    size_t capacity = 2 * count;
    struct sequence **running = realloc(scheduler->running, capacity * sizeof(*running));
    if (running)
        scheduler->running = running;
    struct plan_row *rows = realloc(scheduler->rows, capacity * sizeof *rows);
    if (rows)
        scheduler->rows = rows;
    if (!running || !rows)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %zu texts", count);
    scheduler->capacity = capacity;
    return 0;
}

/* Nothing can be computed where no token is asked for: the echo alone is the reply. */
static bool needs_no_engine(const struct job *job)
{
    return job->request.max_tokens == 0 && job->request.logprobs < 0 && !session_job(job);
}

/* A text of the job's next prompt at the end of those that run, on a match. 1: not now, a file is
 * being read. */
static int start_text(struct scheduler *scheduler, struct job *job, int number,
                      const struct state_match *match, struct error *err)
{
    struct state_tree *tree = scheduler->tree;
    const struct completion_request *request = &job->request;
    size_t index = job->next_prompt * (size_t)request->best_of + (size_t)number;
    int64_t tokens = (int64_t)job->prompts[job->next_prompt].count + request->max_tokens;
    struct state *state = NULL;
    struct sequence *sequence;
    struct space *space =
        state_tree_space(tree, job->owner, request->cache_salt, request->cache_salt_length);
    int result = 0;
    if (!space)
        result = error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    else if (!needs_no_engine(job))
        result = state_tree_start(tree, match, tokens, &state, err);
    if (result == 0 && sequence_open(&sequence, job, index, err)) {
        state_free(state);
        result = -1;
    }
    if (result) {
        state_tree_space_release(tree, space);
        return result;
    }
    sequence->state = state;
    prefix_begin(tree, sequence, space, match);
    scheduler->running[scheduler->num_running++] = sequence;
    return 0;
}

static void unstart(struct scheduler *scheduler, size_t before)
{
    while (scheduler->num_running > before) {
        struct sequence *sequence = scheduler->running[--scheduler->num_running];
        prefix_cancel(scheduler->tree, sequence);
        sequence_close(sequence);
    }
}

/* What the tree has of the job's next prompt; its logits are copied, other texts may push them out
 * of memory. */
static int match_prompt(struct scheduler *scheduler, const struct job *job,
                        struct state_match *match, struct error *err)
{
    const struct completion_request *request = &job->request;
    struct space *space = state_tree_space(scheduler->tree, job->owner, request->cache_salt,
                                           request->cache_salt_length);
    if (!space)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    prefix_match(scheduler->tree, space, job, &job->prompts[job->next_prompt], match);
    if (match->logits)
        memcpy(scheduler->logits, match->logits,
               (size_t)scheduler->service->limits.vocab_size * sizeof *match->logits);
    state_tree_space_release(scheduler->tree, space);
    return 0;
}

/* Starts all texts of the job's next prompt, or none of them (ERROR_NO_MEMORY: not now; 1: when a
 * file has been read). The first takes the prompt; the others hold their memory until they can
 * branch from it. */
static int start_prompt(struct scheduler *scheduler, struct job *job, struct error *err)
{
    int texts = (int)job->request.best_of;
    size_t before = scheduler->num_running;
    const struct job_prompt *prompt = &job->prompts[job->next_prompt];
    size_t bytes = engine_state_bytes(scheduler->service->engine,
                                      (int64_t)prompt->count + job->request.max_tokens);
    if (reserve_rows(scheduler, before + (size_t)texts, err))
        return -1;
    if (!needs_no_engine(job) && !state_tree_has_room(scheduler->tree, (size_t)texts * bytes))
        return error_set(err, ERROR_NO_MEMORY, "%d texts need %zu bytes each", texts, bytes);
    struct state_match match = {.reason = MISS_DISABLED}, none = {.reason = MISS_DISABLED};
    if (!needs_no_engine(job) && match_prompt(scheduler, job, &match, err))
        return -1;
    for (int i = 0; i < texts; i++) {
        int result = start_text(scheduler, job, i, i ? &none : &match, err);
        if (result) {
            unstart(scheduler, before);
            return result;
        }
        struct sequence *first = scheduler->running[before];
        if (needs_no_engine(job))
            continue;
        if (i)
            prefix_follow(scheduler->running[before + (size_t)i], first, (int64_t)prompt->count);
        else if (first->taken < (int64_t)prompt->count)
            prefix_wait(scheduler->tree, first, scheduler->running, before);
    }
    job->num_running += (size_t)texts;
    return 0;
}

/* Whether the job's reader is behind: its texts then pause, and the batch goes on. One that takes
 * nothing at all is given up. */
static bool reader_behind(struct job *job, double now)
{
    if (!job->request.stream || job->ticket.runs_on)
        return false;
    ticket_lock(&job->ticket);
    bool full = outbox_full(&job->outbox);
    ticket_unlock(&job->ticket);
    if (!full)
        job->behind_since = 0;
    else if (job->behind_since == 0)
        job->behind_since = now;
    else if (now - job->behind_since > job->service->stall_timeout_s)
        ticket_cancel(&job->ticket, CANCEL_SLOW);
    return full;
}

/* Log-probabilities of what a session held before are not asked for. */
static bool wants_all(const struct sequence *sequence)
{
    return sequence->prompt->logprobs && sequence->taken >= (int64_t)sequence->prompt->context;
}

/* A text that waits for another: that one stops where it is waited for. */
static void stop_for(struct scheduler *scheduler, const struct sequence *sequence)
{
    const struct sequence *leader = sequence->prefix.leader;
    if (!leader)
        return;
    struct plan_row *row = &scheduler->rows[leader->prefix.row];
    int64_t until = sequence->prefix.wait_at - leader->taken;
    if (row->until > until)
        row->until = until;
}

static size_t make_plan(struct scheduler *scheduler)
{
    double now = clock_seconds();
    for (size_t i = 0; i < scheduler->num_running; i++) {
        struct sequence *sequence = scheduler->running[i];
        struct job *job = sequence->job;
        struct plan_row *row = &scheduler->rows[i];
        *row = (struct plan_row){0};
        if (!sequence->decoding)
            row->prefill = (int64_t)sequence->prompt->count - sequence->taken;
        row->wants_all = wants_all(sequence);
        row->wants_none = job->request.max_tokens == 0 && !session_job(job);
        row->idle = sequence->prefix.leader || reader_behind(job, now);
        if (row->prefill)
            row->until = prefix_until(scheduler->tree, sequence);
        sequence->prefix.row = i;
        stop_for(scheduler, sequence);
    }
    plan_step(scheduler->rows, scheduler->num_running, &scheduler->limits, &scheduler->turn);
    size_t num_spans = 0;
    for (size_t i = 0; i < scheduler->num_running; i++) {
        struct sequence *sequence = scheduler->running[i];
        const struct plan_row *row = &scheduler->rows[i];
        if (!row->tokens)
            continue;
        scheduler->stepped[num_spans] = sequence;
        scheduler->spans[num_spans++] = (struct span){
            .state = sequence->state,
            .tokens = sequence->decoding ? &sequence->next_token
                                         : sequence->prompt->ids + sequence->taken,
            .num_tokens = row->tokens,
            .num_logits = row->logits,
        };
    }
    return num_spans;
}

/* Log-probabilities of the prompt's own tokens: the logits of a position are about the next. */
static void take_prompt_logprobs(struct sequence *sequence, const struct span *span)
{
    struct job_prompt *prompt = sequence->prompt;
    int32_t vocab_size = sequence->job->service->limits.vocab_size;
    int count = sequence->job->request.logprobs;
    size_t position = (size_t)(sequence->taken + span->num_tokens - span->num_logits);
    for (int i = 0; i < span->num_logits; i++, position++) {
        if (position + 1 == prompt->count)
            break;
        const float *logits = span->logits + (size_t)i * (size_t)vocab_size;
        size_t at = position + 1 - prompt->context;
        struct reply_token *token = &prompt->logprobs[at];
        token->has_logprob = true;
        token->num_top = count;
        if (count > 0)
            token->top = prompt->tops + at * (size_t)count;
        token->logprob = count > 0 ? logprobs_top(logits, vocab_size, token->id, count,
                                                  prompt->tops + at * (size_t)count)
                                   : logprob_of(logits, vocab_size, token->id);
    }
}

/* The first text of a prompt has it all: what of it had been computed before. */
static void count_cached(struct sequence *sequence)
{
    struct job *job = sequence->job;
    const struct prefix *prefix = &sequence->prefix;
    job->cached_tokens += prefix->cached;
    if (job->miss == MISS_NONE)
        job->miss = prefix->miss;
    metrics_lookup(&job->service->metrics, prefix->cached, prefix->miss);
}

/* The text has taken its whole prompt: draws its first token from these logits (NULL: none is
 * asked for). */
static int begin_text(struct sequence *sequence, const float *logits, double now, struct error *err)
{
    struct job *job = sequence->job;
    bool first = sequence->index % job->request.best_of == 0;
    if (job->first_token == 0)
        job->first_token = now;
    if (first)
        count_cached(sequence);
    if (job->request.max_tokens == 0)
        logits = NULL;
    if (sequence_begin(sequence, err) || (logits && sequence_sample(sequence, logits, now, err)))
        return -1;
    if (logits && first)
        histogram_observe(&job->service->metrics.time_to_first_token, now - job->received);
    return 0;
}

/* Texts that wait for this one to come where it is now branch off; with its prompt's last logits
 * those of the same prompt begin. */
static void wake_waiters(struct scheduler *scheduler, struct sequence *leader, const float *logits,
                         double now)
{
    for (size_t i = 0; leader->prefix.waiters && i < scheduler->num_running; i++) {
        struct sequence *sequence = scheduler->running[i];
        if (sequence->prefix.leader != leader || sequence->prefix.wait_at != leader->taken)
            continue;
        struct error err = ERROR_INIT;
        int result = prefix_adopt(sequence, &err);
        bool whole = sequence->taken == (int64_t)sequence->prompt->count;
        if (result == 0 && whole)
            result = begin_text(sequence, logits, now, &err);
        if (result)
            job_fail_engine(sequence->job, &err);
        else
            wake_waiters(scheduler, sequence, whole ? logits : NULL, now);
    }
}

/* The text has more of its prompt, perhaps all of it. */
static int advance_prompt(struct scheduler *scheduler, struct sequence *sequence, const float *last,
                          double now, struct error *err)
{
    bool whole = sequence->taken == (int64_t)sequence->prompt->count;
    if (whole && begin_text(sequence, last, now, err))
        return -1;
    prefix_keep(scheduler->tree, sequence, whole ? last : NULL);
    wake_waiters(scheduler, sequence, whole ? last : NULL, now);
    return 0;
}

static int take_result(struct scheduler *scheduler, struct sequence *sequence,
                       const struct span *span, double now, struct error *err)
{
    size_t vocab_size = (size_t)scheduler->service->limits.vocab_size;
    if (sequence->decoding) {
        if (sequence_sample(sequence, span->logits, now, err))
            return -1;
        if (sequence->choice->finish == FINISH_NONE)
            prefix_keep(scheduler->tree, sequence, NULL);
        return 0;
    }
    if (sequence->prompt->logprobs)
        take_prompt_logprobs(sequence, span);
    sequence->taken += span->num_tokens;
    const float *last =
        span->num_logits ? span->logits + (size_t)(span->num_logits - 1) * vocab_size : NULL;
    return advance_prompt(scheduler, sequence, last, now, err);
}

/* The whole prompt was there. */
static int begin_whole(struct scheduler *scheduler, struct sequence *sequence, struct error *err)
{
    double now = clock_seconds();
    if (begin_text(sequence, scheduler->logits, now, err))
        return -1;
    wake_waiters(scheduler, sequence, scheduler->logits, now);
    return 0;
}

/* Starts what fits, in turn: a request of many prompts goes to the end of the line after each of
 * them. Nothing overtakes who is first, so what is large is not put off for good; only what waits
 * for a file stands aside. Returns whether something has to wait. */
static bool start_waiting(struct scheduler *scheduler)
{
    struct job *job;
    while ((job = scheduler->waiting.head)) {
        size_t texts = (size_t)job->request.best_of, before = scheduler->num_running;
        if (before && before + texts > (size_t)scheduler->max_texts)
            return true;
        struct error err = ERROR_INIT;
        int result = start_prompt(scheduler, job, &err);
        /* What fits an empty budget was checked at admission. */
        if (result < 0 && err.code == ERROR_NO_MEMORY && before)
            return true;
        job_list_remove(&scheduler->waiting, job);
        if (result > 0) {
            job_list_append(&scheduler->aside, job);
            continue;
        }
        if (result < 0) {
            job_fail_engine(job, &err);
            abandon(scheduler, job);
            continue;
        }
        job_running(job);
        struct sequence *first = scheduler->running[before];
        atomic_fetch_add(&scheduler->service->metrics.prompt_tokens, first->prompt->count);
        if (++job->next_prompt < job->request.num_prompts)
            job_list_append(&scheduler->waiting, job);
        else
            job_leave_queue(job);
        if (first->taken == (int64_t)first->prompt->count && begin_whole(scheduler, first, &err))
            job_fail_engine(job, &err);
    }
    return false;
}

/* Those whose leaders have gone: each goes on from what there is, or waits for another. */
static void recover_lost(struct scheduler *scheduler)
{
    for (size_t i = 0; scheduler->lost && i < scheduler->num_running; i++) {
        struct sequence *sequence = scheduler->running[i];
        if (!sequence->prefix.lost)
            continue;
        prefix_recover(scheduler->tree, sequence);
        lose_waiters(scheduler, sequence, sequence->taken);
        prefix_wait(scheduler->tree, sequence, scheduler->running, i);
    }
    scheduler->lost = false;
}

/* Closes the texts that have ended; a job's last one ends the job. */
static void sweep_finished(struct scheduler *scheduler)
{
    for (size_t i = 0; i < scheduler->num_running;) {
        struct job *job = scheduler->running[i]->job;
        if (job->failed) {
            abandon(scheduler, job);
            i = 0;
        } else if (scheduler->running[i]->choice->finish != FINISH_NONE) {
            note_state_bytes(scheduler, job);
            close_running(scheduler, i);
            end_if_done(scheduler, job);
        } else {
            i++;
        }
    }
}

/* No state has moved, but which span was at fault is not known: all of them end. */
static void fail_step(struct scheduler *scheduler, size_t num_spans, const struct error *err)
{
    log_message(LOG_LEVEL_ERROR, "the engine failed a step of %zu texts: %s", num_spans,
                err->message);
    for (size_t i = 0; i < num_spans; i++)
        job_fail_engine(scheduler->stepped[i]->job, err);
    if (++scheduler->failed_steps >= MAX_FAILED_STEPS) {
        log_message(LOG_LEVEL_ERROR, "%d steps failed one after another: giving up",
                    scheduler->failed_steps);
        int ready = SERVICE_READY; /* a drain goes on as one */
        atomic_compare_exchange_strong(&scheduler->service->phase, &ready, SERVICE_FAILED);
    }
}

static void run_step(struct scheduler *scheduler)
{
    size_t num_spans = make_plan(scheduler);
    scheduler->stalled = num_spans == 0 && scheduler->num_running > 0;
    if (num_spans == 0)
        return;
    struct metrics *metrics = &scheduler->service->metrics;
    struct error err = ERROR_INIT;
    if (engine_step(scheduler->service->engine, scheduler->spans, (int)num_spans, &err)) {
        fail_step(scheduler, num_spans, &err);
        return;
    }
    scheduler->failed_steps = 0;
    double now = clock_seconds();
    int tokens = 0;
    for (size_t i = 0; i < num_spans; i++) {
        struct sequence *sequence = scheduler->stepped[i];
        tokens += scheduler->spans[i].num_tokens;
        if (sequence->job->failed)
            continue;
        error_clear(&err);
        if (take_result(scheduler, sequence, &scheduler->spans[i], now, &err))
            job_fail_engine(sequence->job, &err);
    }
    atomic_fetch_add(&metrics->steps, 1);
    histogram_observe(&metrics->batch_tokens, tokens);
}

/* Prompts of which only the echo is asked for need no step. */
static void finish_echoes(struct scheduler *scheduler)
{
    for (size_t i = 0; i < scheduler->num_running; i++) {
        struct sequence *sequence = scheduler->running[i];
        struct error err = ERROR_INIT;
        if (!needs_no_engine(sequence->job) || sequence->decoding)
            continue;
        sequence->job->miss = MISS_DISABLED;
        if (sequence_begin(sequence, &err))
            job_fail_engine(sequence->job, &err);
    }
}

static void *engine_main(void *context)
{
    struct scheduler *scheduler = context;
    pthread_setname_np(pthread_self(), "regla-engine");
    while (take_inbox(scheduler)) {
        drop_cancelled(scheduler);
        bool saturated = start_waiting(scheduler);
        admission_update(&scheduler->service->admission,
                         atomic_load(&scheduler->service->metrics.running), saturated);
        finish_echoes(scheduler);
        sweep_finished(scheduler);
        recover_lost(scheduler);
        run_step(scheduler);
        scheduler_publish(scheduler);
        sweep_finished(scheduler);
    }
    return NULL;
}

static void scheduler_release(struct scheduler *scheduler)
{
    inbox_clear(&scheduler->inbox);
    free(scheduler->running);
    free(scheduler->rows);
    free(scheduler->spans);
    free(scheduler->stepped);
    free(scheduler->logits);
    free(scheduler);
}

int scheduler_create(struct scheduler **out, struct service *service, int max_texts,
                     int prefill_chunk, struct error *err)
{
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    if (!scheduler)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the scheduler");
    const struct engine_info *info = engine_info(service->engine);
    scheduler->service = service;
    scheduler->tree = service->tree;
    scheduler->max_texts = max_texts;
    scheduler->limits =
        (struct plan_limits){info->max_step_tokens, info->max_step_logits, prefill_chunk};
    inbox_init(&scheduler->inbox);
    scheduler->logits = calloc((size_t)info->vocab_size, sizeof *scheduler->logits);
    scheduler->spans = calloc((size_t)info->max_step_tokens, sizeof *scheduler->spans);
    scheduler->stepped = calloc((size_t)info->max_step_tokens, sizeof *scheduler->stepped);
    if (!scheduler->spans || !scheduler->stepped || !scheduler->logits ||
        reserve_rows(scheduler, (size_t)max_texts, err)) {
        scheduler_release(scheduler);
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the scheduler");
    }
    scheduler_publish(scheduler);
    int code = pthread_create(&scheduler->thread, NULL, engine_main, scheduler);
    if (code) {
        scheduler_release(scheduler);
        return error_set(err, ERROR_IO, "cannot start the engine thread: %s", strerror(code));
    }
    *out = scheduler;
    return 0;
}

void scheduler_stop(struct scheduler *scheduler)
{
    if (!scheduler || scheduler->stopped)
        return;
    inbox_close(&scheduler->inbox);
    pthread_join(scheduler->thread, NULL);
    scheduler->stopped = true;
}

void scheduler_free(struct scheduler *scheduler)
{
    if (!scheduler)
        return;
    scheduler_stop(scheduler);
    scheduler_release(scheduler);
}
