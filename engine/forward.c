/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/forward.h"

#include "engine/mixers/mixer.h"

#include <math.h>
#include <stdlib.h>

/* A norm with its parameters on the device. */
struct device_norm {
    enum norm_kind kind;
    float eps;
    struct mixer_scale scale;
};

struct block {
    struct device_norm attn_norm, mlp_norm;
    struct mixer_layer mixer;
    struct weight *up; /* gate and up beside each other when the MLP is gated; NULL: no MLP */
    struct weight *down;
    bool gated;
    const struct weight *const *order; /* its place in forward->order */
};

struct forward {
    const struct model *model;
    const struct ops *ops;
    struct backend *backend;
    int max_rows, max_logits;
    bool poison;

    struct table *tokens, *positions;
    double *frequencies; /* device; sinusoidal positions */
    struct device_norm embedding_norm, final_norm;
    struct weight *head;
    struct block *blocks; /* [num_layers] */
    /* of a step's products, in their order: of each block, of the head, and the first again; NULL
     * ends it */
    const struct weight **order, *const *after_blocks;
    struct mixer_context context;

    struct mixer_workspace workspace;
    struct rows x, normed, hidden; /* [N, D] x2, [N, 2 * intermediate] */
    struct rows last, logits;      /* [L, D], [L, V] */
    void *memory;                  /* all of the workspace */
    size_t memory_bytes;
};

static int upload_norm(struct forward *forward, struct device_norm *out, const struct norm *norm,
                       struct error *err)
{
    out->kind = norm->kind;
    out->eps = norm->eps;
    return mixer_scale_upload(&forward->context, norm->weight, norm->bias,
                              (size_t)forward->model->hidden_size, &out->scale, err);
}

static int open_block(struct forward *forward, struct block *block, const struct layer *layer,
                      struct error *err)
{
    block->gated = layer->gate_proj.rows > 0;
    struct matrix up[2] = {layer->up_proj};
    if (block->gated) {
        up[0] = layer->gate_proj;
        up[1] = layer->up_proj;
    }
    if (upload_norm(forward, &block->attn_norm, &layer->attn_norm, err) != 0)
        return -1;
    if (layer->up_proj.rows > 0 &&
        (upload_norm(forward, &block->mlp_norm, &layer->mlp_norm, err) != 0 ||
         mixer_pack(&forward->context, &block->up, up, block->gated ? 2 : 1, 1, err) != 0 ||
         mixer_pack(&forward->context, &block->down, &layer->down_proj, 1, 1, err) != 0))
        return -1;
    return mixer_create(&block->mixer, &layer->mixer, &forward->context, err);
}

static int open_embeddings(struct forward *forward, struct error *err)
{
    const struct model *model = forward->model;
    const struct ops *ops = forward->ops;
    if (ops->table_create(forward->backend, &forward->tokens, &model->embeddings, err) != 0)
        return -1;
    if (model->position_embedding == POSITION_EMBEDDING_LEARNED)
        return ops->table_create(forward->backend, &forward->positions, &model->position_embeddings,
                                 err);
    if (model->position_embedding != POSITION_EMBEDDING_SINUSOIDAL)
        return 0;
    size_t count = (size_t)model->hidden_size / 2;
    double *frequencies = calloc(count + 1, sizeof *frequencies);
    if (frequencies == NULL)
        return error_set(err, ERROR_NO_MEMORY, "positions: no memory");
    for (size_t i = 0; i < count; i++)
        frequencies[i] = pow(10000.0, -2.0 * (double)i / model->hidden_size);
    void *device = NULL;
    int result =
        ops->upload(forward->backend, frequencies, (count + 1) * sizeof *frequencies, &device, err);
    forward->frequencies = device;
    free(frequencies);
    return result;
}

/* Of a block in forward->order: the mixer's two and the MLP's two. */
enum { BLOCK_PRODUCTS = 4, MIXER_PRODUCTS = 2 };

static int block_products(const struct block *block)
{
    return block->up != NULL ? BLOCK_PRODUCTS : MIXER_PRODUCTS;
}

/* Whether mixer and MLP see the same x. */
static bool is_parallel(const struct forward *forward, const struct block *block)
{
    return forward->model->parallel_residual && block->up != NULL;
}

/* Lists the weights, which must be there. */
static int open_order(struct forward *forward, struct error *err)
{
    int layers = forward->model->num_layers;
    forward->order = calloc((size_t)layers * BLOCK_PRODUCTS + 3, sizeof *forward->order);
    if (forward->order == NULL)
        return error_set(err, ERROR_NO_MEMORY, "model: no memory for %d layers", layers);
    const struct weight **at = forward->order;
    for (int i = 0; i < layers; i++) {
        struct block *block = &forward->blocks[i];
        int mixer = is_parallel(forward, block) ? 1 : 0; /* its first */
        block->order = at;
        at[mixer] = block->mixer.project;
        at[mixer + 1] = block->mixer.output;
        if (block->up != NULL) {
            at[mixer == 1 ? 0 : 2] = block->up;
            at[3] = block->down;
        }
        at += block_products(block);
    }
    forward->after_blocks = at;
    at[0] = forward->head;
    at[1] = forward->order[0];
    return 0;
}

