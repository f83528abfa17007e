/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of the CUDA backend: every format, odd shapes, heads, activations and numbers of
 * rows, against the CPU's products of the same x once it is split as the device splits it; the
 * bits of a row alone and among others; those of a product that norms its x; and those with
 * switches off. */
#include "engine/ops/perform.h"
#include "tests/cuda/product_bench.h"

/* So many outputs, of inputs that are one segment, that a CTA has two panels even of one row: then
 * every multiprocessor has work for two CTAs with 256 outputs (product_stream.cu). */
static int wide(void)
{
    return (2 * cuda_multiprocessors(0) - 1) * 256 + 10;
}

static void check_products(struct devices *d)
{
    static const int rows_of[] = {1, 2, 7, 8, 9, 17, 33, 63, 64, 65, 130};
    const int shapes[][3] = {/* in, out, heads: 1, 2, 4, 8 and 16 segments */
                             {1, 1, 1},     {5, 3, 1},      {33, 17, 3},  {64, 48, 4},
                             {100, 50, 1},  {257, 130, 1},  {514, 70, 2}, {768, 96, 1},
                             {1601, 40, 1}, {40, wide(), 1}};
    static const enum formula formulas[] = {
        FORMULA_IDENTITY, FORMULA_GELU,    FORMULA_GELU_NEW, FORMULA_RELU,
        FORMULA_SILU,     FORMULA_SIGMOID, FORMULA_IDENTITY, FORMULA_ONE_MINUS_SIGMOID};
    int number = 0;
    for (int k = 0; k < NUM_KINDS; k++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t r = 0; r < sizeof rows_of / sizeof *rows_of; r++, number++)
                check_product(d, &(struct product_case){
                                     .kind = kinds[k],
                                     .rows = rows_of[r],
                                     .in = shapes[s][0],
                                     .out = shapes[s][1],
                                     .heads = shapes[s][2],
                                     .parts = shapes[s][2] == 1 && shapes[s][1] >= 3 ? 3 : 1,
                                     .biased = number % 2 == 0,
                                     .accumulate = number % 3 == 0,
                                     .activation = formulas[number % 8]});
}

/* Some rows at a time, at the alignment of a float too. */
static void check_bits(struct devices *d, struct kind kind, int in, int out)
{
    enum { ROWS = 150, CALLS = 4 };
    static const int steps[] = {1, 7, 8, 9, 17, 40, 64, 65, 149};
    const struct bench_device *cuda = &d->cuda[kind.rounded];
    struct product_case c = {.kind = kind, .rows = ROWS, .in = in, .out = out, .heads = 1};
    c.parts = 1;
    c.biased = true;
    c.activation = FORMULA_GELU;
    struct rectangle size = {in + 3, out, 0};
    float *w = bench_floats((size_t)(out * in), -1, 1, 5), *bias = bench_floats(out, -1, 1, 6);
    float *x = bench_floats((size_t)(ROWS * size.x_stride), -1, 1, 7);
    float *all = bench_floats((size_t)(ROWS * out), 0, 1, 8), *some = malloc(ROWS * out * 4ul);
    struct weight *weight = create(cuda, &c, w, bias);
    multiply(cuda, weight, &c, size, x, all);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        int end = CALLS * steps[i] < ROWS ? CALLS * steps[i] : ROWS;
        for (int r = 0; r < end; r += steps[i]) {
            c.rows = end - r < steps[i] ? end - r : steps[i];
            size.shift = (int)i % 4;
            multiply(cuda, weight, &c, size, x + r * size.x_stride, some + r * out);
        }
        char name[112], of_kind[32];
        snprintf(name, sizeof name, "%s, %d x %d, %d rows at once",
                 name_of(kind, of_kind, sizeof of_kind), in, out, steps[i]);
        bench_expect(&d->count, memcmp(all, some, (size_t)(end * out) * sizeof(float)) == 0, name,
                     "other bits than all rows at once", 0);
    }
    cuda->ops->weight_free(cuda->backend, weight);
    free(w);
    free(bias);
    free(x);
    free(all);
    free(some);
}

/* A norm, a gate and both inside a product give the bits of these before it, at any number of rows.
 */
