/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that treats rows one by one: embeddings, norms, formulas, angles and positions. The
 * scalar formulas are those of engine/ops/formulas.h. The size alone decides the tree of a sum.
 *
 * These kernels read and write each number once and compute little. A step has few rows, so a
 * kernel is some microseconds of latency; graphs (graphs.cu) hide the launches. */
#include "engine/cuda/arrival.cuh"
#include "engine/cuda/norm.cuh"
#include "engine/cuda/positions.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* Number r of the rows, at column c. */
__device__ static float *cell(struct rows rows, int64_t r, int64_t c)
{
    return rows.data + r * rows.stride + c;
}

static unsigned pieces(int64_t count, int64_t size)
{
    return (unsigned)((count + size - 1) / size);
}

/* ---- embeddings ---- */

__device__ static float table_read(const struct table &table, int64_t element)
{
    const uint16_t *halves = static_cast<const uint16_t *>(table.data);
    if (table.dtype == DTYPE_F32)
        return static_cast<const float *>(table.data)[element];
    return table.dtype == DTYPE_F16 ? f32_of_f16(halves[element]) : f32_of_bf16(halves[element]);
}

/* A block per row and 256 columns. As a step's first kernel it also brings the step's batch. */
__global__ static void embed_kernel(struct device_batch batch, struct device_arrival arrival,
                                    struct table tokens, float scale, struct table positions,
                                    enum position_embedding kind, const double *frequencies,
                                    int size, struct rows x)
{
    grid_wait();
    int64_t r = blockIdx.x;
    int c = (int)(blockIdx.y * THREADS + threadIdx.x), half = size / 2;
    int64_t position =
        kind == POSITION_EMBEDDING_NONE ? 0 : *arrival_source(arrival, batch.positions + r);
    int32_t token =
        arrival.to != NULL ? arrival_row(arrival, batch, r, blockIdx.y == 0) : batch.tokens[r].id;
    if (c >= size)
        return;
    float value = table_read(tokens, (int64_t)token * size + c);
    if (scale != 1)
        value *= scale;
    if (kind == POSITION_EMBEDDING_LEARNED)
        value += table_read(positions, position * size + c);
    if (kind == POSITION_EMBEDDING_SINUSOIDAL && c < 2 * half) {
        float cosine, sine;
        formula_cos_sin((double)position * frequencies[c < half ? c : c - half], &cosine, &sine);
        value += c < half ? sine : cosine;
    }
    *cell(x, r, c) = value;
}

void cuda_embed(struct backend *backend, const struct ops_embed *a)
{
    struct table positions = {};
    if (a->positions != NULL)
        positions = *a->positions;
    struct device_arrival arrival = backend->arrival;
    backend->arrival = {};
    launch(backend, embed_kernel,
           dim3((unsigned)backend->batch.num_rows, pieces(a->hidden_size, THREADS)), dim3(THREADS),
           0, backend->batch, arrival, *a->tokens, a->scale, positions, a->position_embedding,
           a->frequencies, a->hidden_size, a->x);
}

/* ---- norms ---- */

/* Numbers of part number `part` whose rows are aligned, some fours of a lane at a time. */
template <bool gated, enum formula formula>
__device__ static void norm_by_fours(const struct ops_norm &a, struct norm_terms terms, int part,
                                     const float *x, const float *gate, float *y)
{
    const int fours = 4;
    for (int first = (int)threadIdx.x % 32 * 4; first < a.size; first += fours * 128) {
        struct norm_four from[fours];
#pragma unroll
        for (int i = 0; i < fours; i++) {
            int j = first + i * 128;
            if (j >= a.size)
                continue;
            from[i].x = *reinterpret_cast<const float4 *>(x + j);
            if (a.kind != NORM_NONE)
                load_parameters(from[i], a, parameter_of(a, part, j));
            if (gated)
                from[i].gate = *reinterpret_cast<const float4 *>(gate + j);
        }
#pragma unroll
        for (int i = 0; i < fours; i++) {
            int j = first + i * 128;
            if (j >= a.size)
                continue;
            float4 out = a.kind == NORM_NONE ? from[i].x : norm_of_four(a, terms, from[i]);
            if (gated)
                out = gate_four(formula, from[i].gate, out);
            *reinterpret_cast<float4 *>(y + j) = out;
        }
    }
}

