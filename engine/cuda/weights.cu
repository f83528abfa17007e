/* SPDX-License-Identifier: Apache-2.0 */
/* Packs matrices on the host's threads into pinned memory, piece by piece: one piece is packed
 * while the one before is copied to the device. */
#include "engine/cuda/weights.h"

#include "engine/cuda/transfer.h"

#include <atomic>
#include <new>

extern "C" {
#include "engine/ops/packing.h"
#include "lib/base/threads.h"
}

static const size_t piece_bytes = (size_t)4 << 20, chunk_bytes = (size_t)16 << 20;
enum { TASK_BLOCKS = 64, MOST_HEADS = 65535 /* of a grid's third dimension */ };

/* Memory that several matrices share; large ones have their own. */
struct weight_chunk {
    void *data;
    size_t size, used;
    int weights; /* that lie in it */
};

struct weight_packer {
    struct threads *threads;
    void *pieces[2]; /* pinned */
    cudaEvent_t copied[2];
    struct weight_chunk *last;
};

void weights_close(struct backend *backend)
{
    struct weight_packer *packer = backend->packer;
    if (packer == NULL)
        return;
    threads_close(packer->threads);
    for (int i = 0; i < 2; i++) {
        if (packer->copied[i] != NULL)
            cudaEventDestroy(packer->copied[i]);
        if (packer->pieces[i] != NULL)
            device_unpin(packer->pieces[i]);
    }
    free(packer);
    backend->packer = NULL;
}

static int open_packer(struct backend *backend, struct error *err)
{
    if (backend->packer != NULL)
        return 0;
    struct weight_packer *packer = (struct weight_packer *)calloc(1, sizeof *packer);
    backend->packer = packer;
    if (packer == NULL)
        return error_set(err, ERROR_NO_MEMORY, "weights: no memory");
    bool opened = threads_open(&packer->threads, 0, err) == 0;
    for (int i = 0; i < 2 && opened; i++)
        if (!device_pin(backend, piece_bytes, &packer->pieces[i]) ||
            cudaEventCreateWithFlags(&packer->copied[i], cudaEventDisableTiming) != cudaSuccess) {
            opened = false;
            error_set(err, ERROR_NO_MEMORY, "weights: no pinned memory of %zu bytes", piece_bytes);
        }
    if (!opened)
        weights_close(backend);
    return opened ? 0 : -1;
}

/* ---- one block ---- */

typedef float numbers[F32_OUTPUTS][BLOCK_INPUTS]; /* outputs of a panel, inputs of a block */

/* The output and the input of element e of register r of a lane in a step. */
static void place_of(int lane, int step, int r, int e, int *output, int *input)
{
    *output = lane / 4 + r % 2 * 8;
    *input = lane % 4 * 8 + step * 4 + r / 2 * 2 + e;
}

static bool pack_halves(enum weight_format format, numbers from, unsigned char *block)
{
    uint16_t *out = (uint16_t *)(void *)block;
    bool fits = true;
    for (int i = 0; i < 512; i++) {
        int output, input;
        place_of(i / 8 % 32, i / 256, i / 2 % 4, i % 2, &output, &input);
        fits = packing_half(format, from[output][input], out + i) && fits;
    }
    return fits;
}

static void pack_q8(const struct quantized_integers *w, unsigned char *block)
{
    uint16_t *scales = (uint16_t *)(void *)(block + Q8_SCALES);
    for (int j = 0; j < FRAGMENT_OUTPUTS; j++)
        scales[j % 8 * 2 + j / 8] = w[j].scale;
    for (int i = 0; i < 512; i++) {
        int output, input;
        place_of(i / 16, i / 8 % 2, i / 2 % 4, i % 2, &output, &input);
        block[i] = (uint8_t)(128 + w[output].quants[input]);
    }
}

/* Four bits of each quant, `zero` more, in the lanes' dwords of their steps. */
static void pack_low(const struct quantized_integers *w, int zero, unsigned char *block)
{
    uint32_t *dwords = (uint32_t *)(void *)block;
    memset(block, 0, 256);
    for (int i = 0; i < 512; i++) {
        int output, input, lane = i / 16, step = i / 8 % 2, r = i / 2 % 4, e = i % 2;
        place_of(lane, step, r, e, &output, &input);
        const uint32_t quant = (uint32_t)(w[output].quants[input] + zero);
        dwords[lane * 2 + step] |= (quant & 15) << (4 * r + 16 * e);
    }
}

