/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of every weight format against float64, at odd sizes; and the bits of a row alone
 * and among others. */
#include "engine/cpu/device.h"
#include "engine/cpu/weights.h"
#include "engine/ops/packing.h"
#include "engine/ops/perform.h"
#include "lib/base/half.h"
#include "lib/base/threads.h"
#include "tests/unit/ops_bench.h"
#include "tests/unit/sanitized.h"

enum { NUM_SETS = sizeof bench_sets / sizeof *bench_sets };

static const enum weight_format formats[] = {WEIGHTS_F32, WEIGHTS_BF16, WEIGHTS_F16,
                                             WEIGHTS_Q8,  WEIGHTS_Q6,   WEIGHTS_Q4};
/* Of products: the formats, and those of them whose inputs may be rounded. */
struct kind {
    enum weight_format weights;
    enum activation_format activations;
};
static const struct kind kinds[] = {
    {WEIGHTS_F32, ACTIVATIONS_F32},    {WEIGHTS_BF16, ACTIVATIONS_F32},
    {WEIGHTS_F16, ACTIVATIONS_F32},    {WEIGHTS_Q8, ACTIVATIONS_F32},
    {WEIGHTS_BF16, ACTIVATIONS_16BIT}, {WEIGHTS_Q8, ACTIVATIONS_16BIT},
    {WEIGHTS_Q8, ACTIVATIONS_8BIT},    {WEIGHTS_Q4, ACTIVATIONS_F32},
    {WEIGHTS_Q4, ACTIVATIONS_16BIT},   {WEIGHTS_Q4, ACTIVATIONS_8BIT},
    {WEIGHTS_Q6, ACTIVATIONS_F32},     {WEIGHTS_Q6, ACTIVATIONS_16BIT},
    {WEIGHTS_Q6, ACTIVATIONS_8BIT},    {WEIGHTS_F16, ACTIVATIONS_16BIT}};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };
static const int ins[] = {1, 31, 32, 33, 65, 300, 1601}, outs[] = {1, 31, 32, 33, 100};
static const int rows_of[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 33, 64, 130};

/* What q6 and q4 make of w [n], a row: what the packer says, which has its own tests. */
static void round_to_quants(enum weight_format format, float *w, int n)
{
    for (int k = 0; k < n; k += 32) {
        struct quantized_integers q;
        float from[PACKING_BLOCK];
        const int count = n - k < 32 ? n - k : 32;
        memcpy(from, w + k, (size_t)count * sizeof *from);
        cr_assert(packing_quantize(format, from, count, &q));
        for (int i = 0; i < count; i++)
            w[k + i] = packing_quant_value(format, &q, i);
    }
}

/* What a format makes of w [n], a row. */
static void round_weights(enum weight_format format, float *w, int n)
{
    for (int i = 0; i < n; i++)
        if (format == WEIGHTS_BF16)
            w[i] = bf16_to_f32(f32_to_bf16(w[i]));
        else if (format == WEIGHTS_F16)
            w[i] = f16_to_f32(f32_to_f16(w[i]));
    for (int k = 0; format == WEIGHTS_Q8 && k < n; k += 32) {
        int end = k + 32 < n ? k + 32 : n;
        float largest = 0.0f;
        for (int i = k; i < end; i++)
            largest = fmaxf(largest, fabsf(w[i]));
        float scale = f16_to_f32(f32_to_f16(largest / 127));
        for (int i = k; i < end; i++)
            w[i] = scale == 0.0f ? 0.0f : nearbyintf(w[i] / scale) * scale;
    }
    if (format == WEIGHTS_Q6 || format == WEIGHTS_Q4)
        round_to_quants(format, w, n);
}

/* The four inputs of a block of x [n] that the largest is in. */
static int wide_four(const float *x, int n)
{
    int largest = 0;
    for (int i = 1; i < n; i++)
        largest = fabsf(x[i]) > fabsf(x[largest]) ? i : largest;
    return largest / 4;
}

static float largest_of(const float *x, int n, int without)
{
    float largest = 0.0f;
    for (int i = 0; i < n; i++)
        largest = i / 4 == without ? largest : fmaxf(largest, fabsf(x[i]));
    return largest;
}

/* x [n], a block of weights' inputs: in integers of 16 bits, or of 8 but for the wide four; in q6
 * of 8 by halves. */
