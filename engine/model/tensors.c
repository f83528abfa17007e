/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/tensors.h"

#include "lib/base/arena.h"
#include "lib/base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 4096 };

static const struct {
    const char *name;
    size_t bytes;
} others[TENSOR_NUM_DTYPES] = {
    [TENSOR_I32] = {"I32", 4},         [TENSOR_I64] = {"I64", 8},
    [TENSOR_F64] = {"F64", 8},         [TENSOR_F8_E4M3] = {"F8_E4M3", 1},
    [TENSOR_F8_E5M2] = {"F8_E5M2", 1}, [TENSOR_F8_E8M0] = {"F8_E8M0", 1},
    [TENSOR_I16] = {"I16", 2},         [TENSOR_I8] = {"I8", 1},
    [TENSOR_U64] = {"U64", 8},         [TENSOR_U32] = {"U32", 4},
    [TENSOR_U16] = {"U16", 2},         [TENSOR_U8] = {"U8", 1},
    [TENSOR_BOOL] = {"BOOL", 1},
};

struct tensors {
    struct tensor *items; /* [count] */
    size_t count, capacity;
    struct file_map maps[MAX_FILES];
    size_t num_maps;
    int64_t file_bytes;
    const char *name;
    struct warnings warnings;
    struct arena names;
};

struct tensors *tensors_new(const char *name, struct error *err)
{
    struct tensors *tensors = calloc(1, sizeof *tensors);
    if (!tensors)
        error_set(err, ERROR_NO_MEMORY, "%s: out of memory", name);
    else if (!(tensors->name = arena_string(&tensors->names, name, err))) {
        free(tensors);
        return NULL;
    }
    return tensors;
}

void tensors_close(struct tensors *tensors)
{
    if (!tensors)
        return;
    for (size_t i = 0; i < tensors->num_maps; i++)
        file_map_close(&tensors->maps[i]);
    free(tensors->items);
    arena_clear(&tensors->names);
    free(tensors);
}

int tensors_map(struct tensors *tensors, const char *directory, const char *file,
                struct file_map *map, struct error *err)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", directory, file);
    if (length < 0 || (size_t)length >= sizeof path)
        return error_set(err, ERROR_INVALID, "%s: the path is too long", directory);
    if (tensors->num_maps == MAX_FILES)
        return error_set(err, ERROR_INVALID, "%s: expected at most %d files", tensors->name,
                         MAX_FILES);
    if (file_map_open(map, path, err) != 0)
        return -1;
    tensors->maps[tensors->num_maps++] = *map;
    tensors->file_bytes += (int64_t)map->size;
    return 0;
}

size_t tensors_num_maps(const struct tensors *tensors)
{
    return tensors->num_maps;
}

/* Tensors of one file share its name. */
static const char *file_name(struct tensors *tensors, const char *file, struct error *err)
{
    const char *last = tensors->count > 0 ? tensors->items[tensors->count - 1].file : NULL;
    return last && strcmp(last, file) == 0 ? last : arena_string(&tensors->names, file, err);
}

int tensors_add(struct tensors *tensors, const struct tensor *tensor, struct error *err)
{
    if (tensors->count == tensors->capacity) {
        size_t capacity = tensors->capacity ? 2 * tensors->capacity : 64;
        struct tensor *grown = reallocarray(tensors->items, capacity, sizeof *grown);
        if (!grown)
            return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", tensor->file);
        tensors->items = grown;
        tensors->capacity = capacity;
    }
    struct tensor *added = &tensors->items[tensors->count];
    *added = *tensor;
    added->name = arena_string(&tensors->names, tensor->name, err);
    added->file = file_name(tensors, tensor->file, err);
    if (!added->name || !added->file)
        return -1;
    tensors->count++;
    return 0;
}

int tensors_rename(struct tensors *tensors, struct tensor *tensor, const char *name,
                   struct error *err)
{
    tensor->name = arena_string(&tensors->names, name, err);
    return tensor->name ? 0 : -1;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int tensors_sort(struct tensors *tensors, struct error *err)
{
    if (tensors->count > 0)
        qsort(tensors->items, tensors->count, sizeof *tensors->items, by_name);
    for (size_t i = 1; i < tensors->count; i++)
        if (strcmp(tensors->items[i - 1].name, tensors->items[i].name) == 0)
            return error_set(
                err, ERROR_INVALID, "tensor \"%.100s\" is both in %.120s and in %.120s",
                tensors->items[i].name, tensors->items[i - 1].file, tensors->items[i].file);
    return 0;
}

size_t tensors_count(const struct tensors *tensors)
{
    return tensors->count;
}

int64_t tensors_file_bytes(const struct tensors *tensors)
{
    return tensors->file_bytes;
}

struct warnings *tensors_warnings(struct tensors *tensors)
{
    return &tensors->warnings;
}

const char *tensors_name(const struct tensors *tensors)
{
    return tensors->name;
}

struct tensor *tensors_at(struct tensors *tensors, size_t i)
{
    return &tensors->items[i];
}

struct tensor *tensors_find(struct tensors *tensors, const char *name)
{
    if (tensors->count == 0)
        return NULL;
    struct tensor key = {.name = name};
    return bsearch(&key, tensors->items, tensors->count, sizeof key, by_name);
}

void tensor_ignore(struct tensor *tensor)
{
    tensor->used = true;
    tensor->elements = 0;
}

bool tensor_dtype_of_matrices(enum tensor_dtype dtype)
{
    return (int)dtype < NUM_DTYPES;
}

int64_t tensor_row(const struct tensor *tensor, int64_t i)
{
    return tensor_order_row(&tensor->order, i);
}

size_t tensor_dtype_size(enum tensor_dtype dtype, size_t numbers)
{
    return tensor_dtype_of_matrices(dtype) ? dtype_size((enum dtype)dtype, numbers)
                                           : numbers * others[dtype].bytes;
}

bool tensor_measure(struct tensor *tensor)
{
    tensor->elements = 1;
    for (int i = 0; i < tensor->rank; i++)
        if (!size_mul(tensor->elements, (size_t)tensor->shape[i], &tensor->elements))
            return false;
    tensor->bytes = tensor_dtype_size(tensor->dtype, tensor->elements);
    return tensor->elements <= SIZE_MAX / 8; /* no number has more bytes */
}

const char *tensor_dtype_name(enum tensor_dtype dtype)
{
    return tensor_dtype_of_matrices(dtype) ? dtype_name((enum dtype)dtype) : others[dtype].name;
}

const char *tensor_shape_text(const int64_t *shape, int rank, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}
