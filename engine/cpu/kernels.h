/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels that each instruction set implements. A kernel is a piece of an operation,
 * which one thread runs alone.
 *
 * simd_avx512.c, simd_avx2.c and simd_generic.c compile the same text (kernels_*.h) with their own
 * compiler flags and vec (vector.h). Bits may differ between instruction sets. Within one they
 * depend on the arguments only, never on how an operation was cut into pieces. */
#ifndef ENGINE_CPU_KERNELS_H
#define ENGINE_CPU_KERNELS_H

#include "engine/ops/ops.h"

enum {
    PANEL = 32,       /* outputs of a weight panel */
    PANEL_PAIR = 2,   /* panels whose rows alternate in memory; not in f32 */
    QUERY_GROUP = 32, /* queries that meet a tile of keys together; a divisor of OPS_TILE */
    BLOCK_ROWS = 96,  /* rows of x that meet a panel together; a multiple of every tile's rows */
    FIXED_ROWS = 12,  /* the same for x in fixed point; a multiple of its tiles' rows */
    TOKEN_GROUP = 16, /* tokens that meet a block of S together */
    Q8_BLOCK = WEIGHTS_Q8_BLOCK,
};

/* A packed matrix: [heads][panels] of PANEL outputs each, zero past the last. A row of a panel
 * holds one input k, or one block of inputs in formats with scales, so that 1 row and 512 rows of x
 * read the same memory in order. Except in f32, the rows of two panels alternate: they are one
 * stream of whole pairs of cache lines, and x is read half as often.
 *
 *     f32   [in][32]
 *     f16   [in][2][32]
 *     bf16  [in][2][16] pairs: output j in the lower half of a dword, j + 16 in the upper half, so
 *           that a shift and a mask separate them
 *     q8    [ceil(in / 32)][2] struct q8_block
 *     q6    [ceil(in / 32)][2] struct q6_block
 *     q4    [ceil(in / 32)][2] struct q4_block
 */
struct weight {
    enum weight_format format;          /* never auto */
    enum activation_format activations; /* to which products round x; f32 where none fits */
    int64_t in, out;                    /* of a head */
    int heads;
    int64_t panels; /* of a head; even, except in f32 */
    size_t panel_bytes;
    unsigned char *data;        /* 64-byte aligned */
    struct weight_chunk *chunk; /* that data lies in, or NULL */
    float *bias;                /* [heads * out], or NULL */
    size_t bytes;               /* of data */
};

/* Q8_BLOCK inputs of a panel: w = (quants - 128) * scale. Inputs past the last are zero. They lie
 * by fours of k, as vpdpbusd multiplies them. */
struct q8_block {
    uint8_t quants[Q8_BLOCK / 4][PANEL][4];
    uint16_t scales[PANEL]; /* f16 */
};
_Static_assert(sizeof(struct q8_block) == PANEL * WEIGHTS_Q8_BYTES, "a block of a panel's rows");

/* The same in four bits: w = quant * scale + minimum. A byte has the quants of two inputs, 4 apart:
 * byte i of dword g those of inputs 8g + i, in its lower half, and 8g + 4 + i. */
struct q4_block {
    uint8_t quants[Q8_BLOCK / 8][PANEL][4];
    uint16_t scales[PANEL], minima[PANEL]; /* f16 */
};
_Static_assert(sizeof(struct q4_block) == PANEL * WEIGHTS_Q4_BYTES, "a block of a panel's rows");

/* The same in six bits: w = (quant - 32) * factor * scale, with a factor for each half of the
 * inputs. Four bits of a quant lie as q4's, behind the upper two of their half: byte i of those has
 * them of the half's inputs i, 4 + i, 8 + i and 12 + i, the first in its lowest bits. All lie in
 * the order in which they are multiplied. */
struct q6_block {
    struct q6_half {
        uint8_t high[PANEL][4];
        uint8_t low[Q8_BLOCK / 16][PANEL][4];
    } halves[2];
    int8_t factors[2][PANEL];
    uint16_t scales[PANEL]; /* f16 */
};
_Static_assert(sizeof(struct q6_block) == PANEL * WEIGHTS_Q6_BYTES, "a block of a panel's rows");

/* Where q8 multiplies x in f32, quants count 2^24 times, since they lie in the highest byte of a
 * dword, and x counts WEIGHTS_Q8_INPUT times. Scales compensate both exactly. Only x under 2^-90
 * counts as 0, and no block's sum of finite x overflows. */
#define WEIGHTS_Q8_INPUT 0x1p-36f
#define Q8_SCALE 0x1p12f
/* There x counts WEIGHTS_Q4_INPUT times with q4, and scales and minima compensate it too: no
 * block's sum of finite x overflows. */
