/* SPDX-License-Identifier: Apache-2.0 */
/* The token mixer of one layer, linear or softmax, as a list of operations on a backend.
 *
 * mixer_create packs the weights and lays out the layer's part of a text's state. mixer_run queues
 * the operations of a step. A mixer is: project -> feature map -> gate -> position -> recurrence or
 * attention -> norm -> output projection. Each of these words is a file here; inputs.c is what
 * stands between a projection and q, k, v. */
#ifndef ENGINE_MIXERS_MIXER_H
#define ENGINE_MIXERS_MIXER_H

#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "engine/state_layout.h"

enum { MIXER_MAX_PARTS = 16 };

/* Angles that several layers may share. */
struct mixer_theta {
    double *host, *device; /* [count] */
    int count;
};

/* The widest row of each buffer over all layers, in floats. */
struct mixer_widths {
    int64_t project, shared, turned, mapped, maxima, low_rank, values, angles, vectors;
};

/* Buffers of a step, shared by the layers: [max_rows, width] each. */
struct mixer_workspace {
    struct rows project;            /* all projections of x, side by side */
    struct rows shared;             /* q and k of a shared qk_proj */
    struct rows turned;             /* q and k with their position */
    struct rows mapped_q, mapped_k; /* W z of a feature map */
    struct rows maxima, low_rank;
    struct rows h; /* [N, H*dv], of a pair's parts beside each other */
    struct rows cosines, sines;
    struct rows vectors;     /* of segments that a row ends */
    const double *angles_of; /* the theta of the angles in cosines and sines; NULL: none yet */
    float angles_factor;     /* and their factor */
};

/* What mixer_create extends, while the layers are created one after the other. */
struct mixer_context {
    const struct ops *ops;
    struct backend *backend;
    const struct model *model;
    int hidden_size;
    int layer; /* the one being created */
    struct state_layout layout;
    struct mixer_widths widths;
    struct mixer_theta *thetas; /* [num_thetas] */
    int num_thetas;
    int max_value_dim;
    int max_head_dim, max_features, max_linear_heads; /* of linear mixers */
    size_t max_shared_state;                          /* likewise: see ops_limits */
    int max_key_dim, max_softmax_value_dim;           /* of softmax mixers */
    int64_t max_keys; /* likewise: keys that a token sees; see ops_limits */
    enum weight_format weights;
    size_t weights_bytes[WEIGHT_FORMAT_COUNT];        /* as packed (auto), and in each format */
    int64_t packed;                                   /* numbers, or what needs no packing */
    void (*progress)(void *context, double fraction); /* may be NULL */
    void *progress_context;
};

/* Where a mixer's position applies, and what it needs. */
struct mixer_position {
    struct ops_positions ops; /* without the arrays of the step */
    const double *theta;      /* device; NULL: no angles */
    int num_angles;
};

/* Factors and offsets on the device: of a norm, or of q or k [H*d]. NULL: there are none. */
struct mixer_scale {
    float *weight, *bias;
};

/* The first column of each matrix in the product of x, which stacks them. */
union mixer_at {
    struct {
        MIXER_MATRICES(PART_COLUMN)
    };
    int64_t columns[MIXER_MATRIX_COUNT]; /* the same, by their places in the list */
};

struct mixer_layer {
    const struct mixer *config;
    struct weight *project, *output, *low_rank;
    union mixer_at at;
    struct mixer_scale q_scale, k_scale; /* shared_qk */
    struct mixer_scale q_norm, k_norm;
    struct mixer_scale conv;              /* [K, channels], [channels] */
    size_t conv_offset;                   /* of its rows in the slot */
    struct weight *feature_q, *feature_k; /* the same matrix for favor and cos_sin */
    struct mixer_position position;
    struct mixer_scale norm;
    struct mixer_scale heads;      /* decay and skip [H] of the gates gated_delta and mamba2 */
    struct mixer_scale gate_scale; /* of mamba2's columns */
    float dt_least, dt_most;       /* mamba2's limits, before softplus; infinite: none */
    struct formula_bias *biases;   /* device: [H]; their tables are in bias_table */
    float *bias_table;             /* by distance: [H, distances] */
    size_t state_offset, maxima_offset;
    int64_t h_at;                    /* columns of h */
    struct mixer_layer *second;      /* of a pair: only what a part has */
    enum kv_format kv;               /* of the keys at state_offset */
    struct mixer_segments *segments; /* of a long_short window, else NULL */
};

/* Packs a weight from stacked parts, or from heads (the matrices of feature maps, whose format
 * stays as it is), and counts its bytes. */
int mixer_pack(struct mixer_context *context, struct weight **out, const struct matrix *parts,
               int num_parts, int heads, struct error *err);

/* The same for the model's head, which may have a format of its own (weight_format_of_head). */
int mixer_pack_head(struct mixer_context *context, struct weight **out, const struct matrix *matrix,
                    struct error *err);

/* The matrices of one use that a part has, stacked. */
struct mixer_stack {
    struct matrix parts[MIXER_MAX_PARTS];
    int count;
    int64_t width; /* rows of them all */
};

/* Stacks them behind those that are there. columns: [count], of which those of the matrices that it
 * stacks are set; or NULL. */
void mixer_stack_add(struct mixer_stack *stack, const void *part, const struct part_matrix *list,
                     int count, enum matrix_use use, int64_t *columns);