static void round_block(struct kind kind, float *x, int n)
{
    const bool bytes = kind.activations == ACTIVATIONS_8BIT;
    const bool halves = bytes && kind.weights == WEIGHTS_Q6;
    const float most = bytes ? 127.0f : 32639.0f;
    for (int k = 0; k < n; k += halves ? 16 : 32) {
        const int end = halves && n - k > 16 ? k + 16 : n;
        float largest = largest_of(x + k, end - k, -1);
        if (bytes && !halves)
            largest = fmaxf(largest * (1.0f / 257),
                            largest_of(x + k, end - k, wide_four(x + k, end - k)));
        for (int i = k; i < end; i++)
            x[i] =
                largest < 0x1p-100f ? 0.0f : nearbyintf(x[i] * (most / largest)) * (largest / most);
    }
}

/* What activations of a kind make of x [n], a row of finite numbers; f32 in fixed point is f32. */
static void round_inputs(struct kind kind, float *x, int n)
{
    const bool bf16 =
        kind.activations == ACTIVATIONS_16BIT && weight_format_block(kind.weights) == 1;
    for (int i = 0; bf16 && i < n; i++)
        x[i] = bf16_to_f32(f32_to_bf16(x[i]));
    for (int k = 0; kind.activations != ACTIVATIONS_F32 && !bf16 && k < n; k += 32)
        round_block(kind, x + k, n - k < 32 ? n - k : 32);
}

struct product_case {
    struct kind kind;
    int rows, in, out, heads; /* in, out: of a head */
    bool biased, accumulate, relu;
};

/* The error of a sum of n products of numbers under 1 is that of a rounding or two each; of three
 * for q8's weights; and for its integers that of x in fixed point, half of 2^-23 each, and of five
 * roundings of up to 32 for each block, which are halves of 2^-23 too. q4 adds products with quants
 * of up to 2 and with minima of up to 1, so three times as much. */
static double bound_of(const struct product_case *c)
{
    const bool blocks = weight_format_block(c->kind.weights) > 1;
    const double n = c->in < 32 && blocks ? 32 : c->in;
    const double parts = c->kind.weights == WEIGHTS_Q4 ? 12.0 : blocks ? 4.0 : 2.0;
    return parts * n * 0x1p-24 + 4 * 0x1p-24;
}

static void check_values(const struct product_case *c, const char *set, const float *x,
                         const float *w, const float *bias, const float *start, const float *y)
{
    int outs_of_row = c->heads * c->out, ins_of_row = c->heads * c->in;
    for (int r = 0; r < c->rows; r++)
        for (int o = 0; o < outs_of_row; o++) {
            double sum = 0.0;
            for (int k = 0; k < c->in; k++)
                sum += (double)x[(size_t)r * ins_of_row + o / c->out * c->in + k] *
                       w[(size_t)o * c->in + k];
            sum += c->biased ? bias[o] : 0.0f;
            sum = c->relu && sum < 0.0 ? 0.0 : sum;
            sum += c->accumulate ? start[(size_t)r * outs_of_row + o] : 0.0f;
            cr_assert(fabs(y[(size_t)r * outs_of_row + o] - sum) <= bound_of(c),
                      "%s, %s, %s: %d x %d x %d, %d heads, at %d, %d: expected %g, got %g", set,
                      weight_format_name(c->kind.weights),
                      activation_format_name(c->kind.activations), c->rows, c->in, c->out, c->heads,
                      r, o, sum, (double)y[(size_t)r * outs_of_row + o]);
        }
}

static void check_product(struct backend *backend, const struct product_case *c)
{
    int outs_of_row = c->heads * c->out;
    size_t num_weights = (size_t)outs_of_row * (size_t)c->in;
    size_t num_outputs = (size_t)c->rows * (size_t)outs_of_row;
    float *x = bench_floats((size_t)(c->rows * c->heads * c->in), -1, 1, 1);
    float *w = bench_floats(num_weights, -1, 1, 2);
    float *bias = bench_floats((size_t)outs_of_row, -1, 1, 3);
    float *start = bench_floats(num_outputs, -1, 1, 4);
    float *y = c->accumulate ? bench_floats(num_outputs, -1, 1, 4) : bench_nans(num_outputs);
    const struct matrix matrix = {
        .rows = outs_of_row, .cols = c->in, .data = w, .bias = c->biased ? bias : NULL};
    struct weight *weight;
    cr_assert(
        cpu_ops.weight_create(backend, &weight, &matrix, 1, c->heads, c->kind.weights, NULL) == 0);
    perform_matmul(&cpu_ops, backend,
                   &(struct ops_matmul){.weight = weight,
                                        .num_rows = c->rows,
                                        .x = {x, c->heads * c->in},
                                        .y = {y, outs_of_row},
                                        .activation = c->relu ? FORMULA_RELU : FORMULA_IDENTITY,
                                        .accumulate = c->accumulate});
    for (int o = 0; o < outs_of_row; o++)
        round_weights(c->kind.weights, w + (size_t)o * c->in, c->in);
    for (int r = 0; r < c->rows * c->heads; r++)
        round_inputs(c->kind, x + (size_t)r * c->in, c->in);
    check_values(c, cpu_ops.instruction_set(backend), x, w, bias, start, y);
    cpu_ops.weight_free(backend, weight);
    free(x);
    free(w);
    free(bias);
    free(start);
    free(y);
}

