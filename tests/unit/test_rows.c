/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on rows against their definitions in float64, as models with dense layers use them:
 * norms of heads in place, in columns of a wider array; formulas in place; angles with a factor;
 * rope of a part of a head. What lies beside the columns stays as it is, and a row's bits depend
 * neither on the rows beside it nor on the threads. */
#include "engine/cpu/device.h"
#include "engine/ops/perform.h"
#include "tests/unit/ops_bench.h"

#include <stdio.h>

enum { ROWS = 5 };

/* Columns [first, first + columns) of rows of `stride` numbers. */
struct part {
    size_t first, columns, stride;
};

static struct rows rows_of(float *data, struct part part)
{
    return (struct rows){data + part.first, (int64_t)part.stride};
}

static size_t floats_of(struct part part)
{
    return ROWS * part.stride;
}

static float *copy_of(const float *data, struct part part)
{
    return memcpy(malloc(floats_of(part) * sizeof(float)), data, floats_of(part) * sizeof(float));
}

/* The columns alone are no longer those of `before`. */
static void check_beside(const float *after, const float *before, struct part part,
                         const char *what)
{
    for (size_t i = 0; i < floats_of(part); i++) {
        size_t c = i % part.stride;
        bool inside = c >= part.first && c - part.first < part.columns;
        cr_assert(inside || after[i] == before[i], "%s: row %zu, column %zu changed", what,
                  i / part.stride, c);
    }
}

static void begin(struct backend *backend, struct bench_text *text)
{
    bench_text(text, ROWS, 0, NULL, NULL);
    cpu_ops.begin(backend, &text->batch);
}

static void end(struct backend *backend)
{
    cpu_ops.send(backend, NULL, 0);
    cpu_ops.receive(backend);
}

/* ---- norms ---- */

static void run_norm(struct backend *backend, struct ops_norm norm)
{
    static struct bench_text text;
    begin(backend, &text);
    perform_norm(&cpu_ops, backend, &norm);
    end(backend);
}

/* A number of f32 operations on numbers of size 1: some ulp of the result's largest. */
static void check_norm(const struct ops_norm *norm, const float *x, const float *y,
                       const float *weight, const char *what)
{
    double mean = 0, square = 0;
    for (int i = 0; i < norm->size && norm->kind == NORM_LAYERNORM; i++)
        mean += (double)x[i] / norm->size;
    for (int i = 0; i < norm->size; i++)
        square += ((double)x[i] - mean) * ((double)x[i] - mean) / norm->size;
    for (int i = 0; i < norm->size; i++) {
        double expected =
            ((double)x[i] - mean) / sqrt(square + (double)norm->eps) * (double)weight[i];
        cr_assert(fabs(y[i] - expected) < 2e-6, "%s: number %d: expected %g, got %g", what, i,
                  expected, (double)y[i]);
    }
}

/* Heads of `size` from the fifth on, in rows that have some numbers more. */
static void check_heads(struct backend *one, struct backend *three, enum norm_kind kind,
                        size_t groups, size_t size, size_t rest)
{
    char what[120];
    struct part part = {5 * size, groups * size, (5 + groups) * size + rest};
    float *x = bench_floats(floats_of(part), -2, 2, (uint32_t)size);
    float *weight = bench_floats(size, 0.5f, 1.5f, 7);
    float *in_place = copy_of(x, part), *apart = bench_nans(floats_of(part));
    snprintf(what, sizeof what, "%s, norm %d, %zu heads of %zu in rows of %zu", one->kernels->name,
             (int)kind, groups, size, part.stride);
    struct ops_norm norm = {.kind = kind,
                            .eps = 1e-6f,
                            .weight = weight,
                            .num_rows = ROWS,
                            .groups = (int)groups,
                            .size = (int)size,
                            .x = rows_of(in_place, part),
                            .y = rows_of(in_place, part)};
    run_norm(three, norm);
    check_beside(in_place, x, part, what);
    norm.x = rows_of(x, part);
    norm.y = rows_of(apart, part);
    for (size_t r = 0; r < ROWS; r++) { /* a row alone */
        struct ops_norm single = norm;
        single.num_rows = 1;
        single.x.data += r * part.stride;
        single.y.data += r * part.stride;
        run_norm(one, single);
        const float *of_row = apart + r * part.stride + part.first;
        cr_assert(memcmp(of_row, in_place + r * part.stride + part.first,
                         part.columns * sizeof(float)) == 0,
                  "%s: row %zu has other bits in place than alone", what, r);
        for (size_t g = 0; g < groups; g++)
            check_norm(&norm, x + r * part.stride + part.first + g * size, of_row + g * size,
                       weight, what);
    }
    float *all[] = {x, weight, in_place, apart};
    for (int i = 0; i < 4; i++)
        free(all[i]);
}

