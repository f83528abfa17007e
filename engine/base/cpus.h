/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs this process and its threads may use. */
#ifndef ENGINE_BASE_CPUS_H
#define ENGINE_BASE_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

/* As many as the affinity mask has and the control groups' quotas pay for, at least 1. */
int cpus_allowed(void);

/* The CPU that the calling thread is on, or -1. */
int cpus_current(void);
/* Those that a thread (gettid) may use; false: unknown. */
bool cpus_of(pid_t thread, cpu_set_t *out);
/* From now on a thread may use all of them but one. False: there is no other, or the system did not
 * do it. */
bool cpus_keep_off(pid_t thread, const cpu_set_t *cpus, int cpu);
void cpus_use(const cpu_set_t *cpus); /* the calling thread; as well as the system lets it */

#endif
