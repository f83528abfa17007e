/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts on a device: a router's choices and the weighted sum are near the CPU's, and
 * choices are the same; a routed product has the bits of ordinary products with each row's experts,
 * in every format, for any number of rows, whoever else chose them. */
#include "engine/ops/packing.h"
#include "engine/ops/perform.h"
#include "tests/cuda/bench.h"

enum { EXPERTS = 5, CHOSEN = 3, MOST_ROWS = 70, MOST_EXPERTS = 512 };

static struct bench_device cpu, cuda[2]; /* by whether it rounds x */
static struct bench_count count;

/* ---- products ---- */

struct product_case {
    enum weight_format format;
    bool rounded, by_part;
    int in, out, rows;
};

static struct weight *create(const struct bench_device *device, const struct product_case *c,
                             const float *w, const float *bias, int experts)
{
    struct matrix parts[EXPERTS];
    struct error err = ERROR_INIT;
    struct weight *weight;
    for (int e = 0; e < experts; e++)
        parts[e] = (struct matrix){.rows = c->out,
                                   .cols = c->in,
                                   .dtype = DTYPE_F32,
                                   .data = w + (int64_t)e * c->out * c->in,
                                   .bias = bias + e * c->out};
    if (device->ops->weight_create(device->backend, &weight, parts, experts, experts, c->format,
                                   &err) != 0)
        bench_fatal("weight_create", &err);
    return weight;
}

/* Expert i of a row: of some all rows', of others each its own. */
static int expert_of(int row, int i)
{
    static const int sets[][CHOSEN] = {{0, 2, 4}, {0, 1, 2}, {2, 3, 4}, {1, 3, 4}};
    return sets[row < MOST_ROWS / 2 ? 0 : row % 4][i];
}

static void check_product(const struct product_case *c)
{
    const struct bench_device *device = &cuda[c->rounded];
    const int x_stride = CHOSEN * c->in + 1, y_stride = CHOSEN * c->out + 2;
    const size_t x_bytes = (size_t)(c->rows * x_stride) * sizeof(float),
                 y_bytes = (size_t)(c->rows * y_stride) * sizeof(float),
                 one_bytes = (size_t)c->out * sizeof(float),
                 choices_bytes = (size_t)(c->rows * 2 * CHOSEN) * sizeof(float);
    float *w = bench_floats((size_t)(EXPERTS * c->out * c->in), -1, 1, 1);
    float *bias = bench_floats((size_t)(EXPERTS * c->out), -1, 1, 2);
    float *x = bench_floats((size_t)(c->rows * x_stride), -1, 1, 3),
          *choices = malloc(choices_bytes);
    float *y = malloc(y_bytes), *one = malloc(one_bytes);
    struct weight *all = create(device, c, w, bias, EXPERTS), *alone[EXPERTS];
    for (int e = 0; e < EXPERTS; e++)
        alone[e] = create(device, c, w + (int64_t)e * c->out * c->in, bias + e * c->out, 1);
    for (int r = 0; r < c->rows; r++)
        for (int i = 0; i < CHOSEN; i++)
            choices[r * 2 * CHOSEN + i] = (float)expert_of(r, i);
    float *device_x = bench_memory(device, x_bytes, x),
          *device_y = bench_memory(device, y_bytes, NULL);
    float *device_one = bench_memory(device, one_bytes, NULL);
    float *device_choices = bench_memory(device, choices_bytes, choices);
    perform_matmul(device->ops, device->backend,
                   &(struct ops_matmul){.weight = all,
                                        .num_rows = c->rows,
                                        .x = {device_x, x_stride},
                                        .y = {device_y, y_stride},
                                        .activation = FORMULA_SILU,
                                        .chosen = CHOSEN,
                                        .by_part = c->by_part,
                                        .choices = {device_choices, 2 * CHOSEN}});
    device->ops->copy_out(device->backend, y, device_y, y_bytes);
    int other = 0;
    for (int r = 0; r < c->rows; r++)
        for (int i = 0; i < CHOSEN; i++) {
            float *own = device_x + r * x_stride + (c->by_part ? i * c->in : 0);
            perform_matmul(device->ops, device->backend,
                           &(struct ops_matmul){.weight = alone[expert_of(r, i)],
                                                .num_rows = 1,
                                                .x = {own, x_stride},
                                                .y = {device_one, c->out},
                                                .activation = FORMULA_SILU});
            device->ops->copy_out(device->backend, one, device_one, one_bytes);
            other += memcmp(one, y + r * y_stride + i * c->out, one_bytes) != 0;
        }
    char name[96];
    snprintf(name, sizeof name, "%s%s, %d x %d, %d rows%s", weight_format_name(c->format),
             c->rounded ? " rounded" : "", c->in, c->out, c->rows, c->by_part ? ", by part" : "");
    bench_expect(&count, other == 0, name, "other bits than an expert alone", other);
    bench_check_status(device);
    bench_free(device, device_x, x_bytes);
    bench_free(device, device_y, y_bytes);
    bench_free(device, device_one, one_bytes);
    bench_free(device, device_choices, choices_bytes);
    device->ops->weight_free(device->backend, all);
    for (int e = 0; e < EXPERTS; e++)
        device->ops->weight_free(device->backend, alone[e]);
    free(w);
    free(bias);
    free(x);
    free(y);
    free(one);
    free(choices);
}

