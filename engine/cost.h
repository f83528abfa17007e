/* SPDX-License-Identifier: Apache-2.0 */
/* Computes what a model costs in any implementation: the operations and bytes of reading and
 * generating texts, and the longest text that its state memory holds. */
#ifndef ENGINE_COST_H
#define ENGINE_COST_H

#include "engine/engine.h"
#include "engine/program/program.h"

/* `batch` texts, which have `depth` tokens already, read or generate `tokens` more each. */
struct cost_texts {
    bool generates;
    int tokens, depth, batch;
    double experts; /* the share of all that a step reads, as counted; 0: as if chosen at random */
};

struct cost {
    /* For generating; 0 for a prompt. Every step reads all packed weights once, of experts those
     * that its texts choose, each others while there are others. For each text it reads and writes
     * the recurrent states, reads the keys and values seen, and writes new ones.
     */
    double weight_bytes, bytes; /* bytes: all of these */
    /* Multiplications and additions of products, recurrences and attention. The vocabulary's
     * product counts for positions that want logits: the last of a prompt, or each generated one.
     */
    double operations;
};

/* Of its weights in a format, those that a step of so many texts reads. */
double cost_weight_bytes(const struct program *program, enum weight_format format,
                         const struct cost_texts *texts);
/* The experts of all its mixtures. */
int cost_experts(const struct program *program);
/* Counts the operations of a program. Pure. */
struct cost cost_of(const struct program *program, const struct cost_texts *texts);
/* Of one of them, on a text's first token. weight_bytes is 0, bytes are those of the state. */
struct cost cost_of_operation(const struct operation *operation);

/* Of one layer: its matrices in memory, without padding; what a text keeps; and the operations on a
 * text's first token. */
struct cost_layer {
    double weight_bytes, state_bytes, kv_bytes_per_token, operations;
};
struct cost_layer cost_of_layer(const struct program *program, int layer);

/* The longest text (prompt + generated) in tokens that the state budget less `kept` bytes holds and
 * a step of the device can take; 0: no limit. */
int64_t cost_longest_text(const struct engine *engine, size_t kept);

#endif