static void check_normed(struct devices *d, struct kind kind, int in, int groups, bool gated)
{
    enum { ROWS = 66, OUT = 40 };
    static const int rows_of[] = {1, 2, 5, 8, 9, 17, ROWS, 3, 12}; /* the last two: ReLA's norm */
    static const enum norm_kind norms[] = {NORM_LAYERNORM, NORM_RMSNORM, NORM_SIMPLE_RMSNORM,
                                           NORM_NONE};
    static const enum formula formulas[] = {FORMULA_SILU, FORMULA_SILU, FORMULA_GELU};
    const struct bench_device *cuda = &d->cuda[kind.rounded];
    const struct product_case c = {
        .kind = kind, .rows = ROWS, .in = in, .out = OUT, .heads = 1, .parts = 1};
    size_t bytes = (size_t)(ROWS * in) * sizeof(float), y_bytes = ROWS * OUT * sizeof(float);
    float *w = bench_floats((size_t)(OUT * in), -1, 1, 1);
    float *host = bench_floats((size_t)(ROWS * in), -3, 5, 9), *y = malloc(2 * y_bytes);
    struct weight *weight = create(cuda, &c, w, NULL);
    float *x = bench_memory(cuda, bytes, host), *normed = bench_memory(cuda, bytes, NULL);
    float *scale = bench_memory(cuda, bytes, host), *gate, *out[2];
    for (int j = 0; j < ROWS * in; j++)
        host[j] = 1.0f - host[j];
    gate = bench_memory(cuda, bytes, host);
    for (int i = 0; i < 2; i++)
        out[i] = bench_memory(cuda, y_bytes, NULL);
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
        bool rela = i > 6;
        const struct ops_norm norm = {.kind =
                                          rela ? NORM_GATED_RMSNORM : norms[i % (gated ? 4 : 3)],
                                      .eps = 1e-5f,
                                      .weight = rela || i % 2 == 0 ? scale : NULL,
                                      .bias = rela || i % 4 == 0 ? scale + in : NULL,
                                      .by_part = i % 3 != 0,
                                      .num_rows = rows_of[i],
                                      .groups = groups,
                                      .size = in / groups,
                                      .x = {x, in},
                                      .y = {normed, in},
                                      .formula = formulas[i % 3],
                                      .gate = {gated ? gate : NULL, in},
                                      .gate_first = i % 2 == 1};
        struct ops_matmul call = {
            .weight = weight, .num_rows = rows_of[i], .x = norm.y, .y = {out[0], OUT}};
        perform_norm(cuda->ops, cuda->backend, &norm);
        perform_matmul(cuda->ops, cuda->backend, &call);
        cuda->ops->fill(cuda->backend, normed, NAN, bytes / sizeof(float));
        call.y.data = out[1];
        call.norm = &norm;
        perform_matmul(cuda->ops, cuda->backend, &call);
        for (int j = 0; j < 2; j++)
            cuda->ops->copy_out(cuda->backend, y + j * ROWS * OUT, out[j], y_bytes);
        size_t count = (size_t)(rows_of[i] * OUT);
        bool finite = isfinite(bench_distance(y + ROWS * OUT, y, count));
        char name[112], of_kind[32];
        snprintf(name, sizeof name, "%s, %d rows of %d normed in %d parts%s",
                 name_of(kind, of_kind, sizeof of_kind), rows_of[i], in, groups,
                 gated ? " and gated" : "");
        bench_expect(&d->count, finite && memcmp(y, y + ROWS * OUT, count * sizeof(float)) == 0,
                     name, "other bits than a norm and then a product", 0);
    }
    cuda->ops->weight_free(cuda->backend, weight);
    for (int i = 0; i < 2; i++)
        bench_free(cuda, out[i], y_bytes);
    bench_free(cuda, x, bytes);
    bench_free(cuda, normed, bytes);
    bench_free(cuda, scale, bytes);
    bench_free(cuda, gate, bytes);
    free(w);
    free(host);
    free(y);
}

/* ---- switches ---- */

/* What surrounds a product. */
struct form {
    enum norm_kind norm;
    int groups;
    bool gated, biased, accumulate;
    enum formula gate, activation;
};

