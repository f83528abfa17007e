/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory this process may still take: the least of what the machine, the control groups
 * and the process's own limits (ulimit) leave. */
#ifndef LIB_BASE_FREE_MEMORY_H
#define LIB_BASE_FREE_MEMORY_H

#include <stddef.h>

enum free_memory_limit {
    FREE_MEMORY_MACHINE, /* what the system counts as available, which changes */
    FREE_MEMORY_COMMIT,  /* vm.overcommit_memory = 2: no more may be promised */
    FREE_MEMORY_GROUPS,  /* control groups: who takes more is killed */
    FREE_MEMORY_ADDRESS, /* ulimit -v (RLIMIT_AS) */
    FREE_MEMORY_DATA     /* ulimit -d (RLIMIT_DATA) */
};

struct free_memory {
    size_t bytes;                    /* left now */
    enum free_memory_limit limiting; /* by which limit */
    size_t limit;                    /* its size: of the machine, all its memory */
};

/* How a message names a limit: "the memory of the machine", "ulimit -v". */
const char *free_memory_name(enum free_memory_limit limit);

/* *sure: without what the system counts as available, which changes: all the machine's memory in
 * its place. NULL: not wanted. */
void free_memory_read(struct free_memory *now, struct free_memory *sure);

#endif
