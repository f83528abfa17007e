/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/placing.h"

#include "lib/base/clock.h"
#include "server/schedule/session_job.h"

#include <stdlib.h>
#include <string.h>

enum outcome_of_placing { PLACED, WAITS, NO_ROOM };

int placing_init(struct placing *placing, struct service *service, struct batch *batch,
                 struct tenants *tenants, int max_texts, struct error *err)
{
    size_t vocab_size = (size_t)engine_info(service->engine)->vocab_size;
    *placing = (struct placing){
        .service = service, .tree = service->tree, .batch = batch, .tenants = tenants};
    room_init(&placing->room, service, batch, tenants, max_texts);
    placing->logits = calloc(vocab_size, sizeof *placing->logits);
    return placing->logits ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory for the scheduler");
}

void placing_clear(struct placing *placing)
{
    free(placing->logits);
}

bool placing_needs_no_engine(const struct job *job)
{
    const struct completion_request *request = &job->asked.request;
    return request->max_tokens == 0 && request->logprobs < 0 && request->prompt_logprobs < 0 &&
           !session_job(job);
}

bool placing_job_waits(const struct job *job)
{
    return job->run.next_prompt < job->asked.request.num_prompts;
}

/* Opens a text, which is aside then. */
static int open_text(struct placing *placing, struct job *job, size_t index, struct error *err)
{
    struct sequence *sequence;
    struct space *space = session_job_space(placing->tree, job);
    if (!space)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for a text");
    if (sequence_open(&sequence, job, index, err)) {
        state_tree_space_release(placing->tree, space);
        return -1;
    }
    sequence->number = ++placing->opened;
    prefix_open(placing->tree, sequence, space);
    batch_open(placing->batch, sequence);
    return 0;
}

/* Opens all texts of the job's next prompt. The first takes the prompt, the others wait for it. */
static int open_prompt(struct placing *placing, struct job *job, struct error *err)
{
    struct batch *batch = placing->batch;
    size_t texts = (size_t)job->asked.request.best_of, number = job->run.next_prompt;
    size_t wanted = placing_needs_no_engine(job) ? texts : 1;
    if (batch_reserve(batch, batch->num_running + wanted, texts, err))
        return -1;
    for (size_t i = 0; i < texts; i++)
        if (open_text(placing, job, number * texts + i, err))
            return -1;
    job->run.next_prompt++;
    /* The youngest of all stand last. */
    struct sequence **opened = batch->aside + (batch->num_aside - texts);
    for (size_t i = 1; i < texts && !placing_needs_no_engine(job); i++)
        prefix_follow(opened[i], opened[0], (int64_t)opened[0]->prompt->count);
    return 0;
}

/* Looks up what a text that begins may begin on. Copies its logits, since other texts may push them
 * out of memory. True: more of it may be coming from the store. */
static bool match_prompt(struct placing *placing, struct sequence *sequence,
                         struct state_match *match)
{
    struct job *job = sequence->job;
    struct space *space = sequence->prefix.space;
    prefix_match(placing->tree, space, job, sequence->prompt, match);
    if (match->logits)
        memcpy(placing->logits, match->logits,
               (size_t)placing->service->limits.vocab_size * sizeof *match->logits);
    return prefix_is_coming(sequence, match);
}

/* Finds where the text goes on. WAITS: it waits for a file, or for another text. */
static enum outcome_of_placing find_beginning(struct placing *placing, struct sequence *sequence,
                                              struct state_match *match, struct error *err)
{
    struct batch *batch = placing->batch;
    if (sequence->prefix.left) {
        if (prefix_match_own(placing->tree, sequence, match, err))
            return NO_ROOM;
        if (sequence->decoding)
            return PLACED;
        sequence->taken = match->position;
    } else if (sequence->decoding) {
        return prefix_match_own(placing->tree, sequence, match, err) ? NO_ROOM : PLACED;
    } else {
        sequence->blocked = match_prompt(placing, sequence, match);
        if (sequence->blocked)
            return WAITS;
        prefix_begin(sequence, match);
    }
    if (sequence->taken == (int64_t)sequence->prompt->count)
        return PLACED;
    prefix_wait(placing->tree, sequence, batch->running, batch->num_running);
    prefix_wait(placing->tree, sequence, batch->aside, batch->num_aside);
    return sequence->prefix.leader ? WAITS : PLACED;
}

/* Once a text of it has a place, or waits for what another computes, the job runs. */
static void note_start(struct placing *placing, struct sequence *sequence)
{
    struct job *job = sequence->job;
    job_running(job);
    if (!placing_job_waits(job))
        job_leave_queue(job);
    if (!sequence->has_run && sequence->index % job->asked.request.best_of == 0)
        atomic_fetch_add(&placing->service->metrics.prompt_tokens, sequence->prompt->count);
    sequence->has_run = true;
}

/* The text has its state, or needs none. */
static void put(struct placing *placing, struct sequence *sequence)
{
    struct error err = ERROR_INIT;
    note_start(placing, sequence);
    batch_place(placing->batch, sequence);
    if (sequence->state && !sequence->decoding &&
        sequence->taken == (int64_t)sequence->prompt->count &&
        batch_begin_whole(placing->batch, sequence, placing->logits, &err))
        job_fail_engine(sequence->job, &err);
}

/* What a text waits for that is not to have a place now may begin without it. */
static enum outcome_of_placing stays_aside(struct placing *placing, struct sequence *sequence,
                                           enum outcome_of_placing outcome)
{
    if (outcome == NO_ROOM || sequence->blocked)
        batch_lose_waiters(placing->batch, sequence, INT64_MAX);
    return outcome;
}

