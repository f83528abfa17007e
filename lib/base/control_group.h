/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what the control groups of a process allow it: the limits of its group and of all groups
 * above. */
#ifndef LIB_BASE_CONTROL_GROUP_H
#define LIB_BASE_CONTROL_GROUP_H

/* The arguments of both functions for this process. */
#define CONTROL_GROUP_OWN "/proc/self/cgroup", "/sys/fs/cgroup"

/* The number of CPUs that the quotas allow, rounded up; LLONG_MAX: no limit. membership: a file
 * like /proc/self/cgroup. root: where the hierarchies are mounted. */
long long control_group_cpus(const char *membership, const char *root);
/* Bytes of memory that may still be allocated; LLONG_MAX: no limit, and *limit stays as it is.
 * *limit: of the group that leaves least. Memory that only caches files counts as free. */
long long control_group_memory(const char *membership, const char *root, long long *limit);

#endif