/* Mamba-2's: y = norm(silu(gate) x) in parts, each with its own weight. */
static void check_gated_parts(struct backend *one, struct backend *three, size_t groups,
                              size_t size)
{
    char what[120];
    struct part part = {3, groups * size, 5 * size * groups + 8};
    float *x = bench_floats(floats_of(part), -2, 2, (uint32_t)size), *y = copy_of(x, part);
    float *gate = bench_floats(floats_of(part), -3, 3, 8), *apart = bench_nans(floats_of(part));
    float *weight = bench_floats(3 * size, 0.5f, 1.5f, 7), gated[256];
    snprintf(what, sizeof what, "%s, %zu gated parts of %zu", one->kernels->name, groups, size);
    struct ops_norm norm = {.kind = NORM_RMSNORM,
                            .eps = 1e-6f,
                            .weight = weight,
                            .by_part = true,
                            .num_rows = ROWS,
                            .groups = (int)groups,
                            .size = (int)size,
                            .x = rows_of(y, part),
                            .y = rows_of(y, part),
                            .formula = FORMULA_SILU,
                            .gate = rows_of(gate, part),
                            .gate_first = true};
    run_norm(three, norm);
    check_beside(y, x, part, what);
    norm.x = rows_of(x, part);
    norm.y = rows_of(apart, part);
    run_norm(one, norm);
    for (size_t r = 0; r < ROWS; r++) {
        const size_t at = r * part.stride + part.first;
        cr_assert(memcmp(y + at, apart + at, part.columns * sizeof(float)) == 0,
                  "%s: row %zu has other bits in place than apart", what, r);
        for (size_t g = 0; g < groups; g++) {
            for (size_t j = 0; j < size; j++)
                gated[j] = formula_silu(gate[at + g * size + j]) * x[at + g * size + j];
            check_norm(&norm, gated, y + at + g * size, weight + g * size, what);
        }
    }
    float *all[] = {x, y, gate, apart, weight};
    for (int i = 0; i < 5; i++)
        free(all[i]);
}

/* After a layer's output: the norm into another array, then added to the residual. */
static void check_post_norm(struct backend *backend, int size)
{
    char what[120];
    struct part part = {0, (size_t)size, (size_t)size};
    float *x = bench_floats(floats_of(part), -2, 2, 3);
    float *before = copy_of(x, part), *y = bench_nans(floats_of(part));
    float *residual = bench_floats(floats_of(part), -2, 2, 4), *sum = copy_of(residual, part);
    float *weight = bench_floats((size_t)size, 0.5f, 1.5f, 7);
    static struct bench_text text;
    snprintf(what, sizeof what, "%s, post norm of %d", backend->kernels->name, size);
    struct ops_norm norm = {.kind = NORM_RMSNORM,
                            .eps = 1e-6f,
                            .weight = weight,
                            .num_rows = ROWS,
                            .groups = 1,
                            .size = size,
                            .x = rows_of(x, part),
                            .y = rows_of(y, part)};
    begin(backend, &text);
    perform_norm(&cpu_ops, backend, &norm);
    perform_map(&cpu_ops, backend,
                &(struct ops_map){.formula = FORMULA_SUM,
                                  .num_rows = ROWS,
                                  .num_cols = size,
                                  .out = rows_of(sum, part),
                                  .u = rows_of(sum, part),
                                  .w = rows_of(y, part)});
    end(backend);
    cr_assert(memcmp(x, before, floats_of(part) * sizeof(float)) == 0, "%s: x changed", what);
    for (int r = 0; r < ROWS; r++)
        check_norm(&norm, x + r * size, y + r * size, weight, what);
    for (int i = 0; i < ROWS * size; i++)
        cr_assert(sum[i] == residual[i] + y[i], "%s: sum %d", what, i);
    float *all[] = {x, before, y, residual, sum, weight};
    for (int i = 0; i < 6; i++)
        free(all[i]);
}