#define WEIGHTS_Q4_INPUT 0x1p-12f
#define Q4_SCALE 0x1p12f
/* And WEIGHTS_Q6_INPUT times with q6, whose quants count their factors times. */
#define WEIGHTS_Q6_INPUT 0x1p-20f
#define Q6_SCALE 0x1p20f

/* The number of panels whose rows alternate. */
static inline __attribute__((always_inline)) int panels_together(enum weight_format format)
{
    return format == WEIGHTS_F32 ? 1 : PANEL_PAIR;
}

/* Bytes of a row of a panel. */
static inline __attribute__((always_inline)) size_t row_bytes(enum weight_format format)
{
    return PANEL * (size_t)weight_format_bytes(format);
}

/* Rows of a panel of so many inputs. */
static inline int64_t panel_rows_of(enum weight_format format, int64_t in)
{
    const int64_t block = weight_format_block(format);
    return (in + block - 1) / block;
}

/* The first row of a panel, which is counted over all heads. The step to the next row is
 * panels_together rows. */
static inline unsigned char *panel_at(const struct weight *weight, int64_t panel)
{
    int64_t place = panel % panels_together(weight->format);
    return weight->data + (size_t)(panel - place) * weight->panel_bytes +
           (size_t)place * row_bytes(weight->format);
}

/* The number of digits of x in fixed point, where bytes are multiplied (kernels_vnni.h). */
enum { MOST_DIGITS = 3 };
static inline __attribute__((always_inline)) int digits_of(enum activation_format activations)
{
    return activations == ACTIVATIONS_8BIT ? 1 : activations == ACTIVATIONS_16BIT ? 2 : MOST_DIGITS;
}

/* The dwords of a row of Q8_BLOCK inputs there: scale, four of sums, digits; with one digit four
 * more (kernels_fixed.h). */
enum { FIXED_ENDS = 5, FIXED_WIDE = 4 };
static inline __attribute__((always_inline)) int fixed_words(const int digits)
{
    return FIXED_ENDS + Q8_BLOCK / 4 * digits + (digits == 1 ? FIXED_WIDE : 0);
}

/* Where tiles multiply bf16 and f16, x is this number of bf16, each exact (kernels_tiles.h), unless
 * it is rounded to one. */
enum { MOST_PARTS = 3 };

