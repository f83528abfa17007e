/* Matrix products against float64, at odd sizes; and the bits of a row alone and among others. */
#include "engine/cpu/weights.h"
#include "tests/unit/ops_bench.h"

static const int sizes[][3] = {/* rows, in, out */
                               {1, 1, 1},     {1, 64, 32},   {2, 3, 31},    {3, 65, 33},
                               {5, 48, 100},  {6, 768, 64},  {7, 17, 275},  {12, 33, 32},
                               {13, 100, 65}, {24, 31, 129}, {63, 257, 16}, {130, 96, 97}};

static void check_product(struct backend *backend, int rows, int in, int out, bool biased,
                          bool accumulate)
{
    float *x = bench_floats((size_t)rows * in, -1, 1, 1);
    float *w = bench_floats((size_t)out * in, -1, 1, 2);
    float *bias = bench_floats((size_t)out, -1, 1, 3);
    float *start = bench_floats((size_t)rows * out, -1, 1, 4);
    float *y =
        accumulate ? bench_floats((size_t)rows * out, -1, 1, 4) : bench_nans((size_t)rows * out);
    const struct matrix matrix = {.rows = out, .cols = in, .data = w, .bias = biased ? bias : NULL};
    struct weight *weight;
    cr_assert(cpu_ops.weight_create(backend, &weight, &matrix, 1, 1, NULL) == 0);
    cpu_ops.matmul(backend, &(struct ops_matmul){.weight = weight,
                                                 .num_rows = rows,
                                                 .x = {x, in},
                                                 .y = {y, out},
                                                 .accumulate = accumulate});
    /* a sum of n products of numbers under 1, each rounded once or twice */
    double bound = 2.0 * in * 0x1p-24 + 4 * 0x1p-24;
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double sum = 0.0;
            for (int k = 0; k < in; k++)
                sum += (double)x[(size_t)r * in + k] * w[(size_t)o * in + k];
            sum += biased ? bias[o] : 0.0f;
            sum += accumulate ? start[(size_t)r * out + o] : 0.0f;
            cr_assert(fabs(y[(size_t)r * out + o] - sum) <= bound, "%s: %d x %d x %d at %d, %d",
                      cpu_ops.instruction_set(backend), rows, in, out, r, o);
        }
    cpu_ops.weight_free(backend, weight);
    free(x);
    free(w);
    free(bias);
    free(start);
    free(y);
}

Test(gemm, products_are_right_on_every_instruction_set)
{
    for (size_t s = 0; s < 3; s++) {
        struct backend *backend = bench_open(bench_sets[s], 2);
        if (backend == NULL)
            continue;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int kind = 0; kind < 4; kind++)
                check_product(backend, sizes[i][0], sizes[i][1], sizes[i][2], (kind & 1) != 0,
                              (kind & 2) != 0);
        cpu_ops.close(backend);
    }
}

Test(gemm, a_row_has_the_same_bits_among_any_others)
{
    enum { ROWS = 40, IN = 100, OUT = 150 };
    for (size_t s = 0; s < 3; s++)
        for (int threads = 1; threads <= 3; threads++) {
            struct backend *backend = bench_open(bench_sets[s], threads);
            if (backend == NULL)
                continue;
            float *x = bench_floats(ROWS * IN, -1, 1, 5), *w = bench_floats(OUT * IN, -1, 1, 6);
            float *all = bench_nans(ROWS * OUT), *one = bench_nans(ROWS * OUT);
            const struct matrix matrix = {.rows = OUT, .cols = IN, .data = w};
            struct weight *weight;
            cr_assert(cpu_ops.weight_create(backend, &weight, &matrix, 1, 1, NULL) == 0);
            struct ops_matmul call = {.weight = weight,
                                      .num_rows = ROWS,
                                      .x = {x, IN},
                                      .y = {all, OUT},
                                      .activation = FORMULA_GELU};
            cpu_ops.matmul(backend, &call);
            for (int step = 1; step < ROWS; step++) {
                for (int r = 0; r < ROWS; r += step) {
                    call.num_rows = ROWS - r < step ? ROWS - r : step;
                    call.x.data = x + r * IN;
                    call.y.data = one + r * OUT;
                    cpu_ops.matmul(backend, &call);
                }
                cr_assert(memcmp(all, one, ROWS * OUT * sizeof(float)) == 0, "%s: %d rows at once",
                          bench_sets[s], step);
            }
            cpu_ops.weight_free(backend, weight);
            cpu_ops.close(backend);
            free(x);
            free(w);
            free(all);
            free(one);
        }
}

