/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a golden case's config and tensors, changed one thing at a time, and written back. */
#ifndef TESTS_UNIT_CHECKPOINT_H
#define TESTS_UNIT_CHECKPOINT_H

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN REGLA_SOURCE_DIR "/tests/golden/"

static inline char *read_whole(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    cr_assert(file, "cannot open %s", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*size + 1);
    cr_assert(bytes && fread(bytes, 1, *size, file) == *size);
    bytes[*size] = 0;
    fclose(file);
    return bytes;
}

static inline void write_whole(const char *directory, const char *name, const void *bytes,
                               size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(bytes, 1, size, file) == size, "cannot write %s", path);
    fclose(file);
}

/* Replaces the value at a path such as "mixers/a/gate" or "blocks/a/1/alpha" by `value` (JSON), or
 * removes it when value is NULL. */
static inline void json_patch(json_t *root, const char *path, const char *value)
{
    char copy[160];
    snprintf(copy, sizeof copy, "%s", path);
    char *key = copy, *slash;
    while ((slash = strchr(key, '/'))) {
        *slash = 0;
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(key))
                                   : json_object_get(root, key);
        cr_assert(root, "no %s in %s", key, path);
        key = slash + 1;
    }
    json_t *replacement = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    cr_assert(!value || replacement, "not JSON: %s", value);
    int result;
    if (json_is_array(root))
        result = json_array_set_new(root, (size_t)atoi(key), replacement);
    else
        result =
            replacement ? json_object_set_new(root, key, replacement) : json_object_del(root, key);
    cr_assert(result == 0, "cannot change %s", path);
}

static inline json_t *golden_config(const char *golden)
{
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s/config.json", golden);
    json_t *config = json_load_file(path, 0, NULL);
    cr_assert(config, "cannot read %s", path);
    return config;
}

/* A safetensors file taken apart: the header, and the data of every tensor as a JSON-free blob. */
struct parts {
    char *bytes; /* the file */
    const char *data;
    json_t *header; /* name -> {dtype, shape, data_offsets}; offsets as in the file */
};

static inline struct parts golden_parts(const char *golden)
{
    char path[512];
    size_t size;
    struct parts parts;
    snprintf(path, sizeof path, GOLDEN "%s/model.safetensors", golden);
    parts.bytes = read_whole(path, &size);
    uint64_t length;
    memcpy(&length, parts.bytes, 8);
    parts.header = json_loadb(parts.bytes + 8, length, 0, NULL);
    cr_assert(parts.header);
    json_object_del(parts.header, "__metadata__");
    parts.data = parts.bytes + 8 + length;
    return parts;
}

static inline void parts_free(struct parts *parts)
{
    json_decref(parts->header);
    free(parts->bytes);
}

/* "name" -> its entry; data_offsets may be dropped, then the tensor is all zero bytes. */
static inline json_t *parts_entry(struct parts *parts, const char *name)
{
    json_t *entry = json_object_get(parts->header, name);
    cr_assert(entry, "no tensor %s", name);
    return entry;
}

static inline size_t entry_bytes(const json_t *entry)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    size_t bytes = strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0   ? 4
                   : strcmp(dtype, "F64") == 0 || strcmp(dtype, "I64") == 0 ? 8
                   : strcmp(dtype, "U8") == 0                               ? 1
                                                                            : 2;
    size_t i;
    json_t *dimension;
    json_array_foreach(json_object_get(entry, "shape"), i, dimension) bytes *=
        (size_t)json_integer_value(dimension);
    return bytes;
}

/* Writes a file again, its data laid out anew; pad bytes of spaces end the header, so that data can
 * be unaligned. The caller frees it. */
static inline char *parts_write(const struct parts *parts, size_t pad, size_t *size)
{
    json_t *header = json_deep_copy(parts->header);
    const char *name;
    json_t *entry;
    size_t data_bytes = 0;
    json_object_foreach(header, name, entry) data_bytes += entry_bytes(entry);
    char *data = calloc(1, data_bytes + 1);
    size_t at = 0;
    json_object_foreach(header, name, entry)
    {
        const json_t *offsets = json_object_get(entry, "data_offsets");
        size_t bytes = entry_bytes(entry);
        if (offsets) {
            size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
            size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
            memcpy(data + at, parts->data + begin, end - begin < bytes ? end - begin : bytes);
        }
        json_object_set_new(entry, "data_offsets",
                            json_pack("[II]", (json_int_t)at, (json_int_t)(at + bytes)));
        at += bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = (strlen(text) + 7) / 8 * 8 + pad;
    *size = 8 + (size_t)length + data_bytes;
    char *bytes = malloc(*size);
    memcpy(bytes, &length, 8);
    memset(bytes + 8, ' ', length);
    memcpy(bytes + 8, text, strlen(text));
    memcpy(bytes + 8 + length, data, data_bytes);
    free(text);
    free(data);
    json_decref(header);
    return bytes;
}

#endif