static void check_products(struct kind kind)
{
    int number = 0;
    for (int s = 0; s < NUM_SETS; s++) {
        struct backend *backend =
            bench_open_rounding(bench_sets[s], 2, kind.weights, kind.activations);
        for (size_t i = 0; backend != NULL && i < sizeof ins / sizeof *ins; i++)
            for (size_t o = 0; o < sizeof outs / sizeof *outs; o++)
                for (size_t r = 0; r < sizeof rows_of / sizeof *rows_of; r++, number++)
                    if (ins[i] * rows_of[r] <= 65 * 33 || outs[o] == 100)
                        check_product(backend,
                                      &(struct product_case){.kind = kind,
                                                             .rows = rows_of[r],
                                                             .in = ins[i],
                                                             .out = outs[o],
                                                             .heads = number % 5 == 0 ? 3 : 1,
                                                             .biased = number % 2 == 0,
                                                             .accumulate = number % 3 == 0,
                                                             .relu = number % 7 == 0});
        if (backend != NULL)
            cpu_ops.close(backend);
    }
}

Test(gemm, products_of_f32_are_right_on_every_instruction_set)
{
    check_products((struct kind){WEIGHTS_F32, ACTIVATIONS_F32});
}

Test(gemm, products_of_bf16_are_right_on_every_instruction_set)
{
    check_products((struct kind){WEIGHTS_BF16, ACTIVATIONS_F32});
}

Test(gemm, products_of_f16_are_right_on_every_instruction_set)
{
    check_products((struct kind){WEIGHTS_F16, ACTIVATIONS_F32});
}

Test(gemm, products_of_q8_are_right_on_every_instruction_set)
{
    check_products((struct kind){WEIGHTS_Q8, ACTIVATIONS_F32});
}

Test(gemm, products_of_q6_are_right_on_every_instruction_set)
{
    check_products((struct kind){WEIGHTS_Q6, ACTIVATIONS_F32});
}

Test(gemm, products_of_q6_round_their_inputs_to_16_bits)
{
    check_products((struct kind){WEIGHTS_Q6, ACTIVATIONS_16BIT});
}

Test(gemm, products_of_q6_round_their_inputs_to_8_bits)
{
    check_products((struct kind){WEIGHTS_Q6, ACTIVATIONS_8BIT});
}

Test(gemm, products_of_q4_are_right_on_every_instruction_set)
{
    check_products((struct kind){WEIGHTS_Q4, ACTIVATIONS_F32});
}

Test(gemm, products_of_bf16_round_their_inputs_to_bf16)
{
    check_products((struct kind){WEIGHTS_BF16, ACTIVATIONS_16BIT});
}

Test(gemm, products_of_f16_round_their_inputs_to_bf16)
{
    check_products((struct kind){WEIGHTS_F16, ACTIVATIONS_16BIT});
}

Test(gemm, products_of_q8_round_their_inputs_to_16_bits)
{
    check_products((struct kind){WEIGHTS_Q8, ACTIVATIONS_16BIT});
}

Test(gemm, products_of_q8_round_their_inputs_to_8_bits)
{
    check_products((struct kind){WEIGHTS_Q8, ACTIVATIONS_8BIT});
}

Test(gemm, products_of_q4_round_their_inputs_to_16_bits)
{
    check_products((struct kind){WEIGHTS_Q4, ACTIVATIONS_16BIT});
}

Test(gemm, products_of_q4_round_their_inputs_to_8_bits)
{
    check_products((struct kind){WEIGHTS_Q4, ACTIVATIONS_8BIT});
}

