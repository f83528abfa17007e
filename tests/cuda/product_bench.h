/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of matrix products run: a case (format, shape, bias, activation), its weight on a
 * device, the product, and how far it is from the CPU's product of the same x. */
#ifndef TESTS_CUDA_PRODUCT_BENCH_H
#define TESTS_CUDA_PRODUCT_BENCH_H

#include "engine/ops/packing.h"
#include "engine/ops/perform.h"
#include "lib/base/half.h"
#include "tests/cuda/bench.h"

/* rounded: x is one number of bf16 (ACTIVATIONS_16BIT), else the sum of two. */
static const struct kind {
    enum weight_format format;
    bool rounded;
} kinds[] = {{WEIGHTS_F32, false}, {WEIGHTS_BF16, false}, {WEIGHTS_F16, false}, {WEIGHTS_Q8, false},
             {WEIGHTS_BF16, true}, {WEIGHTS_Q8, true},    {WEIGHTS_Q6, false},  {WEIGHTS_Q6, true},
             {WEIGHTS_Q4, false},  {WEIGHTS_Q4, true}};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds, MOST_ROWS = 256 };

struct product_case {
    struct kind kind;
    int rows, in, out, heads; /* in, out: of a head */
    int parts;                /* that the outputs come in; 1 where there are heads */
    bool biased, accumulate;
    enum formula activation;
};

struct devices {
    struct bench_device cpu, cuda[2]; /* by whether it rounds x */
    struct bench_count count;
};

/* A weight of `parts` matrices of which every other one has a bias. */
static inline struct weight *create(const struct bench_device *device, const struct product_case *c,
                                    const float *w, const float *bias)
{
    struct matrix parts[3] = {{0}};
    struct error err = ERROR_INIT;
    struct weight *weight;
    int64_t row = 0, rows = (int64_t)c->out * c->heads;
    for (int i = 0; i < c->parts; i++) {
        int64_t end = rows * (i + 1) / c->parts;
        parts[i] = (struct matrix){.rows = end - row,
                                   .cols = c->in,
                                   .dtype = DTYPE_F32,
                                   .data = w + row * c->in,
                                   .bias = c->biased && i % 2 == 0 ? bias + row : NULL};
        row = end;
    }
    if (device->ops->weight_create(device->backend, &weight, parts, c->parts, c->heads,
                                   c->kind.format, &err) != 0)
        bench_fatal("weight_create", &err);
    return weight;
}

/* y [rows, y_stride] = what a device makes of x [rows, x_stride], from host memory to host memory.
 * The device's x begins `shift` floats past a multiple of 16 bytes. */
struct rectangle {
    int x_stride, y_stride, shift;
};

static inline void multiply(const struct bench_device *device, const struct weight *weight,
                            const struct product_case *c, struct rectangle size, const float *x,
                            float *y)
{
    size_t x_count = (size_t)c->rows * (size_t)size.x_stride;
    size_t y_bytes = (size_t)c->rows * (size_t)size.y_stride * sizeof(float);
    size_t x_bytes = (x_count + (size_t)size.shift) * sizeof(float);
    float *shifted = malloc(x_bytes);
    memset(shifted, 0, (size_t)size.shift * sizeof(float));
    memcpy(shifted + size.shift, x, x_count * sizeof(float));
    float *device_x = bench_memory(device, x_bytes, shifted);
    float *device_y = bench_memory(device, y_bytes, y);
    perform_matmul(device->ops, device->backend,
                   &(struct ops_matmul){.weight = weight,
                                        .num_rows = c->rows,
                                        .x = {device_x + size.shift, size.x_stride},
                                        .y = {device_y, size.y_stride},
                                        .activation = c->activation,
                                        .accumulate = c->accumulate});
    device->ops->copy_out(device->backend, y, device_y, y_bytes);
    bench_check_status(device);
    bench_free(device, device_x, x_bytes);
    bench_free(device, device_y, y_bytes);
    free(shifted);
}

static const char *name_of(struct kind kind, char *out, size_t size)
{
    snprintf(out, size, "%s%s", weight_format_name(kind.format), kind.rounded ? ", rounded x" : "");
    return out;
}

/* As the tensor cores get it: the sum of two numbers of bf16, for f16 weights of f16, or the first
 * alone. */
static inline void split_inputs(struct kind kind, float *x, size_t count)
{
    for (size_t i = 0; i < count && kind.format != WEIGHTS_F32; i++) {
        bool f16 = kind.format == WEIGHTS_F16;
        float high = f16 ? f16_to_f32(f32_to_f16(x[i])) : bf16_to_f32(f32_to_bf16(x[i]));
        float low = kind.rounded ? 0 : x[i] - high;
        x[i] = high + (f16 ? f16_to_f32(f32_to_f16(low)) : bf16_to_f32(f32_to_bf16(low)));
    }
}

/* Both sum n products of numbers under 1 with a rounding or two each, four times that where x
 * became integers on the CPU, and three times that with q4, whose quants and minima are larger; no
 * activation is steeper than 1.2. */
static inline double bound_of(const struct product_case *c)
{
    double n = c->in < 32 ? 32 : c->in;
    const double parts = c->kind.format == WEIGHTS_Q4 ? 24.0 : 8.0;
    return 1.2 * parts * n * 0x1p-24;
}

static inline void check_product(struct devices *d, const struct product_case *c)
{
    struct rectangle size = {c->in * c->heads + 4, c->out * c->heads + 3, 0};
    size_t outs = (size_t)c->out * (size_t)c->heads, y_count = (size_t)(c->rows * size.y_stride);
    size_t x_count = (size_t)(c->rows * size.x_stride);
    float *w = bench_floats(outs * (size_t)c->in, -1, 1, 1), *bias = bench_floats(outs, -1, 1, 2);
    float *x = bench_floats(x_count, -1, 1, 3);
    float *expected = bench_floats(y_count, -1, 1, 4), *got = bench_floats(y_count, -1, 1, 4);
    const struct bench_device *cuda = &d->cuda[c->kind.rounded];
    struct weight *weight = create(cuda, c, w, bias);
    multiply(cuda, weight, c, size, x, got);
    cuda->ops->weight_free(cuda->backend, weight);
    split_inputs(c->kind, x, x_count);
    weight = create(&d->cpu, c, w, bias);
    multiply(&d->cpu, weight, c, size, x, expected);
    d->cpu.ops->weight_free(d->cpu.backend, weight);
    double worst = 0;
    for (size_t i = 0; i < y_count; i++) {
        double distance = fabs((double)got[i] - (double)expected[i]);
        bool past = i % (size_t)size.y_stride >= outs;
        worst = distance <= worst ? worst : past && distance != 0 ? INFINITY : distance;
    }
    char name[160], kind[32];
    snprintf(name, sizeof name, "%s: %d x %d x %d, %d heads, %d parts%s%s, formula %d",
             name_of(c->kind, kind, sizeof kind), c->rows, c->in, c->out, c->heads, c->parts,
             c->biased ? ", biased" : "", c->accumulate ? ", added" : "", (int)c->activation);
    bench_expect(&d->count, worst <= bound_of(c), name, "too far from the CPU's", worst);
    free(w);
    free(bias);
    free(x);
    free(expected);
    free(got);
}

#endif
