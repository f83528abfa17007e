/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include "engine/device.h"
#include "engine/forward.h"
#include "engine/kept.h"
#include "engine/model/fingerprint.h"
#include "engine/model/four_bits.h"
#include "engine/model/model_load.h"
#include "engine/model/preset.h"
#include "engine/ops/packing.h"
#include "engine/ops/profile.h"
#include "engine/ops/sampler.h"
#include "engine/state_image.h"
#include "engine/state_memory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DEFAULT_STEP_TOKENS = 512,
    DEFAULT_STEP_LOGITS = 128,
    MOST_STEP_TOKENS = 1 << 18, /* times the most heads of a model (2^12): tasks in an int */
    MEASURED_BYTES = 256 << 20  /* at least */
};

/* A step under way. */
struct flight {
    struct span *spans; /* [num_spans], the caller's */
    int num_spans;
};

struct engine {
    struct model *model;
    const struct ops *ops;
    struct backend *backend;
    struct forward *forward;
    struct state_memory *memory;
    struct engine_info info;
    unsigned char fingerprint[FINGERPRINT_BYTES];
    /* arrays of a step */
    int32_t *tokens;          /* [max_step_tokens] */
    int64_t *positions;       /* [max_step_tokens] */
    int32_t *logit_rows;      /* [max_step_logits] */
    struct draw **draws;      /* [max_step_logits] */
    int32_t *token_draws;     /* [max_step_tokens] */
    struct batch_span *spans; /* [max_step_tokens]: every span has a token */
    struct kept kept;
    float *hidden;     /* [max_step_tokens, hidden_size], of the last step; NULL: without */
    const void **seen; /* hash table [seen_size] of the states and samplers of a step */
    size_t seen_size;
    struct flight flights[2]; /* [num_flights], the older first */
    int num_flights;
    size_t measured_bytes;
    void *measured; /* [measured_bytes] on the device, once it is measured */
};

static int allocate_step(struct engine *engine, struct error *err)
{
    size_t tokens = (size_t)engine->info.max_step_tokens;
    const bool hidden = forward_program(engine->forward)->hidden.data != NULL;
    engine->seen_size = 16;
    while (engine->seen_size < 2 * (tokens + (size_t)engine->info.max_step_logits))
        engine->seen_size *= 2;
    engine->tokens = calloc(tokens, sizeof *engine->tokens);
    engine->positions = calloc(tokens, sizeof *engine->positions);
    engine->logit_rows = calloc((size_t)engine->info.max_step_logits, sizeof *engine->logit_rows);
    engine->draws = calloc((size_t)engine->info.max_step_logits, sizeof *engine->draws);
    engine->token_draws = calloc(tokens, sizeof *engine->token_draws);
    engine->spans = calloc(tokens, sizeof *engine->spans);
    engine->seen = calloc(engine->seen_size, sizeof *engine->seen);
    if (hidden)
        engine->hidden = calloc(tokens * (size_t)engine->model->hidden_size, sizeof(float));
    if ((hidden && engine->hidden == NULL) || engine->tokens == NULL || engine->positions == NULL ||
        engine->logit_rows == NULL || engine->draws == NULL || engine->token_draws == NULL ||
        engine->spans == NULL || engine->seen == NULL)
        return error_set(err, ERROR_NO_MEMORY, "max_step_tokens: no memory for %zu", tokens);
    return 0;
}

static int check_options(const struct engine_options *options, struct engine_info *info,
                         struct error *err)
{
    info->max_step_tokens =
        options->max_step_tokens == 0 ? DEFAULT_STEP_TOKENS : options->max_step_tokens;
    info->max_step_logits =
        options->max_step_logits == 0 ? DEFAULT_STEP_LOGITS : options->max_step_logits;
    if (info->max_step_tokens < 1 || info->max_step_tokens > MOST_STEP_TOKENS)
        return error_set(err, ERROR_INVALID, "max_step_tokens: expected 1 to %d, got %d",
                         MOST_STEP_TOKENS, info->max_step_tokens);
    if (info->max_step_logits < 1 || info->max_step_logits > MOST_STEP_TOKENS)
        return error_set(err, ERROR_INVALID, "max_step_logits: expected 1 to %d, got %d",
                         MOST_STEP_TOKENS, info->max_step_logits);
    if (options->max_step_kept < 0)
        return error_set(err, ERROR_INVALID, "max_step_kept: expected 0 or more, got %d",
                         options->max_step_kept);
    info->max_step_kept = options->max_step_kept < info->max_step_tokens ? options->max_step_kept
                                                                         : info->max_step_tokens;
    return 0;
}

