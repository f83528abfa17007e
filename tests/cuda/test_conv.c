/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions over rows on a device: near the CPU's, which tests/unit/test_conv.c compares with
 * float64, the same bits in any chunks, the same rows left in the slot, and nothing of a text
 * beside it. And gates with a number for each part of a row. */
#include "engine/ops/perform.h"
#include "tests/cuda/bench.h"

enum { LENGTH = 301 /* more than a round of the kernel */, BEHIND = 5 /* other columns */ };

struct conv_case {
    int width, channels;
    bool biased;
    enum formula activation;
};

/* Of the text and of another one, whose rows stand before it in each step. */
enum { X, OTHER, SLOT, OTHER_SLOT, WEIGHT, BIAS, ARRAYS };

static struct bench_device cpu, cuda;
static struct bench_count count;

static void sizes_of(const struct conv_case *c, size_t *sizes)
{
    sizes[X] = sizes[OTHER] = (size_t)(LENGTH * (c->channels + BEHIND));
    sizes[SLOT] = sizes[OTHER_SLOT] = ops_conv_bytes(c->width, c->channels) / sizeof(float);
    sizes[WEIGHT] = (size_t)(c->width * c->channels);
    sizes[BIAS] = (size_t)c->channels;
}

/* Tokens [first, first + n) of the text, behind as many of the other one's. */
static void step(const struct bench_device *device, const struct conv_case *c, float **arrays,
                 float *rows, int first, int n)
{
    const int64_t stride = c->channels + BEHIND;
    const size_t bytes = (size_t)(n * stride) * sizeof(float);
    int32_t tokens[2 * LENGTH] = {0};
    int64_t positions[2 * LENGTH];
    for (int i = 0; i < 2 * n; i++)
        positions[i] = first + i % n;
    struct batch_span spans[2] = {
        {.num_rows = n, .position = first, .slot = (char *)arrays[OTHER_SLOT]},
        {.first_row = n, .num_rows = n, .position = first, .slot = (char *)arrays[SLOT]}};
    struct batch batch = {.num_rows = 2 * n,
                          .num_spans = 2,
                          .tokens = tokens,
                          .positions = positions,
                          .spans = spans};
    device->ops->copy(device->backend, rows, arrays[OTHER] + first * stride, bytes);
    device->ops->copy(device->backend, rows + n * stride, arrays[X] + first * stride, bytes);
    device->ops->begin(device->backend, &batch);
    perform_conv(device->ops, device->backend,
                 &(struct ops_conv){.width = c->width,
                                    .channels = c->channels,
                                    .activation = c->activation,
                                    .weight = arrays[WEIGHT],
                                    .bias = c->biased ? arrays[BIAS] : NULL,
                                    .x = {rows, stride}});
    device->ops->send(device->backend, NULL, 0);
    device->ops->receive(device->backend);
    bench_check_status(device);
    device->ops->copy(device->backend, arrays[X] + first * stride, rows + n * stride, bytes);
}

/* The whole text, `chunk` tokens a step: its rows, then its slot; the caller frees it. */
static float *run(const struct bench_device *device, const struct conv_case *c, int chunk)
{
    size_t sizes[ARRAYS];
    float *arrays[ARRAYS];
    sizes_of(c, sizes);
    for (int i = 0; i < ARRAYS; i++) {
        const bool slot = i == SLOT || i == OTHER_SLOT;
        float *random = bench_floats(sizes[i], slot ? 0 : -2, slot ? 0 : 2, (uint32_t)i + 1);
        arrays[i] = bench_memory(device, sizes[i] * sizeof(float), random);
        free(random);
    }
    float *rows = bench_memory(device, 2 * sizes[X] * sizeof(float), NULL);
    for (int first = 0; first < LENGTH; first += chunk)
        step(device, c, arrays, rows, first, LENGTH - first < chunk ? LENGTH - first : chunk);
    float *out = malloc((sizes[X] + sizes[SLOT]) * sizeof(float));
    device->ops->copy_out(device->backend, out, arrays[X], sizes[X] * sizeof(float));
    device->ops->copy_out(device->backend, out + sizes[X], arrays[SLOT],
                          sizes[SLOT] * sizeof(float));
    bench_free(device, rows, 2 * sizes[X] * sizeof(float));
    for (int i = 0; i < ARRAYS; i++)
        bench_free(device, arrays[i], sizes[i] * sizeof(float));
    return out;
}

