/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cpu/weights.h"

#include "engine/cpu/kernels.h"
#include "engine/ops/packing.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static size_t panel_bytes(enum weight_format format, int64_t in)
{
    return (size_t)panel_rows_of(format, in) * row_bytes(format);
}

static int64_t panels_of(enum weight_format format, int64_t out)
{
    int64_t panels = (out + PANEL - 1) / PANEL, together = panels_together(format);
    return (panels + together - 1) / together * together;
}

size_t weights_packed_bytes(enum weight_format format, int64_t in, int64_t out, int heads)
{
    size_t panels = (size_t)panels_of(format, out) * (size_t)heads, bytes;
    return __builtin_mul_overflow(panel_bytes(format, in), panels, &bytes) ? SIZE_MAX : bytes;
}

struct packing {
    struct weight *weight;
    const struct matrix *parts;
    int first;             /* panel of the batch */
    atomic_bool too_large; /* a number for the format */
};

struct touching {
    const struct weight *weight;
    int shares;
};

/* numbers: 32 outputs, n inputs of each from input k on, the others zero. */
typedef float numbers[PANEL][PACKING_BLOCK];

/* They become rows of a panel, the first at `to`. False: a number is too large for the format. */
typedef bool pack_function(enum weight_format format, void *to, int64_t n, numbers from);

static bool pack_floats(enum weight_format format, void *to, int64_t n, numbers from)
{
    float *row = to;
    (void)format;
    for (int64_t i = 0; i < n; i++, row += PANEL)
        for (int j = 0; j < PANEL; j++)
            row[j] = from[j][i];
    return true;
}

static bool pack_halves(enum weight_format format, void *to, int64_t n, numbers from)
{
    const bool pairs = weight_format_has(format, HAS_WIDE_EXPONENT);
    bool fits = true;
    uint16_t bits[PANEL][PACKING_BLOCK], *row = to;
    for (int j = 0; j < PANEL; j++)
        fits = packing_halves(format, from[j], bits[j]) && fits;
    for (int64_t i = 0; i < n; i++, row += PANEL_PAIR * PANEL)
        for (int j = 0; j < PANEL; j++)
            row[pairs ? j % 16 * 2 + j / 16 : j] = bits[j][i];
    return fits;
}

static void pack_q8(void *to, const struct quantized_integers *w)
{
    struct q8_block *block = to;
    for (int j = 0; j < PANEL; j++) {
        block->scales[j] = w[j].scale;
        for (int i = 0; i < 32; i++)
            block->quants[i / 4][j][i % 4] = (uint8_t)(128 + w[j].quants[i]);
    }
}

static void pack_q6(void *to, const struct quantized_integers *w)
{
    struct q6_block *block = to;
    for (int j = 0; j < PANEL; j++) {
        uint8_t quants[Q8_BLOCK];
        block->scales[j] = w[j].scale;
        for (int half = 0; half < 2; half++)
            block->factors[half][j] = w[j].factors[half];
        for (int i = 0; i < Q8_BLOCK; i++)
            quants[i] = (uint8_t)(32 + w[j].quants[i]);
        for (int i = 0; i < 16; i++) {
            const uint8_t *pair = &quants[i / 4 * 8 + i % 4];
            block->halves[i / 8].low[i / 4 % 2][j][i % 4] =
                (uint8_t)((pair[0] & 15) | pair[4] << 4);
        }
        for (int i = 0; i < 8; i++) {
            const uint8_t *fours = &quants[i / 4 * 16 + i % 4];
            block->halves[i / 4].high[j][i % 4] =
                (uint8_t)(fours[0] >> 4 | fours[4] >> 4 << 2 | fours[8] >> 4 << 4 |
                          fours[12] >> 4 << 6);
        }
    }
}

static void pack_q4(void *to, const struct quantized_integers *w)
{
    struct q4_block *block = to;
    for (int j = 0; j < PANEL; j++) {
        block->scales[j] = w[j].scale;
        block->minima[j] = w[j].minimum;
        for (int i = 0; i < 16; i++) {
            const int8_t *pair = &w[j].quants[i / 4 * 8 + i % 4];
            block->quants[i / 4][j][i % 4] = (uint8_t)(pair[0] | pair[4] << 4);
        }
    }
}

#define NUMBERS_OF_FLOATS pack_floats
#define NUMBERS_OF_HALVES pack_halves
#define NUMBERS_OF_INTEGERS NULL
#define PACKER(value, name, end, kind, ...) [value] = NUMBERS_OF_##kind,
static pack_function *const packers[WEIGHT_FORMAT_COUNT] = {WEIGHT_FORMATS(PACKER)};

/* 32 outputs of a block as integers become a row of a panel. */
typedef void pack_block_function(void *to, const struct quantized_integers *w);
#define BLOCKS_OF_FLOATS(end) NULL
#define BLOCKS_OF_HALVES(end) NULL
#define BLOCKS_OF_INTEGERS(end) pack_##end
#define BLOCK_PACKER(value, name, end, kind, ...) [value] = BLOCKS_OF_##kind(end),
static pack_block_function *const block_packers[WEIGHT_FORMAT_COUNT] = {
    WEIGHT_FORMATS(BLOCK_PACKER)};

/* n inputs from k on of `rows` outputs, the first `row`. False: a number is too large. */
static bool pack_inputs(const struct packing *packing, int64_t row, int64_t rows, int64_t k,
                        int64_t n, void *to)
{
    const enum weight_format format = packing->weight->format;
    if (block_packers[format] != NULL) {
        struct quantized_integers w[PANEL] = {0};
        /* no rows: in the panel that makes an odd one a pair */
        const bool fits = rows <= 0 || packing_blocks(format, packing->parts, row, rows, k, n, w);
        block_packers[format](to, w);
        return fits;
    }
    numbers from = {{0}};
    if (rows > 0)
        packing_rows(packing->parts, row, rows, k, n, from);
    return packers[format](format, to, n, from);
}

