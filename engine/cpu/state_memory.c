#include "engine/cpu/device.h"

#include <stdio.h>

/* Half of what is free, by the system's and the control group's account. */
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
    static const char *const limits[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        unsigned long long values[2];
        int read = 0;
        for (int j = 0; j < 2; j++) {
            file = fopen(limits[i][j], "re");
            if (file == NULL)
                continue;
            read += fscanf(file, "%llu", &values[j]) == 1;
            fclose(file);
        }
        if (read == 2 && values[0] > values[1] && values[0] - values[1] < available)
            available = (size_t)(values[0] - values[1]);
    }
    return available / 2;
}
