/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/device.h"
#include "lib/base/free_memory.h"

/* Half of what is free. */
size_t cpu_state_memory(struct backend *backend)
{
    struct free_memory memory;
    (void)backend;
    free_memory_read(&memory, NULL);
    return memory.bytes / 2;
}
