/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gguf_tensors.h"

#include "lib/base/bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { REFUSED = -1, MAX_SPLIT = 4096 };

/* ggml's types by number, and ours. No name: ggml has dropped the number. */
static const struct {
    const char *name;
    int dtype;
} types[] = {
    {"F32", TENSOR_F32},   {"F16", TENSOR_F16},   {"Q4_0", TENSOR_Q4_0}, {"Q4_1", TENSOR_Q4_1},
    {NULL, REFUSED},       {NULL, REFUSED},       {"Q5_0", TENSOR_Q5_0}, {"Q5_1", TENSOR_Q5_1},
    {"Q8_0", TENSOR_Q8_0}, {"Q8_1", REFUSED},     {"Q2_K", REFUSED},     {"Q3_K", REFUSED},
    {"Q4_K", TENSOR_Q4_K}, {"Q5_K", TENSOR_Q5_K}, {"Q6_K", TENSOR_Q6_K}, {"Q8_K", REFUSED},
    {"IQ2_XXS", REFUSED},  {"IQ2_XS", REFUSED},   {"IQ3_XXS", REFUSED},  {"IQ1_S", REFUSED},
    {"IQ4_NL", REFUSED},   {"IQ3_S", REFUSED},    {"IQ2_S", REFUSED},    {"IQ4_XS", REFUSED},
    {"I8", TENSOR_I8},     {"I16", TENSOR_I16},   {"I32", TENSOR_I32},   {"I64", TENSOR_I64},
    {"F64", TENSOR_F64},   {"IQ1_M", REFUSED},    {"BF16", TENSOR_BF16}, {NULL, REFUSED},
    {NULL, REFUSED},       {NULL, REFUSED},       {"TQ1_0", REFUSED},    {"TQ2_0", REFUSED},
    {NULL, REFUSED},       {NULL, REFUSED},       {NULL, REFUSED},       {"MXFP4", TENSOR_MXFP4},
    {"NVFP4", REFUSED},
};
enum { NUM_TYPES = sizeof types / sizeof *types };

