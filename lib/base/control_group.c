/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/control_group.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A group of a hierarchy: version 2's is "", version 1's are "/cpu" and "/memory". */
struct group {
    const char *root, *hierarchy, *path;
};

static FILE *open_file(const struct group *group, const char *name)
{
    char path[PATH_MAX];
    int length =
        snprintf(path, sizeof path, "%s%s%s/%s", group->root, group->hierarchy, group->path, name);
    return length < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* Reads `count` numbers; how many there were. */
static int read_numbers(const struct group *group, const char *name, long long *numbers, int count)
{
    FILE *file = open_file(group, name);
    int got = 0;
    if (file == NULL)
        return 0;
    while (got < count && fscanf(file, "%lld", &numbers[got]) == 1)
        got++;
    fclose(file);
    return got;
}

/* Version 2 has "max 100000" or "150000 100000", version 1 a file each and -1. */
static long long cpus_of(const struct group *group, long long *limit)
{
    long long n[2];
    (void)limit;
    if (*group->hierarchy == 0 ? read_numbers(group, "cpu.max", n, 2) != 2
                               : read_numbers(group, "cpu.cfs_quota_us", n, 1) != 1 ||
                                     read_numbers(group, "cpu.cfs_period_us", n + 1, 1) != 1)
        return LLONG_MAX;
    return n[0] > 0 && n[1] > 0 ? n[0] / n[1] + (n[0] % n[1] != 0) : LLONG_MAX;
}

/* Bytes of the pages of files that the kernel would drop before it ran out of memory: all but those
 * that programs have mapped. 0 where that is not said. */
static long long unused_files(const struct group *group)
{
    const bool second = *group->hierarchy == 0;
    const struct {
        const char *name;
        int sign;
    } items[] = {{second ? "inactive_file" : "total_inactive_file", 1},
                 {second ? "active_file" : "total_active_file", 1},
                 {second ? "file_mapped" : "total_mapped_file", -1}};
    char line[256], name[64];
    long long bytes = 0, value;
    FILE *file = open_file(group, "memory.stat");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        for (size_t i = 0; i < sizeof items / sizeof *items; i++)
            if (sscanf(line, "%63s %lld", name, &value) == 2 && value > 0 &&
                strcmp(name, items[i].name) == 0)
                bytes += items[i].sign * value;
    fclose(file);
    return bytes > 0 ? bytes : 0;
}

/* Over memory.high a group is slowed down until it stands still. */
static bool read_limit(const struct group *group, long long *limit)
{
    long long high;
    if (*group->hierarchy != 0)
        return read_numbers(group, "memory.limit_in_bytes", limit, 1) == 1 && *limit >= 0;
    bool limited = read_numbers(group, "memory.max", limit, 1) == 1 && *limit >= 0;
    if (read_numbers(group, "memory.high", &high, 1) == 1 && high >= 0 &&
        (!limited || high < *limit)) {
        *limit = high;
        limited = true;
    }
    return limited;
}

static long long memory_of(const struct group *group, long long *limit)
{
    const char *name = *group->hierarchy == 0 ? "memory.current" : "memory.usage_in_bytes";
    long long used;
    if (!read_limit(group, limit) || read_numbers(group, name, &used, 1) != 1 || used < 0)
        return LLONG_MAX;
    long long unused = unused_files(group);
    used -= unused < used ? unused : used;
    return *limit > used ? *limit - used : 0;
}

/* What the group leaves, and of what limit; LLONG_MAX: there is none. */
typedef long long limit_function(const struct group *group, long long *limit);

/* The group's and all above it; the root too where the group is not visible from here. */
static long long least_above(const char *root, const char *hierarchy, char *path,
                             limit_function *limit_of, long long *limit)
{
    const struct group group = {root, hierarchy, path};
    long long least = LLONG_MAX;
    for (;;) {
        long long of = LLONG_MAX, left = limit_of(&group, &of);
        if (left < least) {
            least = left;
            *limit = of;
        }
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return least;
        *slash = 0;
    }
}

/* hierarchy: version 1's, "/" and its controller. */
static long long least(const char *membership, const char *root, const char *hierarchy,
                       limit_function *limit_of, long long *limit)
{
    char line[PATH_MAX + 256];
    long long least = LLONG_MAX;
    FILE *file = fopen(membership, "re");
    if (file == NULL)
        return least;
    while (fgets(line, sizeof line, file) != NULL) {
        /* "0::/user.slice" or "4:cpu,cpuacct:/docker/0123" */
        char *controllers = strchr(line, ':');
        char *path = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (path == NULL)
            continue;
        line[strcspn(line, "\n")] = 0;
        *path++ = 0;
        controllers++;
        char listed[sizeof line + 2], wanted[32];
        snprintf(listed, sizeof listed, ",%s,", controllers);
        snprintf(wanted, sizeof wanted, ",%s,", hierarchy + 1);
        if (*controllers != 0 && strstr(listed, wanted) == NULL)
            continue;
        long long of = LLONG_MAX;
        long long left = least_above(root, *controllers == 0 ? "" : hierarchy, path, limit_of, &of);
        if (left < least) {
            least = left;
            *limit = of;
        }
    }
    fclose(file);
    return least;
}

long long control_group_cpus(const char *membership, const char *root)
{
    long long limit;
    return least(membership, root, "/cpu", cpus_of, &limit);
}

long long control_group_memory(const char *membership, const char *root, long long *limit)
{
    return least(membership, root, "/memory", memory_of, limit);
}
