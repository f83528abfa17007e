/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/base/cpus.h"

#include "engine/base/control_group.h"

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
