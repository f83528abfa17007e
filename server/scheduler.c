#include "server/scheduler.h"

#include "engine/base/clock.h"
#include "server/log.h"
#include "server/plan.h"
#include "server/sequence.h"

#include <stdlib.h>
#include <string.h>

/* Steps that fail one after another until the engine counts as broken. */
enum { MAX_FAILED_STEPS = 3 };
/* How often texts that wait for their readers are looked at, unless something happens. */
enum { STALL_TICK_MS = 50 };

struct scheduler {
    struct service *service;
    pthread_t thread;
    int max_texts;

    pthread_mutex_t lock; /* of what follows, up to the blank line */
    pthread_cond_t filled;
    struct job *inbox_head, *inbox_tail;
    bool poked, closing;

    /* The engine thread's. Jobs that have prompts to start, oldest first. */
    struct job *waiting_head, *waiting_tail;
    struct sequence **running; /* [num_running], oldest first */
    size_t num_running, capacity;
    struct plan_row *rows; /* [capacity] */
    struct plan_limits limits;
    size_t turn;
    struct span *spans;        /* [max_tokens]: a span has at least one token */
    struct sequence **stepped; /* [max_tokens]: whose span it is */
    int failed_steps;
    bool stalled; /* texts run, but all of them wait for their readers */
};

static void append(struct job **head, struct job **tail, struct job *job)
{
    job->next = NULL;
    if (*tail)
        (*tail)->next = job;
    else
        *head = job;
    *tail = job;
}

void scheduler_submit(struct scheduler *scheduler, struct job *job)
{
    pthread_mutex_lock(&scheduler->lock);
    append(&scheduler->inbox_head, &scheduler->inbox_tail, job);
    pthread_cond_signal(&scheduler->filled);
    pthread_mutex_unlock(&scheduler->lock);
}

void scheduler_poke(struct scheduler *scheduler)
{
    pthread_mutex_lock(&scheduler->lock);
    scheduler->poked = true;
    pthread_cond_signal(&scheduler->filled);
    pthread_mutex_unlock(&scheduler->lock);
}

/* Under the lock. */
static void wait_for_readers(struct scheduler *scheduler)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += STALL_TICK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_cond_timedwait(&scheduler->filled, &scheduler->lock, &until);
}

/* Moves the inbox to the waiting jobs; sleeps while there is nothing to do. False: time to end. */
static bool take_inbox(struct scheduler *scheduler)
{
    pthread_mutex_lock(&scheduler->lock);
    while (!scheduler->inbox_head && !scheduler->poked && !scheduler->closing &&
           !scheduler->waiting_head && !scheduler->num_running)
        pthread_cond_wait(&scheduler->filled, &scheduler->lock);
    if (scheduler->stalled && !scheduler->inbox_head && !scheduler->poked)
        wait_for_readers(scheduler);
    scheduler->poked = false;
    struct job *job = scheduler->inbox_head;
    scheduler->inbox_head = scheduler->inbox_tail = NULL;
    bool closing = scheduler->closing;
    pthread_mutex_unlock(&scheduler->lock);
    while (job) {
        struct job *next = job->next;
        append(&scheduler->waiting_head, &scheduler->waiting_tail, job);
        job = next;
    }
    return !closing || scheduler->waiting_head || scheduler->num_running;
}

static void publish_memory(struct scheduler *scheduler)
{
    struct metrics *metrics = &scheduler->service->metrics;
    struct engine_memory memory;
    engine_memory(scheduler->service->engine, &memory);
    atomic_store(&metrics->recurrent_bytes, (int64_t)memory.recurrent_bytes);
    atomic_store(&metrics->kv_bytes, (int64_t)memory.kv_bytes);
    atomic_store(&metrics->recurrent_reserved_bytes, (int64_t)memory.recurrent_reserved_bytes);
    atomic_store(&metrics->kv_reserved_bytes, (int64_t)memory.kv_reserved_bytes);
    atomic_store(&metrics->recurrent_peak_bytes, (int64_t)memory.recurrent_peak_bytes);
    atomic_store(&metrics->kv_peak_bytes, (int64_t)memory.kv_peak_bytes);
    atomic_store(&metrics->states, memory.states);
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
    publish_memory(scheduler);
    job_finish(job);
}