static void check_case(const struct conv_case *c)
{
    static const int chunks[] = {1, 2, 3, 7, 16, 17, 33, 257, 260, 272};
    size_t sizes[ARRAYS];
    char name[120];
    sizes_of(c, sizes);
    const size_t floats = sizes[X] + sizes[SLOT];
    snprintf(name, sizeof name, "width %d, %d channels%s", c->width, c->channels,
             c->biased ? ", biased" : "");
    float *expected = run(&cpu, c, LENGTH), *whole = run(&cuda, c, LENGTH);
    double distance = bench_distance(whole, expected, floats);
    bench_expect(&count, distance < 1e-6, name, "distance from the CPU", distance);
    bench_expect(&count,
                 memcmp(whole + sizes[X], expected + sizes[X], sizes[SLOT] * sizeof(float)) == 0,
                 name, "the CPU's slot, to the bit", 0);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        float *out = run(&cuda, c, chunks[i]);
        bench_expect(&count, memcmp(out, whole, floats * sizeof(float)) == 0, name,
                     "the same bits in chunks of", chunks[i]);
        free(out);
    }
    free(expected);
    free(whole);
}

/* Rows of `groups` parts, normed where there is a kind, times a number of the gate for each part.
 */
static void gate(const struct bench_device *device, enum norm_kind kind, int groups, int size,
                 float *out)
{
    enum { ROWS = 6 };
    int32_t tokens[ROWS] = {0};
    int64_t positions[ROWS] = {0};
    struct batch_span span = {.num_rows = ROWS};
    struct batch batch = {
        .num_rows = ROWS, .num_spans = 1, .tokens = tokens, .positions = positions, .spans = &span};
    const size_t width = (size_t)(groups * size), bytes = ROWS * width * sizeof(float);
    const size_t of_gates = ROWS * (size_t)groups * sizeof(float);
    float *host = bench_floats(ROWS * width, -2, 2, 1), *x = bench_memory(device, bytes, host);
    free(host);
    host = bench_floats(ROWS * (size_t)groups, -2, 2, 2);
    float *gates = bench_memory(device, of_gates, host);
    free(host);
    device->ops->begin(device->backend, &batch);
    perform_norm(device->ops, device->backend,
                 &(struct ops_norm){.kind = kind,
                                    .eps = 1e-5f,
                                    .num_rows = ROWS,
                                    .groups = groups,
                                    .size = size,
                                    .x = {x, (int64_t)width},
                                    .y = {x, (int64_t)width},
                                    .formula = FORMULA_SIGMOID,
                                    .gate = {gates, groups},
                                    .gate_of_group = true});
    device->ops->send(device->backend, NULL, 0);
    device->ops->receive(device->backend);
    bench_check_status(device);
    device->ops->copy_out(device->backend, out, x, bytes);
    bench_free(device, x, bytes);
    bench_free(device, gates, of_gates);
}

static void check_gates(enum norm_kind kind, int groups, int size)
{
    char name[120];
    float expected[6 * 1024], got[6 * 1024];
    snprintf(name, sizeof name, "%d gates of %d numbers, norm %d", groups, size, (int)kind);
    gate(&cpu, kind, groups, size, expected);
    gate(&cuda, kind, groups, size, got);
    double distance = bench_distance(got, expected, (size_t)(6 * groups * size));
    bench_expect(&count, distance < 1e-6, name, "distance from the CPU", distance);
}

int main(void)
{
    static const struct conv_case cases[] = {
        {2, 1, false, FORMULA_IDENTITY},  {3, 129, true, FORMULA_SILU},
        {4, 260, false, FORMULA_SILU},    {5, 64, true, FORMULA_IDENTITY},
        {6, 33, false, FORMULA_IDENTITY}, {7, 130, true, FORMULA_SILU},
        {8, 128, false, FORMULA_SILU},
    };
    struct ops_limits limits = bench_limits(2 * LENGTH);
    bench_open(&cpu, &cuda, &limits);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
    for (int kind = 0; kind < 2; kind++) {
        check_gates(kind == 0 ? NORM_NONE : NORM_RMSNORM, 4, 12);
        check_gates(kind == 0 ? NORM_NONE : NORM_RMSNORM, 1, 257);
        check_gates(kind == 0 ? NORM_NONE : NORM_RMSNORM, 7, 128);
    }
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    printf("conv: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
