/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what the server does, and writes it as Prometheus text. Every number is an atomic: any
 * thread adds to it, and GET /metrics reads it. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "api/reply_warnings.h"
#include "api/states.h"
#include "api/strbuf.h"
#include "engine/engine.h"
#include "lib/grammar/grammar.h"
#include "server/admission.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { HISTOGRAM_MAX_BOUNDS = 20, NUM_LENGTH_CLASSES = 9, NUM_STATUSES = 17 };

/* Values of the label finish_reason: why a request's text ended. */
enum outcome {
    OUTCOME_STOP,
    OUTCOME_LENGTH,
    OUTCOME_CANCELLED,
    OUTCOME_ERROR,
    OUTCOME_REPLAYED, /* the reply was kept under an Idempotency-Key */
    NUM_OUTCOMES
};

/* Values of the label cause: what the engine thread's time went to. Steps on the device; the device
 * waiting for the host, with a step to come; no step to run. */
enum cause { CAUSE_DEVICE, CAUSE_HOST, CAUSE_IDLE, NUM_CAUSES };

struct histogram {
    const double *bounds; /* [num_bounds], rising; +Inf is implied */
    int num_bounds;
    _Atomic uint64_t buckets[HISTOGRAM_MAX_BOUNDS + 1]; /* not cumulative */
    _Atomic double sum;
};

/* Checkpoints whose highest tier is this one. */
struct metrics_tier {
    int64_t checkpoints, bytes, budget_bytes;
};

enum { NUM_STORE_METRICS = 3, NUM_STORE_RESULTS = 5 };

/* Of the store (server/store/store_op.h), by kind of what is kept and by how its operations ended,
 * in the order of metrics.c; all 0 without a store. */
struct metrics_store {
    struct {
        int64_t ended[NUM_STORE_RESULTS], waiting;
        double seconds;
    } kinds[NUM_STORE_METRICS];
    int64_t written, read, gone; /* states */
    struct {
        int64_t found, missing, written, read, bytes_written, bytes_read;
    } prefixes; /* that servers share */
    int64_t returns, leases, leases_lost, older_copies;
    bool away;
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
    _Atomic int64_t running_texts;
    /* of those that wait: for their states; for what the store says of their sessions */
    _Atomic int64_t waiting_for_states, waiting_for_sessions;
    _Atomic uint64_t requests[NUM_STATUSES][NUM_OUTCOMES];
    _Atomic uint64_t prompt_tokens, generated_tokens, cached_tokens;
    _Atomic uint64_t steps, set_aside; /* set_aside: texts, each time */
    _Atomic int64_t experts_read;      /* of all steps served; -1: the device does not count */
    /* time in the engine's steps: by the clock, and of the processor by the engine thread */
    _Atomic int64_t step_nanos, step_cpu_nanos;
    _Atomic int64_t cause_nanos[NUM_CAUSES];
    struct histogram time_to_first_token, inter_token_latency, request_duration, queue;
    struct histogram batch_tokens;
    struct histogram tokens_per_second[NUM_LENGTH_CLASSES];
    /* as vLLM has them: of steps, texts, and prompts */
    struct histogram step_tokens;
    struct histogram text_prompt_tokens, text_generated_tokens, text_max_tokens;
    struct histogram text_prefill, text_decode, text_inference;
    struct histogram prompt_choices;
    _Atomic int64_t peak_state_bytes[NUM_LENGTH_CLASSES];

    _Atomic uint64_t lookups[NUM_MISS_REASONS]; /* prompts, by why no more was reused */
    _Atomic uint64_t looked_up_tokens;          /* of those that could be reused */

    pthread_mutex_t lock; /* of `memory`: its numbers must add up in every scrape */
    struct metrics_memory memory;

    /* Constrained texts: grammars compiled, and found compiled; their bytes; masks of draws. */
    _Atomic uint64_t grammars_compiled, grammar_hits, masks;
    _Atomic uint64_t annotations[NUM_ANNOTATIONS]; /* constraints whose schemas have them */
    _Atomic int64_t grammar_compile_nanos, grammar_bytes, mask_nanos;

    _Atomic int64_t connections;
    _Atomic uint64_t warnings[NUM_WARNING_KINDS]; /* that replies had */
};

void metrics_init(struct metrics *metrics);
void histogram_observe(struct histogram *histogram, double value);

/* Counts a request that has ended with this HTTP status. */
void metrics_request(struct metrics *metrics, int status, enum outcome outcome);
const char *metrics_outcome(enum outcome outcome); /* its name */

/* A text that has ended. */
struct metrics_text {
    int64_t prompt_tokens, generated, max_tokens;
    double prefill_s;    /* from when it ran to its first token */
    double decode_s;     /* from then to its last */
    int64_t state_bytes; /* the most state that its request held */
};
void metrics_text(struct metrics *metrics, const struct metrics_text *text);

/* Counts a prompt of `tokens` that was looked up in the tree. cached: how many of them were there;
 * miss: why no more were. */
void metrics_lookup(struct metrics *metrics, int64_t tokens, int64_t cached, enum miss_reason miss);
void metrics_set_memory(struct metrics *metrics, const struct metrics_memory *memory);

/* What the Prometheus text says besides these numbers; read when it is written. */
struct metrics_view {
    const char *model, *device;
    int64_t weights_bytes, workspace_bytes, pinned_bytes, state_budget_bytes;
    int64_t queue_requests, queue_tokens, body_bytes;
    int64_t refused[NUM_ADMISSION_LIMITS]; /* by the limit of the queue */
    bool vllm_names;                       /* also as vllm:*, with what follows */
    int64_t kv_pages;      /* that the state budget could hold, were there nothing else */
    int kv_page_tokens;    /* tokens of one */
    const char *kv_format; /* its name */
    bool reuses_prefixes;
    struct metrics_store store;
};

void metrics_write(struct strbuf *out, struct metrics *metrics, const struct metrics_view *view);

#endif
