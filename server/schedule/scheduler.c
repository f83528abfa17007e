/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/scheduler.h"

#include "engine/base/clock.h"
#include "server/schedule/batch.h"
#include "server/schedule/inbox.h"
#include "server/schedule/session_job.h"
#include "server/states/shared_prefixes.h"
#include "server/store/store.h"

#include <stdlib.h>
#include <string.h>

/* How often the thread looks around when nothing happens, while texts wait for their readers or
 * files are being written at the end. */
enum { TICK_MS = 50 };

struct scheduler {
    struct service *service;
    struct state_tree *tree;
    pthread_t thread;
    bool stopped; /* it has ended */
    int max_texts;
    struct inbox inbox;

    /* The engine thread's. */
    struct job_list waiting; /* have prompts to start, oldest first */
    struct job_list aside;   /* of these, what waits for a file */
    struct work *parked;     /* waits for a file, too; by work->next */
    struct batch batch;
    float *logits;         /* [vocab_size]: of a prompt that the tree has as a whole */
    double sessions_due_s; /* until sessions_poll wants to be called again; < 0: it does not */
    bool closing;
    bool sessions_changed;    /* since they were counted */
    double count_sessions_at; /* clock_seconds(): not before */
    int64_t sessions[NUM_TIERS];
    int64_t turn_began, slept; /* nanoseconds; slept: of this turn */
    double busy;               /* engine_busy_seconds when it began */
};

void scheduler_submit(struct scheduler *scheduler, struct job *job)
{
    inbox_put_job(&scheduler->inbox, job);
}

void scheduler_post(struct scheduler *scheduler, struct work *work)
{
    inbox_put_work(&scheduler->inbox, work);
}

void scheduler_park(struct scheduler *scheduler, struct work *work)
{
    work->next = scheduler->parked;
    scheduler->parked = work;
}

void scheduler_poke(struct scheduler *scheduler)
{
    inbox_poke(&scheduler->inbox);
}

static bool awaits_prefix(const struct scheduler *scheduler)
{
    return scheduler->service->prefixes && scheduler->aside.head;
}

/* How long the thread may sleep: < 0 until something comes. */
static double may_sleep(const struct scheduler *scheduler)
{
    double due = scheduler->sessions_due_s;
    if (scheduler->batch.stalled)
        return TICK_MS / 1e3;
    if (scheduler->waiting.head || scheduler->batch.num_running)
        return 0;
    if ((scheduler->closing || scheduler->sessions_changed || awaits_prefix(scheduler)) &&
        (due < 0 || due > TICK_MS / 1e3))
        return TICK_MS / 1e3;
    return due;
}

static void run_all(struct work *first)
{
    for (struct work *work = first, *next; work; work = next) {
        next = work->next;
        work->run(work);
    }
}

/* A file may have been read. */
static void run_parked(struct scheduler *scheduler)
{
    struct work *first = scheduler->parked;
    scheduler->parked = NULL;
    run_all(first);
}

/* Before anybody is told that a change has failed, /ready says so. */
static void poll_store(struct service *service)
{
    struct store_report report;
    if (!service->store)
        return;
    store_report(service->store, &report);
    atomic_store(&service->store_failing, report.failing);
    store_poll(service->store);
}

/* The server ends, and its disk does not answer: nobody waits for it any more. */
static void give_up(struct service *service)
{
    struct api_error err = {0};
    api_error_set(&err, API_DRAINING, NULL,
                  "the server is shutting down, and its disk has not confirmed this change: it may "
                  "have been made");
    sessions_give_up(service->sessions, &err);
}

/* Before the thread sleeps. While the system provides memory, other threads wait for theirs: so not
 * beside a request that is on its way. How long the thread may sleep then. */
static double populate(struct scheduler *scheduler, double sleep_s)
{
    struct service *service = scheduler->service;
    if (admission_busy(&service->admission))
        return sleep_s < 0 || sleep_s > TICK_MS / 1e3 ? TICK_MS / 1e3 : sleep_s;
    return engine_populate(service->engine) ? 0 : sleep_s;
}