static int open_weights(struct forward *forward, const struct forward_options *options,
                        struct error *err)
{
    const struct model *model = forward->model;
    forward->blocks = calloc((size_t)model->num_layers, sizeof *forward->blocks);
    if (forward->blocks == NULL)
        return error_set(err, ERROR_NO_MEMORY, "model: no memory for %d layers", model->num_layers);
    if (open_embeddings(forward, err) != 0 ||
        upload_norm(forward, &forward->embedding_norm, &model->embedding_norm, err) != 0 ||
        upload_norm(forward, &forward->final_norm, &model->final_norm, err) != 0)
        return -1;
    for (int i = 0; i < model->num_layers; i++) {
        forward->context.layer = i;
        if (open_block(forward, &forward->blocks[i], &model->layers[i], err) != 0)
            return error_prefix(err, "layer %d", i);
        if (options->progress != NULL)
            options->progress(options->progress_context, (i + 1.0) / (model->num_layers + 1.0));
    }
    if (mixer_pack(&forward->context, &forward->head, &model->lm_head, 1, 1, err) != 0)
        return -1;
    model_all_packed(model);
    if (options->progress != NULL)
        options->progress(options->progress_context, 1.0);
    return open_order(forward, err);
}

struct buffer {
    struct rows *rows;
    int64_t width;
    int count;
};

/* Carves all buffers out of one reservation; rows begin on 64-byte boundaries. */
static int open_workspace(struct forward *forward, struct error *err)
{
    const struct model *model = forward->model;
    const struct mixer_widths *widths = &forward->context.widths;
    struct mixer_workspace *w = &forward->workspace;
    int n = forward->max_rows, logits = forward->max_logits, d = model->hidden_size;
    int64_t intermediate = 0;
    for (int i = 0; i < model->num_layers; i++)
        mixer_widen(&intermediate,
                    model->layers[i].up_proj.rows * (forward->blocks[i].gated ? 2 : 1));
    const struct buffer buffers[] = {
        {&forward->x, d, n},
        {&forward->normed, d, n},
        {&forward->hidden, intermediate, n},
        {&forward->last, d, logits},
        {&forward->logits, model->vocab_size, logits},
        {&w->project, widths->project, n},
        {&w->shared, widths->shared, n},
        {&w->turned, widths->turned, n},
        {&w->mapped_q, widths->mapped, n},
        {&w->mapped_k, widths->mapped, n},
        {&w->maxima, widths->maxima, n},
        {&w->low_rank, widths->low_rank, n},
        {&w->h, widths->values, n},
        {&w->cosines, widths->angles, n},
        {&w->sines, widths->angles, n},
        {&w->vectors, widths->vectors, n},
    };
    size_t total = 0, count = sizeof buffers / sizeof *buffers;
    for (size_t i = 0; i < count; i++) {
        /* logits leave the engine as one dense array */
        int64_t stride =
            buffers[i].rows == &forward->logits ? buffers[i].width : (buffers[i].width + 15) & ~15;
        size_t bytes;
        buffers[i].rows->stride = stride;
        if (__builtin_mul_overflow((size_t)stride * sizeof(float), (size_t)buffers[i].count,
                                   &bytes) ||
            __builtin_add_overflow(total, (bytes + 63) & ~(size_t)63, &total))
            return error_set(err, ERROR_INVALID, "max_step_tokens: the workspace is too large");
    }
    forward->memory_bytes = total;
    if (forward->ops->reserve(forward->backend, total, &forward->memory, err) != 0)
        return -1;
    if (forward->poison)
        forward->ops->fill(forward->backend, forward->memory, NAN, total / sizeof(float));
    char *at = forward->memory;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = (size_t)buffers[i].rows->stride * sizeof(float) * (size_t)buffers[i].count;
        buffers[i].rows->data = (float *)(void *)at;
        at += (bytes + 63) & ~(size_t)63;
    }
    return 0;
}

static int64_t padded(int64_t input)
{
    return (input + 31) / 32 * 32;
}

static int64_t longest_input(const struct forward *forward)
{
    const struct model *model = forward->model;
    int64_t longest = padded(model->hidden_size);
    for (int i = 0; i < model->num_layers; i++) {
        const struct layer *layer = &model->layers[i];
        const struct matrix *matrix;
        for (size_t m = 0; (matrix = model_layer_matrix(layer, m)) != NULL; m++)
            mixer_widen(&longest, padded(matrix->cols));
        /* a feature map's matrices have a part of it for each head */
        for (const struct mixer *m = &layer->mixer; m != NULL; m = m->second)
            mixer_widen(&longest, (int64_t)m->num_heads * padded(m->head_dim));
    }
    return longest;
}