/* The formats that `auto` stands for. */
static int choose_formats(const struct engine_options *options, const struct model *model,
                          struct engine_info *info, struct error *err)
{
    info->weights = options->weights;
    if (info->weights == WEIGHTS_AUTO)
        info->weights = packing_dtype_format(model->dtype);
    info->kv = options->kv;
    if (info->kv == KV_AUTO)
        info->kv = info->weights == WEIGHTS_EXACT ? KV_F32 : KV_F16;
    info->activations = options->activations;
    if (info->activations == ACTIVATIONS_AUTO)
        info->activations =
            device_activations(options->device, options->instruction_set, info->weights);
    info->products = options->products;
    if (!products_fit(info->products, info->weights))
        return error_set(
            err, ERROR_INVALID, "products: %s goes with weights in %s, these are in %s",
            products_name(info->products), WEIGHTS_OF_CUBLASLT, weight_format_name(info->weights));
    if (activation_format_fits(info->activations, info->weights))
        return 0;
    return error_set(err, ERROR_INVALID, "activations: %s goes with weights in %s, these are in %s",
                     activation_format_name(info->activations),
                     info->activations == ACTIVATIONS_16BIT ? WEIGHTS_OF_16BIT : WEIGHTS_OF_8BIT,
                     weight_format_name(info->weights));
}

static void fill_info(struct engine *engine)
{
    const struct program *program = forward_program(engine->forward);
    const struct state_layout *layout = &program->layout;
    struct engine_info *info = &engine->info;
    info->vocab_size = engine->model->vocab_size;
    info->threads = engine->ops->threads(engine->backend);
    info->max_positions = layout->max_positions;
    info->weights_bytes = program->weights_bytes[WEIGHTS_AUTO];
    for (int i = 0; i < WEIGHT_FORMAT_COUNT; i++)
        info->weights_bytes_as[i] = program->weights_bytes[i];
    info->workspace_bytes = program->memory_bytes;
    info->workspace_bytes += (size_t)info->max_step_kept * program->kept_bytes;
    if (engine->ops->taken != NULL) {
        engine->ops->taken(engine->backend, &info->workspace_bytes, &info->second_bytes,
                           &info->pinned_bytes);
        info->workspace_bytes -= info->weights_bytes;
    }
    info->recurrent_bytes_per_text = layout->slot_bytes;
    info->kv_bytes_per_token = layout->page_bytes / OPS_TILE;
    info->kv_page_tokens = OPS_TILE;
    info->max_step_pages = engine->ops->max_pages > 0 ? engine->ops->max_pages : INT64_MAX;
    info->overlaps = engine->ops->overlaps;
    info->device = engine->ops->device;
    info->instruction_set = engine->ops->instruction_set(engine->backend);
    const bool tells = engine->ops->unit != NULL;
    info->unit = tells ? engine->ops->unit(engine->backend, info->weights)
                 : info->weights == WEIGHTS_EXACT ? "f32"
                                                  : "tensor cores";
    info->measured_unit =
        tells ? engine->ops->measured_unit(engine->backend, info->weights) : "f32";
}

/* The memory for states: what was asked for, or what the device's has left. */
static int choose_budget(struct engine *engine, const struct engine_options *options,
                         struct error *err)
{
    struct engine_info *info = &engine->info;
    size_t used = info->weights_bytes + info->workspace_bytes, given = options->device_memory_bytes;
    info->state_memory_bytes = options->state_memory_bytes;
    if (given > 0 && used >= given)
        return error_set(err, ERROR_NO_MEMORY,
                         "device_memory: the weights and the workspace alone take %zu bytes of "
                         "%zu; fewer step tokens or smaller weights take less",
                         used, given);
    if (given > 0 && info->state_memory_bytes > given - used)
        return error_set(err, ERROR_INVALID,
                         "state_memory: expected at most %zu bytes, what device_memory leaves, got "
                         "%zu",
                         given - used, info->state_memory_bytes);
    if (info->state_memory_bytes == 0)
        info->state_memory_bytes = given > 0
                                       ? given - used
                                       : engine->ops->state_memory(engine->backend) /
                                             (size_t)(options->sharing > 1 ? options->sharing : 1);
    if (options->budget == NULL)
        return 0;
    size_t asked =
        options->state_memory_bytes == 0 && given > 0 ? given - used : options->state_memory_bytes;
    return options->budget(options->budget_context, info, asked, &info->state_memory_bytes, err);
}