/* weight, bias: [size], or NULL. The caller unloads them also after an error. */
int mixer_scale_upload(struct mixer_context *context, const float *weight, const float *bias,
                       size_t size, struct mixer_scale *out, struct error *err);
void mixer_scale_unload(const struct mixer_scale *scale, const struct ops *ops,
                        struct backend *backend);

/* Borrows config. The caller calls mixer_clear also after an error. */
int mixer_create(struct mixer_layer *layer, const struct mixer *config,
                 struct mixer_context *context, struct error *err);
void mixer_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend);

/* out = mixer(x), or out += mixer(x). */
struct mixer_step {
    int num_rows;
    struct rows x;               /* [num_rows, D] */
    const struct ops_norm *norm; /* of x, whose y is used nowhere else; NULL: x as it is */
    struct rows out;             /* [num_rows, D] */
    bool accumulate;
    /* The weights of the products that follow its first one (ops_matmul); its own second one comes
     * first. */
    const struct weight *const *next;
};
void mixer_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
               struct mixer_workspace *workspace, const struct mixer_step *step);

/* ---- the words, each in its own file ---- */

/* linear.c, softmax.c: compute h (before the norm) from the projections. */
int mixer_linear_create(struct mixer_layer *layer, struct mixer_context *context,
                        struct error *err);
void mixer_linear_run(const struct mixer_layer *layer, const struct ops *ops,
                      struct backend *backend, struct mixer_workspace *workspace, int num_rows);
int mixer_softmax_create(struct mixer_layer *layer, struct mixer_context *context,
                         struct error *err);
void mixer_softmax_run(const struct mixer_layer *layer, const struct ops *ops,
                       struct backend *backend, struct mixer_workspace *workspace, int num_rows);

/* inputs.c: q, k and v, from the projections. */
struct mixer_inputs {
    struct rows q, k, v; /* k follows q in memory */
};
int mixer_inputs_create(struct mixer_layer *layer, struct mixer_context *context,
                        struct error *err);
void mixer_inputs_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend);
struct mixer_inputs mixer_inputs_run(const struct mixer_layer *layer, const struct ops *ops,
                                     struct backend *backend, struct mixer_workspace *workspace,
                                     int num_rows);

/* conv.c: a convolution of adjacent columns, in their place; and the mixer that is one, whose h is
 * what its output projection norms first. */
int mixer_conv_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err);
void mixer_conv_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
                    struct rows x);
void mixer_gated_conv_run(const struct mixer_layer *layer, const struct ops *ops,
                          struct backend *backend, struct mixer_workspace *workspace, int num_rows);
struct ops_norm mixer_gated_conv_output(const struct mixer_layer *layer,
                                        const struct mixer_workspace *workspace, int num_rows);

/* segments.c: long_short windows. Lays the segments into slot and pages; norms k and v, and makes
 * the vectors of the segments that end in this step, which attention then takes. */
int mixer_segments_create(struct mixer_layer *layer, struct mixer_context *context,
                          struct error *err);
void mixer_segments_clear(struct mixer_layer *layer, const struct ops *ops,
                          struct backend *backend);
struct ops_segments mixer_segments_run(const struct mixer_layer *layer, const struct ops *ops,
                                       struct backend *backend, struct mixer_workspace *workspace,
                                       int num_rows, struct rows *k, struct rows *v);

/* feature_maps.c: tells the recurrence about phi, and multiplies with a map's matrix. position:
 * room for what recurrence->phi will point to. */
int mixer_features_create(struct mixer_layer *layer, struct mixer_context *context,
                          struct error *err);
void mixer_features_run(const struct mixer_layer *layer, const struct ops *ops,
                        struct backend *backend, struct mixer_workspace *workspace, int num_rows,
                        struct ops_positions *position, struct ops_recurrence *recurrence);

/* gates.c: makes a, f, b, delta of a gate's projections. */
int mixer_gate_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err);
void mixer_gate_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend);
void mixer_gate_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
                    struct mixer_workspace *workspace, int num_rows,
                    struct ops_recurrence *recurrence);

/* positions.c. dim: the size of a head on which the position acts. */
int mixer_position_create(struct mixer_layer *layer, struct mixer_context *context, int dim,
                          struct error *err);
void mixer_position_clear(struct mixer_layer *layer, const struct ops *ops,
                          struct backend *backend);
bool mixer_position_rotates(const struct mixer_layer *layer);
/* The position's operation without x and out. Computes this step's angles if no layer has yet. */
struct ops_positions mixer_position_prepare(const struct mixer_layer *layer, const struct ops *ops,
                                            struct backend *backend,
                                            struct mixer_workspace *workspace);
/* Applies the position to q and k. k follows q in memory, before and after. */
void mixer_position_run(const struct mixer_layer *layer, const struct ops *ops,
                        struct backend *backend, struct mixer_workspace *workspace, struct rows *q,
                        struct rows *k);

/* The columns from `column` on. */
static inline struct rows mixer_columns(struct rows rows, int64_t column)
{
    struct rows part = {rows.data + column, rows.stride};
    return part;
}

static inline void mixer_widen(int64_t *width, int64_t wanted)
{
    *width = wanted > *width ? wanted : *width;
}

#endif
