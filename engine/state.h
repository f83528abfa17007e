/* SPDX-License-Identifier: Apache-2.0 */
/* A text's state: everything the model needs to continue it. It lies in the engine's state memory
 * (state_memory.h). engine.h makes new states and advances them. Only the engine thread calls these
 * functions. */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct state;
struct state_memory;

/* Makes an independent copy: copies the recurrent part and shares full KV pages. Errors are those
 * of state_create. */
int state_clone(struct state **out, const struct state *state, int64_t max_tokens,
                struct error *err);
void state_free(struct state *state);              /* NULL is allowed */
int64_t state_position(const struct state *state); /* tokens taken so far */
int64_t state_reserved(const struct state *state); /* most tokens that it may take */
/* The number of KV pages that the state has at a position, within its reservation. */
int64_t state_pages(const struct state *state, int64_t position);
size_t state_bytes(struct state *const *states, size_t count); /* in use; shared pages count once */
/* Changes the reservation to max_tokens positions, at least the state's own. Less never fails; more
 * may fail like state_create. */
int state_reserve(struct state *state, int64_t max_tokens, struct error *err);
/* Sets a state aside until a text continues it. engine_memory counts such states separately. */
void state_set_cached(struct state *state, bool cached);

/* ---- for engine.c, steps.c and kept.c ---- */

/* state_create and state_restore, in a given memory. */
int state_new(struct state **out, struct state_memory *memory, int64_t max_tokens,
              struct error *err);
int state_load(struct state **out, struct state_memory *memory, const void *image, int64_t position,
               int64_t max_tokens, struct error *err);
/* Takes the pages for positions up to `end`. Cannot fail within the reservation. */
void state_grow(struct state *state, int64_t end);
/* Gives back the pages that positions from `end` on had taken. */
void state_shrink(struct state *state, int64_t end);

#endif
