/* What each instruction set implements: pieces of operations that one thread runs alone.
 *
 * simd_avx512.c, simd_avx2.c and simd_generic.c compile the same text (kernels_*.h) with other
 * compiler flags and another vec (vector.h). Between instruction sets bits may differ; within one
 * they depend on the arguments only, never on how an operation was cut into pieces. */
#ifndef ENGINE_CPU_KERNELS_H
#define ENGINE_CPU_KERNELS_H

#include "engine/ops.h"

enum {
    PANEL = 32,       /* outputs of a weight panel: [in][PANEL], k-major */
    PANEL_GROUP = 4,  /* panels of one task of a product */
    QUERY_GROUP = 16, /* queries that meet a tile of keys together; a divisor of OPS_TILE */
    TOKEN_GROUP = 16  /* tokens that meet a block of S together */
};

/* A packed matrix: [heads][panels][in][PANEL], outputs past the last are zero. */
struct weight {
    int64_t in, out; /* of a head */
    int heads;
    int64_t panels; /* of a head */
    float *data;
    float *bias; /* [heads * out], or NULL */
    size_t bytes;
};

/* Rows of one head against panels [first, first + count) of that head. */
struct product {
    const struct weight *weight;
    int head;
    int64_t first, count;
    int num_rows;
    const float *x; /* the head's part */
    int64_t x_stride;
    float *y; /* the head's part */
    int64_t y_stride;
    enum formula activation;
    bool accumulate;
};

/* Queries of one text that lie in one QUERY_GROUP of absolute positions. */
struct query_group {
    int span, first_row, num_rows;
    int64_t position; /* of first_row */
};

struct kernels {
    const char *name;
    void (*product)(const struct product *);
    /* rows [first, end) of the step */
    void (*norm)(const struct ops_norm *, int first, int end);
    void (*map)(const struct ops_map *, int first, int end);
    void (*angles)(const struct ops_angles *, const struct batch *, int first, int end);
    void (*positions)(const struct ops_positions *, const struct batch *, int first, int end);
    void (*features)(const struct ops_features *, int first, int end);
    /* exponential keys: a whole span of one head, in order */
    void (*key_features)(const struct ops_features *, const struct batch_span *, int head);
    void (*recurrence)(const struct ops_recurrence *, const struct batch_span *, int head);
    /* full windows: append a span's keys of one kv head; then a group's queries of heads [first,
     * end), all of one kv head. scratch: [QUERY_GROUP, value stride] */
    void (*append)(const struct ops_attention *, const struct batch_span *, int kv_head);
    void (*attention)(const struct ops_attention *, const struct batch_span *,
                      const struct query_group *, int first, int end, float *scratch);
    /* block and sliding windows: a whole span of one kv head, token by token */
    void (*window)(const struct ops_attention *, const struct batch_span *, int kv_head,
                   float *scratch);
    /* data: [count], a multiple of 8 vectors; then rounds of so many operations */
    float (*measure_read)(const float *data, size_t count);
    float (*measure_multiply)(float factor, int64_t rounds);
    int measure_round_operations;
};

/* NULL where the instruction set was not compiled. */
extern const struct kernels *const kernels_avx512;
extern const struct kernels *const kernels_avx2;
extern const struct kernels *const kernels_generic;

#endif
