/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/readings.h"

#include "lib/text/buffer.h"

#include <stdlib.h>
#include <string.h>

static int too_many(struct error *err)
{
    return error_set(err, ERROR_UNSUPPORTED,
                     "grammar: expected a text of few readings, got too many at once: the grammar "
                     "is ambiguous");
}

static size_t mix(uint32_t a, int32_t b, int32_t c, uint32_t d)
{
    uint64_t hash = a * UINT64_C(0x9E3779B97F4A7C15) ^ (uint32_t)b * UINT64_C(0xC2B2AE3D27D4EB4F);
    hash = (hash ^ hash >> 29) * UINT64_C(0x165667B19E3779F9);
    hash ^= (uint32_t)c * UINT64_C(0xD6E8FEB86659FD93) ^ d * UINT64_C(0xA0761D6478BD642F);
    hash = (hash ^ hash >> 32) * UINT64_C(0xE7037ED1A0B428DB);
    return (size_t)(hash ^ hash >> 29);
}

int readings_init(struct readings *readings, const struct automaton *automaton, struct error *err)
{
    *readings = (struct readings){.automaton = automaton,
                                  .heads_mask = 255,
                                  .seen_mask = 255,
                                  .most_work = READINGS_MOST_WORK};
    readings->heads = calloc(readings->heads_mask + 1, sizeof *readings->heads);
    readings->seen = calloc(readings->seen_mask + 1, sizeof *readings->seen);
    if (!readings->heads || !readings->seen)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's readings");
    if (array_grow((void **)&readings->frames, &readings->frames_capacity, FRAMES_FIXED,
                   sizeof *readings->frames, err))
        return -1;
    memset(readings->frames, 0, FRAMES_FIXED * sizeof *readings->frames);
    readings->num_frames = FRAMES_FIXED;
    return 0;
}

void readings_clear(struct readings *readings)
{
    free(readings->items);
    free(readings->frames);
    free(readings->heads);
    free(readings->waiting);
    free(readings->seen);
    *readings = (struct readings){0};
}

size_t readings_bytes(const struct readings *readings)
{
    return (readings->capacity + readings->waiting_capacity) * sizeof *readings->items +
           readings->frames_capacity * sizeof *readings->frames +
           (readings->heads_mask + 1) * sizeof *readings->heads +
           (readings->seen_mask + 1) * sizeof *readings->seen;
}

int readings_spend(struct readings *readings, size_t steps, struct error *err)
{
    readings->work += steps;
    return readings->work > readings->most_work ? too_many(err) : 0;
}

void readings_begin(struct readings *readings)
{
    readings->num_seen = 0;
    if (++readings->round == 0) { /* it wrapped: what old rounds left must not look new */
        memset(readings->seen, 0, (readings->seen_mask + 1) * sizeof *readings->seen);
        readings->round = 1;
    }
}

static bool same(const struct reading *a, const struct reading *b)
{
    return a->state == b->state && a->low == b->low && a->high == b->high && a->frame == b->frame;
}

static int grow_seen(struct readings *readings, struct error *err)
{
    size_t mask = readings->seen_mask * 2 + 1;
    struct readings_seen *grown = calloc(mask + 1, sizeof *grown);
    if (!grown)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's readings");
    for (size_t i = 0; i <= readings->seen_mask; i++) {
        const struct readings_seen *old = &readings->seen[i];
        if (old->round != readings->round)
            continue;
        const struct reading *r = &old->reading;
        size_t at = mix(r->state, r->low, r->high, r->frame) & mask;
        while (grown[at].round == readings->round)
            at = (at + 1) & mask;
        grown[at] = *old;
    }
    free(readings->seen);
    readings->seen = grown;
    readings->seen_mask = mask;
    return 0;
}

