/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on rows on a device, as models with dense layers use them: norms of heads and formulas
 * in place, in columns of a wider array; gates before and after norms; angles with a factor; rope
 * of a part of a head. They are near the CPU's, which tests/unit/test_rows.c compares with float64;
 * what lies beside the columns stays as it is; and a row has the same bits alone, in another array,
 * and whether a warp norms a part or a block does (norm.cuh). */
#include "engine/ops/perform.h"
#include "tests/cuda/bench.h"

enum { ROWS = 9, FIRST = 1000 };

static struct bench_device cpu, cuda, by_warps;
static struct bench_count count;

/* One operation on `groups` parts of `size` numbers, from column `first` on, of rows of `stride`
 * numbers. */
struct rows_case {
    bool norm;
    int kind; /* enum norm_kind or formula */
    float constant;
    int groups, size, first, stride;
    enum { UNGATED, GATE_AFTER, GATE_FIRST } gate;
};

static void describe(const struct rows_case *c, char *name, size_t size)
{
    static const char *const gates[] = {"", ", gated", ", gated before"};
    snprintf(name, size, "%s %d of %g, %d x %d from %d in %d%s", c->norm ? "norm" : "formula",
             c->kind, (double)c->constant, c->groups, c->size, c->first, c->stride, gates[c->gate]);
}

static size_t row_bytes(const struct rows_case *c)
{
    return (size_t)c->stride * sizeof(float);
}

static void begin(const struct bench_device *device, int num_rows)
{
    static int32_t tokens[ROWS];
    static int64_t positions[ROWS];
    static struct batch_span span;
    static struct batch batch;
    for (int i = 0; i < ROWS; i++)
        positions[i] = FIRST + i;
    span = (struct batch_span){.num_rows = num_rows, .position = FIRST};
    batch = (struct batch){.num_rows = num_rows,
                           .num_spans = 1,
                           .tokens = tokens,
                           .positions = positions,
                           .spans = &span};
    device->ops->begin(device->backend, &batch);
}

static void end(const struct bench_device *device)
{
    device->ops->send(device->backend, NULL, 0);
    device->ops->receive(device->backend);
    bench_check_status(device);
}

/* y = the operation on x [num_rows] and w, in their columns; w: a row's weight, or the second input
 * of a formula; gate: of a norm. All are rows of the case. */
static void queue(const struct bench_device *device, const struct rows_case *c, int num_rows,
                  float *x, float *w, float *gate, float *y)
{
    struct rows from = {x + c->first, c->stride}, to = {y + c->first, c->stride};
    if (c->norm)
        perform_norm(device->ops, device->backend,
                     &(struct ops_norm){.kind = (enum norm_kind)c->kind,
                                        .eps = 1e-6f,
                                        .weight = w,
                                        .num_rows = num_rows,
                                        .groups = c->groups,
                                        .size = c->size,
                                        .x = from,
                                        .y = to,
                                        .formula = FORMULA_SILU,
                                        .gate = {gate, c->stride},
                                        .gate_first = c->gate == GATE_FIRST});
    else
        perform_map(device->ops, device->backend,
                    &(struct ops_map){.formula = (enum formula)c->kind,
                                      .constant = c->constant,
                                      .num_rows = num_rows,
                                      .num_cols = c->groups * c->size,
                                      .out = to,
                                      .u = from,
                                      .w = {w + c->first, c->stride}});
}

/* In a step of its own: rows [row, row + num_rows) of x, w and gate become those of out. apart: in
 * another array, full of NaN; else in place. */
static void run(const struct bench_device *device, const struct rows_case *c, int row, int num_rows,
                const float *x, const float *w, const float *gate, bool apart, float *out)
{
    size_t bytes = row_bytes(c) * (size_t)num_rows;
    float *there = bench_memory(device, bytes, x + (int64_t)row * c->stride);
    float *weight = bench_memory(device, bytes, w + (c->norm ? 0 : (int64_t)row * c->stride));
    float *gates = bench_memory(device, bytes, gate + (int64_t)row * c->stride);
    float *to = apart ? bench_memory(device, bytes, NULL) : there;
    begin(device, num_rows);
    queue(device, c, num_rows, there, weight, c->gate == UNGATED ? NULL : gates + c->first, to);
    end(device);
    device->ops->copy_out(device->backend, out + (int64_t)row * c->stride, to, bytes);
    bench_free(device, there, bytes);
    bench_free(device, weight, bytes);
    bench_free(device, gates, bytes);
    if (apart)
        bench_free(device, to, bytes);
}

