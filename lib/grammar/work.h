/* SPDX-License-Identifier: Apache-2.0 */
/* How much one compile has done. Whatever may take long counts its steps here, a few nanoseconds
 * each, so that no constraint takes longer than their sum. */
#ifndef LIB_GRAMMAR_WORK_H
#define LIB_GRAMMAR_WORK_H

#include "lib/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { WORK_MOST = 1 << 27 };

struct work { /* zero-initialise */
    uint64_t done;
};

/* Counts steps that come now. -1: they are too many. */
static inline int work_add(struct work *work, size_t steps, struct error *err)
{
    work->done += steps < WORK_MOST ? steps : WORK_MOST;
    if (work->done <= WORK_MOST)
        return 0;
    return error_set(err, ERROR_UNSUPPORTED,
                     "expected what takes at most %d steps to compile, got what takes more",
                     WORK_MOST);
}

#endif
