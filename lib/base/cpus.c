/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/cpus.h"

#include "lib/base/control_group.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cpus_allowed(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : (int)sysconf(_SC_NPROCESSORS_ONLN);
    long long quota = control_group_cpus(CONTROL_GROUP_OWN);
    if (quota < count)
        count = (int)quota;
    return count < 1 ? 1 : count;
}

int cpus_current(void)
{
    return sched_getcpu();
}

bool cpus_of(pid_t thread, cpu_set_t *out)
{
    return sched_getaffinity(thread, sizeof *out, out) == 0;
}

bool cpus_keep_off(pid_t thread, const cpu_set_t *cpus, int cpu)
{
    cpu_set_t rest = *cpus;
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return false;
    CPU_CLR(cpu, &rest);
    return CPU_COUNT(&rest) > 0 && sched_setaffinity(thread, sizeof rest, &rest) == 0;
}

void cpus_use(const cpu_set_t *cpus)
{
    sched_setaffinity(0, sizeof *cpus, cpus);
}

/* Adds the numbers of a list like "0-3,8,10-11" to a set. False: it is no such list, or has a
 * number that no set holds. */
static bool parse_list(const char *at, cpu_set_t *out)
{
    char *end = (char *)at;
    for (bool more = *at != '\n'; more; more = *end == ',', at = end + 1) {
        long first = strtol(at, &end, 10), last = first;
        if (end != at && *end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
        }
        if (end == at || first < 0 || last < first || last >= CPU_SETSIZE)
            return false;
        for (long i = first; i <= last; i++)
            CPU_SET((size_t)i, out);
    }
    return *end == '\n';
}

static bool read_list(const char *directory, const char *name, cpu_set_t *out)
{
    char path[PATH_MAX], line[8192]; /* as many as there can be in a set */
    CPU_ZERO(out);
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    const bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    return read && parse_list(line, out);
}

bool cpus_of_node(const char *directory, const cpu_set_t *allowed, int index, int count,
                  cpu_set_t *out)
{
    cpu_set_t nodes, cpus;
    const int all = CPU_COUNT(allowed);
    const int wanted = (int)((2LL * index + 1) * all / (2LL * count)); /* in the nodes' order */
    int before = 0;
    if (!read_list(directory, "online", &nodes))
        return false;
    for (int node = 0; node < CPU_SETSIZE && before <= wanted; node++) {
        char name[32];
        snprintf(name, sizeof name, "node%d/cpulist", node);
        if (!CPU_ISSET(node, &nodes))
            continue;
        if (!read_list(directory, name, &cpus))
            return false;
        CPU_AND(out, &cpus, allowed);
        before += CPU_COUNT(out);
    }
    return before > wanted && CPU_COUNT(out) < all;
}
