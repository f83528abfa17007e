/* SPDX-License-Identifier: Apache-2.0 */
/* The table of functions that a device implements for the forward pass: arrays only, no models, no
 * texts.
 *
 * A model's program (engine/program/) is a list of operations (operation.h), which `run` is given;
 * engine/cpu/ and engine/cuda/ fill the table in. An operation works on `rows`: row-major matrices
 * of f32 in device memory, one row per token of the step, the rows of all spans one after the
 * other. Operations are queued in order; only `receive` waits. Operations cannot fail: everything
 * that can fail is checked or allocated before the step. When the device itself fails, `status`
 * says so and `receive` gives NULL.
 *
 * The reproducibility contract: what an operation writes for a row depends on that row and its
 * text's state alone, bit for bit. Other rows in the step, the cuts of tokens into steps, and the
 * number of threads change nothing. So every sum has one order.
 *
 * Letters as in engine/model/model.h; N rows of a step, T rows of one span. */
#ifndef ENGINE_OPS_OPS_H
#define ENGINE_OPS_OPS_H

#include "engine/model/kinds.h"
#include "engine/ops/formats.h"
#include "engine/ops/formulas.h"
#include "engine/ops/profile.h"
#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OPS_ROW_BLOCK = 16, /* rows of S that are adjacent in memory */
    OPS_TILE = 64,      /* keys of a KV page, and of a tile of a ring */
    OPS_MOST_KEPT = 16  /* kept rows of a span (struct batch_part) */
};

struct backend;   /* a device and its memory */
struct matrix;    /* of a file (engine/model/model.h) */
struct weight;    /* a matrix as packed for the device */
struct table;     /* a matrix whose rows are looked up */
struct draw;      /* engine/ops/sampler.h */
struct operation; /* engine/ops/operation.h */

/* A matrix in device memory. Row r begins at data + r * stride (in floats). data NULL: no matrix.
 */
struct rows {
    float *data;
    int64_t stride;
};

/* One text's part of a step. */
struct batch_span {
    int first_row, num_rows;
    int64_t position;   /* of its first row */
    char *slot;         /* the text's recurrent memory, on the device */
    char *const *pages; /* full windows: page i holds positions [64 i, 64 i + 64) of all layers */
    int64_t num_pages;
    char *kept; /* where a kept row puts what it changes in the slot, as it was; else NULL */
};

/* Kept rows are those that a text may go back over: the last ones of a span. Operations that change
 * slots then work in parts: first on all spans without their kept rows, then on the first kept row
 * of each, which is a span of one row, on the second, and so on. */
struct batch_part {
    const struct batch_span *spans; /* [num_spans] */
    int num_spans;
};

struct batch {
    int num_rows, num_spans, num_logits, num_draws;
    const int32_t *tokens;          /* [num_rows] */
    const int64_t *positions;       /* [num_rows] */
    const struct batch_span *spans; /* [num_spans] */
    const struct batch_part *parts; /* [num_parts]; none where no row is kept */
    int num_parts;
    bool wants_hidden;         /* rows behind the last norm come back, too */
    const int32_t *logit_rows; /* [num_logits]: the rows that want logits */
    struct draw *const *draws; /* [num_draws]: for the last of logit_rows */
    /* [num_rows]: -1, or which draw of the step before, which still runs, gives the row its token.
     * If that token ends the text (draw_ends), the row's text stays unchanged. NULL: all are -1. */
    const int32_t *token_draws;
};

/* x = scale * the token's row of a table, plus its position's embedding. */
struct ops_embed {
    const struct table *tokens;
    float scale;
    enum position_embedding position_embedding;
    const struct table *positions; /* learned */
    const double *frequencies;     /* sinusoidal: [D/2] */
    int hidden_size;
    struct rows x; /* out: [N, D] */
};

/* y = norm(x), for each of `groups` parts of `size` of every row, with the same weight, or each
 * with its own. x = y is allowed.
 *
 * Where gate.data is not NULL, y = formula(gate) * norm(x), with a number of the gate for each, or
 * with gate_of_group for each part; or with gate_first, which has a number for each, norm(formula(
 * gate) * x). The kind may be NORM_NONE then, with which norm(x) is x, and gate = y is allowed,
 * too.
 */
struct ops_norm {
    enum norm_kind kind;
    float eps;
    const float *weight, *bias; /* [size], or NULL; bias of NORM_GATED_RMSNORM: w of its gate */
    bool by_part;               /* they are [groups * size]: each part has its own */
    int num_rows, groups, size;
    struct rows x, y;
    enum formula formula; /* of one number */
    struct rows gate;     /* [num_rows, groups * size]; with gate_of_group [num_rows, groups] */
    bool gate_of_group;
    bool gate_first; /* Mamba-2's order */
};