static bool inside(const struct rows_case *c, int64_t i)
{
    int64_t column = i % c->stride;
    return column >= c->first && column < c->first + c->groups * c->size;
}

/* The columns of the case in both have the same bits. */
static bool same_columns(const struct rows_case *c, const float *a, const float *b)
{
    for (int64_t i = 0; i < (int64_t)ROWS * c->stride; i++)
        if (inside(c, i) && memcmp(&a[i], &b[i], sizeof *a) != 0)
            return false;
    return true;
}

static void check_rows(struct rows_case c)
{
    char name[120];
    size_t floats = ROWS * (size_t)c.stride;
    bool cap = !c.norm && c.kind == FORMULA_SOFTCAP;
    float *x = bench_floats(floats, cap ? -60 : -2, cap ? 60 : 2, 1);
    float *w = bench_floats(floats, 0.5f, 1.5f, 2), *expected = malloc(floats * sizeof(float));
    float *gate = bench_floats(floats, -4, 4, 4);
    float *in_place = malloc(floats * sizeof(float)), *other = malloc(floats * sizeof(float));
    describe(&c, name, sizeof name);
    run(&cpu, &c, 0, ROWS, x, w, gate, false, expected);
    run(&cuda, &c, 0, ROWS, x, w, gate, false, in_place);
    double distance = bench_distance(in_place, expected, floats);
    bench_expect(&count, distance < 2e-6, name, "distance from the CPU", distance);
    if (!c.norm && !cap)
        bench_expect(&count, same_columns(&c, in_place, expected), name, "the CPU's bits", 0);
    int beside = 0;
    for (int64_t i = 0; i < (int64_t)floats; i++)
        beside += !inside(&c, i) && in_place[i] != x[i];
    bench_expect(&count, beside == 0, name, "numbers changed beside the columns", beside);
    run(&cuda, &c, 0, ROWS, x, w, gate, true, other);
    bench_expect(&count, same_columns(&c, in_place, other), name, "the same bits apart", 0);
    for (int row = 0; row < ROWS; row++)
        run(&cuda, &c, row, 1, x, w, gate, row % 2 == 0, other);
    bench_expect(&count, same_columns(&c, in_place, other), name, "the same bits alone", 0);
    if (c.norm) {
        run(&by_warps, &c, 0, ROWS, x, w, gate, true, other);
        bench_expect(&count, same_columns(&c, in_place, other), name, "the same bits by warps", 0);
    }
    float *all[] = {x, w, gate, expected, in_place, other};
    for (int i = 0; i < 6; i++)
        free(all[i]);
}

/* Sizes of one trip of a block, of more, and more than its shared memory holds; of one row, too,
 * for on a device with few multiprocessors the rows of a case are too many for blocks. */
static void check_parts(void)
{
    static const int sizes[] = {257, 300, 768, 1536, 2048, 2052, 4099, 5120, 65536};
    static const enum norm_kind kinds[] = {NORM_RMSNORM, NORM_LAYERNORM, NORM_L2,
                                           NORM_SIMPLE_RMSNORM};
    int number = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int groups = 1; groups <= 2; groups++)
            for (int gate = UNGATED; gate <= GATE_FIRST; gate++, number++) {
                const int n = sizes[i], rest = number % 4 == 3 ? 3 : 0;
                check_rows((struct rows_case){true, (int)kinds[number % 4], 0, groups, n, n,
                                              (1 + groups) * n + rest, gate});
            }
}

/* ---- rope ---- */

enum { DIM = 24, HEADS = 3, WIDTH = HEADS * DIM };

