/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/four_bits.h"

#include "engine/model/quantized.h"
#include "engine/model/safetensors.h"
#include "lib/base/file.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Tensors of U8 become matrices of DTYPE_Q4_1, whose rows they have as bytes. */
int four_bits_from_bytes(struct tensors *file, struct error *err)
{
    const int64_t bytes = (int64_t)dtype_size(DTYPE_Q4_1, dtype_block(DTYPE_Q4_1));
    for (size_t i = 0; i < tensors_count(file); i++) {
        struct tensor *tensor = tensors_at(file, i);
        if (tensor->dtype != TENSOR_U8)
            continue;
        char got[160];
        if (tensor->rank != 2 || tensor->shape[1] % bytes != 0)
            return error_set(err, ERROR_INVALID,
                             "%s: tensor \"%.100s\": expected rows of whole blocks of %d bytes, "
                             "got shape %s",
                             tensor->file, tensor->name, (int)bytes,
                             tensor_shape_text(tensor->shape, tensor->rank, got, sizeof got));
        tensor->dtype = (enum tensor_dtype)DTYPE_Q4_1;
        if (__builtin_mul_overflow(tensor->shape[1] / bytes, dtype_block(DTYPE_Q4_1),
                                   &tensor->shape[1]) ||
            !tensor_measure(tensor))
            return error_set(err, ERROR_INVALID, "%s: tensor \"%.100s\": its shape overflows",
                             tensor->file, tensor->name);
    }
    return 0;
}

static bool is_owner(const struct tensor *tensor)
{
    return strcmp(tensor->name, FOUR_BITS_OWNER) == 0;
}

/* Takes the owner's tensor, and makes blocks of the others. */
static int read_blocks(struct tensors *beside, struct error *err)
{
    struct tensor *owner = tensors_find(beside, FOUR_BITS_OWNER);
    if (!owner || owner->dtype != TENSOR_U8 || owner->rank != 1 ||
        owner->shape[0] != FOUR_BITS_OWNER_BYTES)
        return error_set(
            err, ERROR_INVALID,
            FOUR_BITS_FILE ": tensor \"" FOUR_BITS_OWNER "\": expected U8 [%d], got %s",
            FOUR_BITS_OWNER_BYTES, owner ? tensor_dtype_name(owner->dtype) : "nothing");
    owner->used = true;
    owner->dtype = TENSOR_I8; /* no blocks */
    return four_bits_from_bytes(beside, err);
}

int four_bits_open(struct tensors **out, const char *directory, struct error *err)
{
    char path[4096];
    *out = NULL;
    const int length = snprintf(path, sizeof path, "%s/" FOUR_BITS_FILE, directory);
    if (length < 0 || (size_t)length >= sizeof path || !file_exists(path))
        return 0;
    return safetensors_open_file(out, directory, FOUR_BITS_FILE, err) == 0 ? read_blocks(*out, err)
                                                                           : -1;
}

int four_bits_take(struct tensors *beside, const struct tensor *tensor, struct matrix *matrix,
                   struct error *err)
{
    struct tensor *blocks = beside ? tensors_find(beside, tensor->name) : NULL;
    char expected[160], got[160];
    if (!blocks || is_owner(blocks))
        return 0;
    const bool plain = dtype_block(matrix->dtype) == 1;
    if (!plain || tensor->rank != 2 || blocks->dtype != (enum tensor_dtype)DTYPE_Q4_1 ||
        blocks->shape[0] != tensor->shape[0] || blocks->shape[1] != tensor->shape[1])
        return error_set(
            err, ERROR_INVALID,
            FOUR_BITS_FILE ": tensor \"%.100s\": expected blocks of %s, which is %s, got %s of %s",
            blocks->name, tensor_shape_text(tensor->shape, tensor->rank, expected, sizeof expected),
            tensor_dtype_name(tensor->dtype), tensor_dtype_name(blocks->dtype),
            tensor_shape_text(blocks->shape, blocks->rank, got, sizeof got));
    blocks->used = true;
    matrix->q4 = blocks->data;
    return 0;
}

int four_bits_finish(struct tensors *beside, struct error *err)
{
    for (size_t i = 0; beside && i < tensors_count(beside); i++)
        if (!tensors_at(beside, i)->used)
            return error_set(err, ERROR_INVALID,
                             FOUR_BITS_FILE ": tensor \"%.100s\": the model has no such matrix",
                             tensors_at(beside, i)->name);
    return 0;
}

int four_bits_check(const struct model *model, const unsigned char *fingerprint, uint64_t *hash,
                    struct error *err)
{
    struct tensors *beside = model->storage->beside;
    *hash = 0;
    for (size_t i = 0; beside && i < tensors_count(beside); i++) {
        const struct tensor *tensor = tensors_at(beside, i);
        if (is_owner(tensor) && memcmp(tensor->data, fingerprint, FOUR_BITS_OWNER_BYTES) != 0)
            return error_set(err, ERROR_INVALID,
                             "%s/" FOUR_BITS_FILE ": its blocks are of other weights than those "
                             "beside it: remove it, or write it anew with `regla quantize`",
                             model->directory);
        if (!is_owner(tensor) &&
            !quantized_finite(DTYPE_Q4_1, tensor->data, 0, (int64_t)tensor->elements))
            return error_set(err, ERROR_INVALID,
                             FOUR_BITS_FILE ": tensor \"%.100s\": a scale or minimum is not finite",
                             tensor->name);
        *hash = XXH3_64bits_withSeed(tensor->data, tensor->bytes, *hash + i);
        file_release(tensor->data, tensor->bytes);
    }
    *hash += beside && *hash == 0;
    return 0;
}
