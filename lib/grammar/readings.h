/* SPDX-License-Identifier: Apache-2.0 */
/* The readings of a text: all the places of an automaton that it may have come to, each with its
 * stack of calls. It reads byte by byte.
 *
 * A stack is a chain of frames. Equal frames are one frame, so two readings are equal when their
 * numbers are. A set of readings is a range of an array; a step appends the next set behind it, and
 * the caller cuts the array back. */
#ifndef LIB_GRAMMAR_READINGS_H
#define LIB_GRAMMAR_READINGS_H

#include "lib/grammar/automaton.h"

enum {
    READINGS_MOST = 1 << 16,        /* in the array; entered in one step */
    READINGS_MOST_FRAMES = 1 << 18, /* at once */
    READINGS_MOST_WORK = 1 << 21,   /* steps for one mask */
    READINGS_MOST_READ = 1 << 18,   /* steps for one token */
    READINGS_STEP = 16,             /* so many edges, or words of a set, are looked at in a step */
};

/* The frames that are always there: below all, and below what is not known. */
enum { FRAME_BOTTOM, FRAME_UNKNOWN, FRAMES_FIXED };

struct frame {
    uint32_t state; /* where its rule goes on */
    int32_t low, high;
    uint32_t below;
    uint32_t depth; /* frames below, without the fixed ones */
    uint32_t next;  /* of the same hash */
};

struct reading {
    uint32_t state;
    int32_t low, high;
    uint32_t frame;
};

struct readings_seen {
    struct reading reading;
    uint32_t round;
};

struct readings {
    const struct automaton *automaton; /* borrowed */
    struct reading *items;             /* [count] */
    size_t count, capacity;
    struct frame *frames; /* [num_frames] */
    size_t num_frames, frames_capacity;
    uint32_t *heads; /* [heads_mask + 1]: the newest frame of a hash, 0: none */
    size_t heads_mask;
    struct reading *waiting; /* states to be entered */
    size_t num_waiting, waiting_capacity;
    struct readings_seen *seen; /* [seen_mask + 1]: entered in this round */
    size_t seen_mask, num_seen;
    uint32_t round;
    size_t work, most_work;
    /* Set by a step. The caller clears them. */
    bool ended;       /* a reading has come to the end of all */
    uint32_t deepest; /* the most of a reading's depth and its state's need */
    void (*at_unknown)(void *context, int32_t high); /* a rule above FRAME_UNKNOWN has ended */
    void *context;
};

int readings_init(struct readings *readings, const struct automaton *automaton, struct error *err);
void readings_clear(struct readings *readings);
/* What its arrays take now. */
size_t readings_bytes(const struct readings *readings);
/* Counts steps. -1: no more are allowed. */
int readings_spend(struct readings *readings, size_t steps, struct error *err);

/* A new set begins at the array's end: what is appended from now on differs from each other. */
void readings_begin(struct readings *readings);
/* Appends what a state's bytes are read from: the state itself, what it calls, what it ends. */
int readings_enter(struct readings *readings, struct reading reading, struct error *err);
/* Appends, as a new set, where items [from, to) are after the byte. */
int readings_step(struct readings *readings, size_t from, size_t to, unsigned char byte,
                  struct error *err);
/* The bytes that items [from, to) have edges for. */
int readings_wanted(struct readings *readings, size_t from, size_t to, bool wanted[256],
                    struct error *err);
/* Appends where the rule of a frame goes on. */
int readings_return(struct readings *readings, uint32_t frame, struct error *err);

/* Forgets frames from `count` on. */
void readings_cut_frames(struct readings *readings, size_t count);
/* Forgets frames that items [0, count) do not need. */
int readings_sweep(struct readings *readings, struct error *err);

#endif
