/* SPDX-License-Identifier: Apache-2.0 */
#include "server/schedule/job.h"

#include "api/responses_echo.h"
#include "lib/base/clock.h"
#include "server/grammars.h"
#include "server/schedule/bad_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

void job_init(struct job *job, const char *request_id, bool request_id_given, int owner,
              void (*ended)(struct job *job))
{
    job->ended = ended;
    job->asked.owner = service_owner(job->task.service, owner);
    snprintf(job->asked.request_id, sizeof job->asked.request_id, "%s", request_id);
    job->asked.request_id_given = request_id_given;
    job->shared.diverged_at = job->shared.diverged_message = -1;
    job->queue.entry = (struct registry_entry){.ticket = &job->task.ticket,
                                               .id = job->asked.id,
                                               .request_id = job->asked.request_id,
                                               .owner = owner};
}

static void clear_prompt(struct job_prompt *prompt)
{
    token_list_clear(&prompt->tokens);
    free(prompt->text_owned);
    free(prompt->logprobs);
    free(prompt->tops);
}

void job_clear(struct job *job)
{
    struct job_prepared *prepared = &job->prepared;
    registry_remove(&job->task.service->registry, &job->queue.entry);
    for (size_t i = 0; prepared->prompts && i < job->asked.request.num_prompts; i++)
        clear_prompt(&prepared->prompts[i]);
    for (size_t i = 0; i < job->run.num_choices; i++) {
        piece_clear(&job->run.choices[i].piece);
        piece_clear(&job->run.choices[i].put);
        piece_marks_clear(&job->run.choices[i].marks);
        token_list_clear(&job->run.choices[i].said);
    }
    free(prepared->prompts);
    free(prepared->ends);
    free(prepared->bans);
    bad_words_free(prepared->words);
    grammars_release(job->task.service->grammars, prepared->grammar);
    stop_set_free(prepared->stops);
    free(job->run.choices);
    outbox_clear(&job->shared.outbox);
    token_list_clear(&job->bound.taken);
    free(job->chat.turns);
    free(job->chat.text);
    strbuf_clear(&job->chat.object);
    strbuf_clear(&job->chat.told);
    strbuf_clear(&job->chat.record);
    completion_request_clear(&job->asked.request);
}

static int out_of_memory(struct api_error *err)
{
    return api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
}

/* Estimates what the request will cost in tokens, before anything is tokenized. A token of text has
 * about four bytes; each choice and each stop string costs memory of its own. */
static int64_t estimate_tokens(const struct completion_request *request)
{
    int64_t tokens = 0;
    for (size_t i = 0; i < request->num_prompts; i++) {
        const struct completion_prompt *prompt = &request->prompts[i];
        tokens += prompt->text ? (int64_t)(prompt->length / 4) : (int64_t)prompt->num_ids;
    }
    int tops = request->echo && request->logprobs > 0 ? request->logprobs : 0;
    tops += request->prompt_logprobs > 0 ? request->prompt_logprobs : 0;
    tokens += tokens * tops / 4;
    for (size_t i = 0; i < request->num_stops; i++)
        tokens += 16 + (int64_t)request->stops[i].length;
    for (size_t i = 0; i < request->num_bad_words; i++)
        tokens += 16 + (int64_t)request->bad_words[i].length;
    tokens += (int64_t)request->constraint.length / 4;
    tokens += (int64_t)(request->user ? strlen(request->user) : 0) / 4;
    tokens += (int64_t)request->cache_salt_length / 4;
    if (request->session_id || request->kept)
        tokens += (int64_t)(request->chat.length / 4); /* its prompt is still to be made */
    return tokens + 16 * (int64_t)request->num_prompts * request->best_of;
}

static int random_bytes(void *bytes, size_t size, struct api_error *err)
{
    if (getrandom(bytes, size, 0) != (ssize_t)size)
        return api_error_set(err, API_INTERNAL, NULL, "the system gives no random numbers");
    return 0;
}

static int name_job(struct job_asked *asked, const char *prefix, struct api_error *err)
{
    uint64_t random[2];
    if (random_bytes(random, sizeof random, err))
        return -1;
    snprintf(asked->id, sizeof asked->id, "%s%016llx%016llx", prefix, (unsigned long long)random[0],
             (unsigned long long)random[1]);
    if (asked->request.seed_given)
        return 0;
    int64_t *seed = &asked->request.sampling.seed;
    return random_bytes(seed, sizeof *seed, err);
}

/* What its replies say again. A stream has it in two events at once, in a buffer that doubles. */
static size_t echoed_bytes(const struct completion_request *request)
{
    enum { EVENTS = 2, DOUBLED = 2 };
    size_t told = request->echoed && request->stream ? request->echoed->length : 0;
    return responses_echo_bytes(request->echoed) + EVENTS * DOUBLED * told;
}