int engine_open(struct engine **out, const char *model_directory,
                const struct engine_options *options, struct error *err)
{
    struct model *model;
    if (device_find(options->device, err) != 0 || model_open(&model, model_directory, err) != 0)
        return -1;
    return engine_open_model(out, model, options, err);
}

int engine_open_preset(struct engine **out, const char *preset,
                       const struct engine_options *options, struct error *err)
{
    struct model *model;
    if (device_find(options->device, err) != 0 || preset_open(&model, preset, err) != 0)
        return -1;
    return engine_open_model(out, model, options, err);
}

_Static_assert(FOUR_BITS_OWNER_BYTES == (int)FINGERPRINT_BYTES, "blocks have a fingerprint");

/* Packs the weights while another thread reads them for the fingerprint. What that says of numbers
 * that are not finite comes before what packing says of them. */
static int load_weights(struct engine *engine, const struct emitter_options *options,
                        struct error *err)
{
    struct error unreadable = ERROR_INIT;
    struct fingerprint_run *fingerprint =
        fingerprint_start(engine->model, engine->fingerprint, &unreadable);
    int result = fingerprint == NULL ? -1
                                     : forward_open(&engine->forward, engine->model, engine->ops,
                                                    engine->backend, options, err);
    if (fingerprint != NULL && fingerprint_finish(fingerprint) == 0) {
        if (result == 0)
            result = device_weights_settle(engine->ops, engine->backend, engine->fingerprint, err);
        if (result == 0 && options->weights == PACKING_FOUR_BITS)
            result =
                four_bits_check(engine->model, engine->fingerprint, &engine->info.q4_blocks, err);
        return result;
    }
    error_clear(err);
    return error_set(err, unreadable.code, "%s", unreadable.message);
}

int engine_open_model(struct engine **out, struct model *model,
                      const struct engine_options *options, struct error *err)
{
    struct engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        model_close(model);
        return error_set(err, ERROR_NO_MEMORY, "engine: no memory");
    }
    engine->model = model;
    if (check_options(options, &engine->info, err) != 0)
        goto fail;
    if (choose_formats(options, model, &engine->info, err) != 0)
        goto fail;
    struct engine_options chosen = *options;
    chosen.weights = engine->info.weights;
    chosen.activations = engine->info.activations;
    if (options->packed_weights != NULL && engine->info.weights == PACKING_FOUR_BITS &&
        model->storage->beside != NULL) {
        error_set(err, ERROR_UNSUPPORTED,
                  "packed_weights: not with a model that has " FOUR_BITS_FILE);
        goto fail;
    }
    if (device_open(&engine->ops, &engine->backend, &chosen, err) != 0)
        goto fail;
    const struct emitter_options forward = {.max_rows = engine->info.max_step_tokens,
                                            .max_logits = engine->info.max_step_logits,
                                            .max_kept = engine->info.max_step_kept,
                                            .hidden = options->hidden,
                                            .kv = engine->info.kv,
                                            .weights = options->weights,
                                            .poison = options->poison,
                                            .progress = options->progress,
                                            .progress_context = options->progress_context};
    if (load_weights(engine, &forward, err) != 0 || allocate_step(engine, err) != 0 ||
        kept_open(&engine->kept, forward_program(engine->forward), &engine->info, options->poison,
                  err) != 0)
        goto fail;
    fill_info(engine);
    engine->info.refused_set = device_refused_set(options);
    if (choose_budget(engine, options, err) != 0 ||
        state_memory_create(&engine->memory, engine->ops, engine->backend,
                            &forward_program(engine->forward)->layout,
                            engine->info.state_memory_bytes, options->poison, err) != 0 ||
        engine->ops->status(engine->backend, err) != 0)
        goto fail;
    *out = engine;
    return 0;