int forward_open(struct forward **out, const struct model *model, const struct ops *ops,
                 struct backend *backend, const struct forward_options *options, struct error *err)
{
    struct forward *forward = calloc(1, sizeof *forward);
    if (forward == NULL)
        return error_set(err, ERROR_NO_MEMORY, "model: no memory");
    forward->model = model;
    forward->ops = ops;
    forward->backend = backend;
    forward->max_rows = options->max_rows;
    forward->max_logits = options->max_logits;
    forward->poison = options->poison;
    forward->context.ops = ops;
    forward->context.backend = backend;
    forward->context.model = model;
    forward->context.hidden_size = model->hidden_size;
    forward->context.layout.kv = options->kv;
    forward->context.weights = options->weights;
    if (model->position_embedding == POSITION_EMBEDDING_LEARNED)
        forward->context.layout.max_positions = model->max_position_embeddings;
    if (open_weights(forward, options, err) != 0 || open_workspace(forward, err) != 0)
        goto fail;
    const struct ops_limits limits = {
        .max_rows = options->max_rows,
        .max_logits = options->max_logits,
        .max_value_dim = forward->context.max_value_dim,
        .vocab_size = model->vocab_size,
        .max_input = longest_input(forward),
        .max_head_dim = forward->context.max_head_dim,
        .max_features = forward->context.max_features,
        .max_linear_heads = forward->context.max_linear_heads,
        .max_shared_state = forward->context.max_shared_state,
        .max_key_dim = forward->context.max_key_dim,
        .max_softmax_value_dim = forward->context.max_softmax_value_dim,
        .max_keys = forward->context.max_keys,
    };
    if (ops->prepare(backend, &limits, err) != 0)
        goto fail;
    *out = forward;
    return 0;
fail:
    forward_close(forward);
    return -1;
}

void forward_close(struct forward *forward)
{
    if (forward == NULL)
        return;
    const struct ops *ops = forward->ops;
    struct backend *backend = forward->backend;
    for (int i = 0; forward->blocks != NULL && i < forward->model->num_layers; i++) {
        struct block *block = &forward->blocks[i];
        mixer_scale_unload(&block->attn_norm.scale, ops, backend);
        mixer_scale_unload(&block->mlp_norm.scale, ops, backend);
        ops->weight_free(backend, block->up);
        ops->weight_free(backend, block->down);
        if (block->mixer.config != NULL)
            mixer_clear(&block->mixer, ops, backend);
    }
    free(forward->blocks);
    free(forward->order);
    mixer_scale_unload(&forward->embedding_norm.scale, ops, backend);
    mixer_scale_unload(&forward->final_norm.scale, ops, backend);
    ops->weight_free(backend, forward->head);
    ops->table_free(backend, forward->tokens);
    ops->table_free(backend, forward->positions);
    ops->unload(backend, forward->frequencies);
    for (int i = 0; i < forward->context.num_thetas; i++) {
        free(forward->context.thetas[i].host);
        ops->unload(backend, forward->context.thetas[i].device);
    }
    free(forward->context.thetas);
    state_layout_clear(&forward->context.layout);
    if (forward->memory != NULL)
        ops->release(backend, forward->memory, forward->memory_bytes);
    free(forward);
}

const struct state_layout *forward_layout(const struct forward *forward)
{
    return &forward->context.layout;
}

size_t forward_weights_bytes(const struct forward *forward, enum weight_format format)
{
    return forward->context.weights_bytes[format];
}

size_t forward_workspace_bytes(const struct forward *forward)
{
    return forward->memory_bytes;
}

static struct ops_norm norm_of(const struct forward *forward, const struct device_norm *norm,
                               int num_rows, struct rows x, struct rows y)
{
    return (struct ops_norm){.kind = norm->kind,
                             .eps = norm->eps,
                             .weight = norm->scale.weight,
                             .bias = norm->scale.bias,
                             .num_rows = num_rows,
                             .groups = 1,
                             .size = forward->model->hidden_size,
                             .x = x,
                             .y = y};
}

static enum formula activation(enum hidden_act act)
{
    switch (act) {
    case ACT_GELU:
        return FORMULA_GELU;
    case ACT_GELU_NEW:
        return FORMULA_GELU_NEW;
    case ACT_RELU:
        return FORMULA_RELU;
    case ACT_SILU:
        return FORMULA_SILU;
    }
    return FORMULA_IDENTITY;
}

/* hidden = what the MLP makes of x, before its last product and, with a gate, what comes before
 * that: gate and up beside each other. next: see ops_matmul. */