int job_take_request(struct job *job, struct completion_request *request, const char *prefix,
                     const char *name, struct api_error *err)
{
    struct job_run *run = &job->run;
    struct error error = ERROR_INIT;
    job->asked.request = *request;
    if (!job->asked.request_id_given && request->request_id)
        snprintf(job->asked.request_id, sizeof job->asked.request_id, "%s", request->request_id);
    job->asked.created = (int64_t)time(NULL);
    job->asked.received = clock_seconds();
    job->queue.tokens = estimate_tokens(request);
    size_t choices = request->num_prompts * (size_t)request->best_of;
    const struct span_list *input =
        &request->prompts[0].input; /* of a chat, which has one prompt */
    if (job_reserve(job,
                    request->num_prompts * sizeof *job->prepared.prompts +
                        choices * sizeof *run->choices + input->capacity * sizeof *input->items +
                        echoed_bytes(request),
                    &error))
        return api_error_from_engine(err, &error, NULL);
    job->prepared.prompts = calloc(request->num_prompts, sizeof *job->prepared.prompts);
    run->num_choices = choices;
    run->choices = calloc(choices, sizeof *run->choices);
    if (!run->choices)
        run->num_choices = 0;
    for (size_t i = 0; i < run->num_choices; i++) {
        run->choices[i].stop_index = run->choices[i].stop_token = -1;
        int wanted = (int)request->num_logprob_token_ids;
        run->choices[i].piece.num_top =
            wanted > 0 || request->logprobs < 0 ? wanted : request->logprobs;
    }
    if (!job->prepared.prompts || !run->choices)
        return out_of_memory(err);
    if (name_job(&job->asked, prefix, err))
        return -1;
    if (!request->kept)
        return 0;
    if (*name)
        snprintf(job->asked.id, sizeof job->asked.id, "%s%s", prefix, name);
    job->asked.request.session_id = strdup(job->asked.id);
    return job->asked.request.session_id ? 0 : out_of_memory(err);
}

int job_enter_queue(struct job *job, struct api_error *err)
{
    struct service *service = job->task.service;
    if (admission_enter(&service->admission, job->task.tenant, job->queue.tokens, err))
        return -1;
    job->queue.owes = true;
    atomic_fetch_add(&service->metrics.waiting, 1);
    registry_add(&service->registry, &job->queue.entry);
    return 0;
}

void job_running(struct job *job)
{
    if (job->queue.running)
        return;
    job->queue.running = true;
    job->run.started = clock_seconds();
    atomic_fetch_sub(&job->task.service->metrics.waiting, 1);
    atomic_fetch_add(&job->task.service->metrics.running, 1);
    histogram_observe(&job->task.service->metrics.queue, job->run.started - job->asked.received);
}

void job_leave_queue(struct job *job)
{
    if (!job->queue.owes)
        return;
    job->queue.owes = false;
    admission_leave(&job->task.service->admission, job->task.tenant, job->queue.tokens);
}

int job_reserve(struct job *job, size_t bytes, struct error *err)
{
    enum { STEP_BYTES = 8192 };
    if (bytes > INT64_MAX / 4)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for this request");
    job->held_bytes += (int64_t)bytes;
    int64_t lacking = job->held_bytes - job->task.reserved;
    if (lacking <= 0)
        return 0;
    lacking = (lacking + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    if (!task_reserve(&job->task, lacking))
        return error_set(err, ERROR_NO_MEMORY,
                         "the requests that are being answered hold as much as --max-body-memory "
                         "allows: stream, or ask for less");
    return 0;
}

void job_fail(struct job *job, const struct api_error *err)
{
    if (job->task.error.code == API_OK)
        job->task.error = *err;
    job->failed = true;
}

void job_fail_engine(struct job *job, const struct error *err)
{
    struct api_error api = {0};
    /* The request was valid. So whatever the engine refuses now is our own mistake. */
    if (err->code == ERROR_NO_MEMORY)
        api_error_from_engine(&api, err, NULL);
    else
        api_error_set(&api, API_INTERNAL, NULL, "the engine failed: %s", err->message);
    job_fail(job, &api);
}

void job_fail_cancelled(struct job *job)
{
    struct api_error err = {0};
    switch (ticket_cancelled(&job->task.ticket)) {
    case CANCEL_SLOW:
        api_error_set(&err, API_CANCELLED, NULL, "cancelled: the client does not read its stream");
        break;
    case CANCEL_DRAINING:
        api_error_set(&err, API_DRAINING, NULL, "cancelled: the server is shutting down");
        break;
    default:
        api_error_set(&err, API_CANCELLED, NULL, "the request was cancelled");
    }
    job_fail(job, &err);
}
