/* SPDX-License-Identifier: Apache-2.0 */
/* A text's state: everything it needs to go on. It lies in the engine's state memory
 * (state_memory.h); engine.h makes new ones and advances them. The engine thread alone calls these.
 */
#ifndef ENGINE_STATE_H
#define ENGINE_STATE_H

#include "engine/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct state;
struct state_memory;

/* A copy that goes on by itself: the recurrent part is copied, full KV pages are shared. Errors as
 * state_create. */
int state_clone(struct state **out, const struct state *state, int64_t max_tokens,
                struct error *err);
void state_free(struct state *state);              /* NULL is allowed */
int64_t state_position(const struct state *state); /* tokens taken so far */
/* KV pages that it would have at a position, of those it has reserved. */
int64_t state_pages(const struct state *state, int64_t position);
size_t state_bytes(struct state *const *states, size_t count); /* in use; shared pages once */
/* Changes what the state reserves to max_tokens positions, its own at least. Less never fails; more
 * may, as state_create. */
int state_reserve(struct state *state, int64_t max_tokens, struct error *err);
/* Sets a state aside until a text takes it up again; engine_memory counts such states apart. */
void state_set_cached(struct state *state, bool cached);

/* ---- for engine.c ---- */

/* state_create and state_restore, in a given memory. */
int state_new(struct state **out, struct state_memory *memory, int64_t max_tokens,
              struct error *err);
int state_load(struct state **out, struct state_memory *memory, const void *image, int64_t position,
               int64_t max_tokens, struct error *err);
/* Takes the pages for positions up to `end`; cannot fail inside the reservation. */
void state_grow(struct state *state, int64_t end);
/* Gives back what positions from `end` on had taken. */
void state_shrink(struct state *state, int64_t end);

#endif
