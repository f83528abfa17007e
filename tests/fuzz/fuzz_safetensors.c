/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused with a message, or every tensor readable to its end. */
#include "engine/model/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors *file;
    struct error err = ERROR_INIT;
    if (safetensors_load(&file, data, size, "fuzz", &err) != 0) {
        if (err.code == ERROR_NONE || !err.message[0])
            abort();
        return 0;
    }
    volatile unsigned sum = 0;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        struct tensor *tensor = safetensors_at(file, i);
        if (safetensors_find(file, tensor->name) != tensor)
            abort();
        for (size_t byte = 0; byte < tensor->bytes; byte++)
            sum += tensor->data[byte];
    }
    safetensors_close(file);
    return 0;
}
