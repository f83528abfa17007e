/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/forward.h"

#include "engine/mixers/mixer.h"

#include <math.h>
#include <stdlib.h>

struct forward {
    struct program program;
    int32_t vocab_size;
};

/* ---- the program ---- */

static struct ops_norm norm_of(struct emitter *emitter, const struct norm *norm, struct rows x,
                               struct rows y)
{
    const size_t size = (size_t)emitter->model->hidden_size;
    const struct mixer_scale scale = mixer_scale_upload(emitter, norm->weight, norm->bias, size);
    return (struct ops_norm){.kind = norm->kind,
                             .eps = norm->eps,
                             .weight = scale.weight,
                             .bias = scale.bias,
                             .groups = 1,
                             .size = (int)size,
                             .x = x,
                             .y = y};
}

static void norm_in_place(struct emitter *emitter, const struct norm *norm, struct rows x)
{
    if (norm->kind == NORM_NONE)
        return;
    const struct ops_norm call = norm_of(emitter, norm, x, x);
    emitter_norm(emitter, &call);
}

/* The frequencies of sinusoidal positions, on the device. */
static const double *upload_frequencies(struct emitter *emitter)
{
    const int hidden_size = emitter->model->hidden_size;
    const size_t count = (size_t)hidden_size / 2;
    double *frequencies = calloc(count + 1, sizeof *frequencies);
    if (frequencies == NULL) {
        emitter_no_memory(emitter, "positions");
        return NULL;
    }
    for (size_t i = 0; i < count; i++)
        frequencies[i] = pow(10000.0, -2.0 * (double)i / hidden_size);
    const double *device = emitter_upload(emitter, frequencies, (count + 1) * sizeof *frequencies);
    free(frequencies);
    return device;
}

static void scale_rows(struct emitter *emitter, struct rows x, int64_t size, double factor)
{
    emitter_map(emitter, &(struct ops_map){.formula = FORMULA_SCALE,
                                           .constant = (float)factor,
                                           .num_cols = (int)size,
                                           .out = x,
                                           .u = x});
}

/* The inputs of all layers, of the embeddings x (struct model). */
static void emit_layer_inputs(struct emitter *emitter, struct rows x)
{
    const struct model *model = emitter->model;
    const int64_t width = model->layer_proj.rows;
    const struct emitter_stack stack = {
        .parts = {model->layer_proj}, .names = {"layer_proj"}, .count = 1, .width = width};
    const struct rows own = emitter_rows(emitter, width), sum = emitter_rows(emitter, width);
    struct program *program = emitter->program;
    program->layer_tokens = emitter_table(emitter, &model->layer_embeddings);
    emitter_embed(emitter, &(struct ops_embed){.tokens = program->layer_tokens,
                                               .scale = (float)sqrt((double)model->layer_size),
                                               .hidden_size = (int)width,
                                               .x = own});
    emitter_product(emitter, emitter_pack(emitter, &stack), &(struct ops_matmul){.x = x, .y = sum});
    scale_rows(emitter, sum, width, 1 / sqrt((double)model->hidden_size));
    emitter_norm(emitter,
                 &(struct ops_norm){.kind = model->layer_norm.kind,
                                    .eps = model->layer_norm.eps,
                                    .weight = mixer_scale_upload(emitter, model->layer_norm.weight,
                                                                 NULL, (size_t)model->layer_size)
                                                  .weight,
                                    .groups = model->num_layers,
                                    .size = model->layer_size,
                                    .x = sum,
                                    .y = sum});
    emitter_map(
        emitter,
        &(struct ops_map){
            .formula = FORMULA_SUM, .num_cols = (int)width, .out = sum, .u = sum, .w = own});
    scale_rows(emitter, sum, width, 1 / sqrt(2.0));
    emitter->layer_inputs = sum;
}

static void emit_embeddings(struct emitter *emitter, struct rows x)
{
    const struct model *model = emitter->model;
    struct program *program = emitter->program;
    struct ops_embed call = {.scale = model->embedding_scale,
                             .position_embedding = model->position_embedding,
                             .hidden_size = model->hidden_size,
                             .x = x};
    call.tokens = program->tokens = emitter_table(emitter, &model->embeddings);
    if (model->position_embedding == POSITION_EMBEDDING_LEARNED) {
        call.positions = program->positions = emitter_table(emitter, &model->position_embeddings);
        program->layout.max_positions = model->max_position_embeddings;
    }
    if (model->position_embedding == POSITION_EMBEDDING_SINUSOIDAL)
        call.frequencies = upload_frequencies(emitter);
    emitter_embed(emitter, &call);
    norm_in_place(emitter, &model->embedding_norm, x);
    if (model->layer_size > 0)
        emit_layer_inputs(emitter, x);
}