static int bad_tensor(const struct gguf *gguf, const struct gguf_tensor *tensor, struct error *err,
                      enum error_code code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static int bad_tensor(const struct gguf *gguf, const struct gguf_tensor *tensor, struct error *err,
                      enum error_code code, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(err, code, "%s: tensor \"%s\": %s", gguf->file, tensor->name, text);
}

static int find_dtype(const struct gguf *gguf, const struct gguf_tensor *from,
                      struct tensor *tensor, struct error *err)
{
    static const char known[] = "(known: F32, F16, BF16, F64, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, "
                                "Q5_K, Q6_K, MXFP4, I8, I16, I32, I64)";
    const char *name = from->type < NUM_TYPES ? types[from->type].name : NULL;
    if (!name)
        return bad_tensor(gguf, from, err, ERROR_INVALID, "unknown type %" PRIu32 " %s", from->type,
                          known);
    if (types[from->type].dtype == REFUSED)
        return bad_tensor(gguf, from, err, ERROR_UNSUPPORTED, "type %s is not supported %s", name,
                          known);
    tensor->dtype = (enum tensor_dtype)types[from->type].dtype;
    return 0;
}

/* The tensor's shape and its place; *end: where the data so far end. */
static int place(const struct gguf *gguf, const struct gguf_tensor *from, struct tensor *tensor,
                 size_t *end, struct error *err)
{
    char text[120];
    tensor->rank = from->rank;
    memcpy(tensor->shape, from->shape, sizeof from->shape);
    const int64_t cols = tensor->shape[tensor->rank - 1];
    const size_t block =
        tensor_dtype_of_matrices(tensor->dtype) ? dtype_block((enum dtype)tensor->dtype) : 1;
    if ((size_t)cols % block != 0)
        return bad_tensor(gguf, from, err, ERROR_INVALID,
                          "expected rows of a multiple of %zu numbers for %s, got shape %s", block,
                          tensor_dtype_name(tensor->dtype),
                          tensor_shape_text(tensor->shape, tensor->rank, text, sizeof text));
    if (!tensor_measure(tensor))
        return bad_tensor(gguf, from, err, ERROR_INVALID, "shape %s overflows",
                          tensor_shape_text(tensor->shape, tensor->rank, text, sizeof text));
    const size_t over = *end % gguf->alignment, begin = over ? *end + gguf->alignment - over : *end;
    if (from->offset != begin)
        return bad_tensor(gguf, from, err, ERROR_INVALID,
                          "expected it at byte %zu of the data, where the tensor before it ends, "
                          "got %" PRIu64,
                          begin, from->offset);
    if (begin > gguf->data_bytes || tensor->bytes > gguf->data_bytes - begin)
        return bad_tensor(gguf, from, err, ERROR_INVALID,
                          "expected %zu bytes from byte %zu of the data on for %s %s, but the file "
                          "has only %zu bytes of data",
                          tensor->bytes, begin, tensor_dtype_name(tensor->dtype),
                          tensor_shape_text(tensor->shape, tensor->rank, text, sizeof text),
                          gguf->data_bytes);
    tensor->data = gguf->data + begin;
    *end = begin + tensor->bytes;
    return 0;
}

static int add_tensors(struct tensors *out, const struct gguf *gguf, struct error *err)
{
    size_t end = 0;
    for (size_t i = 0; i < gguf->num_tensors; i++) {
        const struct gguf_tensor *from = &gguf->tensors[i];
        struct tensor tensor = {.name = from->name, .file = gguf->file};
        if (find_dtype(gguf, from, &tensor, err) != 0 ||
            place(gguf, from, &tensor, &end, err) != 0 || tensors_add(out, &tensor, err) != 0)
            return -1;
    }
    if (gguf->data_bytes - end >= gguf->alignment)
        return error_set(err, ERROR_INVALID,
                         "%s: expected %zu bytes of data, as its tensors cover, got %zu",
                         gguf->file, end, gguf->data_bytes);
    return 0;
}

static int open_file(struct tensors *out, struct gguf *gguf, const char *directory,
                     const char *name, struct error *err)
{
    struct file_map map;
    if (tensors_map(out, directory, name, &map, err) != 0 ||
        gguf_read(gguf, map.bytes, map.size, name, err) != 0)
        return -1;
    if (add_tensors(out, gguf, err) == 0)
        return 0;
    gguf_clear(gguf);
    return -1;
}

/* What a file says of its place in a split model. Alone it is number 0 of 1. */
static int read_split(const struct gguf *gguf, int64_t *number, int64_t *count, struct error *err)
{
    *number = 0;
    *count = 1;
    if (gguf_int(gguf, "split.count", FIELD_OPTIONAL, 0, MAX_SPLIT, count, err) != 0 ||
        gguf_int(gguf, "split.no", FIELD_OPTIONAL, 0, MAX_SPLIT, number, err) != 0)
        return -1;
    if (*count < 1)
        *count = 1;
    return 0;
}

/* One of the files behind the first. */
static int open_part(struct tensors *out, const char *directory, const char *name, int64_t number,
                     int64_t count, struct error *err)
{
    struct gguf part;
    int64_t got_number, got_count;
    if (open_file(out, &part, directory, name, err) != 0)
        return -1;
    int result = read_split(&part, &got_number, &got_count, err);
    if (result == 0 && (got_number != number || got_count != count))
        result = error_set(err, ERROR_INVALID,
                           "%s: expected split.no %" PRId64 " of split.count %" PRId64
                           ", got %" PRId64 " of %" PRId64,
                           name, number, count, got_number, got_count);
    gguf_clear(&part);
    return result;
}

static int open_parts(struct tensors *out, const struct gguf *first, const char *directory,
                      const char *name, struct error *err)
{
    char end[40], part[300];
    int64_t number, count, tensors = -1;
    if (read_split(first, &number, &count, err) != 0 ||
        gguf_int(first, "split.tensors.count", FIELD_OPTIONAL, 0, INT64_MAX, &tensors, err) != 0)
        return -1;
    if (count == 1)
        return 0;
    snprintf(end, sizeof end, "-00001-of-%05d.gguf", (int)count);
    const size_t length = strlen(name), end_length = strlen(end);
    if (number != 0 || length <= end_length || length > 255 ||
        strcmp(name + length - end_length, end) != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: expected the first of %" PRId64 " files, NAME%s, got number %" PRId64,
                         name, count, end, number + 1);
    for (int64_t i = 1; i < count; i++) {
        snprintf(part, sizeof part, "%.*s-%05d-of-%05d.gguf", (int)(length - end_length), name,
                 (int)i + 1, (int)count);
        if (open_part(out, directory, part, i, count, err) != 0)
            return -1;
    }
    if (tensors >= 0 && (size_t)tensors != tensors_count(out))
        return gguf_bad(first, "split.tensors.count", err,
                        "expected %zu, as the files have, got %" PRId64, tensors_count(out),
                        tensors);
    return 0;
}

int gguf_tensors_open(struct tensors **out, struct gguf *gguf, const char *directory,
                      const char *name, struct error *err)
{
    *out = tensors_new(name, err);
    if (!*out)
        return -1;
    if (open_file(*out, gguf, directory, name, err) != 0) {
        tensors_close(*out);
        *out = NULL;
        return -1;
    }
    if (open_parts(*out, gguf, directory, name, err) == 0 && tensors_sort(*out, err) == 0)
        return 0;
    gguf_clear(gguf);
    tensors_close(*out);
    *out = NULL;
    return -1;
}

int gguf_tensors_load(struct tensors **out, struct gguf *gguf, const void *bytes, size_t size,
                      const char *name, struct error *err)
{
    *out = NULL;
    if (gguf_read(gguf, bytes, size, name, err) != 0)
        return -1;
    struct tensors *tensors = tensors_new(name, err);
    if (tensors && add_tensors(tensors, gguf, err) == 0 && tensors_sort(tensors, err) == 0) {
        *out = tensors;
        return 0;
    }
    tensors_close(tensors);
    gguf_clear(gguf);
    return -1;
}