/* What a router chooses for each row (mixture of experts): the ids of `chosen` experts, those of
 * the greatest scores, the lower id of equal ones, in ascending order; and their weights
 * (formula_route). */
struct ops_route {
    int num_experts, chosen, num_rows;
    struct route_rule rule;
    const float *bias;   /* [num_experts], on the device: of choices, not of weights; or NULL */
    const float *scale;  /* likewise: factors of weights, at last; or NULL */
    struct rows scores;  /* [N, num_experts]; their sigmoids take their place */
    struct rows choices; /* out: [N, 2 * chosen]: ids, which f32 holds exactly, then weights */
};

/* out = sum over i < chosen of weight i of choices times part i of x, or out += that sum. The sum
 * runs in order; each product is rounded. */
struct ops_combine {
    int chosen, num_rows, num_cols;
    struct rows choices, x, out; /* as of ops_route; [N, chosen * num_cols]; [N, num_cols] */
    bool accumulate;
};

/* y = act(x Wᵀ + bias), or y += x Wᵀ + bias. Each output is one running sum over the input, in
 * order (by blocks of 32 where x became integers for a weight in blocks). A weight made of heads
 * multiplies part h of x with matrix h.
 *
 * A routed product (chosen > 0) takes matrices by row: part i of y is x, or with by_part part i of
 * x, times the matrix whose number is id i of the row's choices. It has neither norm nor next, and
 * does not accumulate.
 *
 * norm, if not NULL, is done first, on as many rows, and its y is this x. Nothing else may use that
 * y: a device that norms or gates x while it reads it does not write it.
 *
 * next, if not NULL, lists the weights of the products that probably follow, in their order: at
 * least one, and NULL after the last. A device may prefetch them. */
struct ops_matmul {
    const struct weight *weight;
    int num_rows;
    struct rows x, y; /* [num_rows, in], [num_rows, out] */
    enum formula activation;
    bool accumulate;
    int chosen; /* 0: not routed */
    bool by_part;
    struct rows choices; /* as of ops_route */
    const struct ops_norm *norm;
    const struct weight *const *next;
};

/* Sees what matrices are multiplied with (engine/quantize/). Borrowed by the device, the CPU alone.
 * Calls come from the thread that opens the engine, or that runs the step. */
struct product_observer {
    void *context;
    /* A weight was packed of these matrices, which are no heads' own. */
    void (*packed)(void *context, const struct weight *, const struct matrix *parts, int num_parts);
    /* x is there, after the norm. */
    void (*multiplied)(void *context, const struct ops_matmul *);
};

/* out = formula(u, w), times weight plus bias where there is a weight. out = u is allowed. */
struct ops_map {
    enum formula formula;
    float constant;
    int num_rows, num_cols;
    struct rows out, u, w;
    const float *weight, *bias; /* [num_cols], or NULL; a bias needs a weight */
};

/* A convolution over each text's rows, channel by channel, in the place of its input u:
 * formula(bias + sum over j < K of weight[j] * u_{t - K + 1 + j}), summed in this order. The last
 * K - 1 rows of u are in the text's slot, [K - 1][C]: that of position p in row p mod (K - 1),
 * zeros before the text. */
struct ops_conv {
    int width, channels;        /* K, C */
    enum formula activation;    /* of one number */
    const float *weight, *bias; /* [K, C], and [C] or NULL */
    struct rows x;              /* u, then the result: [N, C] */
    size_t state_offset;        /* of the rows in the slot */
};

/* cos and sin of position * theta_j, times a factor (yarn's, for q and k that are turned). A pair
 * whose theta_j is 0 stands still. */
struct ops_angles {
    const double *theta; /* [count] */
    int count;
    float factor;               /* 0: none, as 1 */
    struct rows cosines, sines; /* out: [N, count] */
};

/* Applies positions to each head of x (model-format.md, "Positions": rope, LRPE and, in recurrences
 * alone, spe). x and out may not overlap. */