/* Rows at the alignment of a float and with gaps between them, some at a time. */
static void check_bits(const char *set, int threads, struct kind kind)
{
    enum { ROWS = 110, HEADS = 2, IN = 453, OUT = 75 };
    enum { X_STRIDE = HEADS * IN + 7, OUTS = HEADS * OUT, Y_STRIDE = OUTS + 5 };
    static const int steps[] = {1, 2, 3, 5, 8, 11, 12, 13, 25, 96, 97};
    struct backend *backend = bench_open_rounding(set, threads, kind.weights, kind.activations);
    if (backend == NULL)
        return;
    float *x = bench_floats(ROWS * X_STRIDE, -1, 1, 5), *w = bench_floats(OUTS * IN, -1, 1, 6);
    float *all = bench_nans(ROWS * Y_STRIDE), *some = bench_nans(ROWS * Y_STRIDE);
    const struct matrix matrix = {.rows = OUTS, .cols = IN, .data = w};
    struct weight *weight;
    cr_assert(cpu_ops.weight_create(backend, &weight, &matrix, 1, HEADS, kind.weights, NULL) == 0);
    struct ops_matmul call = {.weight = weight,
                              .num_rows = ROWS,
                              .x = {x, X_STRIDE},
                              .y = {all, Y_STRIDE},
                              .activation = FORMULA_GELU};
    perform_matmul(&cpu_ops, backend, &call);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        for (int r = 0; r < ROWS; r += steps[i]) {
            call.num_rows = ROWS - r < steps[i] ? ROWS - r : steps[i];
            call.x.data = x + r * X_STRIDE;
            call.y.data = some + r * Y_STRIDE;
            perform_matmul(&cpu_ops, backend, &call);
        }
        for (int r = 0; r < ROWS; r++)
            cr_assert(memcmp(all + r * Y_STRIDE, some + r * Y_STRIDE, OUTS * sizeof(float)) == 0,
                      "%s, %s, %s: row %d, %d rows at once", set, weight_format_name(kind.weights),
                      activation_format_name(kind.activations), r, steps[i]);
    }
    for (int r = 0; r < ROWS; r++)
        cr_assert(isnan(all[r * Y_STRIDE + OUTS]), "written past row %d", r);
    cpu_ops.weight_free(backend, weight);
    cpu_ops.close(backend);
    free(x);
    free(w);
    free(all);
    free(some);
}

Test(gemm, a_row_has_the_same_bits_among_any_others)
{
    for (int s = 0; s < NUM_SETS; s++)
        for (int threads = 1; threads <= 3; threads += SANITIZED ? 2 : 1)
            for (int k = 0; k < NUM_KINDS; k++)
                check_bits(bench_sets[s], threads, kinds[k]);
}

/* y = x W^T for one matrix of f32 [out, in], with denormals flushed as in a step. */
static int multiply(struct backend *backend, enum weight_format format, const struct matrix *matrix,
                    int rows, float *x, float *y, struct error *err)
{
    struct weight *weight;
    if (cpu_ops.weight_create(backend, &weight, matrix, 1, 1, format, err) != 0)
        return -1;
    unsigned saved = threads_flush_denormals();
    perform_matmul(
        &cpu_ops, backend,
        &(struct ops_matmul){
            .weight = weight, .num_rows = rows, .x = {x, matrix->cols}, .y = {y, matrix->rows}});
    threads_restore_float(saved);
    cpu_ops.weight_free(backend, weight);
    return 0;
}

/* x [5, 96] times the matrix in a format: the bits of an engine that rounds x for the model's
 * weights and of one that does not. */
static void check_beside(const char *set, enum weight_format model, enum weight_format format,
                         const struct matrix *matrix, float *x)
{
    enum { ROWS = 5 };
    struct backend *exact = bench_open(set, 1);
    struct backend *rounding = bench_open_rounding(set, 1, model, ACTIVATIONS_16BIT);
    if (rounding != NULL) {
        float *y = bench_nans(ROWS * (size_t)matrix->rows);
        float *other = bench_nans(ROWS * (size_t)matrix->rows);
        cr_assert(multiply(exact, format, matrix, ROWS, x, y, NULL) == 0);
        cr_assert(multiply(rounding, format, matrix, ROWS, x, other, NULL) == 0);
        cr_expect(memcmp(y, other, ROWS * (size_t)matrix->rows * sizeof *y) == 0,
                  "%s: %s beside %s", set, weight_format_name(format), weight_format_name(model));
        free(y);
        free(other);
    }
    cpu_ops.close(rounding);
    cpu_ops.close(exact);
}

/* A file may have a matrix in two bytes beside blocks, or in others. Rounded inputs are asked for
 * the model's format. */
Test(gemm, two_bytes_beside_other_weights_are_not_rounded)
{
    enum { ROWS = 5, IN = 96, OUT = 64 };
    static const enum weight_format models[] = {WEIGHTS_BF16, WEIGHTS_F16, WEIGHTS_Q8};
    float *x = bench_floats(ROWS * IN, -1, 1, 17), *w = bench_floats(OUT * IN, -1, 1, 18);
    const struct matrix matrix = {.rows = OUT, .cols = IN, .data = w};
    for (int i = 0; i < NUM_SETS * 6; i++) {
        const enum weight_format model = models[i % 3];
        const enum weight_format format = i % 6 < 3 ? WEIGHTS_BF16 : WEIGHTS_F16;
        if (model != format)
            check_beside(bench_sets[i / 6], model, format, &matrix, x);
    }
    free(x);
    free(w);
}

