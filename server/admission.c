/* SPDX-License-Identifier: Apache-2.0 */
#include "server/admission.h"

#include <malloc.h>

void admission_init(struct admission *admission, const struct admission_limits *limits)
{
    *admission = (struct admission){.limits = *limits};
    pthread_mutex_init(&admission->lock, NULL);
}

void admission_destroy(struct admission *admission)
{
    pthread_mutex_destroy(&admission->lock);
}

/* Most places that may be taken: those of the queue, and those of requests that start at once. */
static int64_t places(const struct admission *admission)
{
    const struct admission_limits *limits = &admission->limits;
    int64_t direct = limits->max_running - admission->running;
    return limits->max_requests + (admission->saturated || direct < 0 ? 0 : direct);
}

int admission_enter(struct admission *admission, int64_t tokens, struct api_error *err)
{
    int result = 0;
    pthread_mutex_lock(&admission->lock);
    const struct admission_limits *limits = &admission->limits;
    if (admission->requests >= places(admission))
        result = api_error_set(err, API_QUEUE_FULL, NULL,
                               "the queue is full: %lld requests wait, --max-queue is %lld",
                               (long long)admission->requests, (long long)limits->max_requests);
    else if (tokens > limits->max_tokens)
        result = api_error_set(err, API_CONTEXT_LENGTH, "prompt",
                               "this request counts as about %lld tokens, which no queue would "
                               "hold: --max-queue-tokens is %lld",
                               (long long)tokens, (long long)limits->max_tokens);
    else if (tokens > limits->max_tokens - admission->tokens)
        result = api_error_set(err, API_QUEUE_FULL, NULL,
                               "the queue is full: about %lld tokens wait and this request has "
                               "about %lld, --max-queue-tokens is %lld",
                               (long long)admission->tokens, (long long)tokens,
                               (long long)limits->max_tokens);
    else {
        admission->requests++;
        admission->tokens += tokens;
    }
    pthread_mutex_unlock(&admission->lock);
    return result;
}

void admission_leave(struct admission *admission, int64_t tokens)
{
    pthread_mutex_lock(&admission->lock);
    admission->requests--;
    admission->tokens -= tokens;
    pthread_mutex_unlock(&admission->lock);
}

void admission_update(struct admission *admission, int64_t running, bool saturated)
{
    pthread_mutex_lock(&admission->lock);
    admission->running = running;
    admission->saturated = saturated;
    pthread_mutex_unlock(&admission->lock);
}

bool admission_busy(struct admission *admission)
{
    pthread_mutex_lock(&admission->lock);
    bool busy = admission->requests > 0 || admission->upload_bytes > 0;
    pthread_mutex_unlock(&admission->lock);
    return busy;
}

void admission_limit_bodies(struct admission *admission, int64_t bytes)
{
    pthread_mutex_lock(&admission->lock);
    admission->limits.max_body_bytes = bytes;
    pthread_mutex_unlock(&admission->lock);
}

bool admission_upload(struct admission *admission, int64_t held, int64_t bytes)
{
    pthread_mutex_lock(&admission->lock);
    int64_t limit = admission->limits.max_body_bytes;
    if (admission->upload_bytes > held)
        limit -= limit / 4;
    bool fits = bytes <= limit - admission->body_bytes;
    if (fits) {
        admission->body_bytes += bytes;
        admission->upload_bytes += bytes;
    }
    pthread_mutex_unlock(&admission->lock);
    return fits;
}

void admission_received(struct admission *admission, int64_t bytes)
{
    pthread_mutex_lock(&admission->lock);
    admission->upload_bytes -= bytes;
    pthread_mutex_unlock(&admission->lock);
}

bool admission_body(struct admission *admission, int64_t bytes)
{
    pthread_mutex_lock(&admission->lock);
    bool fits = bytes <= 0 || bytes <= admission->limits.max_body_bytes - admission->body_bytes;
    if (fits)
        admission->body_bytes += bytes;
    pthread_mutex_unlock(&admission->lock);
    return fits;
}

/* Whether so much has come back since malloc was last trimmed that it is worth some milliseconds:
 * malloc keeps less than that for each thread. */
static bool worth_trimming(struct admission *admission, int64_t bytes)
{
    enum { LEAST_BYTES = 256 << 10, PART = 64 };
    pthread_mutex_lock(&admission->lock);
    int64_t part = admission->limits.max_body_bytes / PART;
    admission->untrimmed += bytes;
    bool worth = admission->untrimmed >= LEAST_BYTES && admission->untrimmed >= part;
    if (worth)
        admission->untrimmed = 0;
    pthread_mutex_unlock(&admission->lock);
    return worth;
}

bool admission_work(struct admission *admission, int64_t bytes)
{
    bool fits = admission_body(admission, bytes);
    if (bytes < 0 && worth_trimming(admission, -bytes))
        malloc_trim(0);
    return fits;
}

int64_t admission_body_limit(struct admission *admission)
{
    pthread_mutex_lock(&admission->lock);
    int64_t limit = admission->limits.max_body_bytes;
    pthread_mutex_unlock(&admission->lock);
    return limit;
}

bool admission_possible(struct admission *admission, int64_t bytes)
{
    return bytes <= admission_body_limit(admission);
}

void admission_read(struct admission *admission, int64_t *requests, int64_t *tokens,
                    int64_t *body_bytes)
{
    pthread_mutex_lock(&admission->lock);
    *requests = admission->requests;
    *tokens = admission->tokens;
    *body_bytes = admission->body_bytes;
    pthread_mutex_unlock(&admission->lock);
}