struct ops_positions {
    enum position_kind kind;
    enum lrpe_basis basis;
    enum rope_pairing pairing;
    int num_heads, num_kv_heads; /* in x: of q, and behind them of k; both count their angles */
    int dim, rotary_dims;        /* dim: of a head of x; out has twice as many for unitary */
    int angles_per_head;         /* 0: all heads share cosines and sines */
    const float *householder;    /* [dim] */
    /* the permutation as cycles: element j is number place[j] of the cycle that lies at
     * cycle[start[j]] and has length[j] elements */
    const int32_t *cycle, *start, *length, *place; /* [dim] each */
    /* spe: feature j's `num_sines` angles, then the next one's; the codes of `outputs` numbers for
     * each of their cosines and sines in turn and, where it is gated, for the feature itself */
    int num_sines, outputs;
    bool gated;
    const float *code_q, *code_k; /* [heads, dim, 2 num_sines (+ 1), outputs] */
    struct rows cosines, sines;
    struct rows x, out;
};

/* phi of one head's q or k: position before, map, position after. exp and favor subtract a maximum:
 * a query's own, or the keys' running maximum, which is in the text's slot. */
struct ops_features {
    enum feature_map map;
    float query_scale;                             /* of phi(q), before the position after */
    int head_dim, feature_rows, features, dpfp_nu; /* d, rows of W, m, nu */
    const struct ops_positions *before, *after; /* NULL: none; x, out and numbers of heads unused */
    struct rows y_q, y_k; /* [N, Hq*feature_rows], [N, Hk*feature_rows] = W z, for maps with a W */
    struct rows maxima;   /* scratch [N, Hk]; exponential maps */
    size_t maxima_offset; /* of M [Hk] in the slot; exponential maps */
};

/* formula(u, w) of every column. u.data NULL: no factor. w may be the same for all rows: its stride
 * is 0 then. */
struct ops_factor {
    enum formula formula;
    float constant;
    struct rows u, w;
};

/* The row recurrence of every linear mixer (model-format.md), from its projections on. Row i of a
 * head's S, in token order:
 *   s <- a_i (f * s);  s <- s + (b v_i - delta (s.phi_k)) phi_k;  h_i = s.phi_q
 * or, where erase is there, of the other order: r = s.erase, then
 *   s <- a_i (f * s);  s <- s + (b v_i) phi_k - r write;  h_i = s.phi_q
 * and with sum_norm c as row dv with v = 1, and h_i / max(c.phi_q, 1e-6); with a skip (Mamba-2)
 * h_i + D v_i at last. What is absent is 1 (a, f, b) or 0 (delta). Where a key raises the running
 * maximum, a gets the factor exp(M_old - M_new). S of a head in the slot: [rows / 16][m2][16], rows
 * = dv (+ 1), padded to 16. Order of s.phi: one running sum over the features.
 *
 * H heads have S, h, a, b and delta. Neighbouring heads may share what S is made of and read
 * with: q has Hq = num_qk_heads heads, v has Hv = num_kv_heads, and k, its features' gate f and M
 * have Hk, the smaller of both. Each divides H, and head h reads head h / (H / Hq) of q, and so on.
 * Grouped values: Hq < H = Hv (Gated DeltaNet; Mamba-2, whose q and k are C and B of a group).
 * Grouped keys and values: Hv < H = Hq (GLA). The bits are those of heads written out H times. */
struct ops_recurrence {
    int num_heads, num_qk_heads, num_kv_heads, value_dim; /* H, Hq, Hv, dv */
    int features;   /* m2: of phi after its position; f_j serves j and j + m (spe: there is no f) */
    int chunk_size; /* C, or 0: see ops_state_features */
    bool sum_norm;
    bool row_decay_per_head; /* row_decay is [N, H], else [N, H*dv] */
    struct ops_features phi;
    struct rows q, k, v; /* [N, Hq*d], [N, Hk*d], [N, Hv*dv] */
    struct ops_factor row_decay, feature_decay, input_scale,
        delta;                /* a; f [N, Hk*m]; b, delta [N, H] */
    struct rows erase, write; /* [N, Hk*m2], or both absent: not with delta, nor with a running
                                 maximum */
    const float *skip;        /* D [H], on the device, or NULL */
    struct rows h;            /* out: [N, H*dv] */
    size_t state_offset;      /* of S [H] in the slot */
};

/* The segments of a long_short window (model-format.md): every l tokens of a text become r vectors
 * of keys and r of values, sum over t of softmax_t(score_t) k_t and likewise of v_t. The operation
 * takes the scores of the new tokens, in order, into the running sums of the segment in hand, which
 * are in the slot: [H][r] of maximum, sum of exp, k [d], v [dv]. In a row that ends a segment it
 * writes the segment's vectors; those of other rows are left as they are.
 *
 * ops_attention appends them, once they are normed, to the page of the segment's tokens: there
 * each kv head has K [d][n], then V [n][dv padded to 16], n = 64 r / l, in the format `kv`, padded
 * to a multiple of 64 numbers. */
