/* SPDX-License-Identifier: Apache-2.0 */
/* One completion request on its way through the threads.
 *
 * HTTP thread: job_create, job_start. Worker: job_prepare (tokenizes, checks lengths), then the job
 * goes to the scheduler, whose engine thread runs it and ends it with job_finish. Whoever works on
 * it is the only one to write it, but for what the ticket's lock guards. After `done` nothing of it
 * changes any more. */
#ifndef SERVER_SCHEDULE_JOB_H
#define SERVER_SCHEDULE_JOB_H

#include "api/completion.h"
#include "server/schedule/piece.h"
#include "server/schedule/stop.h"
#include "server/service.h"
#include "server/states/sessions.h"
#include "server/ticket.h"

enum { JOB_ID_SIZE = 48 };

struct job_prompt {
    const int32_t *ids;       /* [count]: what the engine takes */
    size_t count;             /* >= 1 */
    size_t context;           /* so many of them a session held before; the rest is the request's */
    struct token_list tokens; /* holds the ids of a text */

    /* With echo. */
    const char *text; /* [text_length] */
    size_t text_length;
    char *text_owned;
    int64_t characters;
    struct reply_token *logprobs; /* [count - context]: with logprobs; else NULL */
    struct token_logprob *tops;   /* [count - context, logprobs] */
};

/* Tokens of the request's own prompt. */
static inline size_t job_prompt_own(const struct job_prompt *prompt)
{
    return prompt->count - prompt->context;
}

struct job_choice {
    struct piece piece; /* what has not been put into the outbox; without stream all of it */
    enum finish_reason finish;
    int32_t stop_index, stop_token; /* or -1 */
    int64_t generated;
    double sum_logprob;
    bool prompt_told; /* stream: a record has said that the prompt is ready */
};

struct job {
    struct ticket ticket; /* its lock guards accepted, outbox, error */
    struct work work;
    struct registry_entry entry;
    struct service *service;
    char id[JOB_ID_SIZE];             /* "cmpl-..." */
    char request_id[REQUEST_ID_SIZE]; /* X-Request-Id */
    int64_t created;                  /* seconds since 1970 */
    double received;                  /* clock_seconds() */
    struct completion_request request;

    int64_t admitted_tokens; /* what admission_leave is owed */
    bool in_queue;           /* owes it, and counts as waiting */
    bool running;            /* counts as running */

    struct job_prompt *prompts; /* [request.num_prompts] */
    const char *owner; /* service_owner: the tree's and the sessions' name for the API key */
    _Atomic int64_t cached_tokens; /* of prompt_tokens: not computed again */
    _Atomic int miss;              /* enum miss_reason: why no more */

    /* With request.session_id: session_job.h. */
    struct session *session;       /* busy with this job; NULL: not bound, or store: false */
    char salt[SESSION_SPACE_SIZE]; /* of its space; "": that of cache_salt */
    struct token_list taken;       /* what it is to hold; without ids: as before the request */
    void (*settled)(struct job *job);
    struct session_view view;         /* as the reply has it; id "": there is none */
    struct completion_stream *stream; /* NULL: none is asked for */
    struct replay_entry *replay;      /* where the reply is to be kept (replay.h); NULL: nowhere */

    struct stop_set *stops; /* NULL: none */
    int32_t *ends;          /* [num_ends]: end a text; may not come before min_tokens */
    size_t num_ends;
    int64_t prompt_tokens; /* of all prompts */

    struct job_choice *choices; /* [num_prompts * best_of] */
    size_t num_choices;
    int64_t generated;                  /* tokens of all choices */
    int64_t held_bytes, reserved_bytes; /* prompts and replies; of the server's budget for them */
    int64_t peak_state_bytes;
    double started, ended;     /* clock_seconds(); 0: not yet */
    double prefilled;          /* the same: all texts had begun; while they begin, the last */
    int64_t prefill_generated; /* tokens of all choices until then */

    /* The scheduler's. */
    struct job *next;
    size_t next_prompt;  /* the first that has not started */
    size_t num_running;  /* texts that hold a state */
    double behind_since; /* clock_seconds(): the stream's reader takes nothing; 0: it does */
    bool failed;

    _Atomic bool read; /* the stream's reader has taken something since the scheduler looked */

    bool accepted; /* validated: a stream may begin */
    bool left;     /* the client has: the stream's record is completed without it */
    struct outbox outbox;
    struct api_error error; /* API_OK: it ended well */
    struct strbuf reply;    /* a long one without stream: what a worker made of it */
};

/* Takes the request (also on failure). request_id: borrowed for the call. The caller holds the
 * first reference. */
int job_create(struct job **out, struct service *service, struct completion_request *request,
               const char *request_id, int owner, struct api_error *err);

/* Enters the queue (or refuses with API_QUEUE_FULL) and hands the job to the workers. */
int job_start(struct job *job, struct api_error *err);

/* Accounts for `bytes` more that the job holds until it is destroyed: ERROR_NO_MEMORY when the
 * budget of all requests (--max-body-memory) is spent. For whoever works on the job. */
int job_reserve(struct job *job, size_t bytes, struct error *err);

/* Worker: job_prepare has made the job ready; it goes to the scheduler. */
void job_accept(struct job *job);
/* Runs run(&job->work) on a worker, or on the engine thread. */
void job_to_workers(struct job *job, void (*run)(struct work *work));
void job_to_engine(struct job *job, void (*run)(struct work *work));
/* Tokenizes and so on: for job_to_workers. */
void job_run_prepare(struct work *work);
struct job *job_of_work(struct work *work);

/* The job runs from now on: it leaves the queue's count of requests. */
void job_running(struct job *job);
/* All its prompts have started: it gives its place in the queue back. */
void job_leave_queue(struct job *job);

/* Ends the job: with its error if one is set; once its session is settled, and one with a long
 * reply once a worker has written that. Everything it held in the engine must be free by now. For
 * the engine thread. Gives the worker's reference back. */
void job_finish(struct job *job);

/* Sets the error of a job that cannot go on (the first one stays). */
void job_fail(struct job *job, const struct api_error *err);
void job_fail_engine(struct job *job, const struct error *err);
void job_fail_cancelled(struct job *job);

#endif