static void pack_panel(void *context, int task, int thread)
{
    (void)thread;
    struct packing *packing = context;
    task += packing->first;
    struct weight *weight = packing->weight;
    unsigned char *panel = panel_at(weight, task);
    size_t step = (size_t)panels_together(weight->format) * row_bytes(weight->format);
    int64_t head = task / weight->panels, first = task % weight->panels * PANEL;
    int64_t rows = weight->out - first < PANEL ? weight->out - first : PANEL;
    bool fits = true;
    for (int64_t k = 0; k < weight->in; k += PACKING_BLOCK) {
        int64_t n = weight->in - k < PACKING_BLOCK ? weight->in - k : PACKING_BLOCK;
        void *to = panel + (size_t)(k / weight_format_block(weight->format)) * step;
        fits = pack_inputs(packing, head * weight->out + first, rows, k, n, to) && fits;
    }
    if (!fits)
        atomic_store_explicit(&packing->too_large, true, memory_order_relaxed);
}

/* Writes to each page of a thread's share of the panels, which then lies in the memory beside the
 * thread that will read it, where there are several. Products cut their panels so too. */
static void touch_share(void *context, int task, int thread)
{
    enum { PAGE = 4096 };
    const struct touching *touching = context;
    const struct weight *weight = touching->weight;
    (void)thread;
    size_t from = weight->bytes / (size_t)touching->shares * (size_t)task;
    size_t end = task + 1 == touching->shares ? weight->bytes
                                              : weight->bytes / (size_t)touching->shares + from;
    for (volatile unsigned char *data = weight->data; from < end; from += PAGE)
        data[from] = 0;
}

/* The first row of a panel, which is counted over all heads. */
static int64_t row_of(const struct weight *weight, int64_t panel)
{
    const int64_t row = panel % weight->panels * PANEL;
    return panel / weight->panels * weight->out + (row < weight->out ? row : weight->out);
}

/* In batches, so that only some of a large matrix is in memory twice, as the file has it and
 * packed. False: a number is too large for the format. */
static bool pack_panels(struct weight *weight, struct threads *threads, const struct matrix *parts,
                        int num_parts)
{
    static const size_t batch_bytes = (size_t)32 << 20;
    const size_t panel = dtype_size(parts[0].dtype, (size_t)weight->in) * PANEL;
    const int total = (int)(weight->panels * weight->heads);
    const int batch = panel >= batch_bytes ? total : (int)(batch_bytes / panel);
    struct packing packing = {.weight = weight, .parts = parts};
    struct touching touching = {weight, threads_count(threads)};
    if (touching.shares > 1 && weight->chunk != NULL)
        threads_run(threads, touch_share, &touching, touching.shares);
    packing_ahead(parts, num_parts, 0, row_of(weight, batch));
    for (; packing.first < total; packing.first += batch) {
        const int64_t row = row_of(weight, packing.first);
        const int64_t next = row_of(weight, (int64_t)packing.first + batch);
        packing_ahead(parts, num_parts, next, next - row);
        const int left = total - packing.first;
        threads_run(threads, pack_panel, &packing, left < batch ? left : batch);
        packing_done(parts, num_parts, row, next - row);
    }
    return !atomic_load(&packing.too_large);
}

int weights_create(struct weight **out, struct residence *residence, struct threads *threads,
                   const struct matrix *parts, int num_parts, int heads, enum weight_format format,
                   enum activation_format activations, struct error *err)
{
    int64_t rows;
    bool biased, packed = false;
    if (packing_check(parts, num_parts, heads, &rows, &biased, err) != 0)
        return -1;
    struct weight *weight = calloc(1, sizeof *weight);
    if (weight == NULL)
        goto no_memory;
    weight->format = format == WEIGHTS_AUTO ? packing_format(parts, num_parts) : format;
    if (activation_format_fits(activations, weight->format))
        weight->activations = activations;
    weight->in = parts[0].cols;
    weight->heads = heads;
    weight->out = rows / heads;
    weight->panels = panels_of(weight->format, weight->out);
    weight->panel_bytes = panel_bytes(weight->format, weight->in);
    weight->bytes = weights_packed_bytes(weight->format, weight->in, weight->out, heads);
    weight->bias = biased ? malloc((size_t)rows * sizeof(float)) : NULL;
    if (biased && weight->bias == NULL)
        goto no_memory;
    if (residence->kind->place(residence, weight, &packed, err) != 0) {
        weights_free(weight, residence);
        return -1;
    }
    if (biased)
        packing_biases(parts, num_parts, weight->bias);
    if (!packed && !pack_panels(weight, threads, parts, num_parts)) {
        const enum weight_format tried = weight->format;
        weights_free(weight, residence);
        return packing_too_large(parts, rows, tried, err);
    }
    *out = weight;
    return 0;
no_memory:
    weights_free(weight, residence);
    return error_set(err, ERROR_NO_MEMORY, "weights: no memory for %lld x %lld", (long long)rows,
                     (long long)parts[0].cols);
}

void weights_free(struct weight *weight, struct residence *residence)
{
    if (weight == NULL)
        return;
    if (weight->data != NULL)
        residence->kind->leave(residence, weight);
    free(weight->bias);
    free(weight);
}