struct ops_segments {
    int num_heads, key_dim, value_dim; /* H of k and v, d, dv */
    int length, rank;                  /* l, a divisor of 64; r <= l */
    enum kv_format kv;
    struct rows scores, k, v; /* [N, H*r], [N, H*d], [N, H*dv] */
    struct rows vectors;      /* out: [N, r*H*d + r*H*dv]: r keys of all heads, then r values */
    size_t sums_offset, page_offset;
};

/* Causal attention over the keys of a text, including the new ones: appends k and v, then
 *   score = cap(q.k * scale) * weight(t - s) + bias(t - s);  h = sum of act(score) v
 * where cap(x) = softcap tanh(x / softcap), or x without a softcap.
 * It goes tile by tile of 64 positions, in order, with a running maximum. A full window's keys are
 * in the pages, at `offset`, in the format `kv`; they are rounded before any query reads them. Keys
 * of other windows are in a ring of W keys in the slot, always in f32. A long_short window is a
 * sliding one whose queries meet the vectors of the segments before their own first, in tiles of 64
 * vectors, without a bias.
 *
 * At `offset` lie the tiles of the kv heads, one after the other, of ops_tile_bytes each: first K
 * [m2][64], key s of the tile in column s, then V [64][dv padded to 16] with zero padding, in
 * little-endian numbers of ops_kv_bytes. Places of a page without a token hold numbers.
 *
 * With sinks the weights of a head's values are divided by the sum of e^score and e^sink: one more
 * key, that has no value. Activation softmax alone has sinks, and no long_short window.
 *
 * With values_in_keys, which full windows alone may have, v is absent and so is V: a key's values
 * are its first dv numbers as they are stored, dv <= m2. The bits are those of an attention that is
 * given the same values as v. */
struct ops_attention {
    int num_heads, num_kv_heads, key_dim, value_dim; /* key_dim: m2 */
    float scale, softcap;                            /* softcap 0: none */
    enum softmax_activation activation;
    enum window_kind window;
    int window_size;
    enum kv_format kv; /* of the pages: KV_F32, KV_F16 or KV_BF16 */
    enum position_kind bias;
    bool values_in_keys;
    const struct formula_bias *biases; /* [H], on the device; NULL: no bias */
    const float *sinks;                /* [H], likewise */
    struct rows q, k, v;               /* [N, H*m2], [N, Hkv*m2], [N, Hkv*dv] */
    struct rows h;                     /* out: [N, H*dv] */
    size_t offset;
    const struct ops_segments *segments; /* of a window long_short, else NULL; vectors are normed */
};

/* out [num_logits, cols]: the rows of x that want logits. */
struct ops_gather {
    int cols;
    struct rows x, out;
};

/* Copies a text's memory to the host: a head, then pages of one size. */
struct ops_save {
    void *to; /* [head_bytes + num_pages * page_bytes]; must exist until the copy has arrived */
    const char *head;
    size_t head_bytes;
    char *const *pages; /* borrowed for the call, not what they point to */
    int64_t num_pages;
    size_t page_bytes;
    /* Called once by any thread when the copy has arrived, before anyone is told. Not called when
     * the device failed. NULL is allowed. */
    void (*there)(const struct ops_save *);
    const void *context; /* for `there` */
    int64_t position;    /* likewise */
};

/* The limits of a step, known before the first one. */
struct ops_limits {
    int max_rows, max_logits, max_value_dim, vocab_size;
    int max_kept; /* rows of a step that texts may go back over */
    bool pages;   /* texts have pages */
    int max_head_dim, max_features, max_linear_heads; /* of linear mixers: d, m and m2, H */
    int max_erased_features; /* of those with `erase`: m2; 0: there are none */
    size_t max_shared_state; /* of linear mixers: bytes of a layer's M and, with sum_norm, S */
    int max_key_dim, max_softmax_value_dim; /* of softmax mixers: m2, dv; 0: there are none */
    int max_value_dim_in_keys; /* of those with values_in_keys: dv; 0: there are none */
    int64_t max_keys;          /* keys that a token of theirs sees; INT64_MAX: all before it */
    int64_t max_input; /* longest row of a matrix product, each head padded to a multiple of 32 */
    /* of routed products: matrices; those of a row; numbers of an x and of its y, together; 0:
     * there are none */
    int max_experts, max_chosen;
    int64_t max_routed;
};