/* y [rows, out + 3] = what a device makes of a product in this form. */
static float *run_form(const struct bench_device *device, const struct product_case *c,
                       const struct form *form)
{
    int width = c->in * c->heads, y_stride = c->out * c->heads + 3;
    size_t count = (size_t)(c->rows * width), y_count = (size_t)(c->rows * y_stride);
    size_t outs = (size_t)(c->out * c->heads);
    float *w = bench_floats(outs * (size_t)c->in, -1, 1, 1), *bias = bench_floats(outs, -1, 1, 2);
    float *host[3] = {bench_floats(count, -3, 5, 3), bench_floats(count, -2, 2, 4),
                      bench_floats((size_t)(2 * width), -1, 2, 5)};
    float *y = bench_floats(y_count, -1, 1, 6), *memory[4];
    const size_t sizes[4] = {count * 4, count * 4, (size_t)width * 8, y_count * 4};
    for (int i = 0; i < 4; i++)
        memory[i] = bench_memory(device, sizes[i], i < 3 ? host[i] : y);
    float *normed = bench_memory(device, sizes[0], NULL);
    struct weight *weight = create(device, c, w, bias);
    const struct ops_norm norm = {.kind = form->norm,
                                  .eps = 1e-5f,
                                  .weight = form->groups == 1 ? memory[2] : NULL,
                                  .bias = form->biased ? memory[2] + width : NULL,
                                  .num_rows = c->rows,
                                  .groups = form->groups,
                                  .size = width / form->groups,
                                  .x = {memory[0], width},
                                  .y = {normed, width},
                                  .formula = form->gate,
                                  .gate = {form->gated ? memory[1] : NULL, width}};
    bool plain = form->norm == NORM_NONE && !form->gated;
    perform_matmul(device->ops, device->backend,
                   &(struct ops_matmul){.weight = weight,
                                        .num_rows = c->rows,
                                        .x = plain ? norm.x : norm.y,
                                        .y = {memory[3], y_stride},
                                        .activation = form->activation,
                                        .accumulate = form->accumulate,
                                        .norm = plain ? NULL : &norm});
    device->ops->copy_out(device->backend, y, memory[3], sizes[3]);
    bench_check_status(device);
    device->ops->weight_free(device->backend, weight);
    for (int i = 0; i < 4; i++)
        bench_free(device, memory[i], sizes[i]);
    bench_free(device, normed, sizes[0]);
    for (int i = 0; i < 3; i++)
        free(host[i]);
    free(w);
    free(bias);
    return y;
}

/* The same bits from a device with switches off. */
static void check_without(struct devices *d, const struct bench_device *without, const char *which,
                          struct product_case c, int number)
{
    static const struct form forms[] = {
        {NORM_RMSNORM, 1, false, false, false, FORMULA_IDENTITY, FORMULA_IDENTITY},
        {NORM_NONE, 1, false, true, true, FORMULA_IDENTITY, FORMULA_IDENTITY},
        {NORM_LAYERNORM, 1, false, true, false, FORMULA_IDENTITY, FORMULA_GELU},
        {NORM_NONE, 1, true, false, true, FORMULA_SILU, FORMULA_IDENTITY},
        {NORM_RMSNORM, 2, true, true, true, FORMULA_SILU, FORMULA_IDENTITY},
        {NORM_SIMPLE_RMSNORM, 12, false, true, true, FORMULA_IDENTITY, FORMULA_IDENTITY},
        {NORM_RMSNORM, 1, true, false, false, FORMULA_GELU, FORMULA_SILU}};
    int chosen = c.heads > 1 ? 1 : number % (int)(sizeof forms / sizeof *forms);
    c.biased = forms[chosen].biased;
    float *expected = run_form(&d->cuda[c.kind.rounded], &c, &forms[chosen]);
    float *got = run_form(without, &c, &forms[chosen]);
    size_t bytes = (size_t)(c.rows * (c.out * c.heads + 3)) * sizeof(float);
    char name[160], kind[32];
    snprintf(name, sizeof name, "%s, %d x %d x %d, form %d, without %s",
             name_of(c.kind, kind, sizeof kind), c.rows, c.in, c.out, chosen, which);
    bench_expect(&d->count, memcmp(got, expected, bytes) == 0, name, "other bits", 0);
    free(expected);
    free(got);
}

/* All of these off, for every kind, shape and number of rows; and each of them for some. On a
 * device of 4 multiprocessors 40 outputs are spread, and 272 are enough for a CTA to have two
 * panels. */
