/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/job_reply.h"

#include "api/chat_calls.h"
#include "api/responses_echo.h"
#include "server/endpoints/chat_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct reply_head job_reply_head(const struct job *job)
{
    const char *asked = job->asked.request.model;
    return (struct reply_head){.id = job->asked.id,
                               .created = job->asked.created,
                               .model = asked && *asked ? asked : job->task.service->model,
                               .system_fingerprint = job->task.service->fingerprint,
                               .warnings = &job->task.warnings,
                               .echo = job->asked.request.echoed,
                               .seals = job->asked.request.seals_thoughts};
}

struct reply_usage job_reply_usage(struct job *job, int64_t generated, int64_t reasoning)
{
    enum miss_reason miss = (enum miss_reason)atomic_load(&job->shared.miss);
    return (struct reply_usage){.prompt_tokens = job->prepared.prompt_tokens,
                                .completion_tokens = generated,
                                .cached_tokens = atomic_load(&job->shared.cached_tokens),
                                .cache_miss_reason = miss_reason_name(miss),
                                .diverged_at = atomic_load(&job->shared.diverged_at),
                                .diverged_message = atomic_load(&job->shared.diverged_message),
                                .chat = job->asked.request.chat.text != NULL,
                                .reasoning_tokens = reasoning};
}

static double per_second(double count, double seconds)
{
    return count > 0 && seconds > 0 ? count / seconds : NAN;
}

struct reply_timings job_reply_timings(const struct job *job)
{
    double end = job->run.prefilled > 0 ? job->run.prefilled : job->run.ended;
    double prefill = end - job->run.started, decode = job->run.ended - end;
    int64_t computed = job->prepared.prompt_tokens - atomic_load(&job->shared.cached_tokens);
    int64_t generated = job->run.generated - job->run.prefill_generated;
    return (struct reply_timings){
        .queue_ms = (job->run.started - job->asked.received) * 1e3,
        .prefill_ms = prefill * 1e3,
        .decode_ms = decode * 1e3,
        .prefill_tokens_per_second =
            job->run.prefilled > 0 ? per_second((double)computed, prefill) : NAN,
        .decode_tokens_per_second = per_second((double)generated, decode)};
}

const struct session_card *job_reply_session(const struct job *job, struct session_card *card)
{
    if (!job->bound.view.id[0])
        return NULL;
    *card = session_card(&job->bound.view);
    return card;
}

void job_reply_ending(struct reply_choice *reply, const struct job *job, enum finish_reason finish,
                      int32_t stop_index, int32_t stop_token)
{
    reply->finish_reason = finish;
    reply->stop_token = stop_token;
    if (stop_index >= 0) {
        reply->stop_string = job->asked.request.stops[stop_index].text;
        reply->stop_string_length = job->asked.request.stops[stop_index].length;
    }
}

struct reply_prompt_logprobs job_reply_prompt_logprobs(const struct job *job,
                                                       const struct job_prompt *prompt)
{
    return (struct reply_prompt_logprobs){.tokenizer = job->task.service->tokenizer,
                                          .tokens = prompt->logprobs,
                                          .num_tokens = job_prompt_own(prompt),
                                          .num_top = job->asked.request.prompt_logprobs};
}

/* The index that clients see: best_of candidates become n choices. */
static int reply_index(const struct job *job, size_t prompt, int rank)
{
    return (int)prompt * job->asked.request.n + rank;
}

/* What a choice's reply points to; freed after the encoding. */
struct whole_choice {
    char *text;
    struct chat_choice chat;
    struct reply_token *tokens;
    int32_t *ids;
    struct reply_logprobs logprobs;
    struct reply_prompt_logprobs prompt_logprobs;
};

static void *join(const void *a, size_t a_size, const void *b, size_t b_size)
{
    char *both = malloc(a_size + b_size + 1);
    if (both && a_size)
        memcpy(both, a, a_size);
    if (both && b_size)
        memcpy(both + a_size, b, b_size);
    return both;
}

