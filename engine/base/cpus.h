/* How many CPUs this process may use. */
#ifndef ENGINE_BASE_CPUS_H
#define ENGINE_BASE_CPUS_H

/* As many as the affinity mask has and the control groups' quotas pay for, at least 1. */
int cpus_allowed(void);

/* CPUs that the quotas of a control group and all above it pay for, rounded up; 0: no limit.
 * membership: a file like /proc/self/cgroup; root: where the hierarchies are mounted. */
int cpus_quota(const char *membership, const char *root);

#endif
