/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by cuBLASLt (--products cublaslt) against the CPU's, which of them are the
 * library's, and what memory they take. */
#include "engine/ops/perform.h"
#include "tests/cuda/product_bench.h"

/* A device with cuBLASLt; false: the library is not here. */
static bool open_cublaslt(struct bench_device *device, bool rounded, int max_rows)
{
    const struct cuda_options options = {.activations =
                                             rounded ? ACTIVATIONS_16BIT : ACTIVATIONS_F32,
                                         .products = PRODUCTS_CUBLASLT};
    struct error err = ERROR_INIT;
    struct ops_limits limits = bench_limits(max_rows);
    limits.max_logits = MOST_ROWS;
    limits.max_input = 800;
    device->ops = cuda_ops();
    if (cuda_open(&device->backend, &options, &err) != 0) {
        if (!bench_lacks_cublaslt(&err))
            bench_fatal("products of cublaslt", &err);
        printf("products of cublaslt: skipped: %s\n", err.message);
        return false;
    }
    bench_prepare(device, &limits);
    return true;
}

/* Whether the case's y are other bits than those of own products. */
static bool differs(struct devices *own, struct devices *other, const struct product_case *c,
                    int past)
{
    struct rectangle size = {c->in * c->heads + 4, c->out * c->heads + past, 0};
    size_t outs = (size_t)c->out * (size_t)c->heads, y_count = (size_t)(c->rows * size.y_stride);
    float *w = bench_floats(outs * (size_t)c->in, -1, 1, 1), *bias = bench_floats(outs, -1, 1, 2);
    float *x = bench_floats((size_t)(c->rows * size.x_stride), -1, 1, 3), *y[2];
    for (int i = 0; i < 2; i++) {
        const struct bench_device *cuda = &(i == 0 ? own : other)->cuda[c->kind.rounded];
        struct weight *weight = create(cuda, c, w, bias);
        y[i] = bench_floats(y_count, -1, 1, 4);
        multiply(cuda, weight, c, size, x, y[i]);
        cuda->ops->weight_free(cuda->backend, weight);
    }
    bool result = memcmp(y[0], y[1], y_count * sizeof *x) != 0;
    for (int i = 0; i < 2; i++)
        free(y[i]);
    free(w);
    free(bias);
    free(x);
    return result;
}

/* Which products are the library's: dense ones of 128 rows and more with two-byte weights, where y
 * is aligned and has no sum under an activation. Each case differs in one thing from the first. */
static void check_taken(struct devices *own, struct devices *other, struct kind kind)
{
    static const struct {
        int rows, heads, past;
        enum formula activation;
        bool accumulate, taken;
    } cases[] = {
        {128, 1, 4, FORMULA_IDENTITY, true, true},  {200, 1, 0, FORMULA_SILU, false, true},
        {127, 1, 4, FORMULA_IDENTITY, true, false}, {128, 2, 4, FORMULA_IDENTITY, true, false},
        {128, 1, 3, FORMULA_IDENTITY, true, false}, {128, 1, 4, FORMULA_SILU, true, false},
#ifdef REGLA_CUDA_EMULATION
        {137, 1, 4, FORMULA_IDENTITY, true, false}, /* which the emulated library refuses */
#endif
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct product_case c = {.kind = kind,
                                       .rows = cases[i].rows,
                                       .in = 300,
                                       .out = 40,
                                       .heads = cases[i].heads,
                                       .parts = 1,
                                       .biased = true,
                                       .accumulate = cases[i].accumulate,
                                       .activation = cases[i].activation};
        const bool fits = products_fit(PRODUCTS_CUBLASLT, kind.format);
        char name[96], of_kind[32];
        snprintf(name, sizeof name, "%s, cublaslt, case %zu",
                 name_of(kind, of_kind, sizeof of_kind), i);
        bench_expect(&other->count,
                     differs(own, other, &c, cases[i].past) == (cases[i].taken && fits), name,
                     cases[i].taken && fits ? "is own" : "has other bits than own products", 0);
    }
}

/* A product does not norm its x where it is the library's, however many rows the kernels for few
 * rows take: the bits are those of a norm and then the product. */
