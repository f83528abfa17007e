/* SPDX-License-Identifier: Apache-2.0 */
/* One completion request as data: what is asked, what has been made of it, what is done. Only the
 * pipeline knows which stage comes next (server/endpoints/pipeline.h). */
#ifndef SERVER_SCHEDULE_JOB_H
#define SERVER_SCHEDULE_JOB_H

#include "api/completion.h"
#include "api/request.h"
#include "server/schedule/piece.h"
#include "server/schedule/stop.h"
#include "server/states/sessions.h"
#include "server/task.h"

struct job;
struct bad_words;
struct grammars_entry;

enum { JOB_ID_SIZE = 48 };

struct job_prompt {
    const int32_t *ids; /* [count]: what the engine takes */
    size_t count;       /* >= 1 */
    size_t context;     /* so many of them a session held before; the rest is the request's */
    bool replaces;      /* the text is the whole one: the session's, which begins otherwise, goes */
    struct token_list tokens; /* holds the ids of a text */

    /* With echo. */
    const char *text; /* [text_length] */
    size_t text_length;
    char *text_owned;
    int64_t characters;
    /* With echo and logprobs, or with prompt_logprobs. */
    struct reply_token *logprobs; /* [count - context]; else NULL */
    struct token_logprob *tops;   /* [count - context, num_top] */
    int num_top;                  /* as many as either asks for */
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
    bool prompt_told;         /* stream: a record has said that the prompt is ready */
    struct piece put;         /* of a kept response's stream: all that was put into the outbox */
    struct piece_marks marks; /* the pieces of that */
    struct token_list said; /* of a chat (chat_job.h): what was generated; without ids: no matter */
};

/* Written by the thread that makes the job or parses its request; then any thread may read it. */
struct job_asked {
    char id[JOB_ID_SIZE];             /* "cmpl-..." */
    char request_id[REQUEST_ID_SIZE]; /* X-Request-Id, else that of the body, else ours */
    bool request_id_given;            /* by the header */
    const char *owner; /* service_owner: the tree's and the sessions' name for the API key */
    int64_t created;   /* seconds since 1970 */
    double received;   /* clock_seconds() */
    struct completion_request request;
};

/* Its place in the queue: of whoever works on the job. */
struct job_queue {
    struct registry_entry entry;
    int64_t tokens; /* what admission_leave is owed */
    bool owes;      /* those, and counts as waiting */
    bool running;   /* counts as running */
};

/* What the engine thread is to take: a worker's to write. */
struct job_prepared {
    struct job_prompt *prompts; /* [asked.request.num_prompts] */
    int64_t prompt_tokens;      /* of all prompts */
    struct stop_set *stops;     /* NULL: none */
    int32_t *ends;              /* [num_ends]: end a text; the first num_eos are the model's */
    size_t num_ends, num_eos;
    struct grammars_entry *grammar; /* of its constraint; NULL: none */
    struct bad_words *words;        /* of more than one token; NULL: none */
    int32_t *bans;                  /* [num_bans]: may not come before min_tokens, the last */
    size_t num_bans;                /* num_always of them never */
    size_t num_always;
};

/* With a session (session_job.h): the engine thread's. */
struct job_bound {
    struct session *session;         /* busy with this job; NULL: not bound, or store: false */
    char salt[SESSION_SPACE_SIZE];   /* of its space; "": that of cache_salt */
    struct token_list taken;         /* what it is to hold; without ids: as before the request */
    const struct store_reply *claim; /* of its Idempotency-Key; NULL: it has none */
    bool changed;                    /* the session has the request's turn, or may have it */
    void (*settled)(struct job *job);
    struct session_view view; /* as the reply has it; id "": there is none */
};