/* pre(x), into a buffer of its own where the token shift changes it there. */
static struct rows emit_shift(struct emitter *emitter, const struct branch *branch, struct rows x)
{
    const int size = emitter->model->hidden_size;
    const struct rows out = emitter_rows(emitter, size);
    if (branch->pre.kind != NORM_NONE) {
        const struct ops_norm norm = norm_of(emitter, &branch->pre, x, out);
        emitter_norm(emitter, &norm);
    } else {
        emitter_map(emitter, &(struct ops_map){.num_cols = size, .out = out, .u = x});
    }
    convolution_emit(emitter, &branch->shift, size, out);
    return out;
}

/* What a branch reads, behind the norm before it, and that it writes out. */
static struct branch_ends ends_of(struct emitter *emitter, const struct branch *branch,
                                  struct rows x, struct rows out, struct ops_norm *room)
{
    struct branch_ends ends = {.x = x, .out = out};
    if (branch->shift.width > 0) {
        ends.x = emit_shift(emitter, branch, x);
    } else if (branch->pre.kind != NORM_NONE) {
        const struct rows normed = emitter_rows(emitter, emitter->model->hidden_size);
        *room = norm_of(emitter, &branch->pre, x, normed);
        ends.norm = room;
    }
    return ends;
}

static void emit_branch(struct emitter *emitter, const struct branch *branch,
                        const struct branch_ends *ends)
{
    if (branch->mixer != NULL) {
        mixer_emit(emitter, branch->mixer, ends);
    } else {
        const struct mlp_hidden hidden = mlp_emit_up(emitter, branch->mlp, ends);
        mlp_emit_down(emitter, branch->mlp, &hidden, ends);
    }
}

/* Whether the block's branches add right into x: x += mixer; x += mlp, or both of the same x. */
static bool is_direct(const struct block *block)
{
    bool direct = block->input.kind == NORM_NONE && block->post.kind == NORM_NONE &&
                  block->alpha == 1 && block->beta == 1;
    for (int i = 0; i < block->num_branches; i++)
        direct &= block->branches[i].scale == 1 && block->branches[i].post.kind == NORM_NONE &&
                  (i == 0 || block->branches[i].mlp != NULL);
    return direct && (block->num_branches == 1 || block->branches[0].mixer != NULL);
}

/* x += each branch. Of a mixer and an MLP the MLP reads x before the mixer adds to it. */
static void emit_direct(struct emitter *emitter, const struct block *block, struct rows x)
{
    struct ops_norm room[2];
    struct branch_ends first = ends_of(emitter, &block->branches[0], x, x, &room[0]);
    first.accumulate = true;
    if (block->num_branches == 1) {
        emit_branch(emitter, &block->branches[0], &first);
        return;
    }
    struct branch_ends second = ends_of(emitter, &block->branches[1], x, x, &room[1]);
    second.accumulate = true;
    const struct mlp *mlp = block->branches[1].mlp;
    const struct mlp_hidden hidden = mlp_emit_up(emitter, mlp, &second);
    mixer_emit(emitter, block->branches[0].mixer, &first);
    mlp_emit_down(emitter, mlp, &hidden, &second);
}

/* out = u + scale * w, or scale * w where there is no u. */
static void add_scaled(struct emitter *emitter, struct rows out, struct rows u, struct rows w,
                       float scale)
{
    const bool sum = u.data != NULL;
    emitter_map(emitter, &(struct ops_map){.formula = sum ? FORMULA_SCALED_SUM : FORMULA_SCALE,
                                           .constant = scale,
                                           .num_cols = emitter->model->hidden_size,
                                           .out = out,
                                           .u = sum ? u : w,
                                           .w = sum ? w : (struct rows){0}});
}

/* x = alpha x + beta post(sum of the branches). */
static void emit_general(struct emitter *emitter, const struct block *block, struct rows x)
{
    const int64_t size = emitter->model->hidden_size;
    const struct rows none = {0}, sum = emitter_rows(emitter, size);
    norm_in_place(emitter, &block->input, x);
    for (int i = 0; i < block->num_branches; i++) {
        const struct branch *branch = &block->branches[i];
        const bool alone = i == 0 && branch->scale == 1;
        const struct rows out = alone ? sum : emitter_rows(emitter, size);
        struct ops_norm room;
        const struct branch_ends ends = ends_of(emitter, branch, x, out, &room);
        emit_branch(emitter, branch, &ends);
        norm_in_place(emitter, &branch->post, out);
        if (!alone)
            add_scaled(emitter, sum, i == 0 ? none : sum, out, branch->scale);
    }
    norm_in_place(emitter, &block->post, sum);
    if (block->alpha != 1)
        add_scaled(emitter, x, none, x, block->alpha);
    add_scaled(emitter, x, x, sum, block->beta);
}

static void emit_layer(struct emitter *emitter, const struct layer *layer, struct rows x)
{
    for (int i = 0; i < layer->num_blocks && !emitter_failed(emitter); i++) {
        if (is_direct(&layer->blocks[i]))
            emit_direct(emitter, &layer->blocks[i], x);
        else
            emit_general(emitter, &layer->blocks[i], x);
    }
}

