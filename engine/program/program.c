/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/program/program.h"

#include "engine/ops/walk.h"

#include <assert.h>
#include <stdlib.h>

void program_go_back(const struct program *program, char *slot, int64_t position, const char *kept)
{
    const struct walk walk = {.backend = program->backend, .copy = program->ops->copy};
    for (int i = 0; i < program->num_operations; i++)
        for (int j = 0; j < program->operations[i].num_regions; j++)
            walk_copy_region(&walk, &program->operations[i].regions[j], slot, position,
                             (char *)(uintptr_t)kept, true);
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
    const int64_t numbers = weight->cols + weight->rows / weight->heads;
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
    if (program->layer_tokens != NULL)
        ops->table_free(backend, program->layer_tokens);
    if (program->memory != NULL)
        ops->release(backend, program->memory, program->memory_bytes);
    free(program->operations);
    free(program->buffers);
    free(program->weights);
    free(program->order);
    free(program->uploads);
    state_layout_clear(&program->layout);
    arena_clear(&program->arena);
}
