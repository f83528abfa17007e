#include "server/admission.h"

void admission_init(struct admission *admission, const struct admission_limits *limits)
{
    *admission = (struct admission){.limits = *limits};
    pthread_mutex_init(&admission->lock, NULL);
}

void admission_destroy(struct admission *admission)
{
    pthread_mutex_destroy(&admission->lock);
}

int admission_enter(struct admission *admission, int64_t tokens, struct api_error *err)
{
    int result = 0;
    pthread_mutex_lock(&admission->lock);
    const struct admission_limits *limits = &admission->limits;
    if (admission->requests >= limits->max_requests)
        result = api_error_set(err, API_QUEUE_FULL, NULL,
                               "the queue is full: %lld requests wait, --max-queue is %lld",
                               (long long)admission->requests, (long long)limits->max_requests);
    else if (admission->tokens > 0 && tokens > limits->max_tokens - admission->tokens)
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

bool admission_body(struct admission *admission, int64_t bytes)
{
    pthread_mutex_lock(&admission->lock);
    bool fits = bytes <= 0 || bytes <= admission->limits.max_body_bytes - admission->body_bytes;
    if (fits)
        admission->body_bytes += bytes;
    pthread_mutex_unlock(&admission->lock);
    return fits;
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