static void check_rounding(const char *set, struct kind kind, const struct matrix *matrix, float *x)
{
    enum { ROWS = 5 };
    struct backend *backend = bench_open_rounding(set, 2, kind.weights, kind.activations);
    struct backend *exact = bench_open(set, 2);
    if (backend != NULL) {
        const int outputs = ROWS * (int)matrix->rows;
        float *y = bench_nans((size_t)outputs), *other = bench_nans((size_t)outputs);
        cr_assert(multiply(exact, kind.weights, matrix, ROWS, x, y, NULL) == 0);
        cr_assert(multiply(backend, kind.weights, matrix, ROWS, x, other, NULL) == 0);
        int same = 0;
        for (int i = 0; i < outputs; i++)
            same += y[i] == other[i];
        cr_expect(same < outputs / 10, "%s, %s, %s: %d of %d the same", set,
                  weight_format_name(kind.weights), activation_format_name(kind.activations), same,
                  outputs);
        free(y);
        free(other);
    }
    cpu_ops.close(backend);
    cpu_ops.close(exact);
}

/* The bounds above do not tell 16 bits of q8's inputs from more of them. */
Test(gemm, rounded_inputs_give_other_numbers_than_f32)
{
    enum { ROWS = 5, IN = 900, OUT = 150 };
    float *x = bench_floats(ROWS * IN, -1, 1, 17), *w = bench_floats(OUT * IN, -1, 1, 18);
    const struct matrix matrix = {.rows = OUT, .cols = IN, .data = w};
    for (int i = 0; i < NUM_SETS * NUM_KINDS; i++)
        if (kinds[i % NUM_KINDS].activations != ACTIVATIONS_F32)
            check_rounding(bench_sets[i / NUM_KINDS], kinds[i % NUM_KINDS], &matrix, x);
    free(x);
    free(w);
}

/* Zen 4 and 5 ask memory for other lines (engine/cpu/ahead.h), and neonmm multiplies more bytes at
 * once, for the same bits. */
Test(gemm, each_core_gives_the_bits_of_its_instruction_set)
{
    enum { ROWS = 97, IN = 900, OUT = 150 };
    static const int rows[] = {1, 2, 4, 13, 25, ROWS};
    float *x = bench_floats(ROWS * IN, -1, 1, 15), *w = bench_floats(OUT * IN, -1, 1, 16);
    const struct matrix matrix = {.rows = OUT, .cols = IN, .data = w};
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows) * NUM_KINDS; i++) {
        const struct kind kind = kinds[i % NUM_KINDS];
        const int count = rows[i / NUM_KINDS];
        struct backend *backend =
            bench_open_rounding(bench_core_set, 2, kind.weights, kind.activations);
        if (backend == NULL)
            continue;
        float *y = bench_nans(ROWS * OUT);
        backend->kernels = bench_core(0);
        cr_assert(multiply(backend, kind.weights, &matrix, count, x, y, NULL) == 0);
        cr_assert(!isnan(y[(count - 1) * OUT]));
        for (int core = 1; bench_core(core) != NULL; core++) {
            float *same = bench_nans(ROWS * OUT);
            backend->kernels = bench_core(core);
            cr_assert(multiply(backend, kind.weights, &matrix, count, x, same, NULL) == 0);
            cr_expect(memcmp(y, same, ROWS * OUT * sizeof(float)) == 0, "core %d, %s, %s, %d rows",
                      core, weight_format_name(kind.weights),
                      activation_format_name(kind.activations), count);
            free(same);
        }
        free(y);
        cpu_ops.close(backend);
    }
    free(x);
    free(w);
}

/* All 65,536 numbers as weights, alone in their row, times one; the outputs of two rows of x, of
 * which `rows` are multiplied. */