struct ops {
    const char *device; /* "cpu", "cuda" */
    void (*close)(struct backend *);
    /* 0, or -1 with what failed on the device. A failed device stays failed until it is closed. */
    int (*status)(struct backend *, struct error *);
    const char *(*instruction_set)(const struct backend *);
    /* What multiplies matrices with the weights of a format, not auto: "AMX bf16". NULL: this
     * device does not tell. */
    const char *(*unit)(const struct backend *, enum weight_format);
    int (*threads)(const struct backend *);
    int (*prepare)(struct backend *, const struct ops_limits *, struct error *);

    /* The default budget for states of texts, in bytes; call it after the weights are loaded. */
    size_t (*state_memory)(struct backend *);
    /* Total bytes allocated so far: on the device, of these for weights packed once more, and
     * pinned on the host for copies. Before anything is released that is what is in use. NULL: the
     * backend allocates nothing of its own. */
    void (*taken)(const struct backend *, size_t *device, size_t *second, size_t *pinned);

    /* Allocates memory, which is zero. On the CPU it costs nothing before it is written. */
    int (*reserve)(struct backend *, size_t bytes, void **out, struct error *);
    void (*release)(struct backend *, void *memory, size_t bytes);
    /* Makes the system provide reserved memory now, not when it is written; its content stays.
     * False: the system does not. NULL: the memory is there from the beginning. */
    bool (*populate)(struct backend *, void *memory, size_t bytes);
    void (*fill)(struct backend *, void *memory, float value, size_t count);
    void (*copy)(struct backend *, void *to, const void *from, size_t bytes);
    /* Copy between host and device, between steps. The host's side may be used again at once. */
    void (*copy_in)(struct backend *, void *to, const void *from, size_t bytes);
    void (*copy_out)(struct backend *, void *to, const void *from, size_t bytes);
    /* Like copy_out, without waiting. It saves the memory as it is after everything queued, and the
     * memory may be changed at once. The copy has arrived after save_wait for the number that save
     * returned, or for a later one. Any thread may call save_wait. -1: the device failed before. */
    uint64_t (*save)(struct backend *, const struct ops_save *);
    int (*save_wait)(struct backend *, uint64_t number, struct error *);
    int (*upload)(struct backend *, const void *host, size_t bytes, void **out, struct error *);
    void (*unload)(struct backend *, void *); /* what upload returned; NULL is allowed */

    /* Packs matrices of one width as one, their outputs one after the other. With heads > 1 they
     * are [heads * rows, cols] together, whose part h meets part h of the input. auto: the
     * narrowest format that holds the parts as they are. ERROR_INVALID: a number is too large for
     * the format. */
    int (*weight_create)(struct backend *, struct weight **out, const struct matrix *parts,
                         int num_parts, int heads, enum weight_format, struct error *);
    void (*weight_free)(struct backend *, struct weight *);
    /* The bytes as packed (auto), or in another format. */
    size_t (*weight_bytes)(const struct weight *, enum weight_format);
    /* Borrows the matrix's data, which must outlive the table. */
    int (*table_create)(struct backend *, struct table **out, const struct matrix *,
                        struct error *);
    void (*table_free)(struct backend *, struct table *);

    /* A step: begin, run, send, receive. The batch must stay valid until send. */
    void (*begin)(struct backend *, const struct batch *);
    /* Queues the operations of a model's program that the step has, which is that of begin's batch.
     * The device is given them all, and how it runs them is its choice. */
    void (*run)(struct backend *, const struct operation *operations, int num_operations,
                const struct batch *);
    /* Queues one by itself, on so many rows (see OPERATIONS). */
    void (*perform)(struct backend *, const struct operation *, int num_rows);
    /* After the operations: draws from logits [num_draws, vocab_size], like sampler_draw. The
     * results are valid after receive, unless the device failed. */
    void (*draw)(struct backend *, const float *logits, int32_t vocab_size,
                 struct draw *const *draws, int num_draws);
    /* The end of a step: `count` floats at device_data shall come back. receive waits for the
     * oldest sent step and returns its floats in host memory, valid until the next begin. */
    void (*send)(struct backend *, const float *device_data, size_t count);
    const float *(*receive)(struct backend *);
    bool overlaps;     /* a second step may be sent before; only draws come back from it */
    int64_t max_pages; /* of all texts of a step together; 0: no limit */
    /* The seconds that the device has worked on the received steps, counted for each step from when
     * it could begin with the operations. */
    double (*busy_seconds)(const struct backend *);
    /* Experts that the steps have read: each that a mixture has chosen in a step counts once. NULL:
     * nobody counts. */
    uint64_t (*experts_read)(const struct backend *);

