/* SPDX-License-Identifier: Apache-2.0 */
/* Takes tensors out of a model's files: each once, with the expected shape and dtype.
 *
 * A matrix stays in the file, and is converted only where it is of F64 or F8_E4M3. Vectors, norms
 * and small arrays per head become f32 in the arena, and must be finite. Every error names file,
 * tensor, expected and got. */
#ifndef ENGINE_MODEL_WEIGHTS_H
#define ENGINE_MODEL_WEIGHTS_H

#include "engine/model/model.h"
#include "engine/model/tensors.h"
#include "lib/base/arena.h"
#include "lib/base/warnings.h"

struct fp8_config;

struct weights {
    struct tensors *file;
    struct tensors *beside;       /* matrices in four bits (four_bits.h); NULL: none */
    struct arena *arena;          /* converted and copied tensors */
    const struct fp8_config *fp8; /* NULL: tensors of F8_E4M3 have no scales */
    struct warnings *warnings;
};

enum { WEIGHT_NAME_SIZE = 160 };

/* A dimension of any size from 1 on. The call sets it to the tensor's. */
enum { WEIGHT_ANY = -1 };

/* Formats a tensor's name; returns `name`. */
const char *weights_name(char name[WEIGHT_NAME_SIZE], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

bool weights_has(const struct weights *weights, const char *name);

/* Sets an error `file: tensor "name": ...`; returns -1. */
int weights_bad(const struct weights *weights, const char *name, struct error *err,
                const char *format, ...) __attribute__((format(printf, 4, 5)));

enum weight_bias { WEIGHT_NO_BIAS, WEIGHT_MAY_BIAS /* if the file has it */, WEIGHT_HAS_BIAS };

/* A linear layer: `name`.weight [rows, cols] and `name`.bias [rows]. rows may be WEIGHT_ANY. */
int weights_linear(struct weights *weights, const char *name, int64_t rows, int64_t cols,
                   enum weight_bias bias, struct matrix *matrix, struct error *err);

/* Rows [first, first + rows) of a matrix without a row_part, which stay where they are. An order of
 * its rows is that of the last of them alone, which one part has. */
struct matrix weights_rows(const struct matrix *from, int64_t first, int64_t rows);

/* Ignores tensors whose names end so, which other programs save beside the weights. */
void weights_ignore(struct weights *weights, const char *const *ends, size_t count);

/* The same of those whose names begin so: of parts of a model that are not computed. */
void weights_ignore_below(struct weights *weights, const char *const *begins, size_t count);

/* A matrix under its full name, without a bias. */
int weights_matrix(struct weights *weights, const char *name, int64_t rows, int64_t cols,
                   struct matrix *matrix, struct error *err);

/* Matrices of one shape in one tensor, shape [count, rows, cols], below each other in *all: `name`
 * .weight or the name alone. */
int weights_stack(struct weights *weights, const char *name, const int64_t *shape,
                  struct matrix *all, struct error *err);
/* As gpt-oss's files have them: in MXFP4, as `name`_blocks and `name`_scales; or turned, [count,
 * cols, rows], of the name alone. turns: rows are those of two halves in turns. Copies, in the
 * arena. */
int weights_stack_mxfp4(struct weights *weights, const char *name, const int64_t *shape, bool turns,
                        struct matrix *all, struct error *err);
int weights_stack_turned(struct weights *weights, const char *name, const int64_t *shape,
                         bool turns, struct matrix *all, struct error *err);
/* Which of these a file has; `weight`: that the name has .weight. */
bool weights_has_stack(const struct weights *weights, const char *name);
bool weights_has_blocks(const struct weights *weights, const char *name);
bool weights_has_weight(const struct weights *weights, const char *name);

/* Numbers as f32, of shape [rank], any of which may be WEIGHT_ANY. */
int weights_floats(struct weights *weights, const char *name, int rank, int64_t *shape,
                   const float **values, struct error *err);

/* Channels of a convolution: rows [first, first + channels) of `name`.weight, [of, K] or
 * [of, 1, K], times `scale`, and of `name`.bias. */
struct conv_part {
    const char *name;
    int64_t of, first, channels;
    double scale;
};

/* A convolution of parts [count], one after the other, of the width in *conv; its bias is the
 * parts', which have one each or none. Parts of one tensor stand together. */
int weights_conv(struct weights *weights, const struct conv_part *parts, int count,
                 enum weight_bias bias, struct convolution *conv, struct error *err);

/* Refuses infinities and NaNs in a tensor of numbers, and what f32 cannot hold. Matrices of F32,
 * F16 and BF16 are checked later, when the fingerprint reads all weights. */
int weights_check_finite(const struct tensor *tensor, struct error *err);
/* The same of n numbers from element `first` on, both whole blocks. */
int weights_check_finite_part(const struct tensor *tensor, size_t first, size_t n,
                              struct error *err);

/* A norm of the kind and eps in *norm, with `size` parameters `name`.weight and `name`.bias. */
int weights_norm(struct weights *weights, const char *name, int64_t size, struct norm *norm,
                 struct error *err);

/* I32 or I64: a permutation of 0..size-1. */
int weights_permutation(struct weights *weights, const char *name, int64_t size,
                        const int32_t **permutation, struct error *err);

/* Fails when a tensor was never taken; sets the model's dtype, parameters and file_bytes. */
int weights_finish(struct weights *weights, struct model *model, struct error *err);

#endif
