/* SPDX-License-Identifier: Apache-2.0 */
/* Which CPUs this process and its threads may use. */
#ifndef LIB_BASE_CPUS_H
#define LIB_BASE_CPUS_H

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

/* Where Linux says which CPUs are beside which memory. */
#define CPUS_NODES "/sys/devices/system/node"

/* Those of the allowed CPUs that are beside one memory (a socket's, as a rule), for thread `index`
 * of `count`: each memory has a run of neighbouring threads, as many as its part of the CPUs.
 * False: all the allowed CPUs are beside one, or the directory does not say it. */
bool cpus_of_node(const char *directory, const cpu_set_t *allowed, int index, int count,
                  cpu_set_t *out);

#endif
