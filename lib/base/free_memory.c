/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/free_memory.h"

#include "lib/base/control_group.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

const char *free_memory_name(enum free_memory_limit limit)
{
    static const char *const NAMES[] = {
        "the memory of the machine", "CommitLimit (vm.overcommit_memory)",
        "the limit of the control groups", "ulimit -v", "ulimit -d"};
    return NAMES[limit];
}

/* The kilobytes in the line that begins with `name` of a file of the system, in bytes; otherwise:
 * there is none. */
static size_t read_kilobytes(const char *path, const char *name, size_t otherwise)
{
    FILE *file = fopen(path, "re");
    char line[256];
    unsigned long long kilobytes;
    size_t bytes = otherwise, length = strlen(name);
    if (file == NULL)
        return otherwise;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%llu kB", &kilobytes) == 1)
            bytes = (size_t)kilobytes * 1024;
    fclose(file);
    return bytes;
}

static void lower(struct free_memory *memory, size_t bytes, enum free_memory_limit limiting,
                  size_t limit)
{
    if (bytes < memory->bytes)
        *memory = (struct free_memory){bytes, limiting, limit};
}

/* used: the line of /proc/self/status that says what counts. */
static void lower_by_ulimit(struct free_memory *memory, int resource, const char *used,
                            enum free_memory_limit limiting)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return;
    size_t taken = read_kilobytes("/proc/self/status", used, 0), most = (size_t)limit.rlim_cur;
    lower(memory, most > taken ? most - taken : 0, limiting, most);
}

/* Where the system promises no more than it has. */
static void lower_by_commit(struct free_memory *memory)
{
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "re");
    int mode = 0;
    if (file == NULL)
        return;
    bool strict = fscanf(file, "%d", &mode) == 1 && mode == 2;
    fclose(file);
    if (!strict)
        return;
    size_t limit = read_kilobytes("/proc/meminfo", "CommitLimit:", SIZE_MAX);
    size_t promised = read_kilobytes("/proc/meminfo", "Committed_AS:", 0);
    lower(memory, limit > promised ? limit - promised : 0, FREE_MEMORY_COMMIT, limit);
}

static void lower_by_limits(struct free_memory *memory)
{
    lower_by_commit(memory);
    long long limit = 0, left = control_group_memory(CONTROL_GROUP_OWN, &limit);
    if (left != LLONG_MAX)
        lower(memory, (size_t)left, FREE_MEMORY_GROUPS, (size_t)limit);
    lower_by_ulimit(memory, RLIMIT_AS, "VmSize:", FREE_MEMORY_ADDRESS);
    lower_by_ulimit(memory, RLIMIT_DATA, "VmData:", FREE_MEMORY_DATA);
}

void free_memory_read(struct free_memory *now, struct free_memory *sure)
{
    enum { UNKNOWN = 1 << 30 };
    size_t available = read_kilobytes("/proc/meminfo", "MemAvailable:", UNKNOWN);
    size_t total = read_kilobytes("/proc/meminfo", "MemTotal:", available);
    *now = (struct free_memory){available, FREE_MEMORY_MACHINE, total};
    lower_by_limits(now);
    if (sure == NULL)
        return;
    *sure = (struct free_memory){total, FREE_MEMORY_MACHINE, total};
    lower_by_limits(sure);
}