    /* Measures the device's peaks per second, the best of some tries of milliseconds: bytes read in
     * a stream from memory that has been written, and operations of what multiplies most
     * matrices, or of f32 where the device does not tell (a multiply-add is two). Call it between
     * steps. */
    void (*measure)(struct backend *, const void *memory, size_t bytes, double *read_bytes,
                    double *operations);
    /* From now on adds the seconds of operations to seconds [PROFILE_SECONDS], borrowed. NULL:
     * stops. */
    void (*profile)(struct backend *, double *seconds);
};

/* Whether every row wants logits, in order. */
FORMULA bool batch_wants_all_rows(const struct batch *batch)
{
    if (batch->num_logits != batch->num_rows)
        return false;
    for (int i = 0; i < batch->num_logits; i++)
        if (batch->logit_rows[i] != i)
            return false;
    return true;
}

/* Heads of k, f and M (Hk). */
FORMULA int ops_recurrence_key_heads(const struct ops_recurrence *a)
{
    return a->num_qk_heads < a->num_kv_heads ? a->num_qk_heads : a->num_kv_heads;
}

/* Which of `shared` heads of q, k or v a head of S reads. */
FORMULA int ops_shared_head(const struct ops_recurrence *a, int shared, int head)
{
    return head / (a->num_heads / shared);
}

/* Features of S in the slot. With chunks of C positions (FLASH, Hua et al. 2022) h reads S as it
 * was at the start of the token's chunk: S has two halves, [rows / 16][2][m2][16], the sum of the
 * finished chunks and that of the chunk in hand. A chunk's first token adds the second to the first
 * and clears it. Such a recurrence has no factors, no running maximum and no c. */
FORMULA int ops_state_features(int features, int chunk_size)
{
    return chunk_size > 0 ? 2 * features : features;
}

/* Bytes of a head's S in a slot. */
FORMULA size_t ops_recurrent_bytes(int value_dim, bool sum_norm, int features)
{
    size_t rows = (size_t)value_dim + (sum_norm ? 1 : 0);
    size_t blocks = (rows + OPS_ROW_BLOCK - 1) / OPS_ROW_BLOCK;
    return blocks * (size_t)features * OPS_ROW_BLOCK * sizeof(float);
}

/* Bytes of a convolution's rows in a slot. */
FORMULA size_t ops_conv_bytes(int width, int64_t channels)
{
    return (size_t)(width - 1) * (size_t)channels * sizeof(float);
}

/* Bytes of a number of K or V. */
FORMULA size_t ops_kv_bytes(enum kv_format kv)
{
    return kv == KV_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* The numbers from one key's values to the next key's in a tile. */
FORMULA size_t ops_value_stride(int value_dim)
{
    return ((size_t)value_dim + 15) / 16 * 16;
}

/* Vectors of the segments of a page, and of the segments before the one of a position. */
FORMULA int ops_segment_page(const struct ops_segments *a)
{
    return OPS_TILE / a->length * a->rank;
}

FORMULA int64_t ops_segments_before(const struct ops_segments *a, int64_t position)
{
    return position / a->length * a->rank;
}

/* Bytes of a kv head's vectors in a page; of its running sums in a slot. */
FORMULA size_t ops_segment_bytes(const struct ops_segments *a)
{
    size_t numbers =
        ((size_t)a->key_dim + ops_value_stride(a->value_dim)) * (size_t)ops_segment_page(a);
    return (numbers + 63) / 64 * 64 * ops_kv_bytes(a->kv);
}

FORMULA size_t ops_segment_sums_bytes(const struct ops_segments *a)
{
    return (size_t)a->rank * (size_t)(2 + a->key_dim + a->value_dim) * sizeof(float);
}

/* Bytes of one head's tile of 64 keys and values, of which value_dim 0 has none: a multiple of 128.
 */
FORMULA size_t ops_tile_bytes(int key_dim, int value_dim, enum kv_format kv)
{
    return ((size_t)key_dim + ops_value_stride(value_dim)) * OPS_TILE * ops_kv_bytes(kv);
}

/* Columns of a key's values that a tile has. */
FORMULA int ops_stored_values(const struct ops_attention *a)
{
    return a->values_in_keys ? 0 : a->value_dim;
}

#endif