/* A number of the gate for each part is the same as that number for each of the part's numbers. */
static void check_gates(struct backend *backend, enum norm_kind kind, int groups, int size)
{
    const int width = groups * size;
    float *x = bench_floats((size_t)(ROWS * width), -2, 2, 31);
    float *gates = bench_floats((size_t)(ROWS * groups), -2, 2, 32);
    float *spread = bench_nans((size_t)(ROWS * width)), *out[2];
    static struct bench_text text;
    for (int i = 0; i < ROWS * width; i++)
        spread[i] = gates[i / size];
    for (int i = 0; i < 2; i++) {
        out[i] = bench_nans((size_t)(ROWS * width));
        begin(backend, &text);
        perform_norm(&cpu_ops, backend,
                     &(struct ops_norm){.kind = kind,
                                        .eps = 1e-5f,
                                        .num_rows = ROWS,
                                        .groups = groups,
                                        .size = size,
                                        .x = {x, width},
                                        .y = {out[i], width},
                                        .formula = FORMULA_SIGMOID,
                                        .gate = {i == 0 ? spread : gates, i == 0 ? width : groups},
                                        .gate_of_group = i == 1});
        end(backend);
    }
    cr_assert(memcmp(out[0], out[1], (size_t)(ROWS * width) * sizeof(float)) == 0,
              "%s: %d gates of %d numbers, norm %d", backend->kernels->name, groups, size,
              (int)kind);
    float *all[] = {x, gates, spread, out[0], out[1]};
    for (int i = 0; i < 5; i++)
        free(all[i]);
}

/* ---- formulas ---- */

static const size_t column_counts[] = {1, 3, 15, 16, 17, 100, 576, 151936};

struct formula_case {
    enum formula formula;
    float constant;
};

static const struct formula_case formulas[] = {
    {FORMULA_SOFTCAP, 30.0f},     {FORMULA_SOFTCAP, 2.0f},     {FORMULA_SCALE, 0.125f},
    {FORMULA_SCALE, 0.22360679f}, {FORMULA_SCALED_SUM, 0.22f}, {FORMULA_PRODUCT, 0},
};

static bool formula_holds(const struct formula_case *c, float u, float w, float got)
{
    if (c->formula == FORMULA_PRODUCT)
        return got == u * w;
    volatile float product = c->constant * (c->formula == FORMULA_SCALE ? u : w);
    if (c->formula == FORMULA_SCALE)
        return got == product;
    if (c->formula == FORMULA_SCALED_SUM)
        return got == u + product;
    double cap = (double)c->constant;
    return fabs((double)got - cap * tanh((double)u / cap)) < 2.5e-7 * cap;
}

static void check_formula(struct backend *backend, const struct formula_case *c, size_t columns,
                          bool with_w)
{
    char what[120];
    struct part part = {7, columns, columns + 12}, of_w = {1, columns, columns + 12};
    float *u = bench_floats(floats_of(part), -60, 60, 11);
    float *w = bench_floats(floats_of(part), -60, 60, 12), *out = copy_of(u, part);
    static struct bench_text text;
    snprintf(what, sizeof what, "%s, formula %d of %g, %zu columns", backend->kernels->name,
             (int)c->formula, (double)c->constant, columns);
    begin(backend, &text);
    perform_map(&cpu_ops, backend,
                &(struct ops_map){.formula = c->formula,
                                  .constant = c->constant,
                                  .num_rows = ROWS,
                                  .num_cols = (int)columns,
                                  .out = rows_of(out, part),
                                  .u = rows_of(out, part),
                                  .w = with_w ? rows_of(w, of_w) : (struct rows){NULL, 0}});
    end(backend);
    check_beside(out, u, part, what);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < columns; i++) {
            size_t at = r * part.stride + part.first + i;
            float of = w[r * of_w.stride + of_w.first + i];
            cr_assert(formula_holds(c, u[at], of, out[at]), "%s: u %g, w %g, got %g", what,
                      (double)u[at], (double)of, (double)out[at]);
        }
    free(u);
    free(w);
    free(out);
}

