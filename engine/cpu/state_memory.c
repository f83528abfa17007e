/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/control_group.h"
#include "engine/cpu/device.h"

#include <stdio.h>

/* Half of what is free, by the system's account and the control groups'. */
size_t cpu_state_memory(struct backend *backend)
{
    (void)backend;
    size_t available = (size_t)1 << 30;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file != NULL) {
        char line[256];
        unsigned long long kilobytes;
        while (fgets(line, sizeof line, file) != NULL)
            if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1)
                available = (size_t)kilobytes * 1024;
        fclose(file);
    }
    long long left = control_group_memory(CONTROL_GROUP_OWN);
    if ((unsigned long long)left < available)
        available = (size_t)left;
    return available / 2;
}
