/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model.h"

#include "engine/model/tensors.h"

#include <stdlib.h>

size_t model_matrix_bytes(const struct matrix *matrix)
{
    return dtype_size(matrix->dtype, (size_t)matrix->rows * (size_t)matrix->cols);
}

const struct matrix *model_layer_matrix(const struct layer *layer, size_t i)
{
#define OFFSET(member) offsetof(struct layer, member),
    static const size_t offsets[] = {MODEL_LAYER_MATRICES(OFFSET)};
    const size_t count = sizeof offsets / sizeof *offsets;
    if (i < count)
        return (const struct matrix *)(const void *)((const char *)layer + offsets[i]);
    if (layer->mixer.second == NULL || i >= 2 * count)
        return NULL;
    const size_t at = offsets[i - count] - offsetof(struct layer, mixer); /* mixers' come first */
    return at >= sizeof(struct mixer)
               ? NULL
               : (const struct matrix *)(const void *)((const char *)layer->mixer.second + at);
}

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

struct tensors *model_tensors(const struct model *model)
{
    return model->storage->file;
}

static void release(const struct model *model, const void *data, size_t bytes)
{
    if (!model->storage->lent && data != model->embeddings.data &&
        data != model->position_embeddings.data)
        file_release(data, bytes);
}

void model_packed(const struct model *model, const struct matrix *matrix)
{
    release(model, matrix->data, model_matrix_bytes(matrix));
}

void model_all_packed(const struct model *model)
{
    for (size_t i = 0; i < tensors_count(model->storage->file); i++) {
        const struct tensor *tensor = tensors_at(model->storage->file, i);
        release(model, tensor->data, tensor->bytes);
    }
}

void model_close(struct model *model)
{
    if (!model)
        return;
    tensors_close(model->storage->file);
    file_map_close(&model->storage->map);
    arena_clear(&model->storage->arena);
    free(model->storage);
    free(model);
}