static void pack_q6(const struct quantized_integers *w, unsigned char *block)
{
    uint32_t *high = (uint32_t *)(void *)(block + Q6_HIGH);
    uint16_t *scales = (uint16_t *)(void *)(block + Q6_SCALES);
    pack_low(w, 32, block);
    memset(high, 0, 32 * sizeof *high);
    for (int i = 0; i < 512; i++) {
        int output, input, lane = i / 16, step = i / 8 % 2, r = i / 2 % 4, e = i % 2;
        place_of(lane, step, r, e, &output, &input);
        const uint32_t quant = (uint32_t)(w[output].quants[input] + 32);
        high[lane] |= quant >> 4 << (8 * step + 2 * r + 16 * e);
    }
    for (int j = 0; j < FRAGMENT_OUTPUTS; j++) {
        const int place = j % 8 * 2 + j / 8;
        memcpy(block + Q6_FACTORS + place * 2, w[j].factors, 2);
        scales[place] = w[j].scale;
    }
}

static void pack_q4(const struct quantized_integers *w, unsigned char *block)
{
    uint16_t *scales = (uint16_t *)(void *)(block + Q4_SCALES);
    uint16_t *minima = (uint16_t *)(void *)(block + Q4_MINIMA);
    pack_low(w, 0, block);
    for (int j = 0; j < FRAGMENT_OUTPUTS; j++) {
        scales[j % 8 * 2 + j / 8] = w[j].scale;
        minima[j % 8 * 2 + j / 8] = w[j].minimum;
    }
}

static bool pack_f32(enum weight_format, numbers from, unsigned char *block)
{
    float *out = (float *)(void *)block;
    for (int i = 0; i < F32_OUTPUTS * BLOCK_INPUTS; i++)
        out[i] = from[i / 4 % 32][i / 128 * 4 + i % 4];
    return true;
}

/* Writes a block in its format. False: a number is too large for the format. */
typedef bool pack_function(enum weight_format format, numbers from, unsigned char *block);
/* NULL: there is none. */
static pack_function *packer_of(enum weight_format format)
{
    static pack_function *const packers[] = {pack_f32, pack_halves, NULL}; /* of enum weight_kind */
    return packers[weight_format_kind(format)];
}

/* The same of a block as integers [FRAGMENT_OUTPUTS]. */
typedef void pack_integers(const struct quantized_integers *w, unsigned char *block);
static pack_integers *block_packer_of(enum weight_format format)
{
#define BLOCKS_OF_FLOATS(end) NULL
#define BLOCKS_OF_HALVES(end) NULL
#define BLOCKS_OF_INTEGERS(end) pack_##end
#define BLOCK_PACKER(value, name, end, kind, ...) format == value ? BLOCKS_OF_##kind(end):
    return WEIGHT_FORMATS(BLOCK_PACKER) NULL;
}

/* ---- a piece: blocks [first, first + count) of a matrix ---- */

struct packing {
    const struct weight *weight;
    const struct matrix *parts;
    pack_function *pack;
    int64_t first, count;
    unsigned char *out;
    std::atomic<bool> too_large{false}; /* a number for the format */
};

static bool pack_block(struct packing *packing, int64_t index, unsigned char *out)
{
    const struct weight *weight = packing->weight;
    int64_t outputs = panel_outputs(weight->format), panel = index / weight->blocks;
    int64_t head = panel / weight->panels, row = panel % weight->panels * outputs;
    int64_t rows = weight->out - row < outputs ? weight->out - row : outputs;
    int64_t k = index % weight->blocks * BLOCK_INPUTS;
    int64_t n = weight->in - k < BLOCK_INPUTS ? weight->in - k : BLOCK_INPUTS;
    if (pack_integers *pack = block_packer_of(weight->format)) {
        struct quantized_integers w[FRAGMENT_OUTPUTS] = {};
        const bool fits =
            packing_blocks(weight->format, packing->parts, head * weight->out + row, rows, k, n, w);
        for (int output = 0; output < FRAGMENT_OUTPUTS; output++)
            for (int64_t input = n; input < BLOCK_INPUTS; input++)
                w[output].quants[input] = 0;
        pack(w, out);
        return fits;
    }
    numbers from;
    if (rows < outputs || n < BLOCK_INPUTS)
        memset(from, 0, sizeof from);
    packing_rows(packing->parts, head * weight->out + row, rows, k, n, from);
    return packing->pack(weight->format, from, out);
}

static void pack_task(void *context, int task, int)
{
    struct packing *packing = (struct packing *)context;
    size_t bytes = block_bytes(packing->weight->format);
    int64_t first = (int64_t)task * TASK_BLOCKS, end = first + TASK_BLOCKS;
    bool fits = true;
    for (int64_t i = first; i < end && i < packing->count; i++)
        fits = pack_block(packing, packing->first + i, packing->out + (size_t)i * bytes) && fits;
    if (!fits)
        packing->too_large.store(true, std::memory_order_relaxed);
}

/* Packs and copies a whole matrix. False: a number is too large for the format. Failures of the
 * device are remembered. */