fail:
    engine_close(engine);
    return -1;
}

void engine_close(struct engine *engine)
{
    if (engine == NULL)
        return;
    state_memory_free(engine->memory);
    kept_close(&engine->kept);
    forward_close(engine->forward);
    if (engine->measured != NULL)
        engine->ops->release(engine->backend, engine->measured, engine->measured_bytes);
    if (engine->backend != NULL)
        engine->ops->close(engine->backend);
    model_close(engine->model);
    free(engine->tokens);
    free(engine->positions);
    free(engine->logit_rows);
    free(engine->draws);
    free(engine->token_draws);
    free(engine->spans);
    free(engine->hidden);
    free(engine->seen);
    free(engine);
}

const struct engine_info *engine_info(const struct engine *engine)
{
    return &engine->info;
}

const struct model *engine_model(const struct engine *engine)
{
    return engine->model;
}

const unsigned char *engine_fingerprint(const struct engine *engine)
{
    return engine->fingerprint;
}

void engine_memory(const struct engine *engine, struct engine_memory *memory)
{
    state_memory_report(engine->memory, memory);
}

size_t engine_kv_bytes_per_token(const struct engine *engine, enum kv_format format)
{
    static const size_t bytes[] = {[KV_F32] = 4, [KV_F16] = 2, [KV_BF16] = 2};
    return engine->info.kv_bytes_per_token / bytes[engine->info.kv] * bytes[format];
}

size_t engine_state_bytes(const struct engine *engine, int64_t max_tokens)
{
    return state_memory_needed(engine->memory, max_tokens);
}

const struct program *engine_program(const struct engine *engine)
{
    return forward_program(engine->forward);
}

const struct state_layout *engine_state_layout(const struct engine *engine)
{
    return &forward_program(engine->forward)->layout;
}

size_t state_image_bytes(const struct engine *engine, int64_t position)
{
    return state_image_size(&forward_program(engine->forward)->layout, position);
}

int state_create(struct state **out, struct engine *engine, int64_t max_tokens, struct error *err)
{
    return state_new(out, engine->memory, max_tokens, err);
}

int state_restore(struct state **out, struct engine *engine, const void *image, int64_t position,
                  int64_t max_tokens, struct error *err)
{
    return state_load(out, engine->memory, image, position, max_tokens, err);
}

