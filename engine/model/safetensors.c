/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/safetensors.h"

#include "lib/base/bytes.h"
#include "lib/base/fields.h"
#include "lib/base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LENGTH_BYTES = 8,
    MAX_HEADER_BYTES = 64 << 20,
    MAX_INDEX_BYTES = 64 << 20,
};

/* One file being read. */
struct reader {
    struct tensors *out;
    const char *file;
    const unsigned char *data; /* what data_offsets count from */
    size_t data_bytes;
};

static int bad_tensor(const struct reader *r, const char *name, struct error *err,
                      const char *format, ...) __attribute__((format(printf, 4, 5)));

static int bad_tensor(const struct reader *r, const char *name, struct error *err,
                      const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(err, ERROR_INVALID, "%s: tensor \"%.100s\": %s", r->file, name, text);
}

static int read_dtype(const struct reader *r, struct tensor *tensor, const json_t *entry,
                      struct error *err)
{
    const json_t *value = json_object_get(entry, "dtype");
    if (!json_is_string(value))
        return bad_tensor(r, tensor->name, err, "dtype: expected a string, got %s",
                          fields_kind(value));
    const char *name = json_string_value(value);
    for (int i = 0; i < TENSOR_NUM_DTYPES; i++) {
        tensor->dtype = (enum tensor_dtype)i;
        const bool blocks =
            tensor_dtype_of_matrices(tensor->dtype) && dtype_block((enum dtype)i) > 1;
        if (!blocks && strcmp(name, tensor_dtype_name(tensor->dtype)) == 0)
            return 0;
    }
    return bad_tensor(r, tensor->name, err, "unknown dtype \"%.20s\"", name);
}

/* The shape, and how many elements and bytes it means. */
static int read_shape(const struct reader *r, struct tensor *tensor, const json_t *entry,
                      struct error *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return bad_tensor(r, tensor->name, err, "shape: expected a list, got %s",
                          fields_kind(shape));
    if (json_array_size(shape) > TENSOR_MAX_RANK)
        return bad_tensor(r, tensor->name, err, "shape: expected at most %d dimensions, got %zu",
                          TENSOR_MAX_RANK, json_array_size(shape));
    tensor->rank = (int)json_array_size(shape);
    for (int i = 0; i < tensor->rank; i++) {
        const json_t *dimension = json_array_get(shape, (size_t)i);
        if (!json_is_integer(dimension) || json_integer_value(dimension) < 0)
            return bad_tensor(r, tensor->name, err, "shape[%d]: expected an integer >= 0", i);
        tensor->shape[i] = json_integer_value(dimension);
    }
    char text[200];
    if (!tensor_measure(tensor))
        return bad_tensor(r, tensor->name, err, "shape %s overflows",
                          tensor_shape_text(tensor->shape, tensor->rank, text, sizeof text));
    return 0;
}

static int read_offsets(const struct reader *r, struct tensor *tensor, const json_t *entry,
                        struct error *err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)))
        return bad_tensor(r, tensor->name, err, "data_offsets: expected two integers, got %s",
                          fields_kind(offsets));
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t end = json_integer_value(json_array_get(offsets, 1));
    if (begin < 0 || end < begin || (uint64_t)end > r->data_bytes)
        return bad_tensor(r, tensor->name, err,
                          "data_offsets [%" PRId64 ", %" PRId64
                          "] are not inside the file's %zu bytes of data",
                          begin, end, r->data_bytes);
    char text[200];
    if ((uint64_t)(end - begin) != tensor->bytes)
        return bad_tensor(
            r, tensor->name, err, "data_offsets: expected %zu bytes for %s %s, got %" PRId64,
            tensor->bytes, tensor_dtype_name(tensor->dtype),
            tensor_shape_text(tensor->shape, tensor->rank, text, sizeof text), end - begin);
    tensor->data = r->data + begin;
    return 0;
}

