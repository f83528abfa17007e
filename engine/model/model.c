/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model.h"

#include "engine/model/tensors.h"

#include <stdlib.h>

size_t model_matrix_bytes(const struct matrix *matrix)
{
    return dtype_size(matrix->dtype, (size_t)matrix->rows * (size_t)matrix->cols);
}

const struct branch *layer_branch(const struct layer *layer, int i)
{
    for (int b = 0; b < layer->num_blocks; i -= layer->blocks[b++].num_branches)
        if (i < layer->blocks[b].num_branches)
            return &layer->blocks[b].branches[i];
    return NULL;
}

#define OF_MIXER(name, use) {#name, offsetof(struct mixer, name), use},
#define OF_MLP(name, use) {#name, offsetof(struct mlp, name), use},
const struct part_matrix mixer_matrices[] = {MIXER_MATRICES(OF_MIXER)};
const struct part_matrix mlp_matrices[] = {MLP_MATRICES(OF_MLP)};

struct model *model_new(const char *directory, const char *name, struct error *err)
{
    struct model *model = calloc(1, sizeof *model);
    struct model_storage *storage = calloc(1, sizeof *storage);
    if (!model || !storage) {
        free(model);
        free(storage);
        error_set(err, ERROR_NO_MEMORY, "%s: out of memory", directory);
        return NULL;
    }
    model->storage = storage;
    model->directory = arena_string(&storage->arena, directory, err);
    model->name = arena_string(&storage->arena, name, err);
    if (model->directory && model->name)
        return model;
    model_close(model);
    return NULL;
}

void mixer_make_linear(struct mixer *mixer, enum gate_kind gate)
{
    mixer->kind = MIXER_LINEAR;
    mixer->gate = gate;
}

void mixer_make_softmax(struct mixer *mixer)
{
    mixer->kind = MIXER_SOFTMAX;
}

void mixer_make_conv(struct mixer *mixer, int width)
{
    mixer->kind = MIXER_CONV;
    mixer->num_heads = 1;
    mixer->conv.width = width;
}

int64_t mixer_conv_channels(const struct mixer *mixer)
{
    if (!mixer_has(mixer, HAS_HEADS))
        return mixer->value_dim;
    const int64_t queries = (int64_t)mixer->num_qk_heads * mixer->head_dim;
    const int64_t keys = (int64_t)mixer_key_heads(mixer) * mixer->head_dim;
    return queries + keys + (int64_t)mixer->num_kv_heads * mixer->value_dim;
}

struct tensors *model_tensors(const struct model *model)
{
    return model->storage->file;
}

int64_t model_matrix_row(const struct matrix *matrix, int64_t i)
{
    return tensor_order_row(&matrix->order, row_part_row(&matrix->part, i));
}

/* Memory that becomes zeros: not the caller's, and not embeddings. */
static void release_own(const struct model *model, const void *data, size_t bytes)
{
    if (!model->storage->lent && data != model->embeddings.data &&
        data != model->position_embeddings.data && data != model->layer_embeddings.data)
        file_release(data, bytes);
}

/* Its own rows, and none between them that another matrix has. */
static void release_part(const struct model *model, const struct matrix *matrix)
{
    const size_t row_bytes = dtype_size(matrix->dtype, (size_t)matrix->cols);
    const int64_t run = matrix->order.a == 0 ? matrix->part.run : 1;
    for (int64_t i = 0; i < matrix->rows; i += run)
        release_own(model,
                    (const char *)matrix->data + (size_t)model_matrix_row(matrix, i) * row_bytes,
                    (size_t)run * row_bytes);
}

void model_packed(const struct model *model, const struct matrix *matrix)
{
    const struct row_part *part = &matrix->part;
    const size_t bytes = model_matrix_bytes(matrix);
    if (matrix->mapped) /* with the rows between its own, too */
        file_release(matrix->data,
                     part->run == 0 ? bytes : bytes / (size_t)part->run * (size_t)part->stride);
    else if (part->run == 0)
        release_own(model, matrix->data, bytes);
    else
        release_part(model, matrix);
}

void model_all_packed(const struct model *model)
{
    struct tensors *file = model->storage->file;
    for (size_t i = 0; i < tensors_count(file); i++) {
        const struct tensor *tensor = tensors_at(file, i);
        if (tensors_num_maps(file) > 0)
            file_release(tensor->data, tensor->bytes);
        else
            release_own(model, tensor->data, tensor->bytes);
    }
    struct tensors *beside = model->storage->beside;
    for (size_t i = 0; beside && i < tensors_count(beside); i++)
        file_release(tensors_at(beside, i)->data, tensors_at(beside, i)->bytes);
}

void model_close(struct model *model)
{
    if (!model)
        return;
    tensors_close(model->storage->file);
    tensors_close(model->storage->beside);
    file_map_close(&model->storage->map);
    arena_clear(&model->storage->arena);
    free(model->storage);
    free(model);
}
