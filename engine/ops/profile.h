/* SPDX-License-Identifier: Apache-2.0 */
/* Measures where the time of steps goes, by kind of operation (operation.h). */
#ifndef ENGINE_OPS_PROFILE_H
#define ENGINE_OPS_PROFILE_H

#define PROFILE_KINDS(X)                \
    X(PROFILE_EMBED, "embed")           \
    X(PROFILE_NORM, "norm")             \
    X(PROFILE_PRODUCT, "product")       \
    X(PROFILE_ROUTE, "route")           \
    X(PROFILE_MAP, "map")               \
    X(PROFILE_CONV, "conv")             \
    X(PROFILE_ANGLES, "angles")         \
    X(PROFILE_POSITIONS, "positions")   \
    X(PROFILE_RECURRENCE, "recurrence") \
    X(PROFILE_ATTENTION, "attention")   \
    X(PROFILE_GATHER, "gather")
#define PROFILE_VALUE(value, name) value,
#define PROFILE_NAME(value, name) name,

enum profile_kind {
    PROFILE_KINDS(PROFILE_VALUE) NUM_PROFILE_KINDS,
    /* no operation: the time that a device waited before a step's first operation, so that later
     * ones need not wait for their launches */
    PROFILE_DELAY = NUM_PROFILE_KINDS,
    PROFILE_SECONDS
};

struct engine;

/* From now on every step adds to seconds [PROFILE_SECONDS], which is borrowed until the next call.
 * NULL turns profiling off; a step then pays one comparison per operation. */
void engine_profile(struct engine *engine, double *seconds);

#endif