/* Returns 1 when the reading is new in this round, 0 when it is not. */
static int note(struct readings *readings, const struct reading *reading, struct error *err)
{
    if (readings->num_seen * 2 > readings->seen_mask && grow_seen(readings, err))
        return -1;
    size_t at = mix(reading->state, reading->low, reading->high, reading->frame);
    for (at &= readings->seen_mask; readings->seen[at].round == readings->round;
         at = (at + 1) & readings->seen_mask)
        if (same(&readings->seen[at].reading, reading))
            return 0;
    if (readings->num_seen >= READINGS_MOST)
        return too_many(err);
    readings->seen[at] = (struct readings_seen){*reading, readings->round};
    readings->num_seen++;
    return 1;
}

static int append(struct readings *readings, const struct reading *reading, struct error *err)
{
    if (readings->count >= READINGS_MOST)
        return too_many(err);
    if (readings->count == readings->capacity &&
        array_grow((void **)&readings->items, &readings->capacity, readings->count + 1,
                   sizeof *readings->items, err))
        return -1;
    readings->items[readings->count++] = *reading;
    return 0;
}

static int wait(struct readings *readings, struct reading reading, struct error *err)
{
    if (readings->num_waiting >= READINGS_MOST)
        return too_many(err);
    if (readings->num_waiting == readings->waiting_capacity &&
        array_grow((void **)&readings->waiting, &readings->waiting_capacity,
                   readings->num_waiting + 1, sizeof *readings->waiting, err))
        return -1;
    readings->waiting[readings->num_waiting++] = reading;
    return 0;
}

static size_t frame_hash(const struct frame *frame)
{
    return mix(frame->state, frame->low, frame->high, frame->below);
}

static int grow_heads(struct readings *readings, struct error *err)
{
    size_t mask = readings->heads_mask * 4 + 3;
    uint32_t *heads = calloc(mask + 1, sizeof *heads);
    if (!heads)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's readings");
    for (size_t i = FRAMES_FIXED; i < readings->num_frames; i++) {
        size_t slot = frame_hash(&readings->frames[i]) & mask;
        readings->frames[i].next = heads[slot];
        heads[slot] = (uint32_t)i;
    }
    free(readings->heads);
    readings->heads = heads;
    readings->heads_mask = mask;
    return 0;
}

/* The frame with these values. 0: *err says why there is none. */
static uint32_t intern(struct readings *readings, const struct reading *reading, uint32_t state,
                       struct error *err)
{
    struct frame frame = {.state = state,
                          .low = reading->low,
                          .high = reading->high,
                          .below = reading->frame,
                          .depth = readings->frames[reading->frame].depth + 1};
    size_t hash = frame_hash(&frame);
    for (uint32_t i = readings->heads[hash & readings->heads_mask]; i;
         i = readings->frames[i].next) {
        const struct frame *other = &readings->frames[i];
        if (other->state == frame.state && other->low == frame.low && other->high == frame.high &&
            other->below == frame.below)
            return i;
    }
    if (readings->num_frames >= READINGS_MOST_FRAMES) {
        too_many(err);
        return 0;
    }
    if (readings->num_frames == readings->frames_capacity &&
        array_grow((void **)&readings->frames, &readings->frames_capacity, readings->num_frames + 1,
                   sizeof *readings->frames, err))
        return 0;
    if (readings->num_frames > readings->heads_mask && grow_heads(readings, err))
        return 0;
    uint32_t *head = &readings->heads[hash & readings->heads_mask];
    frame.next = *head;
    readings->frames[readings->num_frames] = frame;
    *head = (uint32_t)readings->num_frames++;
    return *head;
}

void readings_cut_frames(struct readings *readings, size_t count)
{
    /* The newest frame is always the first of its hash. */
    while (readings->num_frames > count) {
        const struct frame *frame = &readings->frames[--readings->num_frames];
        readings->heads[frame_hash(frame) & readings->heads_mask] = frame->next;
    }
}

static uint32_t depth_of(const struct readings *readings, uint32_t frame)
{
    return frame < FRAMES_FIXED ? 0 : readings->frames[frame].depth;
}