static void run_mlp(struct forward *forward, const struct block *block, int num_rows,
                    const struct weight *const *next)
{
    enum formula act = activation(forward->model->hidden_act);
    const struct ops_norm norm =
        norm_of(forward, &block->mlp_norm, num_rows, forward->x, forward->normed);
    forward->ops->matmul(forward->backend,
                         &(struct ops_matmul){.weight = block->up,
                                              .num_rows = num_rows,
                                              .x = forward->normed,
                                              .y = forward->hidden,
                                              .activation = block->gated ? FORMULA_IDENTITY : act,
                                              .norm = &norm,
                                              .next = next});
}

/* hidden = act(gate) * up, of what run_mlp has left there. */
static struct ops_norm gate_of(const struct forward *forward, int index, int num_rows)
{
    int64_t size = forward->model->layers[index].up_proj.rows;
    return (struct ops_norm){.kind = NORM_NONE,
                             .num_rows = num_rows,
                             .groups = 1,
                             .size = (int)size,
                             .x = mixer_columns(forward->hidden, size),
                             .y = forward->hidden,
                             .formula = activation(forward->model->hidden_act),
                             .gate = forward->hidden};
}

static void run_block(struct forward *forward, int index, int num_rows)
{
    const struct block *block = &forward->blocks[index];
    const struct ops_norm norm =
        norm_of(forward, &block->attn_norm, num_rows, forward->x, forward->normed);
    const struct weight *const *order = block->order;
    bool parallel = is_parallel(forward, block);
    if (parallel) /* both see the same x */
        run_mlp(forward, block, num_rows, order + 1);
    mixer_run(&block->mixer, forward->ops, forward->backend, &forward->workspace, &norm, forward->x,
              order + (parallel ? 2 : 1));
    if (block->up == NULL)
        return;
    if (!parallel)
        run_mlp(forward, block, num_rows, order + 3);
    const struct ops_norm gate = gate_of(forward, index, num_rows);
    forward->ops->matmul(forward->backend, &(struct ops_matmul){.weight = block->down,
                                                                .num_rows = num_rows,
                                                                .x = forward->hidden,
                                                                .y = forward->x,
                                                                .accumulate = true,
                                                                .norm = block->gated ? &gate : NULL,
                                                                .next = order + BLOCK_PRODUCTS});
}

/* The logits of the rows that want them. */
static void run_head(struct forward *forward, const struct batch *batch)
{
    const struct ops *ops = forward->ops;
    struct rows x = forward->x, last = forward->last;
    if (!batch_wants_all_rows(batch)) {
        ops->gather(forward->backend, x, last, forward->model->hidden_size);
        x = last;
    }
    const struct ops_norm norm = norm_of(forward, &forward->final_norm, batch->num_logits, x, last);
    ops->matmul(forward->backend, &(struct ops_matmul){.weight = forward->head,
                                                       .num_rows = batch->num_logits,
                                                       .x = last,
                                                       .y = forward->logits,
                                                       .norm = &norm,
                                                       .next = forward->after_blocks + 1});
}

/* What is not drawn from comes back, in forward_collect. */
static void send(struct forward *forward, const struct batch *batch)
{
    const struct ops *ops = forward->ops;
    const float *logits = forward->logits.data;
    size_t vocab_size = (size_t)forward->model->vocab_size;
    size_t kept = (size_t)(batch->num_logits - batch->num_draws) * vocab_size;
    if (batch->num_draws > 0)
        ops->draw(forward->backend, logits + kept, forward->model->vocab_size, batch->draws,
                  batch->num_draws);
    ops->send(forward->backend, logits, kept);
}

const float *forward_collect(struct forward *forward)
{
    return forward->ops->receive(forward->backend);
}

void forward_submit(struct forward *forward, const struct batch *batch)
{
    const struct model *model = forward->model;
    const struct ops *ops = forward->ops;
    struct backend *backend = forward->backend;
    int num_rows = batch->num_rows;
    forward->workspace.angles_of = NULL;

    ops->begin(backend, batch);
    ops->embed(backend, &(struct ops_embed){.tokens = forward->tokens,
                                            .scale = model->embedding_scale,
                                            .position_embedding = model->position_embedding,
                                            .positions = forward->positions,
                                            .frequencies = forward->frequencies,
                                            .hidden_size = model->hidden_size,
                                            .x = forward->x});
    if (model->embedding_norm.kind != NORM_NONE) {
        const struct ops_norm norm =
            norm_of(forward, &forward->embedding_norm, num_rows, forward->x, forward->x);
        ops->norm(backend, &norm);
    }
    for (int i = 0; i < model->num_layers; i++)
        run_block(forward, i, num_rows);
    if (batch->num_logits > 0)
        run_head(forward, batch);
    send(forward, batch);
}