/* Takes what has come, and sleeps while there is nothing to do. False: the thread ends. */
static bool take_inbox(struct scheduler *scheduler)
{
    struct inbox_taken taken;
    double sleep_s = may_sleep(scheduler);
    if (sleep_s != 0)
        sleep_s = populate(scheduler, sleep_s);
    int64_t began = clock_nanos(CLOCK_MONOTONIC);
    inbox_take(&scheduler->inbox, sleep_s, &taken);
    scheduler->slept = sleep_s != 0 ? clock_nanos(CLOCK_MONOTONIC) - began : 0;
    run_all(taken.work);
    struct service *service = scheduler->service;
    poll_store(service);
    if (atomic_load(&service->giving_up))
        give_up(service);
    state_tree_poll(scheduler->tree);
    run_parked(scheduler);
    scheduler->sessions_due_s = sessions_poll(service->sessions);
    bool late = service->prefixes && shared_prefixes_poll(service->prefixes);
    if (taken.poked || late)
        job_list_prepend(&scheduler->waiting, &scheduler->aside);
    for (struct job *job = taken.jobs.head, *next; job; job = next) {
        next = job->run.next;
        job_list_append(&scheduler->waiting, job);
    }
    scheduler->closing = taken.closing;
    return !taken.closing || taken.work || scheduler->waiting.head || scheduler->aside.head ||
           scheduler->batch.num_running || scheduler->parked ||
           ((sessions_pending(service->sessions) || atomic_load(&service->replies_waiting) > 0) &&
            !atomic_load(&service->giving_up));
}

/* Counts sessions by the tier of their states. Many sessions take a while; the next count then
 * waits two hundred times as long. */
static void count_sessions(struct scheduler *scheduler)
{
    enum { SHARE = 200 };
    const double unnoticed_s = 5e-4;
    double began = clock_seconds();
    if (began < scheduler->count_sessions_at)
        return;
    sessions_count(scheduler->service->sessions, scheduler->sessions);
    double took = clock_seconds() - began;
    scheduler->count_sessions_at = took > unnoticed_s ? began + SHARE * took : 0;
    scheduler->sessions_changed = false;
}

/* After every turn. */
static void publish(struct scheduler *scheduler)
{
    const struct service *service = scheduler->service;
    struct metrics_memory memory = {0};
    struct state_tree_report tree;
    struct store_report store = {0};
    if (scheduler->sessions_changed)
        count_sessions(scheduler);
    engine_memory(service->engine, &memory.device);
    state_tree_report(scheduler->tree, &tree);
    if (service->store)
        store_report(service->store, &store);
    for (int i = 0; i < NUM_TIERS; i++)
        memory.tiers[i] = (struct metrics_tier){tree.tiers[i].checkpoints, tree.tiers[i].bytes,
                                                tree.tiers[i].budget_bytes};
    memory.evictions = tree.evictions;
    memory.dropped = tree.dropped;
    memory.store_failures = store.failures;
    memory.store_full = store.full;
    atomic_store(service->unsaved, sessions_unsaved(service->sessions));
    memcpy(memory.sessions, scheduler->sessions, sizeof memory.sessions);
    metrics_set_memory(&scheduler->service->metrics, &memory);
}

void scheduler_publish(struct scheduler *scheduler)
{
    scheduler->sessions_changed = true;
    publish(scheduler);
}

/* Whether the job stands in the line. It does until its last prompt has started. */
static bool job_waits(const struct job *job)
{
    return job->run.next_prompt < job->asked.request.num_prompts;
}

/* Ends the job once none of its texts runs and none is to start. Before the client can know, the
 * states are free and the metrics say so. */
static void end_if_done(struct scheduler *scheduler, struct job *job)
{
    if (job->run.num_running || (job_waits(job) && !job->failed))
        return;
    scheduler_publish(scheduler);
    job->ended(job);
}

/* Ends a job that has failed or was cancelled, wherever it stands. */
static void abandon(struct scheduler *scheduler, struct job *job)
{
    job->failed = true;
    batch_note_bytes(&scheduler->batch, job);
    if (job_waits(job) && !job_list_remove(&scheduler->waiting, job))
        job_list_remove(&scheduler->aside, job);
    for (size_t i = scheduler->batch.num_running; i-- > 0;)
        if (scheduler->batch.running[i]->job == job)
            batch_close(&scheduler->batch, i);
    end_if_done(scheduler, job);
}

static void drop_from(struct scheduler *scheduler, const struct job_list *list)
{
    for (struct job *job = list->head, *next; job; job = next) {
        next = job->run.next;
        if (ticket_cancelled(&job->task.ticket)) {
            job_fail_cancelled(job);
            abandon(scheduler, job);
        }
    }
}

static void drop_cancelled(struct scheduler *scheduler)
{
    drop_from(scheduler, &scheduler->waiting);
    drop_from(scheduler, &scheduler->aside);
    for (size_t i = 0; i < scheduler->batch.num_running;) {
        struct job *job = scheduler->batch.running[i]->job;
        if (!ticket_cancelled(&job->task.ticket)) {
            i++;
            continue;
        }
        job_fail_cancelled(job);
        abandon(scheduler, job);
        i = 0;
    }
}