static void check_products(void)
{
    static const struct product_case kinds[] = {
        {WEIGHTS_F32, .rounded = false}, {WEIGHTS_BF16, .rounded = false},
        {WEIGHTS_F16, .rounded = false}, {WEIGHTS_Q8, .rounded = false},
        {WEIGHTS_Q6, .rounded = false},  {WEIGHTS_Q4, .rounded = false},
        {WEIGHTS_BF16, .rounded = true}, {WEIGHTS_Q8, .rounded = true},
        {WEIGHTS_Q6, .rounded = true},   {WEIGHTS_Q4, .rounded = true}};
    static const int shapes[][2] = {
        {5, 3}, {33, 70}, {130, 17}, {257, 130}}; /* 1, 1, 2, 4 segments */
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int s = 0; s < 4; s++) {
            struct product_case c = kinds[k];
            c.in = shapes[s][0];
            c.out = shapes[s][1];
            c.by_part = s % 2 == 0;
            c.rows = s == 1 ? MOST_ROWS : s == 3 ? 1 : 40;
            check_product(&c);
        }
}

/* ---- choices and sums ---- */

/* out [rows, 2 * chosen] and sum [rows, cols], which begins as `before` where it accumulates. */
static void route_and_combine(const struct bench_device *device, int experts, int rows, int cols,
                              const float *scores, const float *parts, const float *before,
                              float *out, float *sum)
{
    const bool accumulates = before != NULL;
    const size_t scores_bytes = (size_t)(rows * experts) * sizeof(float),
                 parts_bytes = (size_t)(rows * CHOSEN * cols) * sizeof(float),
                 out_bytes = (size_t)(rows * 2 * CHOSEN) * sizeof(float),
                 sum_bytes = (size_t)(rows * cols) * sizeof(float);
    float factors[MOST_EXPERTS];
    for (int e = 0; e < experts; e++)
        factors[e] = 0.5F + (float)(e % 3);
    float *of_factors = bench_memory(device, (size_t)experts * sizeof *factors, factors);
    float *of_scores = bench_memory(device, scores_bytes, scores);
    float *of_parts = bench_memory(device, parts_bytes, parts);
    float *of_out = bench_memory(device, out_bytes, NULL);
    float *of_sum = bench_memory(device, sum_bytes, before);
    perform_route(device->ops, device->backend,
                  &(struct ops_route){.num_experts = experts,
                                      .chosen = CHOSEN,
                                      .num_rows = rows,
                                      .rule = {.renormalize = accumulates},
                                      .scale = accumulates ? of_factors : NULL,
                                      .scores = {of_scores, experts},
                                      .choices = {of_out, 2 * CHOSEN}});
    perform_combine(device->ops, device->backend,
                    &(struct ops_combine){.chosen = CHOSEN,
                                          .num_rows = rows,
                                          .num_cols = cols,
                                          .choices = {of_out, 2 * CHOSEN},
                                          .x = {of_parts, CHOSEN * cols},
                                          .out = {of_sum, cols},
                                          .accumulate = accumulates});
    device->ops->copy_out(device->backend, out, of_out, out_bytes);
    device->ops->copy_out(device->backend, sum, of_sum, sum_bytes);
    bench_check_status(device);
    bench_free(device, of_factors, (size_t)experts * sizeof *factors);
    bench_free(device, of_scores, scores_bytes);
    bench_free(device, of_parts, parts_bytes);
    bench_free(device, of_out, out_bytes);
    bench_free(device, of_sum, sum_bytes);
}

/* Every fourth row has equal scores. */
static void check_choices(int experts, int rows, int cols, bool accumulates)
{
    enum { MOST_FLOATS = 1 << 16 };
    static float out[2][MOST_FLOATS], sum[2][MOST_FLOATS];
    float *scores = bench_floats((size_t)(rows * experts), -3, 3, 1);
    float *parts = bench_floats((size_t)(rows * CHOSEN * cols), -1, 1, 2);
    float *before = bench_floats((size_t)(rows * cols), -1, 1, 3);
    for (int i = 0; i < rows * experts; i++)
        if (i / experts % 4 == 3)
            scores[i] = 0.5f;
    const struct bench_device *devices[] = {&cpu, &cuda[0]};
    for (int d = 0; d < 2; d++)
        route_and_combine(devices[d], experts, rows, cols, scores, parts,
                          accumulates ? before : NULL, out[d], sum[d]);
    char name[64];
    int other = 0;
    snprintf(name, sizeof name, "%d experts, %d rows", experts, rows);
    for (int i = 0; i < rows * 2 * CHOSEN; i++)
        other += i % (2 * CHOSEN) < CHOSEN && out[0][i] != out[1][i];
    for (int i = 0; i < CHOSEN; i++)
        other += rows > 3 && out[1][3 * 2 * CHOSEN + i] != (float)i;
    bench_expect(&count, other == 0, name, "other experts", other);
    double distance = bench_distance(out[1], out[0], (size_t)(rows * 2 * CHOSEN));
    bench_expect(&count, distance < 1e-6, name, "weights", distance);
    distance = bench_distance(sum[1], sum[0], (size_t)(rows * cols));
    bench_expect(&count, distance < 1e-6, name, "sum", distance);
    free(scores);
    free(parts);
    free(before);
}

int main(void)
{
    struct ops_limits limits = bench_limits(MOST_ROWS);
    limits.max_experts = MOST_EXPERTS;
    limits.max_chosen = CHOSEN;
    limits.max_routed = 1;
    bench_open(&cpu, &cuda[0], &limits);
    cuda[1] = bench_open_cuda(ACTIVATIONS_16BIT, &limits);
    check_products();
    for (int accumulates = 0; accumulates < 2; accumulates++) {
        check_choices(3, 1, 5, accumulates);
        check_choices(4, MOST_ROWS, 130, accumulates);
        check_choices(128, 200, 33, accumulates);
        check_choices(512, 9, 256, accumulates);
    }
    for (int i = 0; i < 2; i++)
        cuda[i].ops->close(cuda[i].backend);
    cpu.ops->close(cpu.backend);
    printf("experts: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed != 0;
}