static int add_tensor(struct reader *r, const char *name, const json_t *entry, struct error *err)
{
    if (!json_is_object(entry))
        return bad_tensor(r, name, err, "expected an object, got %s", fields_kind(entry));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return bad_tensor(r, name, err,
                              "unknown key \"%.40s\" (known: dtype, shape, data_offsets)", key);
    }
    struct tensor tensor = {.name = name, .file = r->file};
    if (read_dtype(r, &tensor, entry, err) != 0 || read_shape(r, &tensor, entry, err) != 0 ||
        read_offsets(r, &tensor, entry, err) != 0)
        return -1;
    return tensors_add(r->out, &tensor, err);
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The tensors of one file must cover its data from the first byte to the last, each byte once. */
static int check_cover(const struct reader *r, size_t first, struct error *err)
{
    size_t count = tensors_count(r->out) - first;
    struct tensor *tensors = count > 0 ? tensors_at(r->out, first) : NULL;
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, by_place);
    size_t covered = 0;
    for (size_t i = 0; i < count; i++) {
        size_t begin = (size_t)(tensors[i].data - r->data);
        if (begin < covered)
            return bad_tensor(r, tensors[i].name, err, "its data overlaps that of \"%.100s\"",
                              tensors[i - 1].name);
        if (begin > covered)
            return bad_tensor(r, tensors[i].name, err,
                              "starts at byte %zu of the data, but %zu is the first that no tensor "
                              "has: no holes are allowed",
                              begin, covered);
        covered += tensors[i].bytes;
    }
    if (covered != r->data_bytes)
        return error_set(err, ERROR_INVALID,
                         "%s: expected %zu bytes of data, as its tensors cover, got %zu", r->file,
                         covered, r->data_bytes);
    return 0;
}

/* The library reads null as if there were none. */
static int check_metadata(struct warnings *warnings, const char *file, const json_t *metadata,
                          struct error *err)
{
    if (json_is_null(metadata)) {
        warnings_add(warnings, "%s: __metadata__: expected an object, got null", file);
        return 0;
    }
    if (!json_is_object(metadata))
        return error_set(err, ERROR_INVALID, "%s: __metadata__: expected an object, got %s", file,
                         fields_kind(metadata));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return error_set(err, ERROR_INVALID,
                             "%s: __metadata__: \"%.60s\": expected a string, got %s", file, key,
                             fields_kind(value));
    }
    return 0;
}

/* Appends the tensors of one file, in the order of their data. */
static int add_file(struct tensors *out, const unsigned char *bytes, size_t size, const char *file,
                    struct error *err)
{
    if (size < LENGTH_BYTES)
        return error_set(err, ERROR_INVALID,
                         "%s: expected at least %d bytes (the header's length), got %zu", file,
                         LENGTH_BYTES, size);
    uint64_t length = read_u64(bytes);
    if (length > size - LENGTH_BYTES)
        return error_set(err, ERROR_INVALID,
                         "%s: the header claims %" PRIu64 " bytes, but the file has only %zu left "
                         "(truncated, or not a safetensors file)",
                         file, length, size - LENGTH_BYTES);
    if (length > MAX_HEADER_BYTES)
        return error_set(err, ERROR_INVALID,
                         "%s: expected a header of at most %d bytes, got %" PRIu64, file,
                         MAX_HEADER_BYTES, length);
    if (length == 0 || bytes[LENGTH_BYTES] != '{')
        return error_set(err, ERROR_INVALID, "%s: header: expected JSON that begins with {", file);
    char place[320];
    snprintf(place, sizeof place, "%s: header", file);
    json_t *header;
    if (fields_parse(&header, place, (const char *)bytes + LENGTH_BYTES, (size_t)length, err) != 0)
        return -1;
    struct reader r = {.out = out,
                       .file = file,
                       .data = bytes + LENGTH_BYTES + length,
                       .data_bytes = size - LENGTH_BYTES - (size_t)length};
    size_t first = tensors_count(out);
    int result = 0;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        result = strcmp(name, "__metadata__") == 0
                     ? check_metadata(tensors_warnings(out), file, entry, err)
                     : add_tensor(&r, name, entry, err);
        if (result != 0)
            break;
    }
    json_decref(header);
    if (result == 0)
        result = check_cover(&r, first, err);
    return result;
}

static int add_mapped(struct tensors *out, const char *directory, const char *file,
                      struct error *err)
{
    struct file_map map;
    if (tensors_map(out, directory, file, &map, err) != 0)
        return -1;
    return add_file(out, map.bytes, map.size, file, err);
}

/* A shard is a plain file name: nothing in an index may point outside the directory. */
static bool plain_name(const char *name)
{
    return *name && strlen(name) <= 255 && name[0] != '.' && !strchr(name, '/') &&
           !strchr(name, '\\');
}

static const char single_file[] = "model.safetensors";
static const char index_file[] = "model.safetensors.index.json";