static int join_logprobs(struct whole_choice *whole, const struct job *job,
                         const struct job_prompt *prompt, const struct piece *piece)
{
    size_t echoed = job->asked.request.echo ? job_prompt_own(prompt) : 0;
    whole->tokens = join(prompt->logprobs, echoed * sizeof *whole->tokens, piece->tokens,
                         piece->num_tokens * sizeof *whole->tokens);
    whole->logprobs =
        (struct reply_logprobs){.tokenizer = job->task.service->tokenizer,
                                .tokens = whole->tokens,
                                .num_tokens = echoed + piece->num_tokens,
                                .as_token_ids = job->asked.request.return_tokens_as_token_ids,
                                .listed = job->asked.request.num_logprob_token_ids > 0};
    return whole->tokens ? 0 : -1;
}

static int whole_ids(struct whole_choice *whole, const struct piece *piece)
{
    whole->ids = malloc((piece->num_tokens + 1) * sizeof *whole->ids);
    for (size_t i = 0; whole->ids && i < piece->num_tokens; i++)
        whole->ids[i] = piece->tokens[i].id;
    return whole->ids ? 0 : -1;
}

/* Also that of what is echoed. */
static int whole_text(struct whole_choice *whole, struct reply_choice *reply, const struct job *job,
                      const struct job_prompt *prompt, const struct piece *piece)
{
    const struct completion_request *request = &job->asked.request;
    if (request->chat.text) {
        bool last = reply->finish_reason != FINISH_NONE;
        if (chat_choice_take(&whole->chat, request->chat_rules, piece, last))
            return -1;
        chat_choice_fill(&whole->chat, reply);
        return 0;
    }
    size_t echoed = request->echo ? prompt->text_length : 0;
    whole->text = join(prompt->text, echoed, piece->text.data, piece->text.length);
    reply->text = whole->text;
    reply->text_length = echoed + piece->text.length;
    return whole->text ? 0 : -1;
}

static int make_choice(struct reply_choice *reply, struct whole_choice *whole, struct job *job,
                       size_t prompt_index, struct job_choice *choice, bool kept)
{
    const struct completion_request *request = &job->asked.request;
    const struct job_prompt *prompt = &job->prepared.prompts[prompt_index];
    const struct piece *piece = kept && request->stream ? &choice->put : &choice->piece;
    bool logprobs = request->logprobs >= 0 && !kept;
    job_reply_ending(reply, job, choice->finish, choice->stop_index, choice->stop_token);
    if (whole_text(whole, reply, job, prompt, piece) ||
        (logprobs && join_logprobs(whole, job, prompt, piece)) ||
        (request->return_token_ids && whole_ids(whole, piece)))
        return -1;
    if (logprobs)
        reply->logprobs = &whole->logprobs;
    whole->prompt_logprobs = job_reply_prompt_logprobs(job, prompt);
    if (request->prompt_logprobs >= 0)
        reply->prompt_logprobs = &whole->prompt_logprobs;
    if (request->return_token_ids) {
        reply->token_ids = whole->ids;
        reply->num_token_ids = piece->num_tokens;
        reply->prompt_token_ids = prompt->ids + prompt->context;
        reply->num_prompt_token_ids = job_prompt_own(prompt);
    }
    return 0;
}

static double mean_logprob(const struct job_choice *choice)
{
    return choice->generated ? choice->sum_logprob / (double)choice->generated : -INFINITY;
}

/* The candidate of the prompt with this rank by mean logprob; of equal ones the earlier is first.
 * Without best_of they stay in order. */
static struct job_choice *ranked(struct job *job, size_t prompt, int rank)
{
    int best_of = job->asked.request.best_of;
    struct job_choice *candidates = job->run.choices + prompt * (size_t)best_of;
    if (best_of == job->asked.request.n)
        return &candidates[rank];
    for (int i = 0; i < best_of; i++) {
        double mean = mean_logprob(&candidates[i]);
        int better = 0;
        for (int j = 0; j < best_of; j++) {
            double other = mean_logprob(&candidates[j]);
            better += other > mean || (other == mean && j < i);
        }
        if (better == rank)
            return &candidates[i];
    }
    return &candidates[rank];
}

