/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/state_save.h"

#include "engine/state_image.h"
#include "engine/state_memory.h"

static void scrub(const struct ops_save *save)
{
    state_image_scrub(save->context, save->position, save->to);
}

struct state_save state_save_begin(const struct state *state, void *image)
{
    struct state_memory *memory = state->memory;
    const struct ops_save save = {.to = image,
                                  .head = state->slot,
                                  .head_bytes = memory->layout.slot_bytes,
                                  .pages = state->pages,
                                  .num_pages = state->num_pages,
                                  .page_bytes = memory->layout.page_bytes,
                                  .there = scrub,
                                  .context = &memory->layout,
                                  .position = state->position};
    return (struct state_save){memory, memory->ops->save(memory->backend, &save)};
}

int state_save_wait(const struct state_save *save, struct error *err)
{
    const struct state_memory *memory = save->memory;
    return memory == NULL ? 0 : memory->ops->save_wait(memory->backend, save->number, err);
}

int state_save(const struct state *state, void *image, struct error *err)
{
    struct state_save save = state_save_begin(state, image);
    return state_save_wait(&save, err);
}