template <bool gated, enum formula formula>
__device__ static void norm_by_numbers(const struct ops_norm &a, struct norm_terms terms, int part,
                                       const float *x, const float *gate, float *y)
{
    for (int j = (int)threadIdx.x % 32; j < a.size; j += 32) {
        const int own = parameter_of(a, part, j);
        float value = x[j];
        if (a.kind != NORM_NONE)
            value = norm_number(a, terms, value, a.weight == NULL ? 0.0f : a.weight[own],
                                a.bias == NULL ? 0.0f : a.bias[own]);
        y[j] = gated ? formula_apply(formula, gate[j], 0.0f, 0.0f) * value : value;
    }
}

/* y = formula(gate) * x, of a part. y may be x, so a lane loads several before it writes one. */
template <enum formula formula>
__device__ static void gate_numbers(int size, const float *x, const float *gate, float *y)
{
    const int numbers = 8;
    for (int first = (int)threadIdx.x % 32; first < size; first += numbers * 32) {
        float from[numbers], gates[numbers];
#pragma unroll
        for (int i = 0; i < numbers; i++)
            if (first + i * 32 < size) {
                from[i] = x[first + i * 32];
                gates[i] = gate[first + i * 32];
            }
#pragma unroll
        for (int i = 0; i < numbers; i++)
            if (first + i * 32 < size)
                y[first + i * 32] = formula_apply(formula, gates[i], 0.0f, 0.0f) * from[i];
    }
}

/* A warp per part of a row. first: the gate comes before the norm, which then takes y for x. */
template <bool gated, bool first, enum formula formula>
__global__ static void norm_kernel(struct ops_norm a)
{
    grid_wait();
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= (int64_t)a.num_rows * a.groups)
        return;
    const int part = (int)(item % a.groups);
    int64_t r = item / a.groups, column = (int64_t)part * a.size;
    float *y = cell(a.y, r, column);
    const float *x = cell(a.x, r, column), *gate = gated ? cell(a.gate, r, column) : NULL;
    if (first) {
        gate_numbers<formula>(a.size, x, gate, y);
        __syncwarp();
        x = y;
    }
    struct norm_terms terms = {};
    if (a.kind != NORM_NONE)
        terms = norm_terms_of<8>(a, x);
    __syncwarp(); /* y may be x */
    uintptr_t addresses = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y) |
                          reinterpret_cast<uintptr_t>(gate);
    if (addresses % 16 == 0 && a.size % 4 == 0)
        norm_by_fours<gated && !first, formula>(a, terms, part, x, gate, y);
    else
        norm_by_numbers<gated && !first, formula>(a, terms, part, x, gate, y);
}