/* Whether the echo alone is the reply. No token is asked for then, so nothing is computed. */
static bool needs_no_engine(const struct job *job)
{
    const struct completion_request *request = &job->asked.request;
    return request->max_tokens == 0 && request->logprobs < 0 && request->prompt_logprobs < 0 &&
           !session_job(job);
}

/* Starts a text of the job's next prompt on a match, behind those that run. 1: not now, since a
 * file is being read. */
static int start_text(struct scheduler *scheduler, struct job *job, int number,
                      const struct state_match *match, struct error *err)
{
    struct state_tree *tree = scheduler->tree;
    const struct completion_request *request = &job->asked.request;
    size_t index = job->run.next_prompt * (size_t)request->best_of + (size_t)number;
    int64_t tokens =
        (int64_t)job->prepared.prompts[job->run.next_prompt].count + request->max_tokens;
    struct state *state = NULL;
    struct sequence *sequence;
    struct space *space = session_job_space(tree, job);
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
    scheduler->batch.running[scheduler->batch.num_running++] = sequence;
    return 0;
}

static void unstart(struct scheduler *scheduler, size_t before)
{
    while (scheduler->batch.num_running > before) {
        struct sequence *sequence = scheduler->batch.running[--scheduler->batch.num_running];
        prefix_cancel(scheduler->tree, sequence);
        sequence_close(sequence);
    }
}

/* Looks the job's next prompt up in the tree. Copies its logits, since other texts may push them
 * out of memory. 1: more of it may be coming from the store. */
static int match_prompt(struct scheduler *scheduler, struct job *job, struct state_match *match,
                        struct error *err)
{
    struct space *space = session_job_space(scheduler->tree, job);
    if (!space)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    const struct job_prompt *prompt = &job->prepared.prompts[job->run.next_prompt];
    prefix_match(scheduler->tree, space, job, prompt, match);
    bool waits = prefix_is_coming(space, job, prompt, match);
    if (match->logits)
        memcpy(scheduler->logits, match->logits,
               (size_t)scheduler->service->limits.vocab_size * sizeof *match->logits);
    state_tree_space_release(scheduler->tree, space);
    return waits;
}

/* Starts all texts of the job's next prompt, or none of them. ERROR_NO_MEMORY: not now; 1: when a
 * file has been read. The first text takes the prompt. The others hold their memory until they can
 * branch from it. */
static int start_prompt(struct scheduler *scheduler, struct job *job, struct error *err)
{
    int texts = (int)job->asked.request.best_of;
    size_t before = scheduler->batch.num_running;
    const struct job_prompt *prompt = &job->prepared.prompts[job->run.next_prompt];
    size_t bytes = engine_state_bytes(scheduler->service->engine,
                                      (int64_t)prompt->count + job->asked.request.max_tokens);
    if (batch_reserve(&scheduler->batch, before + (size_t)texts, err))
        return -1;
    if (!needs_no_engine(job) && !state_tree_has_room(scheduler->tree, (size_t)texts * bytes))
        return error_set(err, ERROR_NO_MEMORY, "%d texts need %zu bytes each", texts, bytes);
    struct state_match match = {.reason = MISS_DISABLED}, none = {.reason = MISS_DISABLED};
    int result = needs_no_engine(job) ? 0 : match_prompt(scheduler, job, &match, err);
    if (result)
        return result;
    for (int i = 0; i < texts; i++) {
        result = start_text(scheduler, job, i, i ? &none : &match, err);
        if (result) {
            unstart(scheduler, before);
            return result;
        }
        struct sequence *first = scheduler->batch.running[before];
        if (needs_no_engine(job))
            continue;
        if (i)
            prefix_follow(scheduler->batch.running[before + (size_t)i], first,
                          (int64_t)prompt->count);
        else if (first->taken < (int64_t)prompt->count)
            prefix_wait(scheduler->tree, first, scheduler->batch.running, before);
    }
    job->run.num_running += (size_t)texts;
    return 0;
}

/* Starts what fits, in turn. A request of many prompts goes to the end of the line after each of
 * them. Nothing overtakes the first, so that a large one gets its turn; only what waits for a file
 * stands aside. Returns whether something has to wait. */