/* Turns x [ROWS, WIDTH] by theta [count] and a factor. */
static void turn(const struct bench_device *device, const double *theta, int angles, float factor,
                 const float *x, float *out)
{
    size_t bytes = ROWS * WIDTH * sizeof(float), of_angles = ROWS * DIM * sizeof(float);
    float *from = bench_memory(device, bytes, x), *to = bench_memory(device, bytes, NULL);
    float *cosines = bench_memory(device, of_angles, NULL);
    float *sines = bench_memory(device, of_angles, NULL);
    double *there = bench_memory(device, DIM * sizeof(double), NULL);
    device->ops->copy_in(device->backend, there, theta, (size_t)angles * sizeof(double));
    begin(device, ROWS);
    perform_angles(device->ops, device->backend,
                   &(struct ops_angles){.theta = there,
                                        .count = angles,
                                        .factor = factor,
                                        .cosines = {cosines, DIM},
                                        .sines = {sines, DIM}});
    perform_positions(device->ops, device->backend,
                      &(struct ops_positions){.kind = POSITION_ROPE,
                                              .pairing = ROPE_PAIRING_HALF,
                                              .num_heads = HEADS - 1,
                                              .num_kv_heads = 1,
                                              .dim = DIM,
                                              .rotary_dims = 2 * angles,
                                              .cosines = {cosines, DIM},
                                              .sines = {sines, DIM},
                                              .x = {from, WIDTH},
                                              .out = {to, WIDTH}});
    end(device);
    device->ops->copy_out(device->backend, out, to, bytes);
    bench_free(device, from, bytes);
    bench_free(device, to, bytes);
    bench_free(device, cosines, of_angles);
    bench_free(device, sines, of_angles);
    bench_free(device, there, DIM * sizeof(double));
}

/* The first `moving` of `angles` pairs (j, j + angles) turn; the rest of a head is as it was. */
static void check_rope(int angles, int moving, float factor)
{
    char name[120];
    double theta[DIM / 2];
    float expected[ROWS * WIDTH], got[ROWS * WIDTH];
    float *x = bench_floats(ROWS * WIDTH, 0.25f, 2, 3);
    for (int j = 0; j < angles; j++)
        theta[j] = j < moving ? pow(10000.0, -j / 12.0) : 0.0;
    turn(&cpu, theta, angles, factor, x, expected);
    turn(&cuda, theta, angles, factor, x, got);
    snprintf(name, sizeof name, "rope, %d of %d pairs in %d, factor %g", moving, angles, DIM,
             (double)factor);
    double distance = bench_distance(got, expected, ROWS * WIDTH);
    bench_expect(&count, distance < 1e-6, name, "distance from the CPU", distance);
    int moved = 0;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        int j = i % DIM;
        float still = j >= 2 * angles || factor == 0.0f ? x[i] : x[i] * factor;
        if (j >= 2 * angles || j % angles >= moving)
            moved += memcmp(&still, &got[i], sizeof still) != 0;
    }
    bench_expect(&count, moved == 0, name, "numbers moved without an angle", moved);
    free(x);
}

int main(void)
{
    static const int sizes[] = {1, 7, 64, 80, 96, 100, 128, 256, 576, 1001};
    static const int columns[] = {1, 15, 255, 257, 576, 151936};
    static const float factors[] = {0.0f, 1.0f, 1.3465736f};
    struct ops_limits limits = bench_limits(ROWS);
    bench_open(&cpu, &cuda, &limits);
    char *before = bench_without("parts");
    by_warps = bench_open_cuda(ACTIVATIONS_F32, &limits);
    bench_restore("REGLA_CUDA_WITHOUT", before);
    check_parts();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int groups = 1; groups <= 3; groups += 2)
            for (int rest = 0; rest < 4; rest += 3) {
                int n = sizes[i], stride = (5 + groups) * n + rest;
                check_rows(
                    (struct rows_case){true, NORM_RMSNORM, 0, groups, n, 5 * n, stride, UNGATED});
                check_rows(
                    (struct rows_case){true, NORM_LAYERNORM, 0, groups, n, 5 * n, stride, UNGATED});
            }
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        int n = columns[i], stride = n + 12;
        check_rows((struct rows_case){false, FORMULA_SOFTCAP, 30, 1, n, 7, stride, UNGATED});
        check_rows((struct rows_case){false, FORMULA_SCALE, 0.22360679f, 1, n, 7, stride, UNGATED});
        check_rows((struct rows_case){false, FORMULA_SCALED_SUM, 0.22f, 1, n, 7, stride, UNGATED});
        check_rows((struct rows_case){false, FORMULA_SUM, 0, 1, n, 7, stride, UNGATED});
    }
    for (int i = 0; i < 3; i++)
        for (int angles = 1; angles <= DIM / 2; angles += angles < 3 ? 1 : 3)
            for (int moving = 0; moving <= angles; moving++)
                check_rope(angles, moving, factors[i]);
    cpu.ops->close(cpu.backend);
    cuda.ops->close(cuda.backend);
    by_warps.ops->close(by_warps.backend);
    printf("rows: %d passed, %d failed\n", count.passed, count.failed);
    return count.failed > 0;
}