static bool fill(struct backend *backend, const struct weight *weight, const struct matrix *parts)
{
    struct weight_packer *packer = backend->packer;
    size_t bytes = block_bytes(weight->format);
    int64_t total = (int64_t)(weight->bytes / bytes), piece = (int64_t)(piece_bytes / bytes);
    struct packing packing;
    packing.weight = weight;
    packing.parts = parts;
    packing.pack = packer_of(weight->format);
    for (int64_t first = 0; first < total; first += piece) {
        int i = (int)(first / piece % 2);
        packing.first = first;
        packing.count = total - first < piece ? total - first : piece;
        packing.out = (unsigned char *)packer->pieces[i];
        device_check(backend, cudaEventSynchronize(packer->copied[i]), "cudaEventSynchronize");
        threads_run(packer->threads, pack_task, &packing,
                    (int)((packing.count + TASK_BLOCKS - 1) / TASK_BLOCKS));
        device_check(backend,
                     cudaMemcpyAsync(weight->data + (size_t)first * bytes, packing.out,
                                     (size_t)packing.count * bytes, cudaMemcpyHostToDevice,
                                     backend->stream),
                     "cudaMemcpyAsync");
        device_check(backend, cudaEventRecord(packer->copied[i], backend->stream),
                     "cudaEventRecord");
    }
    return !packing.too_large.load();
}

/* ---- memory ---- */

static void give_back(struct backend *backend, struct weight_chunk *chunk)
{
    if (chunk == NULL || --chunk->weights > 0)
        return;
    if (backend->packer != NULL && backend->packer->last == chunk)
        backend->packer->last = NULL;
    device_free(backend, chunk->data);
    free(chunk);
}

static struct weight_chunk *create_chunk(struct backend *backend, size_t bytes, struct error *err)
{
    struct weight_chunk *chunk = (struct weight_chunk *)calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        error_set(err, ERROR_NO_MEMORY, "weights: no memory");
        return NULL;
    }
    chunk->size = bytes < chunk_bytes ? chunk_bytes : bytes;
    if (device_allocate(backend, chunk->size, "weights", &chunk->data, err) != 0) {
        free(chunk);
        return NULL;
    }
    return chunk;
}

/* `bytes` of device memory, aligned to 256. */
static void *allocate(struct backend *backend, size_t bytes, struct weight_chunk **in,
                      struct error *err)
{
    struct weight_packer *packer = backend->packer;
    bytes = (bytes + 255) / 256 * 256;
    if (packer->last == NULL || packer->last->size - packer->last->used < bytes) {
        struct weight_chunk *chunk = create_chunk(backend, bytes, err);
        if (chunk == NULL)
            return NULL;
        packer->last = chunk;
    }
    struct weight_chunk *chunk = packer->last;
    void *data = (char *)chunk->data + chunk->used;
    chunk->used += bytes;
    chunk->weights++;
    *in = chunk;
    return data;
}

static int upload_bias(struct backend *backend, struct weight *weight, const struct matrix *parts,
                       int num_parts, struct error *err)
{
    size_t bytes = (size_t)(weight->out * weight->heads) * sizeof(float);
    float *bias = (float *)malloc(bytes);
    if (bias == NULL)
        return error_set(err, ERROR_NO_MEMORY, "weights: no memory for biases");
    packing_biases(parts, num_parts, bias);
    cuda_copy_in(backend, weight->bias, bias, bytes);
    free(bias);
    return 0;
}

/* ---- the operations ---- */

static size_t packed_bytes(enum weight_format format, const struct weight *weight)
{
    int64_t outputs = panel_outputs(format);
    size_t panels = (size_t)((weight->out + outputs - 1) / outputs) * (size_t)weight->heads, bytes;
    size_t panel = (size_t)weight->blocks * block_bytes(format);
    return __builtin_mul_overflow(panel, panels, &bytes) ? SIZE_MAX : bytes;
}

int weight_segments(int blocks)
{
    return blocks >= 48 ? 16 : blocks >= 16 ? 8 : blocks >= 8 ? 4 : blocks >= 4 ? 2 : 1;
}

