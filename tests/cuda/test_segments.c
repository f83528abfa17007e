/* SPDX-License-Identifier: Apache-2.0 */
/* Long-short windows on a device, with and without a softcap: near the CPU's, which
 * tests/unit/test_segments.c compares with float64, and the same bits in any chunks. */
#include "engine/ops/perform.h"
#include "tests/cuda/bench.h"

enum { HEADS = 3, LENGTH = 140, PAGES = 3 };

struct segments_case {
    int dim, window, segment, rank;
    enum kv_format kv;
    float softcap;
};

/* The arrays of a text: of every token, then the memory that it keeps. */
enum { Q, K, V, SCORES, VECTORS, H, SLOT, PAGE, ARRAYS = PAGE + PAGES };

static struct bench_device cpu, cuda;
static struct bench_count count;

static struct ops_segments segments_of(const struct segments_case *c)
{
    size_t tiles = ((size_t)c->window + OPS_TILE - 1) / OPS_TILE;
    return (struct ops_segments){.num_heads = HEADS,
                                 .key_dim = c->dim,
                                 .value_dim = c->dim,
                                 .length = c->segment,
                                 .rank = c->rank,
                                 .kv = c->kv,
                                 .sums_offset =
                                     tiles * ops_tile_bytes(c->dim, c->dim, KV_F32) * HEADS};
}

/* The floats of each array. */
static void sizes_of(const struct segments_case *c, size_t *sizes)
{
    struct ops_segments segments = segments_of(c);
    size_t row = (size_t)(HEADS * c->dim);
    sizes[Q] = sizes[K] = sizes[V] = sizes[H] = LENGTH * row;
    sizes[SCORES] = LENGTH * (size_t)(HEADS * c->rank);
    sizes[VECTORS] = LENGTH * 2 * (size_t)c->rank * row;
    sizes[SLOT] =
        (segments.sums_offset + HEADS * ops_segment_sums_bytes(&segments)) / sizeof(float);
    for (int p = 0; p < PAGES; p++)
        sizes[PAGE + p] = HEADS * ops_segment_bytes(&segments) / sizeof(float);
}

/* Rows from `first` on. */
static struct rows rows_at(float *data, int first, int width)
{
    return (struct rows){data + (int64_t)first * width, width};
}

/* One step: tokens [first, first + n) of the text. */
static void step(const struct bench_device *device, const struct segments_case *c, float **arrays,
                 int first, int n)
{
    int32_t tokens[LENGTH] = {0};
    int64_t positions[LENGTH];
    char *pages[PAGES];
    int row = HEADS * c->dim;
    struct ops_segments segments = segments_of(c);
    for (int i = 0; i < n; i++)
        positions[i] = first + i;
    for (int p = 0; p < PAGES; p++)
        pages[p] = (char *)arrays[PAGE + p];
    struct batch_span span = {.num_rows = n,
                              .position = first,
                              .slot = (char *)arrays[SLOT],
                              .pages = pages,
                              .num_pages = PAGES};
    struct batch batch = {
        .num_rows = n, .num_spans = 1, .tokens = tokens, .positions = positions, .spans = &span};
    segments.scores = rows_at(arrays[SCORES], first, HEADS * c->rank);
    segments.k = rows_at(arrays[K], first, row);
    segments.v = rows_at(arrays[V], first, row);
    segments.vectors = rows_at(arrays[VECTORS], first, 2 * c->rank * row);
    device->ops->begin(device->backend, &batch);
    perform_segments(device->ops, device->backend, &segments);
    perform_attention(device->ops, device->backend,
                      &(struct ops_attention){.num_heads = HEADS,
                                              .num_kv_heads = HEADS,
                                              .key_dim = c->dim,
                                              .value_dim = c->dim,
                                              .scale = (float)(1.0 / sqrt(c->dim)),
                                              .softcap = c->softcap,
                                              .window = WINDOW_LONG_SHORT,
                                              .window_size = c->window,
                                              .kv = KV_F32,
                                              .q = rows_at(arrays[Q], first, row),
                                              .k = segments.k,
                                              .v = segments.v,
                                              .h = rows_at(arrays[H], first, row),
                                              .segments = &segments});
    device->ops->send(device->backend, NULL, 0);
    device->ops->receive(device->backend);
    bench_check_status(device);
}

/* h of the whole text, `chunk` tokens a step; the caller frees it. */
static float *run(const struct bench_device *device, const struct segments_case *c, int chunk)
{
    static const float most[] = {[Q] = 2, [K] = 2, [V] = 1, [SCORES] = 9};
    size_t sizes[ARRAYS];
    float *arrays[ARRAYS];
    sizes_of(c, sizes);
    for (int i = 0; i < ARRAYS; i++) {
        float *random =
            i <= SCORES ? bench_floats(sizes[i], -most[i], most[i], (uint32_t)i + 1) : NULL;
        arrays[i] = bench_memory(device, sizes[i] * sizeof(float), random);
        free(random);
    }
    for (int first = 0; first < LENGTH; first += chunk)
        step(device, c, arrays, first, LENGTH - first < chunk ? LENGTH - first : chunk);
    float *h = malloc(sizes[H] * sizeof(float));
    device->ops->copy_out(device->backend, h, arrays[H], sizes[H] * sizeof(float));
    for (int i = 0; i < ARRAYS; i++)
        bench_free(device, arrays[i], sizes[i] * sizeof(float));
    return h;
}

/* The CPU's sums of a segment have other last bits, so that some of the vectors in two bytes fall
 * to the other side. */
static void check_case(const struct segments_case *c)
{
    static const int chunks[] = {1, 7, 33, 64};
    char name[120];
    size_t floats = (size_t)(LENGTH * HEADS * c->dim);
    snprintf(name, sizeof name, "dim %d, window %d, segments of %d, %d vectors, kv %s, softcap %g",
             c->dim, c->window, c->segment, c->rank, kv_format_name(c->kv), (double)c->softcap);
    float *expected = run(&cpu, c, LENGTH), *whole = run(&cuda, c, LENGTH);
    double distance = bench_distance(whole, expected, floats);
    bench_expect(&count, distance < (c->kv == KV_F32 ? 1e-5 : 1e-3), name, "distance from the CPU",
                 distance);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        float *h = run(&cuda, c, chunks[i]);
        bench_expect(&count, memcmp(h, whole, floats * sizeof(float)) == 0, name,
                     "the same bits in chunks of", chunks[i]);
        free(h);
    }
    free(expected);
    free(whole);
}

int main(void)
{
    static const struct segments_case cases[] = {
        {16, 9, 4, 3, KV_F32, 0},
        {12, 70, 2, 2, KV_F16, 0},
        {16, 9, 4, 3, KV_F32, 2.0f},
        {12, 70, 2, 2, KV_F16, 0.5f},
    };
    struct ops_limits limits = bench_limits(LENGTH);
    limits.max_key_dim = limits.max_softmax_value_dim = 16;
    bench_open(&cpu, &cuda, &limits);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    printf("segments: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
