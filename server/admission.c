/* SPDX-License-Identifier: Apache-2.0 */
#include "server/admission.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

void admission_init(struct admission *admission, const struct admission_limits *limits)
{
    *admission = (struct admission){.limits = *limits};
    pthread_mutex_init(&admission->lock, NULL);
}

void admission_destroy(struct admission *admission)
{
    for (int i = 0; i < ADMISSION_BUCKETS; i++)
        for (struct admission_tenant *at = admission->tenants[i], *next; at; at = next) {
            next = at->next;
            free(at);
        }
    pthread_mutex_destroy(&admission->lock);
}

/* Where the tenant is linked, or would be. */
static struct admission_tenant **link_of(struct admission *admission, uint64_t tenant)
{
    uint64_t mixed = tenant * 0x9e3779b97f4a7c15u;
    struct admission_tenant **link = &admission->tenants[mixed >> 56];
    while (*link && (*link)->tenant != tenant)
        link = &(*link)->next;
    return link;
}

/* What the tenant has. NULL: no memory. */
static struct admission_tenant *find(struct admission *admission, uint64_t tenant)
{
    struct admission_tenant **link = link_of(admission, tenant);
    if (!*link) {
        *link = calloc(1, sizeof **link);
        if (*link)
            (*link)->tenant = tenant;
    }
    return *link;
}

/* Forgets a tenant that has nothing. */
static void settle(struct admission *admission, uint64_t tenant)
{
    struct admission_tenant **link = link_of(admission, tenant), *at = *link;
    if (!at || at->requests || at->tokens || at->upload_bytes)
        return;
    *link = at->next;
    free(at);
}

/* Most places that may be taken: those of the queue, and those of requests that start at once. */
static int64_t places(const struct admission *admission)
{
    const struct admission_limits *limits = &admission->limits;
    int64_t direct = limits->max_running - admission->running;
    return limits->max_requests + (admission->saturated || direct < 0 ? 0 : direct);
}

/* Under the lock. */
static int enter(struct admission *admission, struct admission_tenant *own, int64_t tokens,
                 struct api_error *err)
{
    const struct admission_limits *limits = &admission->limits;
    const int64_t tenants = admission->queued_tenants + (own->requests == 0);
    if (admission->requests >= places(admission) &&
        own->requests >= limits->max_requests / tenants) {
        admission->refused[ADMISSION_REQUESTS]++;
        return api_error_set(err, API_QUEUE_FULL, NULL,
                             "the queue is full: %lld requests wait, %lld of them this client's, "
                             "--max-queue is %lld",
                             (long long)admission->requests, (long long)own->requests,
                             (long long)limits->max_requests);
    }
    if (tokens > limits->max_tokens)
        return api_error_set(err, API_CONTEXT_LENGTH, "prompt",
                             "this request counts as about %lld tokens, which no queue would "
                             "hold: --max-queue-tokens is %lld",
                             (long long)tokens, (long long)limits->max_tokens);
    if (tokens > limits->max_tokens - admission->tokens &&
        tokens > limits->max_tokens / tenants - own->tokens) {
        admission->refused[ADMISSION_TOKENS]++;
        return api_error_set(err, API_QUEUE_FULL, NULL,
                             "the queue is full: about %lld tokens wait and this request has "
                             "about %lld, --max-queue-tokens is %lld",
                             (long long)admission->tokens, (long long)tokens,
                             (long long)limits->max_tokens);
    }
    admission->queued_tenants = tenants;
    admission->requests++;
    admission->tokens += tokens;
    own->requests++;
    own->tokens += tokens;
    return 0;
}

int admission_enter(struct admission *admission, uint64_t tenant, int64_t tokens,
                    struct api_error *err)
{
    pthread_mutex_lock(&admission->lock);
    struct admission_tenant *own = find(admission, tenant);
    int result =
        own ? enter(admission, own, tokens, err)
            : api_error_set(err, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
    settle(admission, tenant);
    pthread_mutex_unlock(&admission->lock);
    return result;
}

void admission_leave(struct admission *admission, uint64_t tenant, int64_t tokens)
{
    pthread_mutex_lock(&admission->lock);
    struct admission_tenant *own = *link_of(admission, tenant);
    admission->requests--;
    admission->tokens -= tokens;
    own->tokens -= tokens;
    admission->queued_tenants -= --own->requests == 0;
    settle(admission, tenant);
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

bool admission_upload(struct admission *admission, uint64_t tenant, int64_t held, int64_t bytes)
{
    enum { PART_OF_SEVERAL = 4, PART_OF_ONE = 8 };
    pthread_mutex_lock(&admission->lock);
    int64_t limit = admission->limits.max_body_bytes;
    struct admission_tenant *own = find(admission, tenant);
    if (own && own->upload_bytes > held)
        limit -= limit / PART_OF_SEVERAL;
    else if (admission->upload_bytes > held)
        limit -= limit / PART_OF_ONE;
    bool fits = own && bytes <= limit - admission->body_bytes;
    if (fits) {
        admission->body_bytes += bytes;
        admission->upload_bytes += bytes;
        own->upload_bytes += bytes;
    }
    settle(admission, tenant);
    pthread_mutex_unlock(&admission->lock);
    return fits;
}

void admission_received(struct admission *admission, uint64_t tenant, int64_t bytes)
{
    pthread_mutex_lock(&admission->lock);
    struct admission_tenant *own = *link_of(admission, tenant);
    admission->upload_bytes -= bytes;
    if (own)
        own->upload_bytes -= bytes;
    settle(admission, tenant);
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

void admission_read_refused(struct admission *admission, int64_t refused[NUM_ADMISSION_LIMITS])
{
    pthread_mutex_lock(&admission->lock);
    memcpy(refused, admission->refused, sizeof admission->refused);
    pthread_mutex_unlock(&admission->lock);
}