static int encode(struct strbuf *body, struct completion *completion, bool kept)
{
    struct job *job = &completion->job;
    size_t per_prompt = (size_t)job->asked.request.n;
    size_t count = job->asked.request.num_prompts * per_prompt;
    struct reply_choice *replies = calloc(count, sizeof *replies);
    struct whole_choice *wholes = calloc(count, sizeof *wholes);
    int64_t reasoning = 0;
    int result = replies && wholes ? 0 : -1;
    for (size_t i = 0; i < count && result == 0; i++) {
        size_t prompt = i / per_prompt;
        int rank = (int)(i % per_prompt);
        replies[i].index = reply_index(job, prompt, rank);
        result = make_choice(&replies[i], &wholes[i], job, prompt, ranked(job, prompt, rank), kept);
        reasoning += wholes[i].chat.reasoning_tokens;
    }
    if (result == 0) {
        struct reply_head head = job_reply_head(job);
        struct reply_usage usage = job_reply_usage(job, job->run.generated, reasoning);
        struct reply_timings timings = job_reply_timings(job);
        struct session_card session;
        head.ended = job->run.texts_ended;
        if (kept)
            head.warnings = NULL;
        completion->format->encode(body, &head, replies, count, &usage, &timings,
                                   job_reply_session(job, &session));
    }
    for (size_t i = 0; wholes && i < count; i++) {
        free(wholes[i].text);
        chat_choice_clear(&wholes[i].chat);
        free(wholes[i].tokens);
        free(wholes[i].ids);
    }
    free(wholes);
    free(replies);
    if (result == 0 && !body->failed)
        return 0;
    strbuf_clear(body);
    return -1;
}

int job_reply_encode(struct strbuf *body, struct completion *completion)
{
    return encode(body, completion, false);
}

int job_reply_encode_kept(struct strbuf *body, struct completion *completion)
{
    return encode(body, completion, true);
}

/* What tool calls take beyond their text, in memory and in the reply. */
static size_t calls_bytes(const struct chat_rules *rules, const struct strbuf *text)
{
    enum { BYTES_PER_CALL = 256 };
    if (!rules || !rules->calls)
        return 0;
    return chat_calls_most(rules->syntax->format, text->data, text->length) * BYTES_PER_CALL;
}

size_t job_reply_bytes(const struct job *job)
{
    enum { BYTES_PER_ENTRY = 16, BYTES_PER_RANKED = 64 };
    const struct completion_request *request = &job->asked.request;
    size_t listed = request->num_logprob_token_ids;
    size_t bytes = responses_echo_bytes(request->echoed);
    size_t tops = request->logprobs > 0 ? (size_t)request->logprobs : 0;
    size_t per_token = request->logprobs >= 0 ? 3 + (listed > tops ? listed : tops) : 1;
    size_t ranked = (size_t)(request->prompt_logprobs + 1) * BYTES_PER_RANKED;
    for (size_t i = 0; i < job->run.num_choices; i++) {
        const struct job_prompt *prompt = &job->prepared.prompts[i / (size_t)request->best_of];
        const struct job_choice *choice = &job->run.choices[i];
        const struct piece *piece = choice->put.num_tokens ? &choice->put : &choice->piece;
        size_t echoed = request->echo ? job_prompt_own(prompt) : 0;
        /* Held, taken apart, and in the reply; or sealed there. */
        size_t copies = request->seals_thoughts ? 4 : request->chat.text ? 3 : 1;
        bytes += (piece->num_tokens + echoed) * per_token * BYTES_PER_ENTRY +
                 copies * piece->text.length + calls_bytes(request->chat_rules, &piece->text) +
                 prompt->text_length + job_prompt_own(prompt) * ranked;
    }
    return bytes;
}
