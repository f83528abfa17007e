/* SPDX-License-Identifier: Apache-2.0 */
/* What the control groups of a process leave it: the group's limits and those of all above it. */
#ifndef ENGINE_BASE_CONTROL_GROUP_H
#define ENGINE_BASE_CONTROL_GROUP_H

/* Of this process: the arguments of both functions. */
#define CONTROL_GROUP_OWN "/proc/self/cgroup", "/sys/fs/cgroup"

/* CPUs that the quotas pay for, rounded up; LLONG_MAX: no limit. membership: a file like
 * /proc/self/cgroup; root: where the hierarchies are mounted. */
long long control_group_cpus(const char *membership, const char *root);
/* Bytes of memory that may still be taken. What is there only for files that nobody uses now counts
 * as free. LLONG_MAX: no limit. */
long long control_group_memory(const char *membership, const char *root);

#endif