static void check_normed(struct devices *own, struct bench_count *count)
{
    enum { ROWS = 200, IN = 128, OUT = 40 };
    const struct product_case c = {
        .kind = {WEIGHTS_BF16, false}, .rows = ROWS, .in = IN, .out = OUT, .heads = 1, .parts = 1};
    size_t x_bytes = ROWS * IN * sizeof(float), y_bytes = ROWS * OUT * sizeof(float);
    struct bench_device other, *const devices[3] = {&own->cuda[false], &other, &other};
    float *w = bench_floats(OUT * IN, -1, 1, 1), *host = bench_floats(ROWS * IN, -3, 5, 2), *y[3];
    char *before = bench_set("REGLA_CUDA_STREAMED_ROWS", "256");
    bool opened = open_cublaslt(&other, false, MOST_ROWS);
    bench_restore("REGLA_CUDA_STREAMED_ROWS", before);
    for (int i = 0; i < 3 && opened; i++) {
        const struct bench_device *cuda = devices[i];
        const bool apart = i < 2;
        struct weight *weight = create(cuda, &c, w, NULL);
        float *x = bench_memory(cuda, x_bytes, host), *normed = bench_memory(cuda, x_bytes, NULL);
        float *out = bench_memory(cuda, y_bytes, NULL);
        const struct ops_norm norm = {.kind = NORM_RMSNORM,
                                      .eps = 1e-5f,
                                      .num_rows = ROWS,
                                      .groups = 1,
                                      .size = IN,
                                      .x = {x, IN},
                                      .y = {normed, IN}};
        y[i] = malloc(y_bytes);
        if (apart)
            perform_norm(cuda->ops, cuda->backend, &norm);
        perform_matmul(cuda->ops, cuda->backend,
                       &(struct ops_matmul){.weight = weight,
                                            .num_rows = ROWS,
                                            .x = norm.y,
                                            .y = {out, OUT},
                                            .norm = apart ? NULL : &norm});
        cuda->ops->copy_out(cuda->backend, y[i], out, y_bytes);
        bench_check_status(cuda);
        cuda->ops->weight_free(cuda->backend, weight);
        bench_free(cuda, x, x_bytes);
        bench_free(cuda, normed, x_bytes);
        bench_free(cuda, out, y_bytes);
    }
    free(w);
    free(host);
    if (!opened)
        return;
    other.ops->close(other.backend);
    bench_expect(count, memcmp(y[0], y[1], y_bytes) != 0, "cublaslt, normed before", "is own", 0);
    bench_expect(count, memcmp(y[1], y[2], y_bytes) == 0, "cublaslt, normed",
                 "other bits than a norm and then a product",
                 bench_distance(y[2], y[1], ROWS * OUT));
    for (int i = 0; i < 3; i++)
        free(y[i]);
}

/* Near the CPU's, whatever the shape. With so many rows that sums of a split do not fit its
 * workspace the library's second choice does them. */
static void check_near(struct devices *d, struct kind kind)
{
    static const int rows_of[] = {128, 129, 200, 256};
    static const int shapes[][2] = {{1, 5}, {5, 1}, {33, 17}, {100, 49}, {257, 133}, {768, 97}};
    static const enum formula formulas[] = {FORMULA_IDENTITY, FORMULA_GELU, FORMULA_IDENTITY,
                                            FORMULA_RELU, FORMULA_ONE_MINUS_SIGMOID};
    int number = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t r = 0; r < sizeof rows_of / sizeof *rows_of; r++, number++)
            check_product(d, &(struct product_case){.kind = kind,
                                                    .rows = rows_of[r],
                                                    .in = shapes[s][0],
                                                    .out = shapes[s][1],
                                                    .heads = 1,
                                                    .parts = shapes[s][1] >= 3 ? 3 : 1,
                                                    .biased = number % 2 == 0,
                                                    .accumulate = number % 3 == 0,
                                                    .activation = formulas[number % 5]});
}

#ifdef REGLA_CUDA_EMULATION
void emulation_prefetched(size_t *bytes, size_t *extent);