/* Of a chat (chat_job.h): of whoever works on the job. */
struct job_chat {
    /* Without a session, where turns must go: what its prompt has, and what there is room for; else
     * tokens is 0. */
    int64_t tokens, most;
    size_t dropped; /* turns, so far */
    int attempts;
    /* With a session. */
    char *turns; /* [turns_length]: that the session held */
    size_t turns_length;
    char *text; /* [text_length]: all of the rendering */
    size_t text_length;
    struct strbuf object; /* of a kept response, as its turn has it */
    struct strbuf told;   /* how its stream told it; and how many events that were */
    int64_t events;
    struct strbuf record; /* the turns that it is to hold */
};

/* Its texts: the engine thread's. */
struct job_run {
    struct job_choice *choices; /* [num_choices = num_prompts * best_of] */
    size_t num_choices;
    int64_t generated; /* tokens of all choices */
    int64_t peak_state_bytes;
    double started, ended;     /* clock_seconds(); 0: not yet */
    int64_t texts_ended;       /* seconds since 1970; the same */
    double prefilled;          /* the same: all texts had begun; while they begin, the last */
    int64_t prefill_generated; /* tokens of all choices until then */
    struct job *next;          /* in the scheduler's lists */
    size_t next_prompt;        /* the first that has not started */
    size_t num_open;           /* texts that have begun and not ended */
    struct tenant *tenant;     /* whose job it is (tenants.h); from when it waits until it ends */
    double behind_since;       /* clock_seconds(): the stream's reader takes nothing; 0: it does */
};

/* What the HTTP thread and the one that works on the job touch at once. */
struct job_shared {
    /* under the ticket's lock */
    bool entered;  /* it has its place in the queue: from now on `asked` stays as it is */
    bool accepted; /* validated: a stream may begin */
    struct outbox outbox;
    /* atomics */
    _Atomic int64_t cached_tokens; /* of prompt_tokens: not computed again */
    _Atomic int miss;              /* enum miss_reason: why no more */
    _Atomic int64_t diverged_at;   /* MISS_DIVERGED: the first token that was not known; else -1 */
    _Atomic int64_t diverged_message; /* of a chat: the index of its message; -1: not known (yet) */
    _Atomic bool read; /* the stream's reader has taken something since the scheduler looked */
};

struct job {
    struct task task;
    /* Engine thread: the job's texts have ended, and nothing of it is in the engine any more. */
    void (*ended)(struct job *job);
    /* Of whoever works on the job. */
    bool failed;        /* with task.error, or the first error of those to come */
    int64_t held_bytes; /* prompts and replies; task.reserved follows in steps */

    struct job_asked asked;
    struct job_queue queue;
    struct job_prepared prepared;
    struct job_bound bound;
    struct job_chat chat;
    struct job_run run;
    struct job_shared shared;
};

/* Of a task that begins with a job, as task_create made it. request_id: borrowed for the call;
 * owner: index of the API key. */
void job_init(struct job *job, const char *request_id, bool request_id_given, int owner,
              void (*ended)(struct job *job));
/* For the task's destroy. */
void job_clear(struct job *job);

/* Takes the request (also on failure), and names the job: `prefix` and a random number; of a kept
 * response `name`, unless it is "". */
int job_take_request(struct job *job, struct completion_request *request, const char *prefix,
                     const char *name, struct api_error *err);

/* Enters the queue and the registry, or refuses with API_QUEUE_FULL. */
int job_enter_queue(struct job *job, struct api_error *err);
/* The job runs from now on: it leaves the queue's count of requests. */
void job_running(struct job *job);
/* All its prompts have started: it gives its place in the queue back. */
void job_leave_queue(struct job *job);

/* Accounts for `bytes` more that the job holds until it is destroyed: ERROR_NO_MEMORY when the
 * budget of all requests (--max-body-memory) is spent. For whoever works on the job. */
int job_reserve(struct job *job, size_t bytes, struct error *err);

/* Sets the error of a job that cannot continue (the first one stays). */
void job_fail(struct job *job, const struct api_error *err);
void job_fail_engine(struct job *job, const struct error *err);
void job_fail_cancelled(struct job *job);

#endif
