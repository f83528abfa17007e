/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the safetensors format: named arrays in one file, or in shards that an index lists.
 *
 * A file begins with 8 bytes, the length of its header. The header is JSON: name -> dtype, shape,
 * data_offsets. The data follow; the tensors cover them without holes or overlaps
 * (https://github.com/huggingface/safetensors, "Format"). All of this is checked when the file is
 * opened, so whoever holds a struct tensor may read its `bytes` bytes at `data`. */
#ifndef ENGINE_MODEL_SAFETENSORS_H
#define ENGINE_MODEL_SAFETENSORS_H

#include "engine/base/error.h"
#include "engine/base/warnings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TENSOR_MAX_RANK = 8 };

/* The types that a file may hold. Weights are of some of them (weights.h). */
enum tensor_dtype {
    TENSOR_F32,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_I32,
    TENSOR_I64,
    TENSOR_F64,
    TENSOR_F8_E4M3,
    TENSOR_F8_E5M2,
    TENSOR_F8_E8M0,
    TENSOR_I16,
    TENSOR_I8,
    TENSOR_U64,
    TENSOR_U32,
    TENSOR_U16,
    TENSOR_U8,
    TENSOR_BOOL
};

struct tensor {
    const char *name;
    const char *file; /* the shard's name, for messages */
    enum tensor_dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    const unsigned char *data; /* [bytes], at any alignment */
    size_t bytes;
    size_t elements;
    /* for the reader's own bookkeeping */
    bool used;
    bool scale;       /* of another tensor: no parameter of the model */
    int64_t block[2]; /* rows and columns that share a scale; 0: it has none */
};

struct safetensors;

/* Opens `directory`/model.safetensors or, without that, the shards that
 * `directory`/model.safetensors.index.json lists. The caller closes *out. */
int safetensors_open(struct safetensors **out, const char *directory, struct error *err);

/* One file from memory: bytes [size], borrowed until safetensors_close. */
int safetensors_load(struct safetensors **out, const void *bytes, size_t size, const char *file,
                     struct error *err);
void safetensors_close(struct safetensors *file); /* NULL is allowed */

size_t safetensors_count(const struct safetensors *file);
int64_t safetensors_file_bytes(const struct safetensors *file); /* of all shards */
const struct warnings *safetensors_warnings(const struct safetensors *file);
/* The name of the single file, or of the index. A message about a missing tensor names it. */
const char *safetensors_name(const struct safetensors *file);
/* The i-th tensor, in the order of their names; i < count. */
struct tensor *safetensors_at(struct safetensors *file, size_t i);
struct tensor *safetensors_find(struct safetensors *file, const char *name); /* NULL: none */

/* Marks it as used, and as no part of the model. */
void tensor_ignore(struct tensor *tensor);

const char *tensor_dtype_name(enum tensor_dtype dtype);
size_t tensor_dtype_bytes(enum tensor_dtype dtype);

/* "[275, 48]" into text, cut to size; returns text. */
const char *tensor_shape_text(const int64_t *shape, int rank, char *text, size_t size);

#endif
