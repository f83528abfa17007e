#include "engine/base/cpus.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Reads `count` numbers from root/hierarchy/group/name; how many there were. */
static int read_numbers(const char *root, const char *hierarchy, const char *group,
                        const char *name, long long *numbers, int count)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s%s%s/%s", root, hierarchy, group, name);
    FILE *file = length < (int)sizeof path ? fopen(path, "re") : NULL;
    int got = 0;
    if (file == NULL)
        return 0;
    while (got < count && fscanf(file, "%lld", &numbers[got]) == 1)
        got++;
    fclose(file);
    return got;
}

/* Of one group: version 2 has "max 100000" or "150000 100000", version 1 a file each and -1. */
static long long quota_of(const char *root, const char *hierarchy, const char *group)
{
    long long n[2];
    if (*hierarchy == 0
            ? read_numbers(root, hierarchy, group, "cpu.max", n, 2) != 2
            : read_numbers(root, hierarchy, group, "cpu.cfs_quota_us", n, 1) != 1 ||
                  read_numbers(root, hierarchy, group, "cpu.cfs_period_us", n + 1, 1) != 1)
        return LLONG_MAX;
    return n[0] > 0 && n[1] > 0 ? n[0] / n[1] + (n[0] % n[1] != 0) : LLONG_MAX;
}

/* The group's and all above it; the root too where the group is not visible from here. */
static long long least_quota(const char *root, const char *hierarchy, char *group)
{
    long long least = LLONG_MAX;
    for (;;) {
        long long quota = quota_of(root, hierarchy, group);
        if (quota < least)
            least = quota;
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return least;
        *slash = 0;
    }
}

int cpus_quota(const char *membership, const char *root)
{
    char line[PATH_MAX + 256];
    long long least = LLONG_MAX;
    FILE *file = fopen(membership, "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        /* "0::/user.slice" or "4:cpu,cpuacct:/docker/0123" */
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL)
            continue;
        line[strcspn(line, "\n")] = 0;
        *group++ = 0;
        controllers++;
        char listed[sizeof line + 2];
        snprintf(listed, sizeof listed, ",%s,", controllers);
        if (*controllers != 0 && strstr(listed, ",cpu,") == NULL)
            continue;
        long long quota = least_quota(root, *controllers == 0 ? "" : "/cpu", group);
        if (quota < least)
            least = quota;
    }
    fclose(file);
    return least > INT_MAX ? 0 : (int)least;
}

int cpus_allowed(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && quota < count)
        count = quota;
    return count < 1 ? 1 : count;
}
