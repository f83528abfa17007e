/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs this process and its threads may use. */
#ifndef ENGINE_BASE_CPUS_H
#define ENGINE_BASE_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

/* The number of CPUs that the affinity mask and the control groups' quotas allow, at least 1. */
int cpus_allowed(void);

/* The CPU that the calling thread runs on, or -1. */
int cpus_current(void);
/* The CPUs that a thread (gettid) may use. False: unknown. */
bool cpus_of(pid_t thread, cpu_set_t *out);
/* From now on the thread may use `cpus` except `cpu`. False: no other CPU is left, or the system
 * refused. */
bool cpus_keep_off(pid_t thread, const cpu_set_t *cpus, int cpu);
/* Lets the calling thread use these CPUs, if the system allows it. */
void cpus_use(const cpu_set_t *cpus);

#endif