/* ---- angles and rope ---- */

enum { DIM = 24, Q_HEADS = 3, K_HEADS = 2, FIRST = 1000 };

/* Turns heads by the angles theta [turned / 2] and a factor; cosines and sines are [ROWS, DIM]. */
static void turn(struct backend *backend, const double *theta, int turned, float factor, float *x,
                 float *out, float *cosines, float *sines)
{
    static struct bench_text text;
    int width = (Q_HEADS + K_HEADS) * DIM;
    bench_text(&text, ROWS, FIRST, NULL, NULL);
    cpu_ops.begin(backend, &text.batch);
    perform_angles(&cpu_ops, backend,
                   &(struct ops_angles){.theta = theta,
                                        .count = turned / 2,
                                        .factor = factor,
                                        .cosines = {cosines, DIM},
                                        .sines = {sines, DIM}});
    perform_positions(&cpu_ops, backend,
                      &(struct ops_positions){.kind = POSITION_ROPE,
                                              .pairing = ROPE_PAIRING_HALF,
                                              .num_heads = Q_HEADS,
                                              .num_kv_heads = K_HEADS,
                                              .dim = DIM,
                                              .rotary_dims = turned,
                                              .cosines = {cosines, DIM},
                                              .sines = {sines, DIM},
                                              .x = {x, width},
                                              .out = {out, width}});
    end(backend);
}

/* theta of pair j: 0 stands still. */
static double theta_of(int j, int moving)
{
    return j < moving ? pow(10000.0, -j / 12.0) : 0.0;
}

/* Element j of a head x [DIM]; pairs (j, j + turned / 2). */
static double turned_element(const float *x, int j, int turned, int moving, double factor,
                             int64_t position)
{
    int half = turned / 2, pair = j % half, other = j < half ? j + half : j - half;
    if (j >= turned)
        return (double)x[j];
    double angle = (double)position * theta_of(pair, moving);
    double sine = j < half ? -sin(angle) : sin(angle);
    return factor * ((double)x[j] * cos(angle) + (double)x[other] * sine);
}

/* The first `moving` of turned / 2 pairs turn; the rest of the head is as it was. */
static void check_rope(struct backend *backend, int turned, int moving, float factor)
{
    double theta[DIM / 2], times = factor == 0.0f ? 1.0 : (double)factor;
    float cosines[ROWS * DIM], sines[ROWS * DIM];
    size_t count = ROWS * (Q_HEADS + K_HEADS) * DIM;
    float *x = bench_floats(count, 0.25f, 2, 21), *out = bench_nans(count);
    for (int j = 0; j < turned / 2; j++)
        theta[j] = theta_of(j, moving);
    turn(backend, theta, turned, factor, x, out, cosines, sines);
    for (int i = 0; i < (int)count; i++) {
        int j = i % DIM, row = i / ((Q_HEADS + K_HEADS) * DIM);
        double expected = turned_element(x + i - j, j, turned, moving, times, FIRST + row);
        bool still = j >= turned || j % (turned / 2) >= moving;
        float scaled = j >= turned || factor == 0.0f ? x[i] : x[i] * factor;
        cr_assert(still ? memcmp(&out[i], &scaled, sizeof scaled) == 0
                        : fabs((double)out[i] - expected) < 1e-6,
                  "%s, %d of %d dims, %d pairs, factor %g, element %d: expected %.9g, got %.9g",
                  backend->kernels->name, turned, DIM, moving, (double)factor, j, expected,
                  (double)out[i]);
    }
    free(x);
    free(out);
}

/* A factor of 1 changes no bit, and any factor is one more rounding. */
static void check_factor(struct backend *backend, float factor)
{
    enum { ANGLES = 19 };
    double theta[ANGLES];
    float plain[2][ROWS * ANGLES], times[2][ROWS * ANGLES];
    static struct bench_text text;
    for (int j = 0; j < ANGLES; j++)
        theta[j] = pow(10000.0, -j / (double)ANGLES);
    bench_text(&text, ROWS, FIRST, NULL, NULL);
    struct ops_angles angles = {.theta = theta,
                                .count = ANGLES,
                                .cosines = {plain[0], ANGLES},
                                .sines = {plain[1], ANGLES}};
    cpu_ops.begin(backend, &text.batch);
    perform_angles(&cpu_ops, backend, &angles);
    angles.factor = factor;
    angles.cosines.data = times[0];
    angles.sines.data = times[1];
    perform_angles(&cpu_ops, backend, &angles);
    end(backend);
    for (int i = 0; i < ROWS * ANGLES; i++)
        for (int of = 0; of < 2; of++)
            cr_assert(times[of][i] == plain[of][i] * factor, "%s: factor %g, angle %d: %g, %g",
                      backend->kernels->name, (double)factor, i, (double)plain[of][i],
                      (double)times[of][i]);
}

