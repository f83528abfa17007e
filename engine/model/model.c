/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model.h"

#include "engine/base/arena.h"
#include "engine/base/file.h"
#include "engine/model/config.h"
#include "engine/model/family_gla.h"
#include "engine/model/family_gpt_neox.h"
#include "engine/model/family_regla.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG_BYTES = 4 << 20 };

struct model_storage {
    struct safetensors *file;
    struct file_map map; /* of the file, if it is not the safetensors' own */
    bool lent;           /* the file's memory is the caller's */
    struct arena arena;  /* the model's strings, arrays and converted tensors */
};

const char *dtype_name(enum dtype dtype)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    return names[dtype];
}

size_t dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    if (strcmp(config->family, "gpt_neox") == 0)
        return family_gpt_neox_bind(model, config, weights, err);
    if (strcmp(config->family, "gla") == 0)
        return family_gla_bind(model, config, weights, err);
    return family_regla_bind(model, config, weights, err);
}

static int describe(struct model *model, const struct config *config, struct error *err)
{
    struct arena *arena = &model->storage->arena;
    model->family = config->family;
    model->vocab_size = (int32_t)config->vocab_size;
    model->hidden_size = (int)config->hidden_size;
    model->num_layers = (int)config->num_layers;
    model->intermediate_size = (int)config->intermediate_size;
    model->hidden_act = config->hidden_act;
    model->parallel_residual = config->parallel_residual;
    model->tied = config->tied;
    model->position_embedding = config->position_embedding;
    model->max_position_embeddings = config->max_position_embeddings;
    model->bos_token_id = config->bos_token_id;
    model->layers = arena_alloc(arena, (size_t)model->num_layers, sizeof *model->layers, err);
    model->eos.ids = arena_alloc(arena, config->num_eos, sizeof *model->eos.ids, err);
    if (!model->layers || !model->eos.ids)
        return -1;
    memcpy(model->eos.ids, config->eos, config->num_eos * sizeof *config->eos);
    model->eos.count = config->num_eos;
    return 0;
}

/* Fills the model from a parsed config and the opened tensors in model->storage. */
static int load(struct model *model, const struct config *config, struct error *err)
{
    struct weights weights = {.file = model->storage->file, .arena = &model->storage->arena};
    if (describe(model, config, err) != 0 || bind(model, config, &weights, err) != 0)
        return -1;
    return weights_finish(&weights, model, err);
}

static struct model *new_model(const char *directory, const char *name, struct error *err)
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

/* Reads directory/name. An optional file that is not there gives *text = NULL. */
static int read_text(const char *directory, const char *name, bool optional, char **text,
                     size_t *size, struct error *err)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    *text = NULL;
    if (length < 0 || (size_t)length >= sizeof path)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", directory);
    if (optional && !file_exists(path))
        return 0;
    return file_read(path, MAX_CONFIG_BYTES, text, size, err);
}

static int read_config(struct config *config, struct arena *arena, const char *directory,
                       struct error *err)
{
    char *text;
    size_t size;
    if (read_text(directory, "config.json", false, &text, &size, err) != 0)
        return -1;
    int result = config_parse(config, arena, text, size, err);
    free(text);
    if (result != 0 || read_text(directory, "generation_config.json", true, &text, &size, err) != 0)
        return -1;
    if (text)
        result = config_parse_generation(config, text, size, err);
    free(text);
    return result;
}

int model_open(struct model **out, const char *directory, struct error *err)
{
    *out = NULL;
    struct stat status;
    if (*directory == 0)
        return error_set(err, ERROR_INVALID, "expected a model's directory, got \"\"");
    char *real = realpath(directory, NULL);
    if (!real || stat(real, &status) != 0) {
        free(real);
        return error_set(err, ERROR_IO, "%s: cannot open: %s", directory, strerror(errno));
    }
    if (!S_ISDIR(status.st_mode)) {
        free(real);
        return error_set(err, ERROR_INVALID, "%s: expected a model's directory, got a file",
                         directory);
    }
    struct model *model = new_model(directory, strrchr(real, '/') + 1, err);
    free(real);
    if (!model)
        return -1;
    struct config config;
    if (read_config(&config, &model->storage->arena, directory, err) != 0 ||
        safetensors_open(&model->storage->file, directory, err) != 0 ||
        load(model, &config, err) != 0) {
        model_close(model);
        return -1;
    }
    *out = model;
    return 0;
}

static int load_memory(struct model **out, const char *name, const char *config_json,
                       size_t config_length, const void *weights, size_t weights_size,
                       struct error *err)
{
    *out = NULL;
    struct model *model = new_model(name, name, err);
    if (!model)
        return -1;
    struct config config;
    model->storage->lent = true;
    if (config_parse(&config, &model->storage->arena, config_json, config_length, err) != 0 ||
        safetensors_load(&model->storage->file, weights, weights_size, "model.safetensors", err) !=
            0 ||
        load(model, &config, err) != 0) {
        model_close(model);
        return -1;
    }
    model->file_bytes = 0;
    *out = model;
    return 0;
}

struct safetensors *model_tensors(const struct model *model)
{
    return model->storage->file;
}

int model_load(struct model **out, const char *config_json, size_t config_length,
               const void *weights, size_t weights_size, struct error *err)
{
    return load_memory(out, "memory", config_json, config_length, weights, weights_size, err);
}

int model_load_map(struct model **out, const char *name, const char *config_json,
                   size_t config_length, struct file_map *weights, struct error *err)
{
    if (load_memory(out, name, config_json, config_length, weights->bytes, weights->size, err) != 0)
        return -1;
    (*out)->storage->map = *weights;
    (*out)->storage->lent = false;
    *weights = (struct file_map){0};
    return 0;
}

static void release(const struct model *model, const void *data, size_t bytes)
{
    if (!model->storage->lent && data != model->embeddings.data &&
        data != model->position_embeddings.data)
        file_release(data, bytes);
}

void model_packed(const struct model *model, const struct matrix *matrix)
{
    release(model, matrix->data,
            (size_t)matrix->rows * (size_t)matrix->cols * dtype_bytes(matrix->dtype));
}

void model_all_packed(const struct model *model)
{
    for (size_t i = 0; i < safetensors_count(model->storage->file); i++) {
        const struct tensor *tensor = safetensors_at(model->storage->file, i);
        release(model, tensor->data, tensor->bytes);
    }
}

void model_close(struct model *model)
{
    if (!model)
        return;
    safetensors_close(model->storage->file);
    file_map_close(&model->storage->map);
    arena_clear(&model->storage->arena);
    free(model->storage);
    free(model);
}