static void check_switches(struct devices *d, const struct ops_limits *limits)
{
    static const char *const off[] = {
        "row,early,spread,split,parts", "row", "early", "spread", "split", "parts"};
    static const int rows_of[] = {1, 2, 8, 9, 33, 64};
    const int shapes[][3] = {{768, 40, 1},  {3072, 40, 1}, {768, 272, 1},
                             {3072, 80, 1}, {60, 70, 3},   {36, wide(), 1}};
    for (int i = 0; i < (int)(sizeof off / sizeof *off); i++) {
        int number = 0;
        char *before = bench_without(off[i]);
        const struct bench_device without[2] = {bench_open_cuda(ACTIVATIONS_F32, limits),
                                                bench_open_cuda(ACTIVATIONS_16BIT, limits)};
        bench_restore("REGLA_CUDA_WITHOUT", before);
        for (int k = 0; k < NUM_KINDS; k++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (size_t r = 0; r < sizeof rows_of / sizeof *rows_of; r++, number++)
                    if (i == 0 || number % 5 == i - 1)
                        check_without(d, &without[kinds[k].rounded], off[i],
                                      (struct product_case){.kind = kinds[k],
                                                            .rows = rows_of[r],
                                                            .in = shapes[s][0],
                                                            .out = shapes[s][1],
                                                            .heads = shapes[s][2],
                                                            .parts = 1},
                                      number);
        for (int j = 0; j < 2; j++)
            without[j].ops->close(without[j].backend);
    }
}

/* Inputs that f16 cannot hold twice show in the result, whatever the number of rows; and where x is
 * rounded for other weights. */
static void check_range(struct devices *d, const struct bench_device *cuda)
{
    enum { ROWS = 66 };
    static const float one[] = {1.0f};
    struct product_case c = {
        .kind = {WEIGHTS_F16, false}, .in = 1, .out = 1, .heads = 1, .parts = 1};
    struct weight *weight = create(cuda, &c, one, NULL);
    for (c.rows = 2; c.rows <= ROWS; c.rows += ROWS - 2) {
        float x[ROWS] = {131008.0f, -2e5f}, y[ROWS] = {0};
        multiply(cuda, weight, &c, (struct rectangle){1, 1, 0}, x, y);
        bench_expect(&d->count, y[0] == x[0], "131,008 in f16", "is another number", (double)y[0]);
        bench_expect(&d->count, !isfinite(y[1]), "-2e5 in f16", "is finite", (double)y[1]);
    }
    cuda->ops->weight_free(cuda->backend, weight);
}

#ifdef REGLA_CUDA_EMULATION
void emulation_prefetched(size_t *bytes, size_t *extent);

/* What a product asks for of the weights that follow: the first part of the next one and, of one of
 * many parts, what the products between do not. Nothing when that is switched off. */
static void check_ahead(struct devices *d, bool on)
{
    enum { PART = 25 << 18, SMALL_IN = 96, SMALL_OUT = 200, LARGE_IN = 1024, LARGE_OUT = 2048 };
    static const int rows_of[] = {1, 130};
    const size_t small = SMALL_IN * 208 * 2, large = (size_t)LARGE_IN * LARGE_OUT * 4;
    const struct product_case of_small = {.kind = {WEIGHTS_BF16, false},
                                          .in = SMALL_IN,
                                          .out = SMALL_OUT,
                                          .heads = 1,
                                          .parts = 1},
                              of_large = {.kind = {WEIGHTS_F32, false},
                                          .in = LARGE_IN,
                                          .out = LARGE_OUT,
                                          .heads = 1,
                                          .parts = 1};
    const struct {
        int distance; /* weights before the large one; it is not there: 4 */
        size_t bytes, extent;
    } cases[] = {{4, small, small}, {0, PART, PART}, {1, small + large - PART, 0}, {2, small, 0}};
    struct ops_limits limits = bench_limits(MOST_ROWS);
    char *before = bench_set("REGLA_CUDA_WITHOUT", on ? "" : "ahead");
    const struct bench_device other = bench_open_cuda(ACTIVATIONS_F32, &limits);
    bench_restore("REGLA_CUDA_WITHOUT", before);
    float *w = bench_floats(LARGE_IN * LARGE_OUT, -1, 1, 1);
    struct weight *weights[2] = {create(&other, &of_small, w, NULL),
                                 create(&other, &of_large, w, NULL)};
    float *x = bench_memory(&other, 130 * SMALL_IN * 4, w);
    float *y = bench_memory(&other, 130 * SMALL_OUT * 4, NULL);
    for (size_t i = 0; i < 8; i++) {
        int distance = cases[i / 2].distance;
        const struct weight *next[6] = {weights[0], weights[0], weights[0], weights[0]};
        next[distance] = distance < 4 ? weights[1] : NULL;
        size_t bytes, extent, expected = on ? cases[i / 2].bytes : 0;
        emulation_prefetched(&bytes, &extent);
        perform_matmul(other.ops, other.backend,
                       &(struct ops_matmul){.weight = weights[0],
                                            .num_rows = rows_of[i % 2],
                                            .x = {x, SMALL_IN},
                                            .y = {y, SMALL_OUT},
                                            .next = next});
        other.ops->copy_out(other.backend, w, y, sizeof *w);
        emulation_prefetched(&bytes, &extent);
        bool whole = !on || cases[i / 2].extent == 0 || extent == cases[i / 2].extent;
        char name[80];
        snprintf(name, sizeof name, "asked ahead, distance %d, %d rows, %s", distance,
                 rows_of[i % 2], on ? "on" : "off");
        bench_expect(&d->count, bytes == expected && whole, name, "bytes", (double)bytes);
    }
    bench_free(&other, x, 130 * SMALL_IN * 4);
    bench_free(&other, y, 130 * SMALL_OUT * 4);
    for (int i = 0; i < 2; i++)
        other.ops->weight_free(other.backend, weights[i]);
    other.ops->close(other.backend);
    free(w);
}
#endif

static void check_refusals(struct devices *d)
{
    static const float large[] = {1e6f};
    const struct matrix matrix = {.rows = 1, .cols = 1, .dtype = DTYPE_F32, .data = large};
    struct error err = ERROR_INIT;
    struct weight *weight;
    const struct bench_device *cuda = &d->cuda[false];
    int result = cuda->ops->weight_create(cuda->backend, &weight, &matrix, 1, 1, WEIGHTS_F16, &err);
    bench_expect(&d->count, result != 0 && err.code == ERROR_INVALID, "1e6 in f16", "was packed",
                 result);
    static const struct cuda_options refused[] = {
        {.activations = ACTIVATIONS_8BIT},
        {.activations = ACTIVATIONS_16BIT, .weights = WEIGHTS_F16}};
    for (int i = 0; i < 2; i++) {
        struct backend *backend;
        err = (struct error)ERROR_INIT;
        result = cuda_open(&backend, &refused[i], &err);
        bench_expect(&d->count, result != 0 && err.code == ERROR_UNSUPPORTED,
                     i == 0 ? "x of 8 bits" : "rounded x with f16", "was accepted", result);
    }
}

int main(void)
{
    struct devices d = {.count = {0}};
    struct ops_limits limits = bench_limits(MOST_ROWS);
    limits.max_input = 16384;
    bench_open(&d.cpu, &d.cuda[false], &limits);
    d.cuda[true] = bench_open_cuda(ACTIVATIONS_16BIT, &limits);
    check_switches(&d, &limits);
    check_products(&d);
    for (int k = 0; k < NUM_KINDS; k++) {
        check_bits(&d, kinds[k], 768, 40);
        check_bits(&d, kinds[k], 36, wide());
        check_bits(&d, kinds[k], 1700, 33);
        for (int gated = 0; gated < 2; gated++) {
            check_normed(&d, kinds[k], 768, 1, gated);
            check_normed(&d, kinds[k], 768, 12, gated);
            check_normed(&d, kinds[k], 512, 2, gated);
            check_normed(&d, kinds[k], 75, 1, gated);
            check_normed(&d, kinds[k], 60, 4, gated);
        }
    }
    check_range(&d, &d.cuda[false]);
    check_range(&d, &d.cuda[true]);
#ifdef REGLA_CUDA_EMULATION
    check_ahead(&d, true);
    check_ahead(&d, false);
#endif
    check_refusals(&d);
    for (int i = 0; i < 2; i++)
        d.cuda[i].ops->close(d.cuda[i].backend);
    d.cpu.ops->close(d.cpu.backend);
    printf("product: %d passed, %d failed\n", d.count.passed, d.count.failed);
    return d.count.failed != 0;
}
