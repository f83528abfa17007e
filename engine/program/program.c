/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/program/program.h"

#include <assert.h>
#include <stdlib.h>

/* The rows that an operation works on in this step; 0: the step lacks it. */
static int rows_of(const struct operation *operation, const struct batch *batch, bool all_rows)
{
    switch (operation->when) {
    case WHEN_ALWAYS:
        return batch->num_rows;
    case WHEN_LOGITS:
        return batch->num_logits;
    case WHEN_SOME_LOGITS:
        return all_rows ? 0 : batch->num_logits;
    case WHEN_ALL_LOGITS:
        return all_rows ? batch->num_logits : 0;
    case WHEN_HIDDEN:
        return batch->wants_hidden ? batch->num_rows : 0;
    }
    return 0;
}

static void run_matmul(const struct program *program, const struct operation *operation,
                       int num_rows)
{
    struct ops_matmul call = operation->matmul;
    struct ops_norm first = operation->first;
    call.num_rows = first.num_rows = num_rows;
    if (call.norm != NULL)
        call.norm = &first;
    program->ops->matmul(program->backend, &call);
}

/* Of operations whose calls say the number of rows, and point to no other. */
#define WITH_ROWS(kind, name)                      \
    case kind: {                                   \
        struct ops_##name call_ = operation->name; \
        call_.num_rows = num_rows;                 \
        ops->name(backend, &call_);                \
        break;                                     \
    }

/* Of operations whose calls say nothing of the number of rows: backends know it from the batch. */
#define AS_IT_IS(kind, name)                  \
    case kind:                                \
        ops->name(backend, &operation->name); \
        break;

static void run(const struct program *program, const struct operation *operation, int num_rows)
{
    const struct ops *ops = program->ops;
    struct backend *backend = program->backend;
    switch (operation->kind) {
        AS_IT_IS(OPERATION_EMBED, embed)
        AS_IT_IS(OPERATION_CONV, conv)
        AS_IT_IS(OPERATION_ANGLES, angles)
        AS_IT_IS(OPERATION_POSITIONS, positions)
        AS_IT_IS(OPERATION_RECURRENCE, recurrence)
        AS_IT_IS(OPERATION_SEGMENTS, segments)
        AS_IT_IS(OPERATION_ATTENTION, attention)
        WITH_ROWS(OPERATION_NORM, norm)
        WITH_ROWS(OPERATION_ROUTE, route)
        WITH_ROWS(OPERATION_COMBINE, combine)
        WITH_ROWS(OPERATION_MAP, map)
    case OPERATION_MATMUL:
        run_matmul(program, operation, num_rows);
        break;
    case OPERATION_GATHER:
        ops->gather(backend, operation->gather.x, operation->gather.out, operation->gather.cols);
        break;
    }
}

/* Copies what a row at this position changes: from the slot to the kept row, or back. */
static void copy_region(const struct program *program, const struct program_region *it, char *slot,
                        int64_t position, char *kept, bool back)
{
    const struct operation_region *region = &it->region;
    const size_t tile =
        region->window == 0 ? 0 : (size_t)(position % region->window / OPS_TILE) * region->bytes;
    for (int i = 0; i < region->count; i++) {
        char *there = slot + region->offset + (size_t)i * region->stride + tile;
        char *here = kept + it->at + (size_t)i * region->bytes;
        program->ops->copy(program->backend, back ? there : here, back ? here : there,
                           region->bytes);
    }
}

void program_go_back(const struct program *program, char *slot, int64_t position, const char *kept)
{
    for (int i = 0; i < program->num_regions; i++)
        copy_region(program, &program->regions[i], slot, position, (char *)(uintptr_t)kept, true);
}

/* An operation that changes slots. Before a kept row changes a region, that is copied. */
static void run_in_parts(const struct program *program, const struct operation *operation,
                         const struct program_region *regions, int num_regions,
                         const struct batch *batch)
{
    for (int p = 0; p < batch->num_parts; p++) {
        const struct batch_part *part = &batch->parts[p];
        for (int s = 0; s < part->num_spans; s++)
            for (int i = 0; i < num_regions && part->spans[s].kept != NULL; i++)
                copy_region(program, &regions[i], part->spans[s].slot, part->spans[s].position,
                            part->spans[s].kept, false);
        program->ops->part(program->backend, p);
        run(program, operation, batch->num_rows);
    }
    program->ops->part(program->backend, -1);
}

