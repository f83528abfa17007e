/* SPDX-License-Identifier: Apache-2.0 */
/* What the server counts, and its Prometheus text. Every number is an atomic: any thread adds to
 * it, GET /metrics reads it. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "api/states.h"
#include "api/strbuf.h"
#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { HISTOGRAM_MAX_BOUNDS = 20, NUM_LENGTH_CLASSES = 9, NUM_STATUSES = 17 };

/* Why a request's text ended, as the label finish_reason says it. */
enum outcome {
    OUTCOME_STOP,
    OUTCOME_LENGTH,
    OUTCOME_CANCELLED,
    OUTCOME_ERROR,
    OUTCOME_REPLAYED, /* an Idempotency-Key's kept reply */
    NUM_OUTCOMES
};

/* What the engine thread's time went to, as the label cause says it: steps on the device, what the
 * device waited for the host with a step to come, and no step. */
enum cause { CAUSE_DEVICE, CAUSE_HOST, CAUSE_IDLE, NUM_CAUSES };

struct histogram {
    const double *bounds; /* [num_bounds], rising; +Inf is implied */
    int num_bounds;
    _Atomic uint64_t buckets[HISTOGRAM_MAX_BOUNDS + 1]; /* not cumulative */
    _Atomic int64_t sum_micros;                         /* sum of values x 1e6 */
};

/* Checkpoints whose highest tier is this one. */
struct metrics_tier {
    int64_t checkpoints, bytes, budget_bytes;
};

/* As the engine thread knows it, after each of its turns. */
struct metrics_memory {
    struct engine_memory device;
    struct metrics_tier tiers[NUM_TIERS]; /* by enum tier */
    int64_t evictions, dropped;           /* checkpoints: moved down a tier; lost */
    int64_t store_failures;               /* 0 without a store, as store_full */
    bool store_full;
    int64_t sessions[NUM_TIERS]; /* by the tier of their states */
};

struct metrics {
    _Atomic int64_t running, waiting; /* requests */
    _Atomic uint64_t requests[NUM_STATUSES][NUM_OUTCOMES];
    _Atomic uint64_t prompt_tokens, generated_tokens, cached_tokens;
    _Atomic uint64_t steps;
    /* time in the engine's steps: by the clock, and of the processor by the engine thread */
    _Atomic int64_t step_nanos, step_cpu_nanos;
    _Atomic int64_t cause_nanos[NUM_CAUSES];
    struct histogram time_to_first_token, inter_token_latency, request_duration, queue;
    struct histogram batch_tokens;
    struct histogram tokens_per_second[NUM_LENGTH_CLASSES];
    _Atomic int64_t peak_state_bytes[NUM_LENGTH_CLASSES];

    _Atomic uint64_t lookups[NUM_MISS_REASONS]; /* prompts, by why no more of them was there */

    pthread_mutex_t lock; /* of `memory`, so that its sums are right in every sample */
    struct metrics_memory memory;

    _Atomic int64_t connections;
};

void metrics_init(struct metrics *metrics);
void histogram_observe(struct histogram *histogram, double value);

/* A request has ended with this HTTP status. */
void metrics_request(struct metrics *metrics, int status, enum outcome outcome);
const char *metrics_outcome(enum outcome outcome); /* its name */

/* generated: tokens of one text; seconds from its first to its last token; state_bytes: the most
 * that its request held. */
void metrics_generation(struct metrics *metrics, int64_t generated, double seconds,
                        int64_t state_bytes);

/* A prompt was looked up in the tree: so many of its tokens were there; why no more. */
void metrics_lookup(struct metrics *metrics, int64_t cached, enum miss_reason miss);
void metrics_set_memory(struct metrics *metrics, const struct metrics_memory *memory);

/* What is known elsewhere. */
struct metrics_view {
    const char *model, *device;
    int64_t weights_bytes, workspace_bytes, pinned_bytes, state_budget_bytes;
    int64_t queue_requests, queue_tokens, body_bytes;
    bool vllm_names; /* also as vllm:* */
};

void metrics_write(struct strbuf *out, struct metrics *metrics, const struct metrics_view *view);

#endif