/* Maps every shard that the index's weight_map (tensor -> file) names. */
static int add_shards(struct tensors *out, const char *directory, const json_t *weight_map,
                      struct error *err)
{
    json_t *seen = json_object();
    if (!seen)
        return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", index_file);
    int result = 0;
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)weight_map, tensor, value)
    {
        const char *file = json_string_value(value);
        if (!file || !plain_name(file))
            result =
                error_set(err, ERROR_INVALID,
                          "%s: weight_map: \"%.100s\": expected the name of a file in this "
                          "directory, got %s%.100s",
                          index_file, tensor, file ? "" : fields_kind(value), file ? file : "");
        else if (json_object_get(seen, file))
            continue;
        else if (json_object_set_new(seen, file, json_true()) != 0)
            result = error_set(err, ERROR_NO_MEMORY, "%s: out of memory", index_file);
        else
            result = add_mapped(out, directory, file, err);
        if (result != 0)
            break;
    }
    json_decref(seen);
    return result;
}

/* What the index names must be there. transformers reads whole shards, what the index does not name
 * included, such as buffers that a tool has left in them. */
static int check_weight_map(struct tensors *out, const json_t *weight_map, struct error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)weight_map, name, value)
    {
        const struct tensor *tensor = tensors_find(out, name);
        if (!tensor || strcmp(tensor->file, json_string_value(value)) != 0)
            return error_set(err, ERROR_INVALID,
                             "%s: weight_map: tensor \"%.100s\" is not in %.120s", index_file, name,
                             json_string_value(value));
    }
    const struct tensor *first = NULL;
    size_t unlisted = 0;
    for (size_t i = 0; i < tensors_count(out); i++)
        if (!json_object_get(weight_map, tensors_at(out, i)->name) && unlisted++ == 0)
            first = tensors_at(out, i);
    if (unlisted > 0)
        warnings_add(tensors_warnings(out),
                     "%s: tensor \"%.100s\"%s not in the weight_map of %s: read as if in it",
                     first->file, first->name, unlisted == 1 ? " is" : " and others are",
                     index_file);
    return 0;
}

static int open_sharded(struct tensors *out, const char *directory, const char *index_path,
                        struct error *err)
{
    char *text = NULL;
    size_t size;
    json_t *document = NULL;
    struct fields index, weight_map;
    int result = -1;
    if (file_read(index_path, MAX_INDEX_BYTES, &text, &size, err) == 0 &&
        fields_parse(&document, index_file, text, size, err) == 0 &&
        fields_root(&index, document, index_file, err) == 0 &&
        fields_object(&index, "weight_map", FIELD_REQUIRED, &weight_map, err) == 0 &&
        add_shards(out, directory, weight_map.object, err) == 0 && tensors_sort(out, err) == 0)
        result = check_weight_map(out, weight_map.object, err);
    json_decref(document);
    free(text);
    return result;
}

int safetensors_open(struct tensors **out, const char *directory, struct error *err)
{
    *out = NULL;
    char single[4096], index[4096];
    int length = snprintf(single, sizeof single, "%s/%s", directory, single_file);
    int index_length = snprintf(index, sizeof index, "%s/%s", directory, index_file);
    if (length < 0 || (size_t)length >= sizeof single || index_length < 0 ||
        (size_t)index_length >= sizeof index)
        return error_set(err, ERROR_INVALID, "%.100s...: the path is too long", directory);
    const bool one = file_exists(single);
    struct tensors *tensors = tensors_new(one ? single_file : index_file, err);
    if (!tensors)
        return -1;
    int result;
    if (one)
        result =
            add_mapped(tensors, directory, single_file, err) == 0 ? tensors_sort(tensors, err) : -1;
    else if (file_exists(index))
        result = open_sharded(tensors, directory, index, err);
    else
        result = error_set(err, ERROR_IO, "%s: expected %s or %s, got neither", directory,
                           single_file, index_file);
    if (result != 0) {
        tensors_close(tensors);
        return -1;
    }
    *out = tensors;
    return 0;
}

int safetensors_open_file(struct tensors **out, const char *directory, const char *file,
                          struct error *err)
{
    *out = NULL;
    struct tensors *tensors = tensors_new(file, err);
    if (!tensors)
        return -1;
    if (add_mapped(tensors, directory, file, err) != 0 || tensors_sort(tensors, err) != 0) {
        tensors_close(tensors);
        return -1;
    }
    *out = tensors;
    return 0;
}

int safetensors_load(struct tensors **out, const void *bytes, size_t size, const char *file,
                     struct error *err)
{
    *out = NULL;
    struct tensors *tensors = tensors_new(file, err);
    if (!tensors)
        return -1;
    if (add_file(tensors, bytes, size, file, err) != 0 || tensors_sort(tensors, err) != 0) {
        tensors_close(tensors);
        return -1;
    }
    *out = tensors;
    return 0;
}