Test(gemm, stacked_matrices_and_heads_find_their_places)
{
    struct backend *backend = bench_open(NULL, 2);
    enum { IN = 20 };
    float *x = bench_floats(3 * IN, -1, 1, 7), *w = bench_floats(60 * IN, -1, 1, 8);
    float *bias = bench_floats(45, -1, 1, 9);
    float *stacked = bench_nans(3 * 60), *apart = bench_nans(3 * 60);
    const struct matrix parts[2] = {{.rows = 15, .cols = IN, .data = w},
                                    {.rows = 45, .cols = IN, .data = w + 15 * IN, .bias = bias}};
    struct weight *weight;
    cr_assert(cpu_ops.weight_create(backend, &weight, parts, 2, 1, NULL) == 0);
    cpu_ops.matmul(backend, &(struct ops_matmul){
                                .weight = weight, .num_rows = 3, .x = {x, IN}, .y = {stacked, 60}});
    cpu_ops.weight_free(backend, weight);
    for (int i = 0; i < 2; i++) {
        cr_assert(cpu_ops.weight_create(backend, &weight, &parts[i], 1, 1, NULL) == 0);
        cpu_ops.matmul(
            backend, &(struct ops_matmul){
                         .weight = weight, .num_rows = 3, .x = {x, IN}, .y = {apart + 15 * i, 60}});
        cpu_ops.weight_free(backend, weight);
    }
    cr_expect(memcmp(stacked, apart, 3 * 60 * sizeof(float)) == 0);

    /* 4 heads of [15, 5]: head h sees x[5 h, 5 h + 5) */
    const struct matrix heads = {.rows = 60, .cols = 5, .data = w};
    cr_assert(cpu_ops.weight_create(backend, &weight, &heads, 1, 4, NULL) == 0);
    cpu_ops.matmul(backend, &(struct ops_matmul){
                                .weight = weight, .num_rows = 3, .x = {x, IN}, .y = {stacked, 60}});
    for (int r = 0; r < 3; r++)
        for (int o = 0; o < 60; o++) {
            double sum = 0.0;
            for (int k = 0; k < 5; k++)
                sum += (double)x[r * IN + o / 15 * 5 + k] * w[o * 5 + k];
            cr_assert(fabs(stacked[r * 60 + o] - sum) < 1e-6);
        }
    cpu_ops.weight_free(backend, weight);
    cpu_ops.close(backend);
    free(x);
    free(w);
    free(bias);
    free(stacked);
    free(apart);
}

Test(gemm, halves_are_read_exactly)
{
    static const uint16_t half[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x0001,
                                    0x03ff, 0x0400, 0x7bff, 0x3555, 0x7c00};
    static const float half_values[] = {
        0.0f,     -0.0f,    1.0f,        -2.0f,   0x1p-24f, 1023e0f * 0x1p-24f,
        0x1p-14f, 65504.0f, 0x1.554p-2f, INFINITY};
    static const uint16_t brain[] = {0x3f80, 0xbf80, 0x4049, 0x0080};
    static const float brain_values[] = {1.0f, -1.0f, 3.140625f, 0x1p-126f};
    float out[10];
    const struct matrix f16 = {.rows = 1, .cols = 10, .dtype = DTYPE_F16, .data = half};
    weights_read(&f16, 0, 10, out);
    cr_expect(memcmp(out, half_values, sizeof half_values) == 0);
    const struct matrix bf16 = {.rows = 1, .cols = 4, .dtype = DTYPE_BF16, .data = brain};
    weights_read(&bf16, 0, 4, out);
    cr_expect(memcmp(out, brain_values, sizeof brain_values) == 0);
}