/* Whether the state or sampler is already in the step; remembers it. */
static bool seen_before(struct engine *engine, const void *object)
{
    size_t mask = engine->seen_size - 1;
    size_t at = ((uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (engine->seen[at] != NULL) {
        if (engine->seen[at] == object)
            return true;
        at = (at + 1) & mask;
    }
    engine->seen[at] = object;
    return false;
}

/* The span of the same text in a step; its number is that of the span, or near. NULL: none. */
static struct span *span_of(const struct flight *flight, const struct state *state, int near)
{
    for (int i = 0; i < flight->num_spans; i++) {
        struct span *span = &flight->spans[(near + i) % flight->num_spans];
        if (span->state == state)
            return span;
    }
    return NULL;
}

/* A span whose token is still to be drawn by the step under way. */
static int check_ahead(const struct engine *engine, const struct span *span, int index,
                       struct error *err)
{
    const struct span *before =
        engine->num_flights == 1 ? span_of(&engine->flights[0], span->state, index) : NULL;
    if (before == NULL || before->draw == NULL || before->draw->dropped || span->num_tokens != 1)
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: no tokens, and no draw under way for one of them", index);
    if (span->draw == NULL || span->draw == before->draw ||
        span->draw->sampler != before->draw->sampler || sampler_looks_back(span->draw->sampler))
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: its draw cannot come before the token under way", index);
    return 0;
}

static int check_span(struct engine *engine, const struct span *span, int index, struct error *err)
{
    if (span->state == NULL || (span->tokens == NULL && engine->num_flights == 0))
        return error_set(err, ERROR_INVALID, "spans[%d]: no state or no tokens", index);
    if (span->state->memory != engine->memory)
        return error_set(err, ERROR_INVALID, "spans[%d]: the state is of another engine", index);
    if (seen_before(engine, span->state))
        return error_set(err, ERROR_INVALID, "spans[%d]: its state is in the step twice", index);
    if (span->draw != NULL && seen_before(engine, span->draw->sampler))
        return error_set(err, ERROR_INVALID, "spans[%d]: its draw's sampler is in the step twice",
                         index);
    if (span->draw != NULL && (span->draw->num_banned > (size_t)engine->info.vocab_size ||
                               span->draw->num_ends > (size_t)engine->info.vocab_size))
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: expected at most %d ids in a list of its draw, got %zu banned "
                         "and %zu ends",
                         index, engine->info.vocab_size, span->draw->num_banned,
                         span->draw->num_ends);
    if (span->num_tokens > span->state->max_tokens - span->state->position)
        return error_set(err, ERROR_INVALID,
                         "spans[%d]: %d tokens at position %lld, memory is reserved for %lld",
                         index, span->num_tokens, (long long)span->state->position,
                         (long long)span->state->max_tokens);
    if (span->tokens == NULL)
        return check_ahead(engine, span, index, err);
    for (int i = 0; i < span->num_tokens; i++)
        if (span->tokens[i] < 0 || span->tokens[i] >= engine->info.vocab_size)
            return error_set(err, ERROR_INVALID, "spans[%d].tokens[%d]: expected 0 to %d, got %d",
                             index, i, engine->info.vocab_size - 1, span->tokens[i]);
    return 0;
}

static bool wants_logits(const struct span *spans, int num_spans)
{
    for (int i = 0; i < num_spans; i++)
        if (spans[i].num_logits > 0)
            return true;
    return false;
}

static int check_hidden(const struct engine *engine, const struct span *span, int index,
                        struct error *err)
{
    if (span->num_hidden < 0 || span->num_hidden > span->num_tokens)
        return error_set(err, ERROR_INVALID, "spans[%d]: %d hidden rows of %d tokens", index,
                         span->num_hidden, span->num_tokens);
    if (span->num_hidden > 0 && engine->hidden == NULL)
        return error_set(err, ERROR_INVALID, "spans[%d]: the engine was opened without hidden rows",
                         index);
    if (span->num_hidden > 0 && engine->num_flights > 0)
        return error_set(err, ERROR_INVALID, "a step beside another has no hidden rows");
    return 0;
}

static int check_step(struct engine *engine, const struct span *spans, int num_spans,
                      struct error *err)
{
    const struct engine_info *info = &engine->info;
    int64_t tokens = 0, logits = 0, pages = 0;
    if (num_spans < 1 || num_spans > info->max_step_tokens)
        return error_set(err, ERROR_INVALID, "num_spans: expected 1 to %d, got %d",
                         info->max_step_tokens, num_spans);
    for (int i = 0; i < num_spans; i++) {
        if (spans[i].num_tokens < 1 || spans[i].num_logits < 0 ||
            spans[i].num_logits > spans[i].num_tokens)
            return error_set(err, ERROR_INVALID, "spans[%d]: %d logits of %d tokens", i,
                             spans[i].num_logits, spans[i].num_tokens);
        if (spans[i].draw != NULL && spans[i].num_logits > 0)
            return error_set(err, ERROR_INVALID, "spans[%d]: a draw, expected 0 logits, got %d", i,
                             spans[i].num_logits);
        tokens += spans[i].num_tokens;
        logits += spans[i].num_logits + (spans[i].draw != NULL);
    }
    if (tokens > info->max_step_tokens || logits > info->max_step_logits)
        return error_set(
            err, ERROR_INVALID, "a step has at most %d tokens and %d logits, got %lld and %lld",
            info->max_step_tokens, info->max_step_logits, (long long)tokens, (long long)logits);
    if (engine->num_flights > 0 && wants_logits(spans, num_spans))
        return error_set(err, ERROR_INVALID, "a step beside another has draws only, no logits");
    if (kept_check(&engine->kept, spans, num_spans, engine->num_flights == 0, err) != 0)
        return -1;
    memset(engine->seen, 0, engine->seen_size * sizeof *engine->seen);
    for (int i = 0; i < num_spans; i++) {
        if (check_span(engine, &spans[i], i, err) != 0 ||
            check_hidden(engine, &spans[i], i, err) != 0)
            return -1;
        pages += state_pages(spans[i].state, spans[i].state->position + spans[i].num_tokens);
    }
    if (pages > info->max_step_pages)
        return error_set(err, ERROR_INVALID, "a step has at most %lld KV pages, got %lld",
                         (long long)info->max_step_pages, (long long)pages);
    return 0;
}

/* The rows that want logits, behind them those that are drawn from. */
static void fill_logit_rows(struct engine *engine, const struct span *spans, int num_spans,
                            struct batch *batch)
{
    int logits = 0, draws = 0;
    for (int i = 0; i < num_spans; i++)
        for (int j = spans[i].num_logits; j > 0; j--)
            engine->logit_rows[logits++] =
                engine->spans[i].first_row + engine->spans[i].num_rows - j;
    for (int i = 0; i < num_spans; i++)
        if (spans[i].draw != NULL) {
            engine->logit_rows[logits + draws] =
                engine->spans[i].first_row + engine->spans[i].num_rows - 1;
            spans[i].draw->number = draws;
            engine->draws[draws++] = spans[i].draw;
        }
    batch->num_logits = logits + draws;
    batch->num_draws = draws;
    batch->logit_rows = engine->logit_rows;
    batch->draws = engine->draws;
}

/* Gives every state its pages and lays the spans' tokens one after the other. */
static void fill_batch(struct engine *engine, const struct span *spans, int num_spans,
                       struct batch *batch)
{
    int row = 0;
    for (int i = 0; i < num_spans; i++) /* all before any: what they have may move */
        state_grow(spans[i].state, spans[i].state->position + spans[i].num_tokens);
    for (int i = 0; i < num_spans; i++) {
        const struct span *span = &spans[i];
        const struct state *state = span->state;
        engine->spans[i] = (struct batch_span){.first_row = row,
                                               .num_rows = span->num_tokens,
                                               .position = state->position,
                                               .slot = state->slot,
                                               .pages = state->pages,
                                               .num_pages = state->num_pages};
        for (int j = 0; j < span->num_tokens; j++) {
            engine->tokens[row + j] = span->tokens != NULL ? span->tokens[j] : 0;
            engine->token_draws[row + j] = -1;
            engine->positions[row + j] = state->position + j;
        }
        if (span->draw != NULL) {
            span->draw->ahead = span->tokens == NULL;
            span->draw->dropped = false;
        }
        row += span->num_tokens;
    }
    *batch = (struct batch){.num_rows = row,
                            .num_spans = num_spans,
                            .tokens = engine->tokens,
                            .positions = engine->positions,
                            .spans = engine->spans};
    for (int i = 0; i < num_spans; i++)
        batch->wants_hidden |= spans[i].num_hidden > 0;
    fill_logit_rows(engine, spans, num_spans, batch);
    if (engine->kept.max_rows > 0)
        kept_begin(&engine->kept, spans, batch);
}

/* Which draws of the step under way give the spans without tokens theirs. */
static void fill_token_draws(struct engine *engine, const struct span *spans, int num_spans,
                             struct batch *batch)
{
    for (int i = 0; i < num_spans; i++) {
        if (spans[i].tokens != NULL)
            continue;
        const struct span *before = span_of(&engine->flights[0], spans[i].state, i);
        engine->token_draws[engine->spans[i].first_row] = before->draw->number;
        batch->token_draws = engine->token_draws;
    }
}

int engine_submit(struct engine *engine, struct span *spans, int num_spans, struct error *err)
{
    if (engine->num_flights == (engine->info.overlaps ? 2 : 1))
        return error_set(err, ERROR_INVALID, "a step is under way, and must be collected first");
    if (check_step(engine, spans, num_spans, err) != 0)
        return -1;
    struct batch batch;
    fill_batch(engine, spans, num_spans, &batch);
    fill_token_draws(engine, spans, num_spans, &batch);
    forward_submit(engine->forward, &batch);
    if (engine->ops->status(engine->backend, err) != 0)
        return -1;
    for (int i = 0; i < num_spans; i++)
        spans[i].state->position += spans[i].num_tokens;
    engine->flights[engine->num_flights++] = (struct flight){spans, num_spans};
    return 0;
}

/* A text is where it was before the span. */
static void undo(const struct span *span)
{
    span->state->position -= span->num_tokens;
    state_shrink(span->state, span->state->position);
}

/* Texts that have ended by their draws in a step have not moved in the one after it. */
static void drop_ended(const struct flight *flight, const struct flight *after)
{
    for (int i = 0; i < after->num_spans; i++) {
        const struct span *span = &after->spans[i];
        if (span->tokens != NULL || !draw_ends(span_of(flight, span->state, i)->draw))
            continue;
        span->draw->dropped = true;
        undo(span);
    }
}

/* The hidden rows that spans asked for. */
static void collect_hidden(struct engine *engine, const struct flight *flight)
{
    const struct rows hidden = forward_program(engine->forward)->hidden;
    const size_t size = (size_t)engine->model->hidden_size;
    int row = 0;
    for (int i = 0; i < flight->num_spans; i++) {
        struct span *span = &flight->spans[i];
        row += span->num_tokens;
        if (span->num_hidden == 0)
            continue;
        const int first = row - span->num_hidden;
        engine->ops->copy_out(engine->backend, engine->hidden + (size_t)first * size,
                              hidden.data + first * hidden.stride,
                              (size_t)span->num_hidden * size * sizeof(float));
        span->hidden = engine->hidden + (size_t)first * size;
    }
}

int engine_go_back(struct engine *engine, struct state *state, int tokens, struct error *err)
{
    if (engine->num_flights > 0)
        return error_set(err, ERROR_INVALID, "a step is under way, and must be collected first");
    if (kept_go_back(&engine->kept, state, tokens, err) != 0)
        return -1;
    return engine->ops->status(engine->backend, err);
}

int engine_collect(struct engine *engine, struct error *err)
{
    if (engine->num_flights == 0)
        return error_set(err, ERROR_INVALID, "no step is under way");
    struct flight flight = engine->flights[0];
    const float *logits = forward_collect(engine->forward);
    collect_hidden(engine, &flight);
    if (engine->ops->status(engine->backend, err) != 0) {
        for (; engine->num_flights > 0; engine->num_flights--)
            for (int i = 0; i < engine->flights[engine->num_flights - 1].num_spans; i++)
                undo(&engine->flights[engine->num_flights - 1].spans[i]);
        return -1;
    }
    for (int i = 0; i < flight.num_spans; i++) {
        flight.spans[i].logits = flight.spans[i].num_logits > 0 ? logits : NULL;
        logits += (size_t)flight.spans[i].num_logits * (size_t)engine->info.vocab_size;
    }
    engine->flights[0] = engine->flights[1];
    if (--engine->num_flights > 0)
        drop_ended(&flight, &engine->flights[0]);
    return 0;
}

int engine_step(struct engine *engine, struct span *spans, int num_spans, struct error *err)
{
    if (engine->num_flights > 0)
        return error_set(err, ERROR_INVALID, "a step is under way, and must be collected first");
    if (engine_submit(engine, spans, num_spans, err) != 0)
        return -1;
    return engine_collect(engine, err);
}

double engine_busy_seconds(const struct engine *engine)
{
    return engine->ops->busy_seconds(engine->backend);
}

bool engine_failed(struct engine *engine)
{
    return engine->ops->status(engine->backend, NULL) != 0;
}

bool engine_populate(struct engine *engine)
{
    return state_memory_populate(engine->memory);
}

/* Much more than the caches hold: read in turns on a processor with a last one of 260 MiB, 256 MiB
 * came at 34 GB/s, 512 and more at 28 to 31. */
static size_t bytes_to_measure(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0 or less: not known */
    return cache > MEASURED_BYTES / 2 ? 2 * (size_t)cache : MEASURED_BYTES;
}

int engine_measure(struct engine *engine, double *read_bytes, double *operations, struct error *err)
{
    const struct ops *ops = engine->ops;
    if (engine->measured == NULL) {
        engine->measured_bytes = bytes_to_measure();
        if (ops->reserve(engine->backend, engine->measured_bytes, &engine->measured, err) != 0)
            return -1;
        ops->fill(engine->backend, engine->measured, 1.0f, engine->measured_bytes / sizeof(float));
    }
    ops->measure(engine->backend, engine->measured, engine->measured_bytes, read_bytes, operations);
    return ops->status(engine->backend, err);
}

void engine_profile(struct engine *engine, double *seconds)
{
    engine->ops->profile(engine->backend, seconds);
}