static bool start_waiting(struct scheduler *scheduler)
{
    struct job *job;
    while ((job = scheduler->waiting.head)) {
        size_t texts = (size_t)job->asked.request.best_of, before = scheduler->batch.num_running;
        if (before && before + texts > (size_t)scheduler->max_texts)
            return true;
        struct error err = ERROR_INIT;
        int result = start_prompt(scheduler, job, &err);
        /* While nothing else runs it must fit: prompt_prepare has checked that. */
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
        struct sequence *first = scheduler->batch.running[before];
        atomic_fetch_add(&scheduler->service->metrics.prompt_tokens, first->prompt->count);
        if (++job->run.next_prompt < job->asked.request.num_prompts)
            job_list_append(&scheduler->waiting, job);
        else
            job_leave_queue(job);
        if (first->taken == (int64_t)first->prompt->count &&
            batch_begin_whole(&scheduler->batch, first, scheduler->logits, &err))
            job_fail_engine(job, &err);
    }
    return false;
}

/* Closes the texts that have ended; a job's last one ends the job. */
static void sweep_finished(struct scheduler *scheduler)
{
    for (size_t i = 0; i < scheduler->batch.num_running;) {
        struct job *job = scheduler->batch.running[i]->job;
        if (job->failed) {
            abandon(scheduler, job);
            i = 0;
        } else if (scheduler->batch.running[i]->choice->finish != FINISH_NONE) {
            batch_note_bytes(&scheduler->batch, job);
            batch_close(&scheduler->batch, i);
            end_if_done(scheduler, job);
        } else {
            i++;
        }
    }
}

/* Prompts of which only the echo is asked for need no step. */
static void finish_echoes(struct scheduler *scheduler)
{
    for (size_t i = 0; i < scheduler->batch.num_running; i++) {
        struct sequence *sequence = scheduler->batch.running[i];
        struct error err = ERROR_INIT;
        if (!needs_no_engine(sequence->job) || sequence->decoding)
            continue;
        sequence->job->shared.miss = MISS_DISABLED;
        if (sequence_begin(sequence, &err))
            job_fail_engine(sequence->job, &err);
    }
}

/* What the turn's time went to. */
static void count_turn(struct scheduler *scheduler)
{
    _Atomic int64_t *causes = scheduler->service->metrics.cause_nanos;
    int64_t now = clock_nanos(CLOCK_MONOTONIC), all = now - scheduler->turn_began;
    double busy = engine_busy_seconds(scheduler->service->engine);
    int64_t device = (int64_t)((busy - scheduler->busy) * 1e9);
    int64_t idle = device > 0 ? scheduler->slept : all, host = all - idle - device;
    atomic_fetch_add(&causes[CAUSE_DEVICE], device);
    atomic_fetch_add(&causes[CAUSE_HOST], host > 0 ? host : 0);
    atomic_fetch_add(&causes[CAUSE_IDLE], idle);
    scheduler->turn_began = now;
    scheduler->busy = busy;
}

static void tell_admission(struct scheduler *scheduler, bool saturated)
{
    admission_update(&scheduler->service->admission,
                     atomic_load(&scheduler->service->metrics.running), saturated);
}

static void *engine_main(void *context)
{
    struct scheduler *scheduler = context;
    pthread_setname_np(pthread_self(), "regla-engine");
    scheduler->turn_began = clock_nanos(CLOCK_MONOTONIC);
    scheduler->busy = engine_busy_seconds(scheduler->service->engine);
    while (take_inbox(scheduler)) {
        drop_cancelled(scheduler);
        bool saturated = start_waiting(scheduler);
        tell_admission(scheduler, saturated);
        finish_echoes(scheduler);
        sweep_finished(scheduler);
        batch_recover(&scheduler->batch);
        batch_step(&scheduler->batch);
        publish(scheduler);
        sweep_finished(scheduler);
        /* again: it may sleep now, with less that runs */
        tell_admission(scheduler, saturated && scheduler->batch.num_running > 0);
        count_turn(scheduler);
    }
    return NULL;
}

static void scheduler_release(struct scheduler *scheduler)
{
    inbox_clear(&scheduler->inbox);
    batch_clear(&scheduler->batch);
    free(scheduler->logits);
    free(scheduler);
}

int scheduler_create(struct scheduler **out, struct service *service, int max_texts,
                     int prefill_chunk, const struct pace *pace, struct error *err)
{
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    if (!scheduler)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the scheduler");
    const struct engine_info *info = engine_info(service->engine);
    scheduler->service = service;
    scheduler->tree = service->tree;
    scheduler->max_texts = max_texts;
    inbox_init(&scheduler->inbox);
    scheduler->logits = calloc((size_t)info->vocab_size, sizeof *scheduler->logits);
    if (batch_init(&scheduler->batch, service, &scheduler->inbox, max_texts, prefill_chunk, pace,
                   err) ||
        !scheduler->logits) {
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