static void check_every_number(const char *set, const struct matrix *matrix, struct kind kind,
                               int rows, float *y)
{
    float ones[] = {1.0f, 1.0f};
    const uint16_t *bits = matrix->data;
    struct backend *backend = bench_open_rounding(set, 2, kind.weights, kind.activations);
    if (backend == NULL)
        return;
    cr_assert(multiply(backend, WEIGHTS_AUTO, matrix, rows, ones, y, NULL) == 0);
    for (int i = 0; i < rows * (int)matrix->rows; i++) {
        const uint16_t half = bits[i % matrix->rows];
        float value = kind.weights == WEIGHTS_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        bool denormal = value != 0.0f && fabsf(value) < 0x1p-126f;
        /* infinity times the parts of a number that are zero */
        bool number = strncmp(set, "amx", 3) == 0 ? isfinite(value) : !isnan(value);
        cr_assert(number ? y[i] == (denormal ? 0.0f : value) : !isfinite(y[i]),
                  "%s, %s: 0x%04x in %s is %g, got %g", set,
                  activation_format_name(kind.activations), half, weight_format_name(kind.weights),
                  (double)value, (double)y[i]);
    }
    cpu_ops.close(backend);
}

Test(gemm, every_number_of_two_bytes_is_multiplied_exactly)
{
    enum { OUT = 65536 };
    uint16_t *bits = malloc(OUT * sizeof *bits);
    float *y = malloc(2 * OUT * sizeof *y);
    for (int i = 0; i < OUT; i++)
        bits[i] = (uint16_t)i;
    for (int i = 0; i < NUM_SETS * NUM_KINDS; i++) {
        const struct kind kind = kinds[i % NUM_KINDS];
        const struct matrix matrix = {.rows = OUT,
                                      .cols = 1,
                                      .dtype = kind.weights == WEIGHTS_F16 ? DTYPE_F16 : DTYPE_BF16,
                                      .data = bits};
        for (int rows = 1; rows <= 2; rows++)
            if (kind.weights == WEIGHTS_F16 || kind.weights == WEIGHTS_BF16)
                check_every_number(bench_sets[i / NUM_KINDS], &matrix, kind, rows, y);
    }
    free(bits);
    free(y);
}

/* What a weight of q8 is, read off products with single ones, is at most half a scale off. */
Test(gemm, q8_weights_of_any_size_are_near)
{
    static const float sizes[] = {0.0f, 1e-7f, 3e-6f, 1e-5f, 1e-3f, 1.0f, 1e4f, 8.3e6f};
    enum { IN = 50, OUT = 34 };
    for (int s = 0; s < NUM_SETS; s++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct backend *backend = bench_open(bench_sets[s], 2);
            if (backend == NULL)
                continue;
            float *w = bench_floats(OUT * IN, -sizes[i], sizes[i], 10);
            float *ones = bench_floats(IN * IN, 0, 0, 1), *y = bench_nans(IN * OUT);
            for (int k = 0; k < IN; k++)
                ones[k * IN + k] = 1.0f;
            const struct matrix matrix = {.rows = OUT, .cols = IN, .data = w};
            cr_assert(multiply(backend, WEIGHTS_Q8, &matrix, IN, ones, y, NULL) == 0);
            /* half of a scale that was rounded in f16, and the product's own roundings */
            double bound = sizes[i] * (0.5 / 127 * (1 + 0x1p-10) + 0x1p-21) + 0.5 * 0x1p-24;
            for (int j = 0; j < IN * OUT; j++)
                cr_assert(fabs(y[j] - (double)w[j % OUT * IN + j / OUT]) <= bound,
                          "%s: %g became %g", bench_sets[s], (double)w[j % OUT * IN + j / OUT],
                          (double)y[j]);
            cpu_ops.close(backend);
            free(w);
            free(ones);
            free(y);
        }
}

/* Multiplies x [rows, in], which is rounded here then, and checks each row by the largest of its
 * own numbers. A row with a number that is not finite gives none that is. */
static void check_rows(const char *set, struct kind kind, int rows, int in, float *x)
{
    enum { OUT = 40 };
    struct backend *backend = bench_open_rounding(set, 2, kind.weights, kind.activations);
    if (backend == NULL)
        return;
    float *w = bench_floats(OUT * in, -1, 1, 11), *y = bench_nans(rows * OUT);
    const struct matrix matrix = {.rows = OUT, .cols = in, .data = w};
    /* what is under this counts as nothing */
    const double least = fixes_inputs(backend->kernels, kind.weights) ? 0x1p-100 : 0x1p-90;
    const double parts = kind.weights == WEIGHTS_Q4 ? 12.0 : 4.0;
    cr_assert(multiply(backend, kind.weights, &matrix, rows, x, y, NULL) == 0);
    for (int o = 0; o < OUT; o++)
        round_weights(kind.weights, w + o * in, in);
    for (int r = 0; r < rows; r++) {
        double most = 0.0;
        for (int k = 0; k < in; k++)
            most = isfinite(x[r * in + k]) ? fmax(most, (double)fabsf(x[r * in + k])) : INFINITY;
        round_inputs(kind, x + r * in, in);
        for (int o = 0; o < OUT; o++) {
            const double got = (double)y[r * OUT + o];
            double sum = 0.0;
            for (int k = 0; k < in; k++)
                sum += (double)x[r * in + k] * w[o * in + k];
            const bool right = isfinite(most)
                                   ? fabs(got - sum) <= in * (parts * 0x1p-24 * most + least)
                                   : !isfinite(got);
            cr_assert(right, "%s, %s, %s: row %d: expected %g, got %g", set,
                      weight_format_name(kind.weights), activation_format_name(kind.activations), r,
                      sum, got);
        }
    }
    cpu_ops.close(backend);
    free(w);
    free(y);
}