void program_run(const struct program *program, const struct batch *batch)
{
    const bool all_rows = batch_wants_all_rows(batch);
    int region = 0;
    for (int i = 0; i < program->num_operations; i++) {
        const int num_rows = rows_of(&program->operations[i], batch, all_rows), first = region;
        while (region < program->num_regions && program->regions[region].operation == i)
            region++;
        if (num_rows == 0)
            continue;
        if (batch->num_parts > 0 && region > first)
            run_in_parts(program, &program->operations[i], &program->regions[first], region - first,
                         batch);
        else
            run(program, &program->operations[i], num_rows);
    }
}

int program_buffer_of(const struct program *program, int i, const struct rows *rows,
                      int64_t *column)
{
    const size_t at = (size_t)((const char *)rows->data - (const char *)program->memory);
    for (int b = 0; b < program->num_buffers; b++) {
        const struct program_buffer *buffer = &program->buffers[b];
        const size_t bytes = (size_t)buffer->stride * sizeof(float);
        if (buffer->first <= i && i <= buffer->last && at >= buffer->offset &&
            at < buffer->offset + bytes) {
            *column = (int64_t)((at - buffer->offset) / sizeof(float));
            return b;
        }
    }
    assert(!"rows of no buffer");
    return -1;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

static void limit_recurrence(struct ops_limits *limits, const struct ops_recurrence *a)
{
    const int features = ops_state_features(a->features, a->chunk_size);
    const size_t heads = (size_t)a->num_heads;
    size_t shared = 0;
    if (a->sum_norm)
        shared += heads * ops_recurrent_bytes(a->value_dim, true, features);
    if (formula_is_exponential(a->phi.map))
        shared += heads * sizeof(float);
    limits->max_value_dim = most(limits->max_value_dim, a->value_dim);
    limits->max_head_dim = most(limits->max_head_dim, a->phi.head_dim);
    limits->max_features = most(limits->max_features, most(features, a->phi.features));
    if (a->erase.data != NULL)
        limits->max_erased_features = most(limits->max_erased_features, features);
    limits->max_linear_heads = most(limits->max_linear_heads, a->num_heads);
    if (shared > limits->max_shared_state)
        limits->max_shared_state = shared;
}

static void limit_attention(struct ops_limits *limits, const struct ops_attention *a)
{
    const int64_t keys = window_has(a->window, KEEPS_ALL_KEYS) ? INT64_MAX : a->window_size;
    limits->max_value_dim = most(limits->max_value_dim, a->value_dim);
    limits->max_key_dim = most(limits->max_key_dim, a->key_dim);
    limits->max_softmax_value_dim = most(limits->max_softmax_value_dim, a->value_dim);
    if (a->values_in_keys)
        limits->max_value_dim_in_keys = most(limits->max_value_dim_in_keys, a->value_dim);
    if (keys > limits->max_keys)
        limits->max_keys = keys;
}

static void limit_matmul(struct ops_limits *limits, const struct operation *operation)
{
    const struct program_weight *weight = operation->weight;
    const int chosen = operation->matmul.chosen;
    /* of a routed product a row has each matrix once at most */
    const int64_t input = (chosen > 0 ? 1 : weight->heads) * ((weight->cols + 31) / 32 * 32);
    if (input > limits->max_input)
        limits->max_input = input;
    if (chosen == 0)
        return;
    const int64_t numbers = chosen * (weight->cols + weight->rows / weight->heads);
    limits->max_experts = most(limits->max_experts, weight->heads);
    limits->max_chosen = most(limits->max_chosen, chosen);
    if (numbers > limits->max_routed)
        limits->max_routed = numbers;
}

struct ops_limits program_limits(const struct program *program)
{
    struct ops_limits limits = {0};
    for (int i = 0; i < program->num_operations; i++) {
        const struct operation *operation = &program->operations[i];
        if (operation->kind == OPERATION_MATMUL)
            limit_matmul(&limits, operation);
        if (operation->kind == OPERATION_RECURRENCE)
            limit_recurrence(&limits, &operation->recurrence);
        if (operation->kind == OPERATION_ATTENTION)
            limit_attention(&limits, &operation->attention);
    }
    return limits;
}

void program_clear(struct program *program)
{
    const struct ops *ops = program->ops;
    struct backend *backend = program->backend;
    for (int i = 0; i < program->num_weights; i++)
        ops->weight_free(backend, program->weights[i]->packed);
    for (int i = 0; i < program->num_uploads; i++)
        ops->unload(backend, program->uploads[i]);
    if (program->tokens != NULL)
        ops->table_free(backend, program->tokens);
    if (program->positions != NULL)
        ops->table_free(backend, program->positions);
    if (program->memory != NULL)
        ops->release(backend, program->memory, program->memory_bytes);
    free(program->operations);
    free(program->buffers);
    free(program->weights);
    free(program->order);
    free(program->uploads);
    free(program->regions);
    state_layout_clear(&program->layout);
    arena_clear(&program->arena);
}
