/* SPDX-License-Identifier: Apache-2.0 */
/* The gate before the queue: limits how many requests, estimated tokens and bytes of bodies may
 * wait. It is asked before anything is tokenized; what does not fit gets a 429.
 *
 * A tenant (tenant.h) that is alone may take all. Where k of them have something in the queue, each
 * may have its k-th part of the limits, however much the others have. */
#ifndef SERVER_ADMISSION_H
#define SERVER_ADMISSION_H

#include "api/errors.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct admission_limits {
    int64_t max_requests;   /* that wait because what runs leaves no room */
    int64_t max_running;    /* that run at once; so many more may be about to start */
    int64_t max_tokens;     /* by estimate, of what waits */
    int64_t max_body_bytes; /* of all bodies, and of the prompts and replies that jobs hold */
};

/* The limits for which requests are told to come again. */
enum admission_limit { ADMISSION_REQUESTS, ADMISSION_TOKENS, NUM_ADMISSION_LIMITS };

enum { ADMISSION_BUCKETS = 256 };

/* What a tenant has; there only while it has something. */
struct admission_tenant {
    uint64_t tenant;
    int64_t requests, tokens, upload_bytes;
    struct admission_tenant *next; /* in its bucket */
};

struct admission {
    pthread_mutex_t lock;
    struct admission_limits limits;
    struct admission_tenant *tenants[ADMISSION_BUCKETS];
    int64_t queued_tenants;               /* of these, with requests */
    int64_t requests, tokens, body_bytes; /* taken now */
    int64_t upload_bytes;                 /* of these, bodies that are being received */
    int64_t untrimmed;                    /* given back by work, since malloc was last trimmed */
    int64_t running;
    int64_t refused[NUM_ADMISSION_LIMITS]; /* requests, so far */
    bool saturated;                        /* a request waits for room */
};

void admission_init(struct admission *admission, const struct admission_limits *limits);
void admission_destroy(struct admission *admission);

/* Takes a place in the queue, or sets API_QUEUE_FULL. */
int admission_enter(struct admission *admission, uint64_t tenant, int64_t tokens,
                    struct api_error *err);

/* Gives the place back when the request runs, or has ended. */
void admission_leave(struct admission *admission, uint64_t tenant, int64_t tokens);

/* The engine thread tells how many requests run, and whether one of the others waits for room
 * (saturated). If none does, requests that are about to start do not count as waiting. */
void admission_update(struct admission *admission, int64_t running, bool saturated);

/* Whether a body is being received, or a request prepared, or one waits. */
bool admission_busy(struct admission *admission);

/* Before requests are served: limits.max_body_bytes becomes another. */
void admission_limit_bodies(struct admission *admission, int64_t bytes);

/* Takes memory for a body that is being received and has `held` bytes by now. False: none is left.
 * A tenant that sends several leaves a quarter to requests that are whole, one that sends a single
 * one beside others an eighth. So a client that only begins many requests can neither end texts
 * that run nor keep other tenants out. */
bool admission_upload(struct admission *admission, uint64_t tenant, int64_t held, int64_t bytes);
/* The body is whole, or given up: its bytes no longer count as being received. */
void admission_received(struct admission *admission, uint64_t tenant, int64_t bytes);

/* Takes memory for a request; a negative number gives it back. False: none is left. */
bool admission_body(struct admission *admission, int64_t bytes);

/* The same for work on a request, which ends soon. Where a larger amount has come back in all, it
 * is taken from what malloc keeps, too. */
bool admission_work(struct admission *admission, int64_t bytes);

/* All that there is of memory for requests. */
int64_t admission_body_limit(struct admission *admission);

/* Whether so much can be had when nothing else is. */
bool admission_possible(struct admission *admission, int64_t bytes);

/* Reads how many requests and estimated tokens wait, and bytes held by bodies and jobs. */
void admission_read(struct admission *admission, int64_t *requests, int64_t *tokens,
                    int64_t *body_bytes);
/* Reads how many requests API_QUEUE_FULL was set for, by the limit. */
void admission_read_refused(struct admission *admission, int64_t refused[NUM_ADMISSION_LIMITS]);

#endif
