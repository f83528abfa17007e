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

/* A mixer or an MLP. Each has two products of the residual stream's size. */
struct device_branch {
    const struct branch *config;
    struct device_norm pre;
    struct mixer_layer mixer;
    struct weight *up; /* gate and up beside each other when the MLP is gated */
    struct weight *down;
};
enum { BRANCH_PRODUCTS = 2 };

struct device_block {
    const struct block *config;
    struct device_norm input, post;
    struct device_branch branches[BLOCK_MAX_BRANCHES];
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
    struct device_block *blocks; /* [num_blocks]: of all layers, in order */
    int num_blocks;
    /* of a step's products, in their order: of each block, of the head, and the first again; NULL
     * ends it */
    const struct weight **order, *const *after_blocks;
    struct mixer_context context;

    struct mixer_workspace workspace;
    struct rows x, normed, hidden; /* [N, D] x2, [N, 2 * intermediate] */
    struct rows sum, part;    /* [N, D]: of blocks that do not add right into x, if there are any */
    struct rows last, logits; /* [L, D], [L, V] */
    void *memory;             /* all of the workspace */
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

static int open_mlp(struct forward *forward, struct device_branch *branch, const struct mlp *mlp,
                    struct error *err)
{
    struct mixer_stack up = {0};
    mixer_stack_add(&up, mlp, mlp_matrices, MLP_MATRIX_COUNT, MATRIX_OF_X, NULL);
    if (mixer_pack(&forward->context, &branch->up, up.parts, up.count, 1, err) != 0)
        return -1;
    return mixer_pack(&forward->context, &branch->down, &mlp->down_proj, 1, 1, err);
}

static int open_block(struct forward *forward, struct device_block *block,
                      const struct block *config, struct error *err)
{
    block->config = config;
    if (upload_norm(forward, &block->input, &config->input, err) != 0 ||
        upload_norm(forward, &block->post, &config->post, err) != 0)
        return -1;
    for (int i = 0; i < config->num_branches; i++) {
        struct device_branch *branch = &block->branches[i];
        branch->config = &config->branches[i];
        if (upload_norm(forward, &branch->pre, &branch->config->pre, err) != 0)
            return -1;
        const struct mlp *mlp = branch->config->mlp;
        int result = mlp != NULL ? open_mlp(forward, branch, mlp, err)
                                 : mixer_create(&branch->mixer, branch->config->mixer,
                                                &forward->context, err);
        if (result != 0)
            return -1;
    }
    return 0;
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

/* Whether the block's branches add right into x: x += mixer; x += mlp, or both of the same x. */
static bool is_direct(const struct block *block)
{
    bool direct = block->input.kind == NORM_NONE && block->post.kind == NORM_NONE &&
                  block->alpha == 1 && block->beta == 1;
    for (int i = 0; i < block->num_branches; i++)
        direct &= block->branches[i].scale == 1 && (i == 0 || block->branches[i].mlp != NULL);
    return direct && (block->num_branches == 1 || block->branches[0].mixer != NULL);
}

/* Lists the weights, which must be there. */
static int open_order(struct forward *forward, struct error *err)
{
    const size_t most = (size_t)forward->num_blocks * BLOCK_MAX_BRANCHES * BRANCH_PRODUCTS;
    forward->order = calloc(most + 3, sizeof *forward->order);
    if (forward->order == NULL)
        return error_set(err, ERROR_NO_MEMORY, "model: no memory for %d blocks",
                         forward->num_blocks);
    const struct weight **at = forward->order;
    for (int i = 0; i < forward->num_blocks; i++) {
        struct device_block *block = &forward->blocks[i];
        const int count = block->config->num_branches;
        block->order = at;
        for (int b = 0; b < count; b++) {
            const struct device_branch *branch = &block->branches[b];
            const bool mixes = branch->config->mixer != NULL;
            *at++ = mixes ? branch->mixer.project : branch->up;
            *at++ = mixes ? branch->mixer.output : branch->down;
        }
        if (count == 2 && is_direct(block->config)) { /* the MLP's first comes before all */
            const struct weight **first = at - 4, *up = first[2];
            first[2] = first[1];
            first[1] = first[0];
            first[0] = up;
        }
    }
    forward->after_blocks = at;
    at[0] = forward->head;
    at[1] = forward->order[0];
    return 0;
}

static int open_layer(struct forward *forward, const struct layer *layer, struct error *err)
{
    for (int i = 0; i < layer->num_blocks; i++) {
        struct device_block *block = &forward->blocks[forward->num_blocks++];
        if (open_block(forward, block, &layer->blocks[i], err) != 0)
            return -1;
    }
    return 0;
}

static int open_weights(struct forward *forward, const struct forward_options *options,
                        struct error *err)
{
    const struct model *model = forward->model;
    size_t blocks = 0;
    for (int i = 0; i < model->num_layers; i++)
        blocks += (size_t)model->layers[i].num_blocks;
    forward->blocks = calloc(blocks, sizeof *forward->blocks);
    if (forward->blocks == NULL)
        return error_set(err, ERROR_NO_MEMORY, "model: no memory for %d layers", model->num_layers);
    if (open_embeddings(forward, err) != 0 ||
        upload_norm(forward, &forward->embedding_norm, &model->embedding_norm, err) != 0 ||
        upload_norm(forward, &forward->final_norm, &model->final_norm, err) != 0)
        return -1;
    for (int i = 0; i < model->num_layers; i++) {
        forward->context.layer = i;
        if (open_layer(forward, &model->layers[i], err) != 0)
            return error_prefix(err, "layer %d", i);
    }
    if (mixer_pack_head(&forward->context, &forward->head, &model->lm_head, err) != 0)
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
    int64_t intermediate = 0, sum = 0;
    for (int i = 0; i < forward->num_blocks; i++) {
        const struct block *block = forward->blocks[i].config;
        for (int b = 0; b < block->num_branches; b++) {
            const struct mlp *mlp = block->branches[b].mlp;
            if (mlp != NULL)
                mixer_widen(&intermediate, mlp->gate_proj.rows + mlp->up_proj.rows);
        }
        mixer_widen(&sum, is_direct(block) ? 0 : d);
    }
    const struct buffer buffers[] = {
        {&forward->x, d, n},
        {&forward->normed, d, n},
        {&forward->hidden, intermediate, n},
        {&forward->sum, sum, n},
        {&forward->part, sum, n},
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
        const struct branch *branch;
        for (int b = 0; (branch = layer_branch(&model->layers[i], b)) != NULL; b++) {
            const struct matrix *matrix;
            for (size_t m = 0; (matrix = branch_matrix(branch, m, NULL)) != NULL; m++)
                mixer_widen(&longest, padded(matrix->cols));
            /* a feature map's matrices have a part of it for each head */
            for (const struct mixer *m = branch->mixer; m != NULL; m = m->second)
                mixer_widen(&longest, (int64_t)m->num_heads * padded(m->head_dim));
        }
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
    forward->context.progress = options->progress;
    forward->context.progress_context = options->progress_context;
    forward->context.packed = model->position_embeddings.rows * model->position_embeddings.cols +
                              (model->tied ? 0 : model->embeddings.rows * model->embeddings.cols);
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

static void close_block(struct device_block *block, const struct ops *ops, struct backend *backend)
{
    mixer_scale_unload(&block->input.scale, ops, backend);
    mixer_scale_unload(&block->post.scale, ops, backend);
    for (int i = 0; i < BLOCK_MAX_BRANCHES; i++) {
        struct device_branch *branch = &block->branches[i];
        mixer_scale_unload(&branch->pre.scale, ops, backend);
        ops->weight_free(backend, branch->up);
        ops->weight_free(backend, branch->down);
        if (branch->mixer.config != NULL)
            mixer_clear(&branch->mixer, ops, backend);
    }
}

void forward_close(struct forward *forward)
{
    if (forward == NULL)
        return;
    const struct ops *ops = forward->ops;
    struct backend *backend = forward->backend;
    for (int i = 0; i < forward->num_blocks; i++)
        close_block(&forward->blocks[i], ops, backend);
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
    case ACT_RELU2:
        return FORMULA_RELU2;
    }
    return FORMULA_IDENTITY;
}

/* The norm before a branch's first product; NULL: there is none. */
static const struct ops_norm *norm_before(const struct forward *forward,
                                          const struct device_branch *branch, int num_rows,
                                          struct ops_norm *norm)
{
    if (branch->pre.kind == NORM_NONE)
        return NULL;
    *norm = norm_of(forward, &branch->pre, num_rows, forward->x, forward->normed);
    return norm;
}

/* hidden = what the MLP makes of x, before its last product and, with a gate, what comes before
 * that: gate and up beside each other. next: see ops_matmul. */
static void run_up(struct forward *forward, const struct device_branch *branch, int num_rows,
                   const struct weight *const *next)
{
    const struct mlp *mlp = branch->config->mlp;
    struct ops_norm room;
    const struct ops_norm *norm = norm_before(forward, branch, num_rows, &room);
    const bool gated = mlp->gate_proj.rows > 0;
    forward->ops->matmul(
        forward->backend,
        &(struct ops_matmul){.weight = branch->up,
                             .num_rows = num_rows,
                             .x = norm != NULL ? norm->y : forward->x,
                             .y = forward->hidden,
                             .activation = gated ? FORMULA_IDENTITY : activation(mlp->act),
                             .norm = norm,
                             .next = next});
}

/* Of what run_up has left in hidden. */
static void run_down(struct forward *forward, const struct device_branch *branch, int num_rows,
                     struct rows out, bool accumulate, const struct weight *const *next)
{
    const struct mlp *mlp = branch->config->mlp;
    const int64_t size = mlp->up_proj.rows;
    if (mlp->gate_scale != 1)
        forward->ops->map(forward->backend, &(struct ops_map){.formula = FORMULA_SCALE,
                                                              .constant = mlp->gate_scale,
                                                              .num_rows = num_rows,
                                                              .num_cols = (int)size,
                                                              .out = forward->hidden,
                                                              .u = forward->hidden});
    const struct ops_norm gate = {.kind = NORM_NONE,
                                  .num_rows = num_rows,
                                  .groups = 1,
                                  .size = (int)size,
                                  .x = mixer_columns(forward->hidden, size),
                                  .y = forward->hidden,
                                  .formula = activation(mlp->act),
                                  .gate = forward->hidden};
    forward->ops->matmul(forward->backend,
                         &(struct ops_matmul){.weight = branch->down,
                                              .num_rows = num_rows,
                                              .x = forward->hidden,
                                              .y = out,
                                              .accumulate = accumulate,
                                              .norm = mlp->gate_proj.rows > 0 ? &gate : NULL,
                                              .next = next});
}

static void run_mixer(struct forward *forward, const struct device_branch *branch, int num_rows,
                      struct rows out, bool accumulate, const struct weight *const *next)
{
    struct ops_norm room;
    mixer_run(&branch->mixer, forward->ops, forward->backend, &forward->workspace,
              &(struct mixer_step){.num_rows = num_rows,
                                   .x = forward->x,
                                   .norm = norm_before(forward, branch, num_rows, &room),
                                   .out = out,
                                   .accumulate = accumulate,
                                   .next = next});
}

/* x += each branch; both see the same x. */
static void run_direct(struct forward *forward, const struct device_block *block, int num_rows)
{
    const struct weight *const *order = block->order;
    const struct device_branch *first = &block->branches[0], *second = &block->branches[1];
    if (block->config->num_branches == 2) {
        run_up(forward, second, num_rows, order + 1);
        run_mixer(forward, first, num_rows, forward->x, true, order + 2);
        run_down(forward, second, num_rows, forward->x, true, order + 4);
    } else if (first->config->mixer != NULL) {
        run_mixer(forward, first, num_rows, forward->x, true, order + 1);
    } else {
        run_up(forward, first, num_rows, order + 1);
        run_down(forward, first, num_rows, forward->x, true, order + 2);
    }
}

/* out = u + scale * w, or scale * w where there is no u. */
static void add_scaled(struct forward *forward, int num_rows, struct rows out, struct rows u,
                       struct rows w, float scale)
{
    struct ops_map map = {.formula = FORMULA_SCALED_SUM,
                          .constant = scale,
                          .num_rows = num_rows,
                          .num_cols = forward->model->hidden_size,
                          .out = out,
                          .u = u,
                          .w = w};
    if (u.data == NULL) {
        map.formula = FORMULA_SCALE;
        map.u = w;
        map.w = (struct rows){0};
    }
    forward->ops->map(forward->backend, &map);
}

static void norm_in_place(struct forward *forward, const struct device_norm *device, int num_rows,
                          struct rows x)
{
    const struct ops_norm norm = norm_of(forward, device, num_rows, x, x);
    if (norm.kind != NORM_NONE)
        forward->ops->norm(forward->backend, &norm);
}

/* x = alpha x + beta post(sum of the branches). */
static void run_general(struct forward *forward, const struct device_block *block, int num_rows)
{
    const struct block *config = block->config;
    const struct rows none = {0}, x = forward->x, sum = forward->sum;
    norm_in_place(forward, &block->input, num_rows, x);
    for (int i = 0; i < config->num_branches; i++) {
        const struct device_branch *branch = &block->branches[i];
        const struct weight *const *next = block->order + (ptrdiff_t)i * BRANCH_PRODUCTS + 1;
        const bool alone = i == 0 && branch->config->scale == 1;
        const struct rows out = alone ? sum : forward->part;
        if (branch->config->mixer != NULL) {
            run_mixer(forward, branch, num_rows, out, false, next);
        } else {
            run_up(forward, branch, num_rows, next);
            run_down(forward, branch, num_rows, out, false, next + 1);
        }
        if (!alone)
            add_scaled(forward, num_rows, sum, i == 0 ? none : sum, out, branch->config->scale);
    }
    norm_in_place(forward, &block->post, num_rows, sum);
    if (config->alpha != 1)
        add_scaled(forward, num_rows, x, none, x, config->alpha);
    add_scaled(forward, num_rows, x, x, sum, config->beta);
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
    const struct model *model = forward->model;
    struct ops_map map = {.formula = FORMULA_SCALE,
                          .constant = model->logit_scale,
                          .num_rows = batch->num_logits,
                          .num_cols = model->vocab_size,
                          .out = forward->logits,
                          .u = forward->logits};
    if (model->logit_scale != 1)
        ops->map(forward->backend, &map);
    map.formula = FORMULA_SOFTCAP;
    map.constant = model->logit_softcap;
    if (model->logit_softcap != 0)
        ops->map(forward->backend, &map);
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
    for (int i = 0; i < forward->num_blocks; i++) {
        const struct device_block *block = &forward->blocks[i];
        if (is_direct(block->config))
            run_direct(forward, block, num_rows);
        else
            run_general(forward, block, num_rows);
    }
    if (batch->num_logits > 0)
        run_head(forward, batch);
    send(forward, batch);
}
