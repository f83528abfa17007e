/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the program of a model: its parts (engine/mixers/, engine/forward.c) ask for buffers,
 * weights and state, and add their operations in order.
 *
 * Nothing here returns an error. The first one is kept; after it nothing is packed or uploaded any
 * more, what is asked for is NULL or empty, and emitter_finish says what it was. So a part is
 * written as the formulas it stands for. */
#ifndef ENGINE_PROGRAM_EMITTER_H
#define ENGINE_PROGRAM_EMITTER_H

#include "engine/model/model.h"
#include "engine/program/program.h"

struct emitter_options {
    int max_rows, max_logits, max_kept;
    bool hidden;                                      /* steps may ask for hidden rows */
    enum kv_format kv;                                /* never auto */
    enum weight_format weights;                       /* auto: each as in the file */
    bool poison;                                      /* fill the workspace with NaN first */
    void (*progress)(void *context, double fraction); /* of the weights; may be NULL */
    void *progress_context;
};

/* Cosines and sines of the positions in a step, which mixers of the same angles share. */
struct emitter_angles {
    double *host; /* [count] */
    int count;
    float factor;
    struct rows cosines, sines;
};

/* A layer's keys and values in a step, and where a page has them. */
struct emitter_keys {
    struct rows k, v;
    size_t offset;
};

struct emitter {
    struct program *program;
    const struct ops *ops;
    struct backend *backend;
    const struct model *model;
    const struct emitter_options *options;
    enum operation_when when; /* of operations that are added */
    int layer;                /* of those, and of state: OPERATION_OF_NO_LAYER outside of layers */
    int64_t packed;           /* numbers, or what needs no packing */
    struct emitter_angles *angles; /* [num_angles] */
    int num_angles;
    struct emitter_keys *keys; /* [num_layers]: of those of softmax mixers that have come */
    struct rows first_values;  /* [N, H*dv]: v of the first RWKV-7 layer, or absent */
    struct rows layer_inputs;  /* [N, num_layers * layer_size], or absent (struct model) */
    struct operation nowhere;  /* what is added after an error */
    struct error error;
};

/* The program is empty but for its device. */
void emitter_open(struct emitter *emitter, struct program *program, const struct model *model,
                  const struct emitter_options *options);
/* Gives the program its memory. -1 with what went wrong first; the program can be cleared. */
int emitter_finish(struct emitter *emitter, struct error *err);
void emitter_close(struct emitter *emitter);

bool emitter_failed(const struct emitter *emitter);
void emitter_no_memory(struct emitter *emitter, const char *what);
/* Says in front of the error, if there is one, where it happened. */
void emitter_place(struct emitter *emitter, const char *what, int number);

/* A new buffer, [N, width] of a step; with `when` other than always [L, width]. */
struct rows emitter_rows(struct emitter *emitter, int64_t width);
/* The last one, dense, which nothing else shares: [L, V]. */
struct rows emitter_logits(struct emitter *emitter, int64_t width);
/* Likewise for hidden rows. */
struct rows emitter_hidden(struct emitter *emitter, int64_t width);

/* What a part keeps of a text, in the layer at hand: its offset in the slot or in a page. */
size_t emitter_state(struct emitter *emitter, struct state_part part);

/* Copies to the device what the program keeps; NULL of NULL. */
void *emitter_upload(struct emitter *emitter, const void *host, size_t bytes);
/* Likewise, counted as weights. */
void *emitter_upload_weights(struct emitter *emitter, const void *host, size_t bytes);
struct table *emitter_table(struct emitter *emitter, const struct matrix *matrix);

/* Matrices of one width that are packed as one. */
enum { EMITTER_MAX_STACK = 32 };
struct emitter_stack {
    struct matrix parts[EMITTER_MAX_STACK];
    const char *names[EMITTER_MAX_STACK];
    int count;
    int64_t width; /* rows of them all */
};
/* Stacks a part's matrices of one use behind those that are there. columns: [count], of which those
 * of the matrices that it stacks are set; or NULL. */
void emitter_stack_add(struct emitter_stack *stack, const void *part,
                       const struct part_matrix *list, int count, enum matrix_use use,
                       int64_t *columns);

const struct program_weight *emitter_pack(struct emitter *emitter,
                                          const struct emitter_stack *stack);
/* Those that a part has of one use; a router's stay f32. */
const struct program_weight *emitter_pack_part(struct emitter *emitter, const void *part,
                                               const struct part_matrix *list, int count,
                                               enum matrix_use use);
/* Of `count` experts of one shape their matrix at a row of mlp_matrices, for routed products. */
const struct program_weight *emitter_pack_experts(struct emitter *emitter,
                                                  const struct mlp *experts, int count,
                                                  const struct part_matrix *row);
/* A feature map's, of so many heads, in the file's format. */
const struct program_weight *emitter_pack_heads(struct emitter *emitter, const char *name,
                                                const struct matrix *matrix, int heads);
/* The model's head, which may have a format of its own (weight_format_of_head). */
const struct program_weight *emitter_pack_head(struct emitter *emitter, const char *name,
                                               const struct matrix *matrix);

/* Cosines and sines of position * theta [count], times a factor (ops_angles). */
void emitter_share_angles(struct emitter *emitter, const double *theta, int count, float factor,
                          struct rows *cosines, struct rows *sines);

/* Adds an operation: emitter_map(emitter, call). What it points to, if it is no array, is copied
 * (keep_pointed). Products go through emitter_product, angles through emitter_share_angles. */
#define EMITTER_ADD(kind, name, profile, rows) \
    void emitter_##name(struct emitter *emitter, const struct ops_##name *call);
OPERATIONS(EMITTER_ADD)

/* A product with a weight of the program's. */
void emitter_product(struct emitter *emitter, const struct program_weight *weight,
                     const struct ops_matmul *call);

/* The columns from `column` on. */
static inline struct rows rows_from(struct rows rows, int64_t column)
{
    return (struct rows){rows.data + column, rows.stride};
}

#endif
