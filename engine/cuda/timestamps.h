/* SPDX-License-Identifier: Apache-2.0 */
/* When the kernels of a step began and ended, for loadtest/cuda_chain.c. Only a build with
 * REGLA_CUDA_TIMESTAMPS has it (timestamps.cuh says how kernels store it); kernels of another
 * contain no code for it. */
#ifndef ENGINE_CUDA_TIMESTAMPS_H
#define ENGINE_CUDA_TIMESTAMPS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

/* Of the first thread of a kernel's first CTA, in ns of one clock: when it began, when it had
 * waited for the kernel before, and when it ended. */
struct kernel_moments {
    uint64_t entry, waited, exit;
};

struct kernel_time {
    char name[48]; /* without template arguments; of a variable, after its file's */
    unsigned grid[3], threads;
    struct kernel_moments moments;
};

enum { MOST_KERNEL_TIMES = 4096 }; /* of a step */

/* true: forgets the launches that are remembered, and remembers those that follow; by one thread.
 * false: no more. Launches into a graph that is being recorded count. */
void timestamps_remember(bool on);

/* Launches since the program began, those into a graph that is being recorded included. The launch
 * of a graph is none. */
int timestamps_launches(void);

/* Waits for the device, and forgets what its kernels have stored. */
int timestamps_clear(struct error *err);

/* Waits for the device. out [MOST_KERNEL_TIMES]: of each remembered launch, in order, what its
 * kernel has stored since timestamps_clear; *count of them. An error when other kernels ran than
 * those, or as many more or less. */
int timestamps_read(struct kernel_time *out, int *count, struct error *err);

#endif
