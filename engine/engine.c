/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include "engine/device.h"
#include "engine/forward.h"
#include "engine/model/fingerprint.h"
#include "engine/model/four_bits.h"
#include "engine/model/model_load.h"
#include "engine/model/preset.h"
#include "engine/ops/packing.h"
#include "engine/ops/profile.h"
#include "engine/state_image.h"
#include "engine/state_memory.h"
#include "engine/steps.h"

#include <stdlib.h>
#include <unistd.h>

enum {
    DEFAULT_STEP_TOKENS = 512,
    DEFAULT_STEP_LOGITS = 128,
    MOST_STEP_TOKENS = 1 << 18, /* times the most heads of a model (2^12): tasks in an int */
    MEASURED_BYTES = 256 << 20  /* at least */
};

struct engine {
    struct model *model;
    const struct ops *ops;
    struct backend *backend;
    struct forward *forward;
    struct state_memory *memory;
    struct engine_info info;
    unsigned char fingerprint[FINGERPRINT_BYTES];
    struct steps steps;
    size_t measured_bytes;
    void *measured; /* [measured_bytes] on the device, once it is measured */
};

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
    info->measured_unit = tells ? info->unit : "f32";
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
    if (load_weights(engine, &forward, err) != 0)
        goto fail;
    engine->steps = (struct steps){.info = &engine->info,
                                   .ops = engine->ops,
                                   .backend = engine->backend,
                                   .forward = engine->forward,
                                   .hidden_size = model->hidden_size};
    if (steps_open(&engine->steps, options->poison, err) != 0)
        goto fail;
    fill_info(engine);
    engine->info.refused_set = device_refused_set(options);
    if (choose_budget(engine, options, err) != 0 ||
        state_memory_create(&engine->memory, engine->ops, engine->backend,
                            &forward_program(engine->forward)->layout,
                            engine->info.state_memory_bytes, options->poison, err) != 0 ||
        engine->ops->status(engine->backend, err) != 0)
        goto fail;
    engine->steps.memory = engine->memory;
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
    steps_close(&engine->steps);
    forward_close(engine->forward);
    if (engine->measured != NULL)
        engine->ops->release(engine->backend, engine->measured, engine->measured_bytes);
    if (engine->backend != NULL)
        engine->ops->close(engine->backend);
    model_close(engine->model);
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

int engine_submit(struct engine *engine, struct span *spans, int num_spans, struct error *err)
{
    return steps_submit(&engine->steps, spans, num_spans, err);
}

int engine_collect(struct engine *engine, struct error *err)
{
    return steps_collect(&engine->steps, err);
}

int engine_go_back(struct engine *engine, struct state *state, int tokens, struct error *err)
{
    return steps_go_back(&engine->steps, state, tokens, err);
}

int engine_step(struct engine *engine, struct span *spans, int num_spans, struct error *err)
{
    if (engine->steps.num_flights > 0)
        return error_set(err, ERROR_INVALID, "a step is under way, and must be collected first");
    if (engine_submit(engine, spans, num_spans, err) != 0)
        return -1;
    return engine_collect(engine, err);
}

double engine_busy_seconds(const struct engine *engine)
{
    return engine->ops->busy_seconds(engine->backend);
}

int64_t engine_experts_read(const struct engine *engine)
{
    return engine->ops->experts_read != NULL ? (int64_t)engine->ops->experts_read(engine->backend)
                                             : -1;
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