/* What the head reads, of all rows. */
static void emit_hidden(struct emitter *emitter, struct rows x)
{
    const struct norm *last = &emitter->model->final_norm;
    const struct rows hidden = emitter_hidden(emitter, emitter->model->hidden_size);
    emitter->when = WHEN_HIDDEN;
    const struct ops_norm norm = norm_of(emitter, last, x, hidden);
    emitter_norm(emitter, &norm);
}

/* The logits of the rows that want them, which are picked first where they are not all rows. */
static void emit_head(struct emitter *emitter, struct rows x)
{
    const struct model *model = emitter->model;
    const int size = model->hidden_size;
    emitter->when = WHEN_LOGITS;
    const struct rows picked = emitter_rows(emitter, size);
    const struct rows logits = emitter_logits(emitter, model->vocab_size);
    const struct program_weight *head = emitter_pack_head(emitter, "lm_head", &model->lm_head);
    struct ops_norm norm = norm_of(emitter, &model->final_norm, picked, picked);
    const struct ops_matmul product = {.x = picked, .y = logits, .norm = &norm};
    emitter->when = WHEN_SOME_LOGITS;
    emitter_gather(emitter, &(struct ops_gather){.x = x, .out = picked, .cols = size});
    emitter_product(emitter, head, &product);
    emitter->when = WHEN_ALL_LOGITS;
    norm.x = x;
    emitter_product(emitter, head, &product);
    emitter->when = WHEN_LOGITS;
    struct ops_map map = {.formula = FORMULA_SCALE,
                          .constant = model->logit_scale,
                          .num_cols = model->vocab_size,
                          .out = logits,
                          .u = logits};
    if (model->logit_scale != 1)
        emitter_map(emitter, &map);
    map.formula = FORMULA_SOFTCAP;
    map.constant = model->logit_softcap;
    if (model->logit_softcap != 0)
        emitter_map(emitter, &map);
}

static void emit_model(struct emitter *emitter)
{
    const struct model *model = emitter->model;
    const struct rows x = emitter_rows(emitter, model->hidden_size);
    emit_embeddings(emitter, x);
    for (int i = 0; i < model->num_layers && !emitter_failed(emitter); i++) {
        emitter->layer = i;
        emit_layer(emitter, &model->layers[i], x);
        emitter_place(emitter, "layer", i);
    }
    emitter->layer = OPERATION_OF_NO_LAYER;
    if (emitter->options->hidden)
        emit_hidden(emitter, x);
    emit_head(emitter, x);
}

static int open_program(struct program *program, const struct model *model,
                        const struct emitter_options *options, struct error *err)
{
    struct emitter emitter;
    emitter_open(&emitter, program, model, options);
    emit_model(&emitter);
    if (!emitter_failed(&emitter)) {
        model_all_packed(model);
        if (options->progress != NULL)
            options->progress(options->progress_context, 1.0);
    }
    const int result = emitter_finish(&emitter, err);
    emitter_close(&emitter);
    return result;
}

int forward_open(struct forward **out, const struct model *model, const struct ops *ops,
                 struct backend *backend, const struct emitter_options *options, struct error *err)
{
    struct forward *forward = calloc(1, sizeof *forward);
    if (forward == NULL)
        return error_set(err, ERROR_NO_MEMORY, "model: no memory");
    struct program *program = &forward->program;
    program->ops = ops;
    program->backend = backend;
    forward->vocab_size = model->vocab_size;
    if (open_program(program, model, options, err) != 0)
        goto fail;
    if (options->poison)
        ops->fill(backend, program->memory, NAN, program->memory_bytes / sizeof(float));
    struct ops_limits limits = program_limits(program);
    limits.max_rows = options->max_rows;
    limits.max_logits = options->max_logits;
    limits.max_kept = options->max_kept;
    limits.pages = program->layout.page_bytes > 0;
    limits.vocab_size = model->vocab_size;
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
    program_clear(&forward->program);
    free(forward);
}

const struct program *forward_program(const struct forward *forward)
{
    return &forward->program;
}

/* ---- a step ---- */

/* What is not drawn from comes back, in forward_collect. */
static void send(struct forward *forward, const struct batch *batch)
{
    const struct ops *ops = forward->program.ops;
    struct backend *backend = forward->program.backend;
    const float *logits = forward->program.logits.data;
    size_t kept = (size_t)(batch->num_logits - batch->num_draws) * (size_t)forward->vocab_size;
    if (batch->num_draws > 0)
        ops->draw(backend, logits + kept, forward->vocab_size, batch->draws, batch->num_draws);
    ops->send(backend, logits, kept);
}

const float *forward_collect(struct forward *forward)
{
    return forward->program.ops->receive(forward->program.backend);
}

void forward_submit(struct forward *forward, const struct batch *batch)
{
    const struct program *program = &forward->program;
    program->ops->begin(program->backend, batch);
    program->ops->run(program->backend, program->operations, program->num_operations, batch);
    send(forward, batch);
}