/* Beside a number that is far larger than all others of its block these keep the digits that they
 * would have without it, up to the factor that two digits reach; so do those of four large ones
 * that lie together, and of two equal ones the first four is the wide one. */
static void keep_small_numbers(const char *set, struct kind kind)
{
    enum { IN = 100, ROWS = 14 };
    static const float large[] = {30, 200, 300, 1e4f, 1e9f, 1e20f};
    float *x = bench_floats(ROWS * IN, -1, 1, 14);
    for (int r = 0; r < 12; r++) /* in each four of the first block, and at the end of the last */
        x[r * IN + (r < 8 ? 4 * r + r % 4 : 88 + r)] = (r % 2 == 0 ? 1 : -1) * large[r % 6];
    for (int i = 8; i < 12; i++)
        x[12 * IN + i] = 50.0f;
    x[13 * IN + 3] = -40.0f;
    x[13 * IN + 20] = 40.0f;
    check_rows(set, kind, ROWS, IN, x);
    free(x);
}

Test(gemm, rounded_inputs_keep_small_numbers_beside_large_ones)
{
    for (int s = 0; s < NUM_SETS; s++)
        for (int k = 0; k < NUM_KINDS; k++)
            if (weight_format_block(kinds[k].weights) > 1)
                keep_small_numbers(bench_sets[s], kinds[k]);
}

/* Rows of x that are zero, not finite, huge or tiny: each on its own. */
static void take_any_row(const char *set, struct kind kind)
{
    enum { IN = 70, ROWS = 10 };
    static const float scales[ROWS] = {1, 0, 1, 1, 1e37f, 1e-28f, 1e-36f, 1e-44f, 1e-23f, 1};
    float *x = bench_floats(ROWS * IN, -1, 1, 12);
    for (int i = 0; i < ROWS * IN; i++)
        x[i] *= scales[i / IN];
    x[2 * IN + 40] = NAN;
    x[3 * IN + 69] = -INFINITY;
    check_rows(set, kind, ROWS, IN, x);
    free(x);
}

Test(gemm, blocks_and_rounded_inputs_take_any_row)
{
    for (int s = 0; s < NUM_SETS; s++)
        for (int k = 0; k < NUM_KINDS; k++)
            if (weight_format_block(kinds[k].weights) > 1 ||
                kinds[k].activations != ACTIVATIONS_F32)
                take_any_row(bench_sets[s], kinds[k]);
}

/* A block's minimum meets the sum of its inputs, which may be larger than any float. */
Test(gemm, minima_meet_large_inputs_of_one_sign)
{
    enum { IN = 64, OUT = 33 };
    float *w = bench_floats(OUT * IN, -1e-3f, 1e-3f, 21), x[IN], y[OUT];
    for (int s = 0; s < NUM_SETS; s++)
        for (int k = 0; k < NUM_KINDS; k++) {
            struct backend *backend =
                bench_open_rounding(bench_sets[s], 1, kinds[k].weights, kinds[k].activations);
            if (backend == NULL || !weight_format_minimum(kinds[k].weights)) {
                if (backend != NULL)
                    cpu_ops.close(backend);
                continue;
            }
            const struct matrix matrix = {.rows = OUT, .cols = IN, .data = w};
            for (int i = 0; i < IN; i++)
                x[i] = 2e37f;
            cr_assert(multiply(backend, kinds[k].weights, &matrix, 1, x, y, NULL) == 0);
            for (int o = 0; o < OUT; o++) {
                double sum = 0.0;
                for (int i = 0; i < IN; i++)
                    sum += 2e37 * (double)w[o * IN + i];
                cr_expect(fabs(y[o] - sum) <= IN * 2e37 * 1e-3 / 15, /* half a quant each */
                          "%s, %s: expected %g, got %g", bench_sets[s],
                          activation_format_name(kinds[k].activations), sum, (double)y[o]);
            }
            cpu_ops.close(backend);
        }
    free(w);
}