/* Gives a text that is aside its state and a place. */
static enum outcome_of_placing place_text(struct placing *placing, struct sequence *sequence)
{
    struct state_match match = {.reason = MISS_DISABLED};
    struct error err = ERROR_INIT;
    int64_t length =
        sequence->decoding ? sequence_length(sequence) : (int64_t)sequence->prompt->count;
    int64_t reach = room_reach(&placing->room, sequence, length);
    if (batch_reserve(placing->batch, placing->batch->num_running + 1, 0, &err) ||
        !room_make(&placing->room, sequence->job->run.tenant,
                   engine_state_bytes(placing->service->engine, reach)))
        return stays_aside(placing, sequence, NO_ROOM);
    const int64_t had = sequence_length(sequence);
    enum outcome_of_placing outcome = find_beginning(placing, sequence, &match, &err);
    if (outcome == WAITS && sequence->prefix.leader)
        note_start(placing, sequence);
    if (outcome == WAITS)
        return stays_aside(placing, sequence, WAITS);
    int result = outcome == PLACED
                     ? state_tree_start(placing->tree, &match, reach, &sequence->state, &err)
                     : -1;
    if (result > 0) {
        sequence->blocked = true;
        return stays_aside(placing, sequence, WAITS);
    }
    if (result == 0) {
        /* Those that wait for less of the prompt than this text begins with find it, too. */
        batch_lose_waiters(placing->batch, sequence, sequence->taken);
        if (sequence->state)
            sequence->again = had - state_position(sequence->state);
        put(placing, sequence);
        return PLACED;
    }
    /* While nothing else runs it must fit: prompt_prepare has checked that. */
    if (err.code != ERROR_NO_MEMORY || placing->batch->num_running == 0)
        job_fail_engine(sequence->job, &err);
    return stays_aside(placing, sequence, NO_ROOM);
}

/* The echoes of a prompt: they end in this turn. */
static void place_echoes(struct placing *placing, struct job *job)
{
    struct batch *batch = placing->batch;
    for (int64_t i = 0; i < job->asked.request.best_of; i++)
        put(placing, batch->aside[batch->num_aside - (size_t)(job->asked.request.best_of - i)]);
}

/* Starts the next prompt of the tenant's first job. A job of many prompts goes to the end of its
 * tenant's line after each of them. */
static enum outcome_of_placing start_prompt(struct placing *placing, struct tenant *tenant)
{
    struct job *job = tenant->waiting.head;
    struct batch *batch = placing->batch;
    const struct job_prompt *prompt = &job->prepared.prompts[job->run.next_prompt];
    struct error err = ERROR_INIT;
    bool echoes = placing_needs_no_engine(job);
    int64_t most = (int64_t)prompt->count + job->asked.request.max_tokens;
    int64_t ahead = placing->room.ahead;
    int64_t reach = ahead < job->asked.request.max_tokens ? (int64_t)prompt->count + ahead : most;
    size_t bytes = echoes ? 0 : engine_state_bytes(placing->service->engine, reach);
    if (!room_make(&placing->room, tenant, bytes))
        return NO_ROOM;
    if (open_prompt(placing, job, &err)) {
        job_fail_engine(job, &err);
        return NO_ROOM;
    }
    job_list_remove(&tenant->waiting, job);
    if (placing_job_waits(job))
        job_list_append(&tenant->waiting, job);
    if (echoes) {
        place_echoes(placing, job);
        return PLACED;
    }
    return place_text(placing, batch->aside[batch->num_aside - (size_t)job->asked.request.best_of]);
}

/* Whether the text may have a place now. */
static bool can_go_on(struct sequence *sequence, double now)
{
    if (sequence->prefix.leader || sequence->blocked || sequence->job->failed ||
        sequence->choice->finish != FINISH_NONE)
        return false;
    sequence->paused = sequence->decoding && batch_pauses(sequence, now);
    return !sequence->paused;
}

/* Sets tenant->oldest. */
static void find_oldest(struct placing *placing, double now)
{
    for (struct tenant *tenant = placing->tenants->first; tenant; tenant = tenant->next)
        tenant->oldest = NULL;
    for (size_t i = 0; i < placing->batch->num_aside; i++) {
        struct sequence *sequence = placing->batch->aside[i];
        struct tenant *tenant = sequence->job->run.tenant;
        if (!tenant->blocked && !tenant->oldest && can_go_on(sequence, now))
            tenant->oldest = sequence;
    }
}

/* The tenant with the fewest places, of these the one that has been served least, which has a text
 * for one. NULL: there is none. */
static struct tenant *next_tenant(struct placing *placing)
{
    struct tenant *best = NULL;
    for (struct tenant *tenant = placing->tenants->first; tenant; tenant = tenant->next) {
        bool may_open = tenant->waiting.head && tenant->open < 2 * placing->room.max_texts;
        if (tenant->blocked || (!tenant->oldest && !may_open))
            continue;
        if (!best || tenant->places < best->places ||
            (tenant->places == best->places && tenant->served < best->served))
            best = tenant;
    }
    return best;
}

bool placing_run(struct placing *placing)
{
    struct tenant *tenant;
    bool waits = false;
    double now = clock_seconds();
    tenants_turn(placing->tenants);
    placing->room.claims = NULL;
    find_oldest(placing, now);
    while ((tenant = next_tenant(placing))) {
        enum outcome_of_placing outcome =
            tenant->oldest ? place_text(placing, tenant->oldest) : start_prompt(placing, tenant);
        tenant->blocked = outcome == NO_ROOM;
        waits = waits || outcome == NO_ROOM;
        find_oldest(placing, now);
    }
    return waits;
}