/* Numbers [j, j + 4) of a part into y, but for those past the last. */
template <bool whole> __device__ static void store_four(float *y, int j, int size, float4 four)
{
    if (whole) {
        *reinterpret_cast<float4 *>(y + j) = four;
        return;
    }
    const float numbers[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (j + i < size)
            y[j + i] = numbers[i];
}

/* whole: all rows lie at multiples of 16 bytes, and so do the parts' ends. */
template <bool gated, bool first, enum formula formula, bool whole, typename wait_for_kernel>
__device__ static void norm_part(const struct ops_norm &a, float *shared, wait_for_kernel wait)
{
    const int part = (int)(blockIdx.x % (unsigned)a.groups);
    int64_t r = blockIdx.x / (unsigned)a.groups, column = (int64_t)part * a.size;
    float *y = cell(a.y, r, column);
    const float *x = cell(a.x, r, column), *gate = gated ? cell(a.gate, r, column) : NULL;
    const float *weight = a.weight == NULL ? NULL : a.weight + parameter_of(a, part, 0);
    const float *bias = a.bias == NULL ? NULL : a.bias + parameter_of(a, part, 0);
    norm_by_block<first, formula>(
        a, a.size, shared, wait,
        [&](struct norm_four &four, int j) {
            if (weight != NULL)
                four.weight = load_part<whole>(a, weight, j, false);
            if (bias != NULL)
                four.bias = load_part<whole>(a, bias, j, false);
        },
        [&](struct norm_four &four, int j) {
            four.x = load_part<whole>(a, x, j, false);
            if (gated)
                four.gate = load_part<whole>(a, gate, j, false);
        },
        [&](const struct norm_four &four, int j, struct norm_terms terms) {
            float4 out = norm_of_four(a, terms, four);
            store_four<whole>(y, j, a.size,
                              gated && !first ? gate_four(formula, four.gate, out) : out);
        });
}

/* A block per part of a row. nvcc 13.0 for sm_90: 62 registers, nothing spilled. */
template <bool gated, bool first, enum formula formula>
__global__ static void __launch_bounds__(NORM_THREADS, NORM_BLOCKS)
    norm_block_kernel(struct ops_norm a, bool whole)
{
    KERNEL_TIMES();
    SHARED_MEMORY(float, shared);
    const auto wait = [&] { grid_wait(); };
    if (whole)
        norm_part<gated, first, formula, true>(a, shared, wait);
    else
        norm_part<gated, first, formula, false>(a, shared, wait);
}

static bool at_fours(struct rows rows)
{
    return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0;
}

/* Without a norm the size of the parts changes nothing; small ones keep all multiprocessors busy.
 */
static struct ops_norm in_small_parts(struct ops_norm a)
{
    enum { PART = 128 };
    if (a.kind == NORM_NONE && a.size % PART == 0) {
        a.groups *= a.size / PART;
        a.size = PART;
    }
    return a;
}

template <bool gated, bool first, enum formula formula>
static void run_norm(struct backend *backend, const struct ops_norm &call)
{
    const int64_t parts = (int64_t)call.num_rows * call.groups;
    /* each formula is two kernels more: the others gate no model's norm */
    constexpr bool has_blocks = !gated || formula == FORMULA_SILU || formula == FORMULA_SIGMOID;
    if constexpr (has_blocks)
        if (norm_by_blocks(backend, call, parts, call.size)) {
            launch(backend, norm_block_kernel<gated, first, formula>, dim3((unsigned)parts),
                   dim3(NORM_THREADS), norm_block_bytes(call.size), call,
                   call.size % 4 == 0 && at_fours(call.x) && at_fours(call.y) &&
                       (!gated || at_fours(call.gate)));
            return;
        }
    launch(backend, norm_kernel<gated, first, formula>, dim3(pieces(parts, WARPS)), dim3(THREADS),
           0, call);
}

/* y = formula(gate) * x, with a number of the gate for each part. A block per row and 256 columns.
 */
__global__ static void gate_kernel(struct ops_norm a)
{
    grid_wait();
    int64_t r = blockIdx.x;
    int c = (int)(blockIdx.y * THREADS + threadIdx.x);
    if (c < a.groups * a.size)
        *cell(a.y, r, c) =
            formula_apply(a.formula, *cell(a.gate, r, c / a.size), 0.0f, 0.0f) * *cell(a.x, r, c);
}

/* A norm, if there is one, and then the gates. */
static void gate_groups(struct backend *backend, const struct ops_norm *a)
{
    struct ops_norm norm = *a, gates = *a;
    if (a->kind != NORM_NONE) {
        norm.gate.data = NULL;
        cuda_norm(backend, &norm);
        gates.x = a->y;
    }
    launch(backend, gate_kernel,
           dim3((unsigned)a->num_rows, pieces((int64_t)a->groups * a->size, THREADS)),
           dim3(THREADS), 0, gates);
}

void cuda_norm(struct backend *backend, const struct ops_norm *a)
{
    if (a->gate.data != NULL && a->gate_of_group) {
        gate_groups(backend, a);
        return;
    }
    struct ops_norm call = in_small_parts(*a);
    if (call.gate.data == NULL) {
        run_norm<false, false, FORMULA_IDENTITY>(backend, call);
        return;
    }
#define NORM(name)                                      \
    case name:                                          \
        if (call.gate_first && call.kind != NORM_NONE)  \
            run_norm<true, true, name>(backend, call);  \
        else                                            \
            run_norm<true, false, name>(backend, call); \
        break;
    switch (call.formula) {
        FORMULA_OF_ONE(NORM)
        FORMULA_OF_TWO(NORM)
    }
#undef NORM
}

/* ---- formulas ---- */

/* A block per row and 256 columns. Each formula is a kernel of its own, without branches. */
template <enum formula formula> __global__ static void map_kernel(struct ops_map a)
{
    grid_wait();
    int64_t r = blockIdx.x;
    int c = (int)(blockIdx.y * THREADS + threadIdx.x);
    if (c >= a.num_cols)
        return;
    float u = *cell(a.u, r, c), w = a.w.data == NULL ? 0.0f : *cell(a.w, r, c);
    float value = formula_apply(formula, u, w, a.constant);
    if (a.weight != NULL)
        value = value * a.weight[c];
    if (a.bias != NULL)
        value += a.bias[c];
    *cell(a.out, r, c) = value;
}

void cuda_map(struct backend *backend, const struct ops_map *a)
{
    dim3 grid((unsigned)a->num_rows, pieces(a->num_cols, THREADS));
#define MAP(name)                                                      \
    case name:                                                         \
        launch(backend, map_kernel<name>, grid, dim3(THREADS), 0, *a); \
        break;
    switch (a->formula) {
        FORMULA_OF_ONE(MAP)
        FORMULA_OF_TWO(MAP)
    }
#undef MAP
}

/* ---- positions ---- */

__global__ static void angles_kernel(struct device_batch batch, struct ops_angles a)
{
    grid_wait();
    int64_t r = blockIdx.x;
    int j = (int)(blockIdx.y * THREADS + threadIdx.x);
    if (j >= a.count)
        return;
    float cosine, sine;
    formula_cos_sin((double)batch.positions[r] * a.theta[j], &cosine, &sine);
    *cell(a.cosines, r, j) = a.factor != 0.0f ? cosine * a.factor : cosine;
    *cell(a.sines, r, j) = a.factor != 0.0f ? sine * a.factor : sine;
}

void cuda_angles(struct backend *backend, const struct ops_angles *a)
{
    launch(backend, angles_kernel,
           dim3((unsigned)backend->batch.num_rows, pieces(a->count, THREADS)), dim3(THREADS), 0,
           backend->batch, *a);
}

/* A warp per row and head. */
__global__ static void positions_kernel(struct device_batch batch, struct ops_positions a)
{
    grid_wait();
    int64_t task = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)threadIdx.x % 32, heads = a.num_heads + a.num_kv_heads;
    if (task >= (int64_t)batch.num_rows * heads)
        return;
    int64_t r = task / heads;
    int head = (int)(task % heads);
    const float *x = cell(a.x, r, (int64_t)head * a.dim);
    int outputs = a.kind == POSITION_LRPE_UNITARY ? 2 * a.dim : a.dim;
    float *out = cell(a.out, r, (int64_t)head * outputs);
    int64_t angle = (int64_t)(head < a.num_heads ? head : head - a.num_heads) * a.angles_per_head;
    struct head_position position = {
        a.cosines.data == NULL ? NULL : cell(a.cosines, r, angle),
        a.sines.data == NULL ? NULL : cell(a.sines, r, angle),
        batch.positions[r],
        position_reflection(a, x, lane),
    };
    for (int j = lane; j < outputs; j += 32)
        out[j] = position_element(a, position, j, x);
}

void cuda_positions(struct backend *backend, const struct ops_positions *a)
{
    int64_t heads = a->num_heads + a->num_kv_heads;
    launch(backend, positions_kernel, dim3(pieces(backend->batch.num_rows * heads, WARPS)),
           dim3(THREADS), 0, backend->batch, *a);
}

/* ---- the rows that want logits ---- */

__global__ static void gather_kernel(struct device_batch batch, struct rows x, struct rows out,
                                     int cols)
{
    grid_wait();
    int64_t i = blockIdx.x;
    int c = (int)(blockIdx.y * THREADS + threadIdx.x);
    if (c < cols)
        *cell(out, i, c) = *cell(x, batch.logit_rows[i], c);
}

void cuda_gather(struct backend *backend, const struct ops_gather *a)
{
    launch(backend, gather_kernel,
           dim3((unsigned)backend->batch.num_logits, pieces(a->cols, THREADS)), dim3(THREADS), 0,
           backend->batch, a->x, a->out, a->cols);
}