Test(gemm, a_number_too_large_for_its_format_is_an_error)
{
    static const struct {
        enum weight_format format;
        float number;
    } cases[] = {{WEIGHTS_F16, 65520.0f},
                 {WEIGHTS_F16, -1e30f},
                 {WEIGHTS_BF16, 0x1.fffffep127f},
                 {WEIGHTS_Q8, 127 * 65520.0f},
                 {WEIGHTS_Q8, INFINITY},
                 {WEIGHTS_Q8, NAN},
                 {WEIGHTS_Q6, 35 * 127 * 65520.0f},
                 {WEIGHTS_Q6, INFINITY},
                 {WEIGHTS_Q6, NAN},
                 {WEIGHTS_Q4, 16 * 65504.0f},
                 {WEIGHTS_Q4, -65520.0f},
                 {WEIGHTS_Q4, INFINITY},
                 {WEIGHTS_Q4, NAN}};
    struct backend *backend = bench_open(NULL, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float w[40] = {[37] = cases[i].number}, x[40] = {0}, y;
        const struct matrix matrix = {.rows = 1, .cols = 40, .data = w};
        struct error err = ERROR_INIT;
        cr_expect(multiply(backend, cases[i].format, &matrix, 1, x, &y, &err) == -1);
        cr_expect(err.code == ERROR_INVALID && strstr(err.message, "too large") != NULL, "%s",
                  err.message);
    }
    cpu_ops.close(backend);
}

/* Panels of 32 outputs; but in f32 there are two of them at least. */
Test(gemm, packed_bytes_are_known_for_every_format)
{
    struct backend *backend = bench_open(NULL, 1);
    float *w = bench_floats(40 * 33, -1, 1, 13);
    static const int outs_packed[][3] = {{20, 32, 64}, {40, 64, 64}};
    for (size_t o = 0; o < 2; o++) {
        const struct matrix matrix = {.rows = outs_packed[o][0], .cols = 33, .data = w};
        size_t alone = (size_t)outs_packed[o][1], paired = (size_t)outs_packed[o][2];
        const size_t expected[] = {
            [WEIGHTS_F32] = alone * 33 * 4,       [WEIGHTS_BF16] = paired * 33 * 2,
            [WEIGHTS_F16] = paired * 33 * 2,      [WEIGHTS_Q8] = paired * (64 + 2 * 2),
            [WEIGHTS_Q6] = paired * (48 + 2 * 4), [WEIGHTS_Q4] = paired * (32 + 2 * 4)};
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
            struct weight *weight;
            cr_assert(cpu_ops.weight_create(backend, &weight, &matrix, 1, 1, formats[i], NULL) ==
                      0);
            cr_expect(cpu_ops.weight_bytes(weight, WEIGHTS_AUTO) == expected[formats[i]]);
            for (size_t j = 0; j < sizeof formats / sizeof *formats; j++)
                cr_expect(cpu_ops.weight_bytes(weight, formats[j]) == expected[formats[j]]);
            cpu_ops.weight_free(backend, weight);
        }
    }
    free(w);
    cpu_ops.close(backend);
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
    cr_assert(cpu_ops.weight_create(backend, &weight, parts, 2, 1, WEIGHTS_AUTO, NULL) == 0);
    perform_matmul(
        &cpu_ops, backend,
        &(struct ops_matmul){.weight = weight, .num_rows = 3, .x = {x, IN}, .y = {stacked, 60}});
    cpu_ops.weight_free(backend, weight);
    for (int i = 0; i < 2; i++) {
        cr_assert(cpu_ops.weight_create(backend, &weight, &parts[i], 1, 1, WEIGHTS_AUTO, NULL) ==
                  0);
        perform_matmul(
            &cpu_ops, backend,
            &(struct ops_matmul){
                .weight = weight, .num_rows = 3, .x = {x, IN}, .y = {apart + 15 * i, 60}});
        cpu_ops.weight_free(backend, weight);
    }
    cr_expect(memcmp(stacked, apart, 3 * 60 * sizeof(float)) == 0);

    /* 4 heads of [15, 5]: head h sees x[5 h, 5 h + 5) */
    const struct matrix heads = {.rows = 60, .cols = 5, .data = w};
    cr_assert(cpu_ops.weight_create(backend, &weight, &heads, 1, 4, WEIGHTS_AUTO, NULL) == 0);
    perform_matmul(
        &cpu_ops, backend,
        &(struct ops_matmul){.weight = weight, .num_rows = 3, .x = {x, IN}, .y = {stacked, 60}});
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