static void unlink_waiting(struct scheduler *scheduler, struct job *job)
{
    struct job *before = NULL;
    for (struct job *at = scheduler->waiting_head; at; before = at, at = at->next) {
        if (at != job)
            continue;
        if (before)
            before->next = at->next;
        else
            scheduler->waiting_head = at->next;
        if (scheduler->waiting_tail == at)
            scheduler->waiting_tail = before;
        return;
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
    sequence_close(sequence);
    scheduler->num_running--;
    memmove(scheduler->running + at, scheduler->running + at + 1,
            (scheduler->num_running - at) * sizeof *scheduler->running);
    job->num_running--;
}

/* Ends a job that has failed or was cancelled, wherever it stands. */
static void abandon(struct scheduler *scheduler, struct job *job)
{
    job->failed = true;
    note_state_bytes(scheduler, job);
    if (job_waits(job))
        unlink_waiting(scheduler, job);
    for (size_t i = scheduler->num_running; i-- > 0;)
        if (scheduler->running[i]->job == job)
            close_running(scheduler, i);
    end_if_done(scheduler, job);
}

static void drop_cancelled(struct scheduler *scheduler)
{
    for (struct job *job = scheduler->waiting_head, *next; job; job = next) {
        next = job->next;
        if (ticket_cancelled(&job->ticket)) {
            job_fail_cancelled(job);
            abandon(scheduler, job);
        }
    }
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

/* Starts all texts of the job's next prompt, or none of them (ERROR_NO_MEMORY: not now). The
 * first takes the prompt; the others hold their memory until they can branch from it. */
static int start_prompt(struct scheduler *scheduler, struct job *job, struct error *err)
{
    size_t texts = (size_t)job->request.best_of;
    size_t before = scheduler->num_running;
    if (reserve_rows(scheduler, before + texts, err))
        return -1;
    int64_t tokens = (int64_t)job->prompts[job->next_prompt].count + job->request.max_tokens;
    for (size_t i = 0; i < texts; i++) {
        struct sequence *sequence;
        if (sequence_open(&sequence, job, job->next_prompt * texts + i, scheduler->service->engine,
                          tokens, err)) {
            while (scheduler->num_running > before)
                sequence_close(scheduler->running[--scheduler->num_running]);
            return -1;
        }
        sequence->follower = i > 0;
        scheduler->running[scheduler->num_running++] = sequence;
    }
    job->num_running += texts;
    return 0;
}

/* Nothing can be computed where no token is asked for: the echo alone is the reply. */
static bool needs_no_engine(const struct job *job)
{
    return job->request.max_tokens == 0 && job->request.logprobs < 0;
}

/* Starts what fits, in turn: a request of many prompts goes to the end of the line after each of
 * them. Nothing overtakes who is first, so what is large is not put off for good. Returns whether
 * something has to wait. */
static bool start_waiting(struct scheduler *scheduler)
{
    struct job *job;
    while ((job = scheduler->waiting_head)) {
        size_t texts = (size_t)job->request.best_of;
        if (scheduler->num_running && scheduler->num_running + texts > (size_t)scheduler->max_texts)
            return true;
        struct error err = ERROR_INIT;
        if (start_prompt(scheduler, job, &err)) {
            /* What fits an empty budget was checked at admission. */
            if (err.code == ERROR_NO_MEMORY && scheduler->num_running)
                return true;
            job_fail_engine(job, &err);
            abandon(scheduler, job);
            continue;
        }
        job_running(job);
        atomic_fetch_add(&scheduler->service->metrics.prompt_tokens,
                         job->prompts[job->next_prompt].count);
        unlink_waiting(scheduler, job);
        if (++job->next_prompt < job->request.num_prompts)
            append(&scheduler->waiting_head, &scheduler->waiting_tail, job);
        else
            job_leave_queue(job);
    }
    return false;
}

/* Whether the job's reader is behind: its texts then pause, and the batch goes on. One that takes
 * nothing at all is given up. */
static bool reader_behind(struct job *job, double now)
{
    if (!job->request.stream)
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

static size_t make_plan(struct scheduler *scheduler)
{
    double now = clock_seconds();
    for (size_t i = 0; i < scheduler->num_running; i++) {
        const struct sequence *sequence = scheduler->running[i];
        struct job *job = sequence->job;
        struct plan_row *row = &scheduler->rows[i];
        *row = (struct plan_row){0};
        if (!sequence->decoding)
            row->prefill = (int64_t)sequence->prompt->count - sequence->taken;
        row->wants_all = sequence->prompt->logprobs != NULL;
        row->wants_none = job->request.max_tokens == 0;
        row->idle = sequence->follower || reader_behind(job, now);
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
        struct reply_token *token = &prompt->logprobs[position + 1];
        token->has_logprob = true;
        token->num_top = count;
        if (count > 0)
            token->top = prompt->tops + (position + 1) * (size_t)count;
        token->logprob = count > 0 ? logprobs_top(logits, vocab_size, token->id, count,
                                                  prompt->tops + (position + 1) * (size_t)count)
                                   : logprob_of(logits, vocab_size, token->id);
    }
}

/* The leader has taken the whole prompt: the others of its prompt branch off, and each draws its
 * first token from the same logits (NULL: none is asked for). */
static int branch(struct scheduler *scheduler, struct sequence *leader, const float *logits,
                  double now, struct error *err)
{
    struct job *job = leader->job;
    if (job->first_token == 0)
        job->first_token = now;
    for (size_t i = 0; i < scheduler->num_running; i++) {
        struct sequence *sequence = scheduler->running[i];
        if (sequence->prompt != leader->prompt)
            continue;
        if (sequence != leader) {
            /* Its reservation makes room for the clone's. */
            state_free(sequence->state);
            sequence->state = NULL;
            sequence->follower = false;
            int64_t tokens = (int64_t)leader->prompt->count + job->request.max_tokens;
            if (state_clone(&sequence->state, leader->state, tokens, err))
                return -1;
        }
        if (sequence_begin(sequence, err) ||
            (logits && sequence_sample(sequence, logits, now, err)))
            return -1;
    }
    if (logits)
        histogram_observe(&job->service->metrics.time_to_first_token, now - job->received);
    return 0;
}

static int take_result(struct scheduler *scheduler, struct sequence *sequence,
                       const struct span *span, double now, struct error *err)
{
    size_t vocab_size = (size_t)scheduler->service->limits.vocab_size;
    if (sequence->decoding)
        return sequence_sample(sequence, span->logits, now, err);
    if (sequence->prompt->logprobs)
        take_prompt_logprobs(sequence, span);
    sequence->taken += span->num_tokens;
    if (sequence->taken < (int64_t)sequence->prompt->count)
        return 0;
    bool generate = sequence->job->request.max_tokens > 0;
    const float *last =
        generate ? span->logits + (size_t)(span->num_logits - 1) * vocab_size : NULL;
    return branch(scheduler, sequence, last, now, err);
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
        run_step(scheduler);
        publish_memory(scheduler);
        sweep_finished(scheduler);
    }
    return NULL;
}

static void scheduler_release(struct scheduler *scheduler)
{
    pthread_cond_destroy(&scheduler->filled);
    pthread_mutex_destroy(&scheduler->lock);
    free(scheduler->running);
    free(scheduler->rows);
    free(scheduler->spans);
    free(scheduler->stepped);
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
    scheduler->max_texts = max_texts;
    scheduler->limits =
        (struct plan_limits){info->max_step_tokens, info->max_step_logits, prefill_chunk};
    pthread_mutex_init(&scheduler->lock, NULL);
    pthread_cond_init(&scheduler->filled, NULL);
    scheduler->spans = calloc((size_t)info->max_step_tokens, sizeof *scheduler->spans);
    scheduler->stepped = calloc((size_t)info->max_step_tokens, sizeof *scheduler->stepped);
    if (!scheduler->spans || !scheduler->stepped ||
        reserve_rows(scheduler, (size_t)max_texts, err)) {
        scheduler_release(scheduler);
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the scheduler");
    }
    publish_memory(scheduler);
    int code = pthread_create(&scheduler->thread, NULL, engine_main, scheduler);
    if (code) {
        scheduler_release(scheduler);
        return error_set(err, ERROR_IO, "cannot start the engine thread: %s", strerror(code));
    }
    *out = scheduler;
    return 0;
}

void scheduler_free(struct scheduler *scheduler)
{
    if (!scheduler)
        return;
    pthread_mutex_lock(&scheduler->lock);
    scheduler->closing = true;
    pthread_cond_signal(&scheduler->filled);
    pthread_mutex_unlock(&scheduler->lock);
    pthread_join(scheduler->thread, NULL);
    scheduler_release(scheduler);
}