static int enter_calls(struct readings *readings, const struct reading *reading, struct error *err)
{
    const struct automaton *automaton = readings->automaton;
    const struct automaton_state *state = &automaton->states[reading->state];
    uint32_t depth = depth_of(readings, reading->frame);
    for (uint32_t i = state->call_at; i < state[1].call_at; i++) {
        const struct automaton_call *call = &automaton->calls[i];
        const struct automaton_state *to = &automaton->states[call->to];
        uint32_t frame = reading->frame;
        if (!(to->flags & STATE_TAIL) || reading->low > 0) {
            if (depth + 1 > automaton->most_depth || depth + to->need > automaton->most_depth)
                continue;
            frame = intern(readings, reading, call->to, err);
            if (!frame)
                return -1;
        }
        struct reading begun = {automaton->starts[call->rule], call->low, call->high, frame};
        if (wait(readings, begun, err))
            return -1;
    }
    return 0;
}

static int end_rule(struct readings *readings, const struct reading *reading, struct error *err)
{
    if (reading->low > 0)
        return 0;
    if (reading->frame == FRAME_BOTTOM) {
        readings->ended = true;
        return 0;
    }
    if (reading->frame == FRAME_UNKNOWN) {
        readings->at_unknown(readings->context, reading->high);
        return 0;
    }
    const struct frame *frame = &readings->frames[reading->frame];
    return wait(readings, (struct reading){frame->state, frame->low, frame->high, frame->below},
                err);
}

/* One of the states that wait. */
static int enter_one(struct readings *readings, const struct reading *reading, struct error *err)
{
    const struct automaton *automaton = readings->automaton;
    const struct automaton_state *state = &automaton->states[reading->state];
    uint32_t deep = depth_of(readings, reading->frame) + state->need;
    if (readings_spend(readings, 1, err))
        return -1;
    if (deep > automaton->most_depth)
        return 0;
    int new = note(readings, reading, err);
    if (new <= 0)
        return new;
    readings->deepest = deep > readings->deepest ? deep : readings->deepest;
    if (state->edge_at < state[1].edge_at && append(readings, reading, err))
        return -1;
    for (uint32_t i = state->jump_at; i < state[1].jump_at; i++) {
        struct reading next = *reading;
        next.state = automaton->jumps[i];
        if (wait(readings, next, err))
            return -1;
    }
    if (state->call_at < state[1].call_at && enter_calls(readings, reading, err))
        return -1;
    return state->flags & STATE_FINAL ? end_rule(readings, reading, err) : 0;
}

int readings_enter(struct readings *readings, struct reading reading, struct error *err)
{
    readings->num_waiting = 0;
    int failed = wait(readings, reading, err);
    while (!failed && readings->num_waiting > 0) {
        struct reading next = readings->waiting[--readings->num_waiting];
        failed = enter_one(readings, &next, err);
    }
    return failed;
}

int readings_return(struct readings *readings, uint32_t frame, struct error *err)
{
    if (frame == FRAME_BOTTOM) {
        readings->ended = true;
        return 0;
    }
    const struct frame *from = &readings->frames[frame];
    return readings_enter(readings,
                          (struct reading){from->state, from->low, from->high, from->below}, err);
}

/* Whether the reading may take the edge; then *next is where it leads. */
static bool follow(const struct reading *reading, const struct automaton_edge *edge,
                   struct reading *next)
{
    *next = (struct reading){edge->to, reading->low, reading->high, reading->frame};
    if (edge->flags & EDGE_ENDS)
        return reading->low <= 0;
    if (edge->flags & EDGE_COUNTS) {
        if (reading->high <= 0)
            return false;
        next->low -= next->low > 0;
        next->high -= next->high != AUTOMATON_NO_LIMIT;
    }
    return true;
}

/* The steps that it takes to look at a state's edges. */
static size_t look_at(const struct automaton_state *state)
{
    return 1 + (state[1].edge_at - state->edge_at) / READINGS_STEP;
}

/* The only reading of a set often has one edge for the byte, into a state that only reads bytes:
 * then nothing can be there twice. Returns 1 when that is so. */