/* A product of the engine's asks for the next one's weights only where that will read them. */
static void check_ahead(const struct bench_device *cuda, struct bench_count *count)
{
    static const int rows_of[] = {64, 128};
    struct product_case c = {
        .kind = {WEIGHTS_BF16, false}, .in = 64, .out = 32, .heads = 2, .parts = 1};
    float *w = bench_floats(2 * 64 * 32, -1, 1, 1);
    struct weight *own = create(cuda, &c, w, NULL);
    c.heads = 1;
    struct weight *dense = create(cuda, &c, w, NULL);
    float *x = bench_memory(cuda, 128 * 128 * 4, NULL), *y = bench_memory(cuda, 128 * 64 * 4, NULL);
    for (int i = 0; i < 2; i++) {
        size_t bytes, extent;
        const struct weight *const next[] = {dense, NULL};
        emulation_prefetched(&bytes, &extent);
        perform_matmul(
            cuda->ops, cuda->backend,
            &(struct ops_matmul){
                .weight = own, .num_rows = rows_of[i], .x = {x, 128}, .y = {y, 64}, .next = next});
        cuda->ops->copy_out(cuda->backend, w, y, sizeof *w);
        emulation_prefetched(&bytes, &extent);
        bench_expect(count, bytes == (rows_of[i] == 64 ? 64 * 32 * 2 : 0), "asked ahead",
                     rows_of[i] == 64 ? "64 rows" : "128 rows", (double)bytes);
    }
    bench_free(cuda, x, 128 * 128 * 4);
    bench_free(cuda, y, 128 * 64 * 4);
    cuda->ops->weight_free(cuda->backend, own);
    cuda->ops->weight_free(cuda->backend, dense);
    free(w);
}
#endif

/* Its memory is counted: the weight's rows, with their padding, as long as they are there, and the
 * workspace. */
static void check_memory(struct devices *own, struct devices *other)
{
    const struct product_case c = {
        .kind = {WEIGHTS_BF16, false}, .in = 70, .out = 33, .heads = 1, .parts = 1};
    const struct bench_device *cuda = &other->cuda[false], *plain = &own->cuda[false];
    size_t device[2], before, after, pinned;
    float *w = bench_floats(70 * 33, -1, 1, 1);
    cuda->ops->taken(cuda->backend, &device[0], &before, &pinned);
    struct weight *weight = create(cuda, &c, w, NULL);
    cuda->ops->taken(cuda->backend, &device[1], &after, &pinned);
    bench_expect(&other->count, after - before == 33 * 96 * 2, "cublaslt", "bytes of rows",
                 (double)(after - before));
    cuda->ops->weight_free(cuda->backend, weight);
    plain->ops->taken(plain->backend, &device[1], &after, &pinned);
    bench_expect(&other->count, after == 0, "own", "bytes of rows", (double)after);
    bench_expect(&other->count, device[0] > (size_t)32 << 20, "cublaslt", "workspace is not taken",
                 (double)device[0]);
    free(w);
}

static void check_cublaslt(struct devices *d)
{
    static const int max_rows[] = {MOST_ROWS, 1 << 17};
    for (size_t i = 0; i < sizeof max_rows / sizeof *max_rows; i++) {
        struct devices other = {.cpu = d->cpu};
        for (int rounded = 0; rounded < 2; rounded++)
            if (!open_cublaslt(&other.cuda[rounded], rounded, max_rows[i]))
                return;
        if (i == 0)
            check_memory(d, &other);
#ifdef REGLA_CUDA_EMULATION
        if (i == 0)
            check_ahead(&other.cuda[false], &other.count);
#endif
        for (int k = 0; k < NUM_KINDS; k++) {
            if (products_fit(PRODUCTS_CUBLASLT, kinds[k].format))
                check_near(&other, kinds[k]);
            check_taken(d, &other, kinds[k]);
        }
        for (int rounded = 0; rounded < 2; rounded++)
            other.cuda[rounded].ops->close(other.cuda[rounded].backend);
        d->count.passed += other.count.passed;
        d->count.failed += other.count.failed;
    }
}

int main(void)
{
    struct devices d = {.count = {0}};
    struct ops_limits limits = bench_limits(MOST_ROWS);
    limits.max_input = 800;
    bench_open(&d.cpu, &d.cuda[false], &limits);
    d.cuda[true] = bench_open_cuda(ACTIVATIONS_16BIT, &limits);
    check_cublaslt(&d);
    check_normed(&d, &d.count);
    for (int i = 0; i < 2; i++)
        d.cuda[i].ops->close(d.cuda[i].backend);
    d.cpu.ops->close(d.cpu.backend);
    printf("product-cublaslt: %d passed, %d failed\n", d.count.passed, d.count.failed);
    return d.count.failed != 0;
}
