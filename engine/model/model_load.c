/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model_load.h"

#include "engine/model/config_library.h"
#include "engine/model/family.h"
#include "engine/model/four_bits.h"
#include "engine/model/gguf_tensors.h"
#include "engine/model/safetensors.h"
#include "lib/base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG_BYTES = 4 << 20 };

static int describe(struct model *model, const struct config *config, struct error *err)
{
    struct arena *arena = &model->storage->arena;
    model->family = config->family->name;
    model->vocab_size = (int32_t)config->vocab_size;
    model->hidden_size = (int)config->hidden_size;
    model->num_layers = (int)config->num_layers;
    model->intermediate_size = (int)config->intermediate_size;
    model->tied = config->tied;
    model->embedding_scale = config->embedding_scale > 0 ? config->embedding_scale : 1;
    model->logit_scale = config->logit_scale > 0 ? config->logit_scale : 1;
    model->logit_softcap = config->logit_softcap;
    model->position_embedding = config->position_embedding;
    model->max_position_embeddings = config->max_position_embeddings;
    model->bos_token_id = config->bos_token_id;
    model->fp8_dtype = config->fp8.dtype;
    model->warnings = config->warnings;
    warnings_add_all(&model->warnings, tensors_warnings(model->storage->file));
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
    struct weights weights = {.file = model->storage->file,
                              .beside = model->storage->beside,
                              .arena = &model->storage->arena,
                              .fp8 = &config->fp8,
                              .warnings = &model->warnings};
    if ((config->q4_1 && four_bits_from_bytes(model->storage->file, err) != 0) ||
        describe(model, config, err) != 0 ||
        config->family->bind(model, config, &weights, err) != 0)
        return -1;
    return weights_finish(&weights, model, err);
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

/* transformers puts an adapter that lies beside a model's configuration on top of it. */
static int refuse_adapter(const char *directory, struct error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/adapter_config.json", directory);
    if (!file_exists(path))
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "%s: adapters are not supported: merge it into the model's weights", path);
}

static int read_config(struct config *config, struct arena *arena, const char *directory,
                       struct error *err)
{
    char *text;
    size_t size;
    if (read_text(directory, "config.json", false, &text, &size, err) != 0)
        return -1;
    int result = family_parse(config, arena, text, size, err);
    free(text);
    if (result != 0 || read_text(directory, "generation_config.json", true, &text, &size, err) != 0)
        return -1;
    if (text)
        result = config_library_generation(config, text, size, err);
    free(text);
    return result == 0 ? refuse_adapter(directory, err) : -1;
}

static int load_directory(struct model *model, struct error *err)
{
    struct config config;
    return read_config(&config, &model->storage->arena, model->directory, err) == 0 &&
                   safetensors_open(&model->storage->file, model->directory, err) == 0 &&
                   four_bits_open(&model->storage->beside, model->directory, err) == 0
               ? load(model, &config, err)
               : -1;
}

static int load_gguf(struct model *model, const char *name, struct error *err)
{
    struct config config;
    struct gguf gguf;
    if (gguf_tensors_open(&model->storage->file, &gguf, model->directory, name, err) != 0)
        return -1;
    int result =
        family_parse_gguf(&config, &model->storage->arena, &gguf, model->storage->file, err);
    gguf_clear(&gguf);
    return result == 0 ? load(model, &config, err) : -1;
}

/* path: of a GGUF file, and real the same without links. Its folder is the model's directory. */
static struct model *new_gguf(const char *path, const char *real, struct error *err)
{
    static const char end[] = ".gguf";
    char directory[4096], name[256];
    const char *slash = strrchr(path, '/'), *last = strrchr(real, '/') + 1;
    const int before = slash && slash > path ? (int)(slash - path) : 1; /* of "/", else of "." */
    snprintf(directory, sizeof directory, "%.*s", before, slash ? path : ".");
    const size_t length = strlen(last), end_length = sizeof end - 1;
    const bool ends = length > end_length && strcmp(last + length - end_length, end) == 0;
    snprintf(name, sizeof name, "%.*s", (int)(ends ? length - end_length : length), last);
    return model_new(directory, name, err);
}

static int open_real(struct model **out, const char *path, const char *real, struct error *err)
{
    struct stat status;
    if (stat(real, &status) != 0)
        return error_set(err, ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    const bool directory = S_ISDIR(status.st_mode);
    if (!directory && !gguf_is_file(path))
        return error_set(err, ERROR_INVALID,
                         "%s: expected a model's directory or a GGUF file, got another file", path);
    *out = directory ? model_new(path, strrchr(real, '/') + 1, err) : new_gguf(path, real, err);
    if (!*out)
        return -1;
    const char *slash = strrchr(path, '/');
    if ((directory ? load_directory(*out, err) : load_gguf(*out, slash ? slash + 1 : path, err)) ==
        0)
        return 0;
    model_close(*out);
    *out = NULL;
    return -1;
}

int model_open(struct model **out, const char *path, struct error *err)
{
    char file[GGUF_PATH_SIZE];
    *out = NULL;
    if (*path == 0)
        return error_set(err, ERROR_INVALID, "expected a model's directory, got \"\"");
    if (gguf_path(file, path, err) != 0)
        return -1;
    path = *file ? file : path;
    char *real = realpath(path, NULL);
    int result = real ? open_real(out, path, real, err)
                      : error_set(err, ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    free(real);
    return result;
}

static int load_memory(struct model **out, const char *name, const char *config_json,
                       size_t config_length, const void *weights, size_t weights_size,
                       struct error *err)
{
    *out = NULL;
    struct model *model = model_new(name, name, err);
    if (!model)
        return -1;
    struct config config;
    model->storage->lent = true;
    if (family_parse(&config, &model->storage->arena, config_json, config_length, err) != 0 ||
        safetensors_load(&model->storage->file, weights, weights_size, "model.safetensors", err) !=
            0 ||
        load(model, &config, err) != 0) {
        model_close(model);
        return -1;
    }
    *out = model;
    return 0;
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