static int step_alone(struct readings *readings, size_t from, unsigned char byte, struct error *err)
{
    const struct automaton *automaton = readings->automaton;
    const struct reading reading = readings->items[from];
    const struct automaton_state *state = &automaton->states[reading.state];
    const struct automaton_edge *found = NULL;
    if (readings_spend(readings, look_at(state), err))
        return -1;
    for (uint32_t i = state->edge_at; i < state[1].edge_at; i++) {
        const struct automaton_edge *edge = &automaton->edges[i];
        if (byte < edge->first || byte > edge->last)
            continue;
        if (found)
            return 0;
        found = edge;
    }
    if (!found)
        return 1;
    const struct automaton_state *to = &automaton->states[found->to];
    if (!(to->flags & STATE_PLAIN) || (to->flags & STATE_FINAL && reading.frame != FRAME_BOTTOM))
        return 0;
    struct reading next;
    uint32_t deep = depth_of(readings, reading.frame) + to->need;
    if (deep > automaton->most_depth || !follow(&reading, found, &next))
        return 1;
    readings->deepest = deep > readings->deepest ? deep : readings->deepest;
    readings->ended = readings->ended || (to->flags & STATE_FINAL && next.low <= 0);
    if (to->edge_at == to[1].edge_at)
        return 1;
    return append(readings, &next, err) ? -1 : 1;
}

int readings_step(struct readings *readings, size_t from, size_t to, unsigned char byte,
                  struct error *err)
{
    const struct automaton *automaton = readings->automaton;
    if (to - from == 1) {
        int done = step_alone(readings, from, byte, err);
        if (done)
            return done < 0 ? -1 : 0;
    }
    readings_begin(readings);
    for (size_t r = from; r < to; r++) {
        const struct reading reading = readings->items[r];
        const struct automaton_state *state = &automaton->states[reading.state];
        if (readings_spend(readings, look_at(state), err))
            return -1;
        for (uint32_t i = state->edge_at; i < state[1].edge_at; i++) {
            const struct automaton_edge *edge = &automaton->edges[i];
            struct reading next;
            if (byte >= edge->first && byte <= edge->last && follow(&reading, edge, &next) &&
                readings_enter(readings, next, err))
                return -1;
        }
    }
    return 0;
}

int readings_wanted(struct readings *readings, size_t from, size_t to, bool wanted[256],
                    struct error *err)
{
    const struct automaton *automaton = readings->automaton;
    int32_t begun[257] = {0}; /* ranges that begin at a byte, without those that end before it */
    for (size_t i = from; i < to; i++) {
        const struct automaton_state *state = &automaton->states[readings->items[i].state];
        if (readings_spend(readings, look_at(state), err))
            return -1;
        for (uint32_t e = state->edge_at; e < state[1].edge_at; e++) {
            begun[automaton->edges[e].first]++;
            begun[automaton->edges[e].last + 1]--;
        }
    }
    int32_t open = 0;
    for (int b = 0; b < 256; b++) {
        open += begun[b];
        wanted[b] = open > 0;
    }
    return 0;
}

int readings_sweep(struct readings *readings, struct error *err)
{
    uint32_t *moved = calloc(readings->num_frames, sizeof *moved);
    if (!moved)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a grammar's readings");
    moved[FRAME_BOTTOM] = moved[FRAME_UNKNOWN] = 1;
    for (size_t i = 0; i < readings->count; i++)
        moved[readings->items[i].frame] = 1;
    for (size_t i = readings->num_frames; i-- > FRAMES_FIXED;) /* frames lie above those below */
        if (moved[i])
            moved[readings->frames[i].below] = 1;
    memset(readings->heads, 0, (readings->heads_mask + 1) * sizeof *readings->heads);
    size_t count = 0;
    for (size_t i = 0; i < readings->num_frames; i++) {
        if (!moved[i])
            continue;
        struct frame frame = readings->frames[i];
        moved[i] = (uint32_t)count;
        if (i >= FRAMES_FIXED) {
            frame.below = moved[frame.below];
            uint32_t *head = &readings->heads[frame_hash(&frame) & readings->heads_mask];
            frame.next = *head;
            *head = (uint32_t)count;
        }
        readings->frames[count++] = frame;
    }
    for (size_t i = 0; i < readings->count; i++)
        readings->items[i].frame = moved[readings->items[i].frame];
    readings->num_frames = count;
    free(moved);
    return 0;
}