static int load(struct backend *backend, struct weight *weight, const struct matrix *parts,
                int num_parts, bool biased, struct error *err)
{
    size_t data = (weight->bytes + 255) / 256 * 256;
    size_t bias = biased ? (size_t)(weight->out * weight->heads) * sizeof(float) : 0;
    size_t rows = cublaslt_weight_bytes(backend, weight);
    bias = (bias + 255) / 256 * 256;
    if (weight->bytes > SIZE_MAX / 4)
        return error_set(err, ERROR_NO_MEMORY, "weights: no memory for %lld x %lld",
                         (long long)(weight->out * weight->heads), (long long)weight->in);
    weight->data = (unsigned char *)allocate(backend, data + bias + rows, &weight->chunk, err);
    if (weight->data == NULL)
        return -1;
    if (biased) {
        weight->bias = (float *)(void *)(weight->data + data);
        if (upload_bias(backend, weight, parts, num_parts, err) != 0)
            return -1;
    }
    if (!fill(backend, weight, parts))
        return packing_too_large(parts, weight->out * weight->heads, weight->format, err);
    if (rows > 0) {
        weight->rows = (uint16_t *)(void *)(weight->data + data + bias);
        if (cublaslt_weight_add(backend, weight, err) != 0)
            return -1;
    }
    return device_status(backend, err);
}

int cuda_weight_create(struct backend *backend, struct weight **out, const struct matrix *parts,
                       int num_parts, int heads, enum weight_format format, struct error *err)
{
    int64_t rows;
    bool biased;
    if (packing_check(parts, num_parts, heads, &rows, &biased, err) != 0 ||
        open_packer(backend, err) != 0)
        return -1;
    if (heads > MOST_HEADS)
        return error_set(err, ERROR_INVALID, "cuda: %d heads of a matrix, expected at most %d",
                         heads, MOST_HEADS);
    struct weight *weight = (struct weight *)calloc(1, sizeof *weight);
    if (weight == NULL)
        return error_set(err, ERROR_NO_MEMORY, "weights: no memory");
    weight->format = format == WEIGHTS_AUTO ? packing_format(parts, num_parts) : format;
    weight->rounded = backend->activations == ACTIVATIONS_16BIT &&
                      !is_f16(weight->format) && /* whose x is two numbers in f16 */
                      activation_format_fits(ACTIVATIONS_16BIT, weight->format);
    weight->in = parts[0].cols;
    weight->heads = heads;
    weight->out = rows / heads;
    weight->panels = (weight->out - 1) / panel_outputs(weight->format) + 1;
    weight->blocks = (int)((weight->in - 1) / BLOCK_INPUTS + 1);
    weight->segments = weight_segments(weight->blocks);
    weight->bytes = packed_bytes(weight->format, weight);
    if (load(backend, weight, parts, num_parts, biased, err) != 0) {
        cuda_weight_free(backend, weight);
        return -1;
    }
    *out = weight;
    return 0;
}

void cuda_weight_free(struct backend *backend, struct weight *weight)
{
    if (weight != NULL)
        give_back(backend, weight->chunk);
    free(weight);
}

size_t cuda_weight_bytes(const struct weight *weight, enum weight_format format)
{
    return format == WEIGHTS_AUTO ? weight->bytes : packed_bytes(format, weight);
}

/* The matrix as f32, some rows at a time. */
static int copy_numbers(struct backend *backend, float *to, const struct matrix *matrix,
                        struct error *err)
{
    const int64_t most = matrix->cols > (1 << 18) ? 1 : (1 << 18) / matrix->cols;
    float *numbers = (float *)malloc((size_t)(most * matrix->cols) * sizeof *numbers);
    if (numbers == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a table");
    for (int64_t row = 0; row < matrix->rows; row += most) {
        const int64_t rows = matrix->rows - row < most ? matrix->rows - row : most;
        const int64_t first = row * matrix->cols, n = rows * matrix->cols;
        packing_numbers(matrix, first, n, numbers);
        cuda_copy_in(backend, to + first, numbers, (size_t)n * sizeof *numbers);
    }
    free(numbers);
    return 0;
}

int cuda_table_create(struct backend *backend, struct table **out, const struct matrix *matrix,
                      struct error *err)
{
    struct table *table = (struct table *)calloc(1, sizeof *table);
    if (table == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a table");
    const bool blocks = dtype_block(matrix->dtype) > 1; /* which kernels do not look up */
    const enum dtype dtype = blocks ? DTYPE_F32 : matrix->dtype;
    size_t bytes = dtype_size(dtype, (size_t)matrix->rows * (size_t)matrix->cols);
    void *data;
    if (device_allocate(backend, bytes, "a table", &data, err) != 0) {
        free(table);
        return -1;
    }
    *table = (struct table){data, dtype, matrix->rows, matrix->cols};
    *out = table;
    if (!blocks)
        cuda_copy_in(backend, data, matrix->data, bytes);
    else if (copy_numbers(backend, static_cast<float *>(data), matrix, err) != 0)
        return cuda_table_free(backend, table), -1;
    return device_status(backend, err) == 0 ? 0 : (cuda_table_free(backend, table), -1);
}

void cuda_table_free(struct backend *backend, struct table *table)
{
    if (table != NULL)
        device_free(backend, (void *)table->data);
    free(table);
}
