/* SPDX-License-Identifier: Apache-2.0 */
#include "server/metrics.h"

#include "server/log.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const double LATENCY_BOUNDS[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                        1,     2.5,    5,     10,   30,    60,   120, 300,  600};
static const double BATCH_BOUNDS[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
static const double SPEED_BOUNDS[] = {1,   2.5, 5,    10,   25,   50,   100,
                                      250, 500, 1000, 2500, 5000, 10000};
static const double TOKEN_BOUNDS[] = {1,    2,    5,     10,    20,    50,  100, 200, 500, 1000,
                                      2000, 5000, 10000, 20000, 50000, 1e5, 2e5, 5e5, 1e6};
static const double CHOICE_BOUNDS[] = {1, 2, 5, 10, 20, 50, 100};
static const int64_t LENGTHS[NUM_LENGTH_CLASSES] = {64,   128,  256,  512,      1024,
                                                    2048, 4096, 8192, INT64_MAX};
static const char *const LENGTH_NAMES[NUM_LENGTH_CLASSES] = {"64",   "128",  "256",  "512", "1024",
                                                             "2048", "4096", "8192", "inf"};
/* The last row counts every other status. */
static const int STATUSES[NUM_STATUSES] = {200, 400, 401, 404, 405, 408, 409, 412, 413,
                                           415, 422, 429, 500, 501, 503, 499, 0};
static const char *const OUTCOMES[NUM_OUTCOMES] = {"stop", "length", "cancelled", "error",
                                                   "replayed"};

#define SET_BOUNDS(histogram, values) \
    ((histogram)->bounds = (values), (histogram)->num_bounds = sizeof(values) / sizeof *(values))

void metrics_init(struct metrics *metrics)
{
    memset(metrics, 0, sizeof *metrics);
    pthread_mutex_init(&metrics->lock, NULL);
    SET_BOUNDS(&metrics->time_to_first_token, LATENCY_BOUNDS);
    SET_BOUNDS(&metrics->inter_token_latency, LATENCY_BOUNDS);
    SET_BOUNDS(&metrics->request_duration, LATENCY_BOUNDS);
    SET_BOUNDS(&metrics->queue, LATENCY_BOUNDS);
    SET_BOUNDS(&metrics->batch_tokens, BATCH_BOUNDS);
    SET_BOUNDS(&metrics->step_tokens, BATCH_BOUNDS);
    SET_BOUNDS(&metrics->text_prompt_tokens, TOKEN_BOUNDS);
    SET_BOUNDS(&metrics->text_generated_tokens, TOKEN_BOUNDS);
    SET_BOUNDS(&metrics->text_max_tokens, TOKEN_BOUNDS);
    SET_BOUNDS(&metrics->text_prefill, LATENCY_BOUNDS);
    SET_BOUNDS(&metrics->text_decode, LATENCY_BOUNDS);
    SET_BOUNDS(&metrics->text_inference, LATENCY_BOUNDS);
    SET_BOUNDS(&metrics->prompt_choices, CHOICE_BOUNDS);
    for (int i = 0; i < NUM_LENGTH_CLASSES; i++)
        SET_BOUNDS(&metrics->tokens_per_second[i], SPEED_BOUNDS);
}

void histogram_observe(struct histogram *histogram, double value)
{
    if (!isfinite(value))
        return;
    int i = 0;
    while (i < histogram->num_bounds && value > histogram->bounds[i])
        i++;
    atomic_fetch_add_explicit(&histogram->buckets[i], 1, memory_order_relaxed);
    double sum = atomic_load_explicit(&histogram->sum, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&histogram->sum, &sum, sum + value,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

const char *metrics_outcome(enum outcome outcome)
{
    return OUTCOMES[outcome];
}

void metrics_request(struct metrics *metrics, int status, enum outcome outcome)
{
    int row = 0;
    while (row < NUM_STATUSES - 1 && STATUSES[row] != status)
        row++;
    atomic_fetch_add_explicit(&metrics->requests[row][outcome], 1, memory_order_relaxed);
}

void metrics_text(struct metrics *metrics, const struct metrics_text *text)
{
    int row = 0;
    while (text->generated > LENGTHS[row])
        row++;
    /* The first token belongs to the prompt's time. */
    if (text->generated > 1 && text->decode_s > 0)
        histogram_observe(&metrics->tokens_per_second[row],
                          (double)(text->generated - 1) / text->decode_s);
    int64_t peak = atomic_load(&metrics->peak_state_bytes[row]);
    while (peak < text->state_bytes &&
           !atomic_compare_exchange_weak(&metrics->peak_state_bytes[row], &peak, text->state_bytes))
        ;
    histogram_observe(&metrics->text_prompt_tokens, (double)text->prompt_tokens);
    histogram_observe(&metrics->text_generated_tokens, (double)text->generated);
    histogram_observe(&metrics->text_max_tokens, (double)text->max_tokens);
    histogram_observe(&metrics->text_prefill, text->prefill_s);
    histogram_observe(&metrics->text_decode, text->decode_s);
    histogram_observe(&metrics->text_inference, text->prefill_s + text->decode_s);
}

void metrics_lookup(struct metrics *metrics, int64_t tokens, int64_t cached, enum miss_reason miss)
{
    atomic_fetch_add_explicit(&metrics->cached_tokens, (uint64_t)cached, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->lookups[miss], 1, memory_order_relaxed);
    if (miss != MISS_DISABLED)
        atomic_fetch_add_explicit(&metrics->looked_up_tokens, (uint64_t)tokens,
                                  memory_order_relaxed);
}

void metrics_set_memory(struct metrics *metrics, const struct metrics_memory *memory)
{
    pthread_mutex_lock(&metrics->lock);
    metrics->memory = *memory;
    pthread_mutex_unlock(&metrics->lock);
}

/* One family being written: its name, and the labels of every sample. */
struct family {
    struct strbuf *out;
    const char *name;
    const char *label; /* "model" or "model_name" */
    const char *model;
};

static void begin(struct family *family, const char *name, const char *type, const char *help)
{
    family->name = name;
    strbuf_printf(family->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label value as the text format wants it: backslash, quote and newline escaped. */
static void label_value(struct strbuf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '\\' || *text == '"')
            strbuf_printf(out, "\\%c", *text);
        else if (*text == '\n')
            strbuf_puts(out, "\\n");
        else
            strbuf_append(out, text, 1);
}

/* more: further labels, such as `,tier="host"`; "" for none. */
static void labels(const struct family *family, const char *suffix, const char *more)
{
    strbuf_printf(family->out, "%s%s{%s=\"", family->name, suffix, family->label);
    label_value(family->out, family->model);
    strbuf_printf(family->out, "\"%s} ", more);
}

static void sample(const struct family *family, const char *more, double value)
{
    labels(family, "", more);
    strbuf_printf(family->out, "%.15g\n", value);
}

static void single(struct family *family, const char *name, const char *type, const char *help,
                   double value)
{
    begin(family, name, type, help);
    sample(family, "", value);
}

static void histogram_samples(const struct family *family, const struct histogram *histogram,
                              const char *more)
{
    uint64_t count = 0;
    char bound[96];
    for (int i = 0; i <= histogram->num_bounds; i++) {
        count += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
        if (i < histogram->num_bounds)
            snprintf(bound, sizeof bound, "%s,le=\"%.15g\"", more, histogram->bounds[i]);
        else
            snprintf(bound, sizeof bound, "%s,le=\"+Inf\"", more);
        labels(family, "_bucket", bound);
        strbuf_printf(family->out, "%llu\n", (unsigned long long)count);
    }
    labels(family, "_sum", more);
    strbuf_printf(family->out, "%.15g\n",
                  atomic_load_explicit(&histogram->sum, memory_order_relaxed));
    labels(family, "_count", more);
    strbuf_printf(family->out, "%llu\n", (unsigned long long)count);
}

static void histogram_family(struct family *family, const char *name, const char *help,
                             const struct histogram *histogram)
{
    begin(family, name, "histogram", help);
    histogram_samples(family, histogram, "");
}

static void requests_family(struct family *family, const struct metrics *metrics)
{
    begin(family, "regla_requests_total", "counter", "Completion requests that have ended.");
    for (int s = 0; s < NUM_STATUSES; s++)
        for (int o = 0; o < NUM_OUTCOMES; o++) {
            uint64_t count = atomic_load(&metrics->requests[s][o]);
            char more[64];
            if (STATUSES[s])
                snprintf(more, sizeof more, ",status=\"%d\",finish_reason=\"%s\"", STATUSES[s],
                         OUTCOMES[o]);
            else
                snprintf(more, sizeof more, ",status=\"other\",finish_reason=\"%s\"", OUTCOMES[o]);
            /* The rows a dashboard divides by are there from the start. */
            if (count || (STATUSES[s] == 200 && o <= OUTCOME_LENGTH))
                sample(family, more, (double)count);
        }
}

static void causes_family(struct family *family, const struct metrics *metrics)
{
    static const char *const names[] = {
        [CAUSE_DEVICE] = "device", [CAUSE_HOST] = "host", [CAUSE_IDLE] = "idle"};
    begin(family, "regla_engine_seconds_total", "counter",
          "Time of the engine: steps on the device, the device waiting for the host, no step.");
    for (int i = 0; i < NUM_CAUSES; i++) {
        char more[32];
        snprintf(more, sizeof more, ",cause=\"%s\"", names[i]);
        sample(family, more, (double)atomic_load(&metrics->cause_nanos[i]) * 1e-9);
    }
}

static void component(const struct family *family, const char *name, const char *device,
                      double bytes)
{
    char more[96];
    snprintf(more, sizeof more, ",component=\"%s\",device=\"%s\"", name, device);
    sample(family, more, bytes);
}

/* What texts hold, and checkpoints do not. */
static double text_bytes(size_t all, size_t cached)
{
    return (double)(all - cached);
}

static double reserved_bytes(const struct engine_memory *device)
{
    return text_bytes(device->recurrent_reserved_bytes, device->recurrent_cached_bytes) +
           text_bytes(device->kv_reserved_bytes, device->kv_cached_bytes);
}

static void memory_families(struct family *family, const struct metrics_memory *m,
                            const struct metrics_view *view)
{
    const struct engine_memory *d = &m->device;
    double weights = (double)view->weights_bytes, workspace = (double)view->workspace_bytes;
    double cached = (double)m->tiers[TIER_DEVICE].bytes;
    begin(family, "regla_memory_bytes", "gauge", "Memory in use.");
    component(family, "weights", view->device, weights);
    component(family, "recurrent_state", view->device,
              text_bytes(d->recurrent_bytes, d->recurrent_cached_bytes));
    component(family, "kv_cache", view->device, text_bytes(d->kv_bytes, d->kv_cached_bytes));
    component(family, "checkpoints", view->device, cached);
    component(family, "checkpoints", "host", (double)m->tiers[TIER_HOST].bytes);
    component(family, "workspace", view->device, workspace);
    if (view->pinned_bytes > 0)
        component(family, "workspace", "host", (double)view->pinned_bytes);
    begin(family, "regla_memory_reserved_bytes", "gauge", "Memory reserved by what runs.");
    component(family, "recurrent_state", view->device,
              text_bytes(d->recurrent_reserved_bytes, d->recurrent_cached_bytes));
    component(family, "kv_cache", view->device,
              text_bytes(d->kv_reserved_bytes, d->kv_cached_bytes));
    begin(family, "regla_memory_peak_bytes", "gauge", "Most memory in use since the start.");
    component(family, "weights", view->device, weights);
    component(family, "recurrent_state", view->device, (double)d->recurrent_peak_bytes);
    component(family, "kv_cache", view->device, (double)d->kv_peak_bytes);
    component(family, "workspace", view->device, workspace);
    single(family, "regla_state_memory_budget_bytes", "gauge", "Budget of states and KV pages.",
           (double)view->state_budget_bytes);
    single(family, "regla_state_memory_free_bytes", "gauge",
           "Budget that no running text has reserved and no checkpoint holds.",
           (double)view->state_budget_bytes - reserved_bytes(d) - cached);
    single(family, "regla_states", "gauge", "Texts that hold a state.",
           (double)(d->states - d->cached));
}

/* One sample for each tier; `offset`: of an int64_t in an element of tiers. */
static void tier_family(struct family *family, const struct metrics_memory *memory,
                        const char *name, const char *help, size_t offset)
{
    char more[32];
    begin(family, name, "gauge", help);
    for (enum tier tier = TIER_DISK; tier < NUM_TIERS; tier++) {
        snprintf(more, sizeof more, ",tier=\"%s\"", tier_name(tier));
        sample(family, more,
               (double)*(const int64_t *)((const char *)&memory->tiers[tier] + offset));
    }
}

static void state_families(struct family *family, const struct metrics *metrics,
                           const struct metrics_memory *memory)
{
    char more[64];
    begin(family, "regla_sessions", "gauge", "Sessions, by the tier of their states.");
    for (enum tier tier = TIER_NONE; tier < NUM_TIERS; tier++) {
        snprintf(more, sizeof more, ",tier=\"%s\"", tier_name(tier));
        sample(family, more, (double)memory->sessions[tier]);
    }
    begin(family, "regla_cache_lookups_total", "counter",
          "Prompts looked up, by why no more of them was there.");
    for (enum miss_reason reason = MISS_NONE; reason < NUM_MISS_REASONS; reason++) {
        snprintf(more, sizeof more, ",result=\"%s\"", miss_reason_name(reason));
        sample(family, more, (double)atomic_load(&metrics->lookups[reason]));
    }
    tier_family(family, memory, "regla_checkpoints",
                "Checkpoints, by the highest tier they lie in.",
                offsetof(struct metrics_tier, checkpoints));
    tier_family(family, memory, "regla_state_bytes",
                "Bytes of checkpoints and what is kept with them.",
                offsetof(struct metrics_tier, bytes));
    tier_family(family, memory, "regla_state_budget_bytes", "Budgets of the tiers.",
                offsetof(struct metrics_tier, budget_bytes));
    single(family, "regla_state_evictions_total", "counter",
           "Checkpoints that moved down a tier to make room.", (double)memory->evictions);
    single(family, "regla_state_dropped_total", "counter",
           "Checkpoints that were dropped to make room.", (double)memory->dropped);
    single(family, "regla_store_failures_total", "counter",
           "Files of --state-dir that could not be written or read.",
           (double)memory->store_failures);
    single(family, "regla_store_full", "gauge",
           "1: the last session to be written found no room and goes on in memory.",
           memory->store_full);
}

static void store_operations(struct family *family, const struct metrics_store *store)
{
    static const char *const kinds[NUM_STORE_METRICS] = {"session", "checkpoint", "reply"};
    static const char *const results[NUM_STORE_RESULTS] = {"done", "busy", "conflict", "away",
                                                           "failed"};
    char more[64];
    begin(family, "regla_store_operations_total", "counter",
          "Operations of the store, by what they are of and how they ended.");
    for (int kind = 0; kind < NUM_STORE_METRICS; kind++)
        for (int result = 0; result < NUM_STORE_RESULTS; result++) {
            snprintf(more, sizeof more, ",kind=\"%s\",result=\"%s\"", kinds[kind], results[result]);
            sample(family, more, (double)store->kinds[kind].ended[result]);
        }
    begin(family, "regla_store_operation_seconds_total", "counter",
          "Time of these operations, with what they waited for others.");
    for (int kind = 0; kind < NUM_STORE_METRICS; kind++) {
        snprintf(more, sizeof more, ",kind=\"%s\"", kinds[kind]);
        sample(family, more, store->kinds[kind].seconds);
    }
    begin(family, "regla_store_operations_waiting", "gauge",
          "Operations of the store that wait or are under way.");
    for (int kind = 0; kind < NUM_STORE_METRICS; kind++) {
        snprintf(more, sizeof more, ",kind=\"%s\"", kinds[kind]);
        sample(family, more, (double)store->kinds[kind].waiting);
    }
}

struct event {
    const char *name;
    int64_t count;
};

static void events(struct family *family, const char *name, const char *help,
                   const struct event *list, size_t count)
{
    char more[64];
    begin(family, name, "counter", help);
    for (size_t i = 0; i < count; i++) {
        snprintf(more, sizeof more, ",event=\"%s\"", list[i].name);
        sample(family, more, (double)list[i].count);
    }
}

static void store_families(struct family *family, const struct metrics_store *store)
{
    const struct event states[] = {
        {"written", store->written}, {"read", store->read}, {"gone", store->gone}};
    const struct event prefixes[] = {{"found", store->prefixes.found},
                                     {"missing", store->prefixes.missing},
                                     {"read", store->prefixes.read},
                                     {"written", store->prefixes.written}};
    const struct event bytes[] = {{"read", store->prefixes.bytes_read},
                                  {"written", store->prefixes.bytes_written}};
    store_operations(family, store);
    events(family, "regla_store_states_total",
           "States written to the store and read from it; gone: wanted, and dropped or damaged.",
           states, sizeof states / sizeof *states);
    events(family, "regla_store_prefixes_total",
           "Prompts that the store was asked for (found, missing); their states read and written.",
           prefixes, sizeof prefixes / sizeof *prefixes);
    events(family, "regla_store_prefix_bytes_total", "Bytes of these states.", bytes,
           sizeof bytes / sizeof *bytes);
    single(family, "regla_store_away", "gauge", "1: the store that servers share is away.",
           store->away);
    single(family, "regla_store_returns_total", "counter", "How often that store was back.",
           (double)store->returns);
    single(family, "regla_store_leases", "gauge", "Leases of sessions that this server holds.",
           (double)store->leases);
    single(family, "regla_store_leases_lost_total", "counter",
           "Leases that ended before this server gave them back.", (double)store->leases_lost);
    single(family, "regla_store_older_copies_total", "counter",
           "Sessions that the store had older than this server had seen them.",
           (double)store->older_copies);
}

static void generation_families(struct family *family, const struct metrics *metrics)
{
    begin(family, "regla_generation_tokens_per_second", "histogram",
          "Decode speed of one text, by the smallest length that holds its generated tokens.");
    char more[32];
    for (int i = 0; i < NUM_LENGTH_CLASSES; i++) {
        snprintf(more, sizeof more, ",length=\"%s\"", LENGTH_NAMES[i]);
        histogram_samples(family, &metrics->tokens_per_second[i], more);
    }
    begin(family, "regla_generation_peak_memory_bytes", "gauge",
          "The most state that a request of that length has held.");
    for (int i = 0; i < NUM_LENGTH_CLASSES; i++) {
        snprintf(more, sizeof more, ",length=\"%s\"", LENGTH_NAMES[i]);
        sample(family, more, (double)atomic_load(&metrics->peak_state_bytes[i]));
    }
}

static void grammar_families(struct family *family, struct metrics *m)
{
    single(family, "regla_grammars_compiled_total", "counter",
           "Constraints of requests that were compiled.",
           (double)atomic_load(&m->grammars_compiled));
    single(family, "regla_grammar_compile_seconds_total", "counter",
           "Time to compile them, those that were refused too.",
           (double)atomic_load(&m->grammar_compile_nanos) * 1e-9);
    single(family, "regla_grammar_hits_total", "counter",
           "Constraints of requests that had been compiled before.",
           (double)atomic_load(&m->grammar_hits));
    single(family, "regla_grammar_bytes", "gauge",
           "Bytes held for compiled grammars, with room for their masks, of the memory for bodies.",
           (double)atomic_load(&m->grammar_bytes));
    begin(family, "regla_schema_annotations_total", "counter",
          "Constraints of requests whose schemas have keywords that are not enforced, by keyword.");
    for (int i = 0; i < NUM_ANNOTATIONS; i++) {
        char more[64];
        snprintf(more, sizeof more, ",keyword=\"%s\"",
                 grammar_annotation_name((enum grammar_annotation)i));
        sample(family, more, (double)atomic_load(&m->annotations[i]));
    }
    single(family, "regla_masks_total", "counter", "Tokens of constrained texts that were masked.",
           (double)atomic_load(&m->masks));
    single(family, "regla_mask_seconds_total", "counter",
           "Time of the engine thread to make their masks.",
           (double)atomic_load(&m->mask_nanos) * 1e-9);
}

/* Of requests that have ended so, with any status. */
static double ended(const struct metrics *m, enum outcome outcome)
{
    uint64_t count = 0;
    for (int i = 0; i < NUM_STATUSES; i++)
        count += atomic_load(&m->requests[i][outcome]);
    return (double)count;
}

/* What vLLM calls requests are texts here: each choice of each prompt. */
static void vllm_histograms(struct family *family, const struct metrics *m)
{
    const struct {
        const char *name, *help;
        const struct histogram *histogram;
    } all[] = {
        {"time_to_first_token_seconds", "Time to the first token.", &m->time_to_first_token},
        {"inter_token_latency_seconds", "Time between tokens of a text.", &m->inter_token_latency},
        {"time_per_output_token_seconds", "The same, by its old name.", &m->inter_token_latency},
        {"e2e_request_latency_seconds", "Duration of requests.", &m->request_duration},
        {"request_queue_time_seconds", "Time before a request runs.", &m->queue},
        {"request_prefill_time_seconds", "Of a text: to its first token.", &m->text_prefill},
        {"request_decode_time_seconds", "Of a text: from its first to its last token.",
         &m->text_decode},
        {"request_inference_time_seconds", "Of a text: both together.", &m->text_inference},
        {"request_prompt_tokens", "Of a text: tokens of its prompt.", &m->text_prompt_tokens},
        {"request_generation_tokens", "Of a text: generated tokens.", &m->text_generated_tokens},
        {"request_params_max_tokens", "Of a text: max_tokens.", &m->text_max_tokens},
        {"request_params_n", "Of a prompt: n.", &m->prompt_choices},
        {"iteration_tokens_total", "Of a step: tokens of prompts, and generated tokens.",
         &m->step_tokens},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[64];
        snprintf(name, sizeof name, "vllm:%s", all[i].name);
        histogram_family(family, name, all[i].help, all[i].histogram);
    }
}

static void vllm_cache_info(struct family *family, const struct metrics_view *view)
{
    struct strbuf *out = family->out;
    begin(family, "vllm:cache_config_info", "gauge", "KV pages, and whether prefixes are reused.");
    strbuf_printf(out, "%s{block_size=\"%d\",cache_dtype=\"%s\",enable_prefix_caching=\"%s\",",
                  family->name, view->kv_page_tokens, view->kv_format ? view->kv_format : "",
                  view->reuses_prefixes ? "True" : "False");
    strbuf_printf(out, "num_gpu_blocks=\"%lld\"} 1\n", (long long)view->kv_pages);
}

/* The names that gateways and dashboards for vLLM read. What never happens here is 0. */
static void vllm_families(struct family *family, const struct metrics *m,
                          const struct metrics_view *view, double reserved)
{
    double budget = (double)view->state_budget_bytes, used = budget > 0 ? reserved / budget : 0;
    double waiting = (double)atomic_load(&m->waiting),
           cached = (double)atomic_load(&m->cached_tokens);
    double deferred = fmin(waiting, (double)(atomic_load(&m->waiting_for_states) +
                                             atomic_load(&m->waiting_for_sessions)));
    const struct {
        const char *name, *type, *help;
        double value;
    } all[] = {
        {"num_requests_running", "gauge", "Requests that run.", (double)atomic_load(&m->running)},
        {"num_requests_waiting", "gauge", "Requests that wait.", waiting},
        {"kv_cache_usage_perc", "gauge", "Share of the state budget reserved, 0..1.", used},
        {"gpu_cache_usage_perc", "gauge", "The same, by its old name.", used},
        {"prompt_tokens_total", "counter", "Prompt tokens.",
         (double)atomic_load(&m->prompt_tokens)},
        {"generation_tokens_total", "counter", "Generated tokens.",
         (double)atomic_load(&m->generated_tokens)},
        {"prefix_cache_queries_total", "counter", "Tokens of prompts that were looked up.",
         (double)atomic_load(&m->looked_up_tokens)},
        {"prefix_cache_hits_total", "counter", "Of them, those that were not computed again.",
         cached},
        {"gpu_prefix_cache_queries_total", "counter", "Queries by their old name.",
         (double)atomic_load(&m->looked_up_tokens)},
        {"gpu_prefix_cache_hits_total", "counter", "Hits by their old name.", cached},
        {"num_preemptions_total", "counter", "Texts that were set aside.",
         (double)atomic_load(&m->set_aside)},
        {"mm_cache_queries_total", "counter", "0: there is only text.", 0},
        {"mm_cache_hits_total", "counter", "0: there is only text.", 0},
    };
    family->label = "model_name";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[64];
        snprintf(name, sizeof name, "vllm:%s", all[i].name);
        single(family, name, all[i].type, all[i].help, all[i].value);
    }
    begin(family, "vllm:num_requests_waiting_by_reason", "gauge", "Requests that wait, by why.");
    sample(family, ",reason=\"capacity\"", waiting - deferred);
    sample(family, ",reason=\"deferred\"", deferred);
    begin(family, "vllm:admission_rejections_total", "counter",
          "Requests that a limit of the queue has refused.");
    sample(family, ",reason=\"max_num_queued_reqs\"", (double)view->refused[ADMISSION_REQUESTS]);
    sample(family, ",reason=\"max_num_queued_tokens\"", (double)view->refused[ADMISSION_TOKENS]);
    begin(family, "vllm:request_success_total", "counter", "Requests that have ended.");
    sample(family, ",finished_reason=\"stop\"", (double)atomic_load(&m->requests[0][OUTCOME_STOP]));
    sample(family, ",finished_reason=\"length\"",
           (double)atomic_load(&m->requests[0][OUTCOME_LENGTH]));
    sample(family, ",finished_reason=\"abort\"", ended(m, OUTCOME_CANCELLED));
    sample(family, ",finished_reason=\"error\"", ended(m, OUTCOME_ERROR));
    vllm_cache_info(family, view);
    vllm_histograms(family, m);
}

void metrics_write(struct strbuf *out, struct metrics *m, const struct metrics_view *view)
{
    pthread_mutex_lock(&m->lock);
    struct metrics_memory memory = m->memory;
    pthread_mutex_unlock(&m->lock);
    struct family family = {.out = out, .label = "model", .model = view->model};
    single(&family, "regla_requests_running", "gauge", "Requests that run.",
           (double)atomic_load(&m->running));
    single(&family, "regla_requests_waiting", "gauge", "Requests that wait.",
           (double)atomic_load(&m->waiting));
    requests_family(&family, m);
    single(&family, "regla_prompt_tokens_total", "counter", "Prompt tokens of requests that ran.",
           (double)atomic_load(&m->prompt_tokens));
    single(&family, "regla_generated_tokens_total", "counter", "Generated tokens.",
           (double)atomic_load(&m->generated_tokens));
    single(&family, "regla_cached_tokens_total", "counter", "Prompt tokens not computed again.",
           (double)atomic_load(&m->cached_tokens));
    single(&family, "regla_engine_steps_total", "counter", "Steps of the engine.",
           (double)atomic_load(&m->steps));
    const int64_t experts = atomic_load(&m->experts_read);
    if (experts >= 0)
        single(&family, "regla_experts_read_total", "counter",
               "Experts read in steps: each that a mixture's router chose counts once a step.",
               (double)experts);
    single(&family, "regla_texts_set_aside_total", "counter",
           "How often a text that ran was set aside, for another's or for lack of memory.",
           (double)atomic_load(&m->set_aside));
    single(&family, "regla_engine_step_seconds_total", "counter", "Time in steps of the engine.",
           (double)atomic_load(&m->step_nanos) * 1e-9);
    single(&family, "regla_engine_step_cpu_seconds_total", "counter",
           "CPU time of the thread regla-engine in steps of the engine.",
           (double)atomic_load(&m->step_cpu_nanos) * 1e-9);
    causes_family(&family, m);
    histogram_family(&family, "regla_time_to_first_token_seconds",
                     "From the request's last byte to its first token.", &m->time_to_first_token);
    histogram_family(&family, "regla_inter_token_latency_seconds",
                     "Time between consecutive tokens of a text.", &m->inter_token_latency);
    histogram_family(&family, "regla_request_duration_seconds",
                     "From the request's last byte to its last token.", &m->request_duration);
    histogram_family(&family, "regla_queue_seconds", "From the request's last byte until it runs.",
                     &m->queue);
    histogram_family(&family, "regla_batch_tokens", "Tokens in a step of the engine.",
                     &m->batch_tokens);
    memory_families(&family, &memory, view);
    state_families(&family, m, &memory);
    store_families(&family, &view->store);
    generation_families(&family, m);
    grammar_families(&family, m);
    single(&family, "regla_queue_requests", "gauge", "Places of the queue that are taken.",
           (double)view->queue_requests);
    single(&family, "regla_queue_tokens", "gauge", "Estimated tokens that wait.",
           (double)view->queue_tokens);
    single(&family, "regla_request_body_bytes", "gauge",
           "Bytes held of bodies, prompts, replies and compiled grammars.",
           (double)view->body_bytes);
    single(&family, "regla_connections", "gauge", "Open connections.",
           (double)atomic_load(&m->connections));
    single(&family, "regla_log_lines_dropped_total", "counter",
           "Lines of the log that were dropped: not read in time, or not writable.",
           (double)log_dropped());
    single(&family, "regla_unknown_fields_total", "counter",
           "Fields of requests that are ignored, since nobody knows them.",
           (double)atomic_load(&m->warnings[WARNING_FIELD]));
    begin(&family, "regla_warnings_total", "counter",
          "Warnings in replies, by what they are about.");
    for (int i = 0; i < NUM_WARNING_KINDS; i++) {
        char more[64];
        snprintf(more, sizeof more, ",about=\"%s\"", reply_warnings_kind((enum warning_kind)i));
        sample(&family, more, (double)atomic_load(&m->warnings[i]));
    }
    if (view->vllm_names)
        vllm_families(&family, m, view, reserved_bytes(&memory.device));
}