/* ---- every instruction set ---- */

/* Calls check with a backend of one thread and one of three. */
static void for_sets(void (*check)(struct backend *one, struct backend *three))
{
    int checked = 0;
    for (int set = 0; set < 3; set++) {
        struct backend *one = bench_open(bench_sets[set], 1);
        struct backend *three = bench_open(bench_sets[set], 3);
        if (one == NULL)
            continue;
        check(one, three);
        checked++;
        cpu_ops.close(one);
        cpu_ops.close(three);
    }
    cr_assert(checked > 0);
}

static void check_all_heads(struct backend *one, struct backend *three)
{
    static const size_t sizes[] = {1, 7, 16, 64, 80, 96, 100, 128, 256, 576};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t groups = 1; groups <= 3; groups += 2)
            for (size_t rest = 0; rest < 4; rest += 3) {
                check_heads(one, three, NORM_RMSNORM, groups, sizes[i], rest);
                check_heads(one, three, NORM_LAYERNORM, groups, sizes[i], rest);
            }
}

static void check_all_gated_parts(struct backend *one, struct backend *three)
{
    static const size_t sizes[] = {1, 12, 64, 100, 256};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t groups = 1; groups <= 3; groups++)
            check_gated_parts(one, three, groups, sizes[i]);
}

static void check_all_post_norms(struct backend *one, struct backend *three)
{
    static const int sizes[] = {576, 1000, 1001, 2304, 3584};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_post_norm(one, sizes[i]);
        check_post_norm(three, sizes[i]);
    }
}

static void check_all_gates(struct backend *one, struct backend *three)
{
    for (int groups = 1; groups < 8; groups += 3)
        for (int size = 1; size < 300; size = 2 * size + 5) {
            check_gates(one, NORM_NONE, groups, size);
            check_gates(three, NORM_RMSNORM, groups, size);
        }
}

static void check_all_formulas(struct backend *one, struct backend *three)
{
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        for (size_t n = 0; n < sizeof column_counts / sizeof *column_counts; n++) {
            bool two = formulas[i].formula >= FORMULA_REFINED_GATE;
            check_formula(one, &formulas[i], column_counts[n], two);
            check_formula(three, &formulas[i], column_counts[n], two);
        }
}

static void check_all_ropes(struct backend *one, struct backend *three)
{
    static const float factors[] = {0.0f, 1.0f, 1.3465736f};
    for (int i = 0; i < 3; i++)
        for (int turned = 2; turned <= DIM; turned += 2)
            for (int moving = 0; moving <= turned / 2; moving++) {
                check_rope(one, turned, moving, factors[i]);
                check_rope(three, turned, moving, factors[i]);
            }
}

static void check_all_factors(struct backend *one, struct backend *three)
{
    (void)three;
    check_factor(one, 1.0f);
    check_factor(one, 1.3465736f);
}

Test(rows, heads_are_normed_in_place_in_any_columns)
{
    for_sets(check_all_heads);
}

Test(rows, parts_are_normed_after_their_gate_each_with_its_weight)
{
    for_sets(check_all_gated_parts);
}

Test(rows, a_norm_into_another_array_leaves_its_input)
{
    for_sets(check_all_post_norms);
}

Test(rows, a_gate_may_have_a_number_for_each_part)
{
    for_sets(check_all_gates);
}

Test(rows, formulas_of_dense_models_are_right_in_place_for_any_number_of_columns)
{
    for_sets(check_all_formulas);
}

Test(rows, rope_turns_the_pairs_that_have_an_angle_and_no_others)
{
    for_sets(check_all_ropes);
}

Test(rows, a_factor_multiplies_cosines_and_sines)
{
    for_sets(check_all_factors);
}
