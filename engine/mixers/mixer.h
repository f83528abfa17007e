/* SPDX-License-Identifier: Apache-2.0 */
/* One layer's token mixer, linear or softmax, as a list of operations on a backend.
 *
 * mixer_create packs the weights and lays out the layer's part of a text's state; mixer_run queues
 * the operations of a step. A mixer is: project -> feature map -> gate -> position -> recurrence or
 * attention -> norm -> output projection, and each of these words is a file here. */
#ifndef ENGINE_MIXERS_MIXER_H
#define ENGINE_MIXERS_MIXER_H

#include "engine/ops/ops.h"
#include "engine/state_layout.h"

enum { MIXER_MAX_PARTS = 8 };

/* Angles that several layers may share. */
struct mixer_theta {
    double *host, *device; /* [count] */
    int count;
};

/* Widest row of each buffer over all layers, in floats. */
struct mixer_widths {
    int64_t project, turned, mapped, maxima, low_rank, values, angles;
};

/* Buffers of a step, shared by the layers: [max_rows, width] each. */
struct mixer_workspace {
    struct rows project;            /* all projections of x beside each other */
    struct rows turned;             /* q and k with their position */
    struct rows mapped_q, mapped_k; /* W z of a feature map */
    struct rows maxima, low_rank;
    struct rows h; /* [N, H*dv] */
    struct rows cosines, sines;
    const double *angles_of; /* whose angles lie in cosines and sines; NULL: none */
};

/* What mixer_create adds to while the layers are created one after the other. */
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
    int max_head_dim, max_features;         /* of linear mixers */
    size_t max_shared_state;                /* likewise: see ops_limits */
    int max_key_dim, max_softmax_value_dim; /* of softmax mixers */
    int64_t max_keys;                       /* likewise: that a token looks at; see ops_limits */
    enum weight_format weights;
    size_t weights_bytes[WEIGHT_FORMAT_COUNT]; /* as packed (auto), and as they would be */
};

/* Where a mixer's position applies, and what it needs. */
struct mixer_position {
    struct ops_positions ops; /* all but the arrays of the step */
    const double *theta;      /* device; NULL: no angles */
    int num_angles;
};

struct mixer_layer {
    const struct mixer *config;
    struct weight *project, *output, *low_rank;
    int64_t q_at, k_at, v_at, gate_at, gate2_at, out_gate_at; /* columns of the projection */
    struct weight *feature_q, *feature_k;                     /* the same one for favor, cos_sin */
    struct mixer_position position;
    float *norm_weight, *norm_bias; /* device */
    struct formula_bias *biases;    /* device: [H]; their tables lie in bias_table */
    float *bias_table;              /* t5: [H, FORMULA_T5_DISTANCES] */
    size_t state_offset, maxima_offset;
    enum kv_format kv; /* of the keys at state_offset */
};

/* A weight from parts beside each other, or of heads (those of feature maps, which stay as they
 * are); counts its bytes. */
int mixer_pack(struct mixer_context *context, struct weight **out, const struct matrix *parts,
               int num_parts, int heads, struct error *err);

/* Borrows config. On an error the caller still calls mixer_clear. */
int mixer_create(struct mixer_layer *layer, const struct mixer *config,
                 struct mixer_context *context, struct error *err);
void mixer_clear(struct mixer_layer *layer, const struct ops *ops, struct backend *backend);

/* residual += mixer(norm), for the rows of the norm. residual: [num_rows, D]; next: of the product
 * that comes then. */
void mixer_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
               struct mixer_workspace *workspace, const struct ops_norm *norm, struct rows residual,
               const struct weight *next);

/* ---- the words, each in its own file ---- */

/* linear.c, softmax.c: from the projections to h (before the norm). */
int mixer_linear_create(struct mixer_layer *layer, struct mixer_context *context,
                        struct error *err);
void mixer_linear_run(const struct mixer_layer *layer, const struct ops *ops,
                      struct backend *backend, struct mixer_workspace *workspace, int num_rows);
int mixer_softmax_create(struct mixer_layer *layer, struct mixer_context *context,
                         struct error *err);
void mixer_softmax_run(const struct mixer_layer *layer, const struct ops *ops,
                       struct backend *backend, struct mixer_workspace *workspace);

/* feature_maps.c: what the recurrence needs to know of phi; runs a map's matrix. position: room for
 * what recurrence->phi then points to. */
int mixer_features_create(struct mixer_layer *layer, struct mixer_context *context,
                          struct error *err);
void mixer_features_run(const struct mixer_layer *layer, const struct ops *ops,
                        struct backend *backend, struct mixer_workspace *workspace, int num_rows,
                        struct ops_positions *position, struct ops_recurrence *recurrence);

/* gates.c: which projections a gate has, and a, f, b, g from them. */
int mixer_gate_parts(const struct mixer *config, const struct matrix *parts[2]);
int mixer_gate_create(struct mixer_layer *layer, struct mixer_context *context, struct error *err);
void mixer_gate_run(const struct mixer_layer *layer, const struct ops *ops, struct backend *backend,
                    struct mixer_workspace *workspace, int num_rows,
                    struct ops_recurrence *recurrence);

/* positions.c: dim is the size of a head the position acts on. */
int mixer_position_create(struct mixer_layer *layer, struct mixer_context *context, int dim,
                          struct error *err);
void mixer_position_clear(struct mixer_layer *layer, const struct ops *ops,
                          struct backend *backend);
bool mixer_position_rotates(const struct mixer_layer *layer);
/* The position's operation without x and out; runs the angles of this step where nobody has. */
struct ops_positions mixer_position_prepare(const struct mixer_layer *layer, const struct ops *ops,
                                            struct backend *backend,
                                            struct mixer_workspace *workspace);
/* q and k with their position; k lies behind q, and does then. */
void mixer_position_run(const struct mixer_layer *layer, const struct ops *ops,
                        struct backend *backend, struct mixer_workspace *workspace, struct rows *q,
                        struct rows *k);

/* Columns from `column` on. */
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
