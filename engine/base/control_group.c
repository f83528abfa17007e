/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/control_group.h"

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
static long long cpus_of(const struct group *group)
{
    long long n[2];
    if (*group->hierarchy == 0 ? read_numbers(group, "cpu.max", n, 2) != 2
                               : read_numbers(group, "cpu.cfs_quota_us", n, 1) != 1 ||
                                     read_numbers(group, "cpu.cfs_period_us", n + 1, 1) != 1)
        return LLONG_MAX;
    return n[0] > 0 && n[1] > 0 ? n[0] / n[1] + (n[0] % n[1] != 0) : LLONG_MAX;
}

/* Bytes of files that were not used lately; 0 where that is not said. */
static long long idle_files(const struct group *group, const char *name)
{
    char line[256];
    long long bytes = 0, value;
    size_t length = strlen(name);
    FILE *file = open_file(group, "memory.stat");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && sscanf(line + length, " %lld", &value) == 1)
            bytes = value;
    fclose(file);
    return bytes;
}

static long long memory_of(const struct group *group)
{
    const bool second = *group->hierarchy == 0;
    long long limit, used;
    if (read_numbers(group, second ? "memory.max" : "memory.limit_in_bytes", &limit, 1) != 1 ||
        read_numbers(group, second ? "memory.current" : "memory.usage_in_bytes", &used, 1) != 1 ||
        limit < 0 || used < 0)
        return LLONG_MAX;
    long long idle = idle_files(group, second ? "inactive_file" : "total_inactive_file");
    used -= idle > 0 && idle < used ? idle : 0;
    return limit > used ? limit - used : 0;
}

typedef long long limit_function(const struct group *group);

/* The group's and all above it; the root too where the group is not visible from here. */
static long long least_above(const char *root, const char *hierarchy, char *path,
                             limit_function *limit_of)
{
    const struct group group = {root, hierarchy, path};
    long long least = LLONG_MAX;
    for (;;) {
        long long limit = limit_of(&group);
        if (limit < least)
            least = limit;
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return least;
        *slash = 0;
    }
}

/* hierarchy: version 1's, "/" and its controller. */
static long long least(const char *membership, const char *root, const char *hierarchy,
                       limit_function *limit_of)
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
        long long limit = least_above(root, *controllers == 0 ? "" : hierarchy, path, limit_of);
        if (limit < least)
            least = limit;
    }
    fclose(file);
    return least;
}

long long control_group_cpus(const char *membership, const char *root)
{
    return least(membership, root, "/cpu", cpus_of);
}

long long control_group_memory(const char *membership, const char *root)
{
    return least(membership, root, "/memory", memory_of);
}
