/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a step faster and can be switched off, so that one program measures what each brings
 * (loadtest/cuda_session.sh). No switch changes a bit of any result. */
#ifndef ENGINE_CUDA_SWITCHES_H
#define ENGINE_CUDA_SWITCHES_H

#include "engine/cuda/device.h"

/* Names in REGLA_CUDA_WITHOUT, a list with commas. All are on without it. */
#define CUDA_SWITCHES(X)                                                                     \
    X(OVERLAP, "overlap")   /* a kernel begins while the one before it ends (common.cuh) */  \
    X(ROW, "row")           /* a product reads the row that it norms in one trip */          \
    X(EARLY, "early")       /* constants are read before the wait, the residual after it */  \
    X(SPREAD, "spread")     /* a product of few outputs takes all multiprocessors */         \
    X(AHEAD, "ahead")       /* the next product's weights go to the second cache */          \
    X(STAGES, "stages")     /* tiles read their first weights before the wait */             \
    X(CARVEOUT, "carveout") /* all kernels ask for the same part of shared memory */         \
    X(SPLIT, "split")       /* x is split once, not by every CTA of a product */             \
    X(PARTS, "parts")       /* few parts to norm have a block of threads each, not a warp */ \
    X(FEATURES, "features") /* phi and gates are computed once, before the recurrence */     \
    X(BULK, "bulk")         /* S moves by bulk copies, the next head's under this one's */   \
    X(MAPPED, "mapped")     /* kernels read the batch where the host wrote it */             \
    X(FEED, "feed")         /* the embedding takes drawn tokens itself */                    \
    X(DRAW, "draw")         /* a step's graph contains its draws */

enum cuda_switch {
#define SWITCH(name, string) CUDA_SWITCH_##name,
    CUDA_SWITCHES(SWITCH)
#undef SWITCH
        NUM_CUDA_SWITCHES
};

/* The most rows for which a product takes the kernel for few rows: from the least on, and where the
 * environment asks for no other number. */
enum { LEAST_STREAMED_ROWS = 8, STREAMED_ROWS = 64 };

/* Reads REGLA_CUDA_WITHOUT and REGLA_CUDA_STREAMED_ROWS (LEAST_STREAMED_ROWS to 256) into the
 * backend. ERROR_INVALID: the variable, what was expected, and what it holds. */
int switches_read(struct backend *backend, struct error *err);

/* Its name; NULL past the last. */
const char *switch_name(int i);

/* Whether what it names is on. */
inline bool switch_on(const struct backend *backend, enum cuda_switch which)
{
    return (backend->switched_off >> which & 1) == 0;
}

#endif
