/* How many CPUs this process may use. */
#ifndef ENGINE_BASE_CPUS_H
#define ENGINE_BASE_CPUS_H

/* As many as the affinity mask has and the control groups' quotas pay for, at least 1. */
int cpus_allowed(void);

#endif
