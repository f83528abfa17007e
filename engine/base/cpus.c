#include "engine/base/cpus.h"

#include "engine/base/control_group.h"

#include <sched.h>
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
