/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused with a message, or every tensor readable to its end, and
 * as a matrix: refused with a message, or converted. */
#include "engine/model/config.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

#include <stdlib.h>

static void read_matrices(struct tensors *file)
{
    static const struct fp8_config fp8 = {.scaled = true, .block = {2, 3}, .dtype = DTYPE_BF16};
    struct arena arena = {0};
    struct weights weights = {.file = file, .arena = &arena, .fp8 = &fp8};
    for (size_t i = 0; i < tensors_count(file); i++) {
        const struct tensor *tensor = tensors_at(file, i);
        struct matrix matrix;
        struct error err = ERROR_INIT;
        if (tensor->rank == 2 &&
            weights_matrix(&weights, tensor->name, WEIGHT_ANY, tensor->shape[1], &matrix, &err) !=
                0 &&
            !err.message[0])
            abort();
    }
    arena_clear(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensors *file;
    struct error err = ERROR_INIT;
    if (safetensors_load(&file, data, size, "fuzz", &err) != 0) {
        if (err.code == ERROR_NONE || !err.message[0])
            abort();
        return 0;
    }
    volatile unsigned sum = 0;
    for (size_t i = 0; i < tensors_count(file); i++) {
        struct tensor *tensor = tensors_at(file, i);
        if (tensors_find(file, tensor->name) != tensor)
            abort();
        for (size_t byte = 0; byte < tensor->bytes; byte++)
            sum += tensor->data[byte];
    }
    read_matrices(file);
    tensors_close(file);
    return 0;
}
