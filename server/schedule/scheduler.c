/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/scheduler.h"

#include "lib/base/clock.h"
#include "server/schedule/batch.h"
#include "server/schedule/inbox.h"
#include "server/schedule/placing.h"
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
    struct inbox inbox;

    /* The engine thread's. */
    struct tenants tenants; /* with jobs that have prompts to start */
    struct work *parked;    /* waits for a file; by work->next */
    struct batch batch;
    struct placing placing;
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

bool scheduler_post(struct scheduler *scheduler, struct work *work)
{
    return inbox_put_work(&scheduler->inbox, work);
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

/* Whether there is a job with prompts to start. */
static bool has_waiting(const struct scheduler *scheduler)
{
    for (const struct tenant *at = scheduler->tenants.first; at; at = at->next)
        if (at->waiting.head)
            return true;
    return false;
}

/* Whether a text that is aside waits for nothing but its place. */
static bool has_ready(const struct scheduler *scheduler)
{
    for (size_t i = 0; i < scheduler->batch.num_aside; i++) {
        const struct sequence *sequence = scheduler->batch.aside[i];
        if (!sequence->blocked && !sequence->prefix.leader && !sequence->paused)
            return true;
    }
    return false;
}

/* How long the thread may sleep: < 0 until something comes. */
static double may_sleep(const struct scheduler *scheduler)
{
    double due = scheduler->sessions_due_s;
    if (scheduler->batch.stalled)
        return TICK_MS / 1e3;
    if (scheduler->batch.num_running || has_waiting(scheduler) || has_ready(scheduler))
        return 0;
    if ((scheduler->closing || scheduler->sessions_changed || scheduler->batch.num_aside) &&
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

/* Of the requests that do not run yet, those whose first text waits for its state: from a file or
 * from the store. */
static int64_t wait_for_states(const struct batch *batch)
{
    int64_t count = 0;
    for (size_t i = 0; i < batch->num_aside; i++) {
        const struct sequence *text = batch->aside[i];
        count += text->blocked && text->index == 0 && !text->job->queue.running;
    }
    return count;
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
    struct metrics *metrics = &scheduler->service->metrics;
    atomic_store(&metrics->running_texts, (int64_t)scheduler->batch.num_running);
    atomic_store(&metrics->waiting_for_states, wait_for_states(&scheduler->batch));
    memcpy(memory.sessions, scheduler->sessions, sizeof memory.sessions);
    metrics_set_memory(metrics, &memory);
}

void scheduler_publish(struct scheduler *scheduler)
{
    scheduler->sessions_changed = true;
    publish(scheduler);
}

/* Ends the job once none of its texts is open and none is to start. Before the client can know, the
 * states are free and the metrics say so. */
static void end_if_done(struct scheduler *scheduler, struct job *job)
{
    if (job->run.num_open || (placing_job_waits(job) && !job->failed))
        return;
    scheduler_publish(scheduler);
    job->ended(job);
}

/* Ends a job that has failed or was cancelled, wherever it stands. */
static void abandon(struct scheduler *scheduler, struct job *job)
{
    struct batch *batch = &scheduler->batch;
    job->failed = true;
    batch_note_bytes(batch, job);
    if (placing_job_waits(job))
        job_list_remove(&job->run.tenant->waiting, job);
    for (size_t i = batch->num_running; i-- > 0;)
        if (batch->running[i]->job == job)
            batch_close(batch, i);
    for (size_t i = batch->num_aside; i-- > 0;)
        if (batch->aside[i]->job == job)
            batch_close_aside(batch, i);
    end_if_done(scheduler, job);
}

/* A job has come. */
static void enter(struct scheduler *scheduler, struct job *job)
{
    struct error err = ERROR_INIT;
    job->run.tenant = tenants_get(&scheduler->tenants, job->task.tenant);
    if (job->run.tenant) {
        job_list_append(&job->run.tenant->waiting, job);
        return;
    }
    error_set(&err, ERROR_NO_MEMORY, "out of memory for the scheduler");
    job_fail_engine(job, &err);
    job->failed = true;
    end_if_done(scheduler, job);
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
    for (size_t i = 0; (taken.poked || late) && i < scheduler->batch.num_aside; i++)
        scheduler->batch.aside[i]->blocked = false;
    for (struct job *job = taken.jobs.head, *next; job; job = next) {
        next = job->run.next;
        enter(scheduler, job);
    }
    scheduler->closing = taken.closing;
    return !taken.closing || taken.work || has_waiting(scheduler) || scheduler->batch.num_aside ||
           scheduler->batch.num_running || scheduler->parked ||
           ((sessions_pending(service->sessions) || atomic_load(&service->replies_waiting) > 0) &&
            !atomic_load(&service->giving_up)) ||
           !inbox_end(&scheduler->inbox);
}

/* If the job was cancelled, ends it. */
static bool drop(struct scheduler *scheduler, struct job *job)
{
    if (!ticket_cancelled(&job->task.ticket))
        return false;
    job_fail_cancelled(job);
    abandon(scheduler, job);
    return true;
}

static void drop_cancelled(struct scheduler *scheduler)
{
    struct batch *batch = &scheduler->batch;
    for (struct tenant *tenant = scheduler->tenants.first; tenant; tenant = tenant->next)
        for (struct job *job = tenant->waiting.head, *next; job; job = next) {
            next = job->run.next;
            drop(scheduler, job);
        }
    for (size_t i = 0; i < batch->num_running;)
        i = drop(scheduler, batch->running[i]->job) ? 0 : i + 1;
    for (size_t i = 0; i < batch->num_aside;)
        i = drop(scheduler, batch->aside[i]->job) ? 0 : i + 1;
}

/* Closes the texts that have ended; a job's last one ends the job. A text may end aside: with the
 * first token that is drawn for it. */
static void sweep_finished(struct scheduler *scheduler)
{
    struct batch *batch = &scheduler->batch;
    for (struct tenant *tenant = scheduler->tenants.first; tenant; tenant = tenant->next)
        while (tenant->waiting.head && tenant->waiting.head->failed)
            abandon(scheduler, tenant->waiting.head);
    for (size_t i = 0; i < batch->num_running + batch->num_aside;) {
        bool aside = i >= batch->num_running;
        size_t at = aside ? i - batch->num_running : i;
        const struct sequence *sequence = (aside ? batch->aside : batch->running)[at];
        struct job *job = sequence->job;
        if (job->failed) {
            abandon(scheduler, job);
            i = 0;
        } else if (sequence->choice->finish != FINISH_NONE) {
            batch_note_bytes(batch, job);
            (aside ? batch_close_aside : batch_close)(batch, at);
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
        if (!placing_needs_no_engine(sequence->job) || sequence->decoding)
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
        bool saturated = placing_run(&scheduler->placing);
        tell_admission(scheduler, saturated);
        finish_echoes(scheduler);
        sweep_finished(scheduler);
        room_grow(&scheduler->placing.room);
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
    placing_clear(&scheduler->placing);
    tenants_clear(&scheduler->tenants);
    free(scheduler);
}

int scheduler_create(struct scheduler **out, struct service *service, int max_texts,
                     int prefill_chunk, const struct pace *pace, struct error *err)
{
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    if (!scheduler)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for the scheduler");
    scheduler->service = service;
    scheduler->tree = service->tree;
    inbox_init(&scheduler->inbox);
    if (batch_init(&scheduler->batch, service, &scheduler->inbox, max_texts, prefill_chunk, pace,
                   err) ||
        placing_init(&scheduler->placing, service, &scheduler->batch, &scheduler->tenants,
                     max_texts, err)) {
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