/* Rows of one head against panels [first, first + count) of that head. */
struct product {
    const struct weight *weight;
    int head;
    int64_t first, count;
    int num_rows;   /* BLOCK_ROWS at most */
    const float *x; /* the head's part, as `arrange` writes it */
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

/* The rows of attention's sums, of which columns past a value's are not used: tiles of AMX write
 * whole ones of 32. */
static inline int64_t attention_sums_stride(int64_t value_dim)
{
    return (value_dim + PANEL - 1) / PANEL * PANEL;
}

/* The floats that the sums of attention and its queries take as scratch, these as the most numbers
 * of bf16 (MOST_PARTS). */
static inline size_t attention_query_scratch(int key_dim, int value_dim)
{
    size_t parts = ((size_t)key_dim + Q8_BLOCK - 1) / Q8_BLOCK * Q8_BLOCK / 2 * MOST_PARTS;
    return QUERY_GROUP * ((size_t)attention_sums_stride(value_dim) + parts);
}

/* The number of floats that attention needs as scratch. Behind these lies a tile's V, in whatever
 * format, where values are in keys. */
static inline size_t attention_scratch(int key_dim, int value_dim, int value_dim_in_keys)
{
    return attention_query_scratch(key_dim, value_dim) +
           ops_value_stride(value_dim_in_keys) * OPS_TILE;
}

/* The number of floats that a kernel's recurrence needs as scratch, for a head of these sizes. */
static inline size_t recurrence_scratch(int value_dim, int head_dim, int features)
{
    size_t rows = ((size_t)value_dim + 1 + OPS_ROW_BLOCK - 1) / OPS_ROW_BLOCK * OPS_ROW_BLOCK;
    size_t m = ((size_t)features + 15) / 16 * 16, d = ((size_t)head_dim + 15) / 16 * 16;
    return TOKEN_GROUP * (3 * m + 3 * rows) + d + m;
}

/* What multiplies: numbers of f32, pairs of bf16 or fours of bytes in vectors, or tiles of these.
 */
enum unit {
    UNIT_FLOATS,
    UNIT_PAIRS,
    UNIT_BYTES,
    UNIT_TILES_OF_PAIRS,
    UNIT_TILES_OF_BYTES,
    UNIT_COUNT
};

struct kernels {
    const char *name;
    void (*product)(const struct product *);
    /* Writes inputs [first, end) of x [rows, in] to out [rows, arranged_row] in the order in which
     * `product` reads them: by tiles of rows, then by inputs. Formats with scales: by blocks of
     * inputs first, times a factor (q8: WEIGHTS_Q8_INPUT) or in fixed point; with minima a block's
     * inputs are followed by their sums. x rounded to bf16: by pairs of inputs. rows is at most
     * BLOCK_ROWS; first and end are multiples of 32, or end is the last. */
    void (*arrange)(const struct weight *, const float *x, int64_t x_stride, int rows,
                    int64_t first, int64_t end, float *out);
    unsigned fixes; /* formats whose products take x in fixed point: a bit each, or none */
    unsigned tiles; /* formats that AMX multiplies: a bit each, or none (kernels_tiles.h) */
    /* for rows [first, end) of the step */
    void (*norm)(const struct ops_norm *, int first, int end);
    void (*map)(const struct ops_map *, int first, int end);
    void (*angles)(const struct ops_angles *, const struct batch *, int first, int end);
    void (*positions)(const struct ops_positions *, const struct batch *, int first, int end);
    /* Channels [first, end) of a whole span. */
    void (*conv)(const struct ops_conv *, const struct batch_span *, int first, int end);
    /* Takes blocks [first, end) of 16 rows of one head's S through a whole span.
     * scratch: recurrence_scratch floats */
    void (*recurrence)(const struct ops_recurrence *, const struct batch_span *, int head,
                       int first, int end, float *scratch);
    /* Full windows: append a span's keys of one kv head; then answer a group's queries of heads
     * [first, end). parts: as how many numbers of bf16 tiles multiply queries and the weights of
     * values, 1 to MOST_PARTS. scratch: attention_scratch floats */
    void (*append)(const struct ops_attention *, const struct batch_span *, int kv_head);
    void (*attention)(const struct ops_attention *, const struct batch_span *,
                      const struct query_group *, int first, int end, int parts, float *scratch);
    /* Segments: a whole span of one kv head. */
    void (*segments)(const struct ops_segments *, const struct batch_span *, int kv_head);
    /* Other windows: a whole span of one kv head. scratch: [QUERY_GROUP, value stride] */
    void (*window)(const struct ops_attention *, const struct batch_span *, int kv_head,
                   float *scratch);
    /* data: [count], a multiple of 8 vectors */
    float (*measure_read)(const float *data, size_t count);
    struct {
        float (*measure)(int64_t rounds);
        int operations;  /* of a round */
    } units[UNIT_COUNT]; /* measure is NULL: there is none */
};

/* Whether products of a format take x in fixed point. */
static inline bool fixes_inputs(const struct kernels *kernels, enum weight_format format)
{
    return kernels->fixes >> format & 1;
}

/* Whether they take it as one or more numbers in bf16, whatever the number of rows. */
static inline bool parts_inputs(const struct kernels *kernels, enum weight_format format)
{
    return (kernels->tiles >> format & 1) != 0 && !fixes_inputs(kernels, format);
}

/* The most floats that 32 numbers of x take as `arrange` writes them. */
static inline size_t arranged_most(const struct kernels *kernels)
{
    /* they and their sum; or their parts, of two bytes each */
    return kernels->tiles != 0 ? MOST_PARTS * Q8_BLOCK / 2 : Q8_BLOCK + 1;
}

/* The floats of a row of x, as `arrange` writes it. */
static inline int64_t arranged_row(const struct kernels *kernels, const struct weight *weight)
{
    if (parts_inputs(kernels, weight->format))
        return panel_rows_of(WEIGHTS_Q8, weight->in) * Q8_BLOCK / 2 *
               (weight->activations == ACTIVATIONS_16BIT ? 1 : MOST_PARTS);
    if (!fixes_inputs(kernels, weight->format))
        return weight->in + (weight_format_minimum(weight->format)
                                 ? panel_rows_of(weight->format, weight->in)
                                 : 0);
    return panel_rows_of(weight->format, weight->in) * fixed_words(digits_of(weight->activations));
}

/* NULL where the instruction set was not compiled. amx has AMX's tiles beside avx512vnni, for bf16,
 * f16, fixed point and attention (tiles_attend): products in q8, q6 and q4 have the bits of
 * avx512vnni. amx_emulated has the same bits as amx, for tests on machines without it: the tiles
 * are C. avx512vnni differs from avx512 in products of q8, q6, q4 and of rounded activations. zen4
 * and zen5 have the name and bits of avx512vnni and prefetch as those cores need it. */
extern const struct kernels *const kernels_amx;
extern const struct kernels *const kernels_amx_emulated;
extern const struct kernels *const kernels_zen4;
extern const struct kernels *const kernels_zen5;
extern const struct kernels *const kernels_avx512vnni;
extern const struct kernels *const kernels_avx512;
extern const struct kernels *const kernels_avx2;
extern const struct kernels *const kernels_neonmm;
extern const struct kernels *const kernels_neondot;
extern const struct kernels *const kernels_neon;
extern const struct kernels *const kernels_generic;

#endif
