/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a model's files: named arrays in mapped memory, whatever format the files have.
 *
 * The reader of a format (safetensors.h, gguf_tensors.h) fills the table and checks every offset
 * and size. So whoever holds a struct tensor may read its `bytes` bytes at `data`. */
#ifndef ENGINE_MODEL_TENSORS_H
#define ENGINE_MODEL_TENSORS_H

#include "engine/model/dtype.h"
#include "engine/model/row_order.h"
#include "lib/base/error.h"
#include "lib/base/file.h"
#include "lib/base/warnings.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TENSOR_MAX_RANK = 8 };

/* The types that a file may hold: first those of matrices, with the same values as enum dtype.
 * Weights are of some of the others too (weights.h). */
#define TENSOR_VALUE(name, ...) TENSOR_##name,
enum tensor_dtype {
    DTYPES(TENSOR_VALUE) TENSOR_I32,
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
    TENSOR_BOOL,
    TENSOR_NUM_DTYPES
};

struct tensor {
    const char *name;
    const char *file; /* the file's name, for messages */
    enum tensor_dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    const unsigned char *data; /* [bytes], at any alignment */
    size_t bytes;
    size_t elements;
    struct tensor_order order;
    bool turned;    /* a matrix [rows, cols] of the model lies here as [cols, rows] */
    bool one_added; /* a norm of 1 + w has the sums here */
    bool decay;     /* of A_log it has -e^A_log here */
    /* for the reader's own bookkeeping */
    bool used;
    bool scale;       /* of another tensor: no parameter of the model */
    bool packed;      /* of U8: a byte has two numbers of MXFP4 */
    int64_t block[2]; /* rows and columns that share a scale; 0: it has none */
};

struct tensors;

/* An empty table. `name` is what a message about a missing tensor names. NULL: no memory. The
 * caller frees it with tensors_close. */
struct tensors *tensors_new(const char *name, struct error *err);
void tensors_close(struct tensors *tensors); /* NULL is allowed */

/* Maps `directory`/`file` until tensors_close; *map is borrowed. */
int tensors_map(struct tensors *tensors, const char *directory, const char *file,
                struct file_map *map, struct error *err);
size_t tensors_num_maps(const struct tensors *tensors);
/* Adds a tensor, of which it copies the names. Pointers to tensors are void then. */
int tensors_add(struct tensors *tensors, const struct tensor *tensor, struct error *err);
/* Gives it another name. tensors_sort must follow. */
int tensors_rename(struct tensors *tensors, struct tensor *tensor, const char *name,
                   struct error *err);
/* Sorts them by name, when all have been added. A name that two have is an error. */
int tensors_sort(struct tensors *tensors, struct error *err);

size_t tensors_count(const struct tensors *tensors);
int64_t tensors_file_bytes(const struct tensors *tensors); /* of all mapped files */
struct warnings *tensors_warnings(struct tensors *tensors);
/* The name of the single file, or of the index. */
const char *tensors_name(const struct tensors *tensors);
/* The i-th tensor, in the order of their names once sorted; those after it follow in memory. */
struct tensor *tensors_at(struct tensors *tensors, size_t i);
struct tensor *tensors_find(struct tensors *tensors, const char *name); /* NULL: none */

/* Marks it as used, and as no part of the model. */
void tensor_ignore(struct tensor *tensor);
/* Whether a matrix may have its numbers as they are: the dtype is one of enum dtype. */
bool tensor_dtype_of_matrices(enum tensor_dtype dtype);
/* The row of a matrix, or the number of a bias, that the model has at place i. */
int64_t tensor_row(const struct tensor *tensor, int64_t i);
/* Sets `elements` and `bytes` to what dtype, rank and shape mean. False: they overflow. */
bool tensor_measure(struct tensor *tensor);

const char *tensor_dtype_name(enum tensor_dtype dtype);
/* Bytes of so many numbers, which are whole blocks. */
size_t tensor_dtype_size(enum tensor_dtype dtype, size_t numbers);

/* "[275, 48]" into text, cut to size; returns text. */
const char *tensor_shape_text(const int64_t *shape, int rank, char *text, size_t size);

#endif
