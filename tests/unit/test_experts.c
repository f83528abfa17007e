/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: whom a router chooses, products with chosen matrices, and what a model's
 * description and files may say of them. */
#include "engine/cost.h"
#include "engine/cpu/weights.h"
#include "engine/model/model_load.h"
#include "engine/model/preset.h"
#include "engine/ops/perform.h"
#include "engine/program/program.h"
#include "engine/quantize/quantizer.h"
#include "tests/unit/config_changes.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/ops_bench.h"

#include <criterion/criterion.h>
#include <math.h>

enum { MOST = 8 };

/* A copy, as scores may become others. */
static void route(const struct route_rule *rule, const float *scores, const float *bias,
                  int experts, int chosen, float *ids, float *weights)
{
    float own[2 * MOST];
    memcpy(own, scores, (size_t)experts * sizeof *own);
    formula_route(rule, own, bias, NULL, experts, chosen, ids, weights);
}

static void expect_choice(const float *scores, int experts, int chosen, const float *expected)
{
    float ids[MOST], weights[MOST], sum = 0, all = 0, own = 0;
    route(&(struct route_rule){0}, scores, NULL, experts, chosen, ids, weights);
    for (int e = 0; e < experts; e++)
        all += expf(scores[e]);
    for (int i = 0; i < chosen; i++) {
        cr_expect_eq(ids[i], expected[i], "%d of %d: got %g, want %g", i, chosen, (double)ids[i],
                     (double)expected[i]);
        own += expf(scores[(int)expected[i]]);
        cr_expect_float_eq(weights[i], expf(scores[(int)expected[i]]) / all, 1e-6);
    }
    route(&(struct route_rule){.renormalize = true}, scores, NULL, experts, chosen, ids, weights);
    for (int i = 0; i < chosen; i++) {
        cr_expect_eq(ids[i], expected[i]);
        cr_expect_float_eq(weights[i], expf(scores[(int)expected[i]]) / own, 1e-6);
        sum += weights[i];
    }
    cr_expect_float_eq(sum, 1, 1e-6);
}

Test(experts, the_greatest_are_chosen_and_of_equal_ones_the_first)
{
    const float scores[] = {0.5f, -1, 2, 0.25f, 1}, equal[] = {1, 1, 1, 1},
                pairs[] = {0, 3, 1, 3, 1, 0};
    expect_choice(scores, 5, 1, (float[]){2});
    expect_choice(scores, 5, 2, (float[]){2, 4});
    expect_choice(scores, 5, 3, (float[]){0, 2, 4});
    expect_choice(scores, 5, 5, (float[]){0, 1, 2, 3, 4});
    expect_choice(equal, 4, 1, (float[]){0});
    expect_choice(equal, 4, 3, (float[]){0, 1, 2});
    expect_choice(pairs, 6, 1, (float[]){1});
    expect_choice(pairs, 6, 3, (float[]){1, 2, 3});
    expect_choice(pairs, 6, 5, (float[]){0, 1, 2, 3, 4});
}

/* A factor changes a weight once all are made, and no choice. */
Test(experts, factors_of_experts_come_last)
{
    const struct route_rule rule = {.renormalize = true, .factor = 1.5F};
    const float scores[] = {0.5F, -1, 2, 0.25F, 1}, factors[] = {9, 9, 0.25F, 9, -3};
    float own[5], ids[2], weights[2], plain[2];
    memcpy(own, scores, sizeof own);
    formula_route(&rule, own, NULL, factors, 5, 2, ids, weights);
    route(&rule, scores, NULL, 5, 2, ids, plain);
    cr_expect_eq(ids[0], 2);
    cr_expect_eq(ids[1], 4);
    cr_expect_eq(weights[0], plain[0] * 0.25F);
    cr_expect_eq(weights[1], plain[1] * -3);
}

/* Ids are in range and differ, whatever the scores are. */
Test(experts, broken_scores_choose_experts_and_show)
{
    const float broken[][4] = {{NAN, NAN, NAN, NAN},
                               {1, NAN, 2, 3},
                               {3, 2, 1, NAN},
                               {NAN, 3, 2, 1},
                               {INFINITY, 1, INFINITY, 2}};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        for (int chosen = 1; chosen <= 4; chosen++) {
            float ids[MOST], weights[MOST];
            const struct route_rule rule = {.score = i % 2 == 0 ? ROUTE_SOFTMAX : ROUTE_SIGMOID,
                                            .renormalize = chosen % 2 == 0,
                                            .groups = chosen % 2 == 0 ? 2 : 0,
                                            .top_groups = chosen == 2 ? 1 : 2};
            route(&rule, broken[i], NULL, 4, chosen, ids, weights);
            for (int j = 0; j < chosen; j++)
                cr_expect(ids[j] >= 0 && ids[j] < 4 && (j == 0 || ids[j] > ids[j - 1]));
            for (int j = 0; i == 0 && j < chosen; j++)
                cr_expect(isnan(weights[j]));
        }
}

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static void expect_routed(const struct route_rule *rule, const float *bias, int chosen,
                          const float *expected_ids, const float *expected)
{
    static const float scores[] = {0.5f, -1, 2, 0.25f, 1, 0, -2, 0.75f};
    float ids[MOST], weights[MOST];
    route(rule, scores, bias, 8, chosen, ids, weights);
    for (int i = 0; i < chosen; i++) {
        cr_expect_eq(ids[i], expected_ids[i], "%d: got %g", i, (double)ids[i]);
        cr_expect_float_eq(weights[i], expected[i], 1e-6, "%d: got %g", i, (double)weights[i]);
    }
}

Test(experts, sigmoids_weigh_and_a_bias_chooses)
{
    const float bias[] = {0, 0.9f, 0, 0, -1, 0, 0, 0};
    const float b = sigmoid(-1), c = sigmoid(2), d = sigmoid(1);
    expect_routed(&(struct route_rule){.score = ROUTE_SIGMOID}, NULL, 2, (float[]){2, 4},
                  (float[]){c, d});
    expect_routed(&(struct route_rule){.score = ROUTE_SIGMOID}, bias, 2, (float[]){1, 2},
                  (float[]){b, c});
    expect_routed(&(struct route_rule){.score = ROUTE_SIGMOID, .renormalize = true, .factor = 2.5f},
                  bias, 2, (float[]){1, 2}, (float[]){2.5f * b / (b + c), 2.5f * c / (b + c)});
    expect_routed(&(struct route_rule){.score = ROUTE_SIGMOID, .renormalize = true, .least = 0.5f},
                  NULL, 2, (float[]){2, 4}, (float[]){c / (c + d + 0.5f), d / (c + d + 0.5f)});
    /* groups of two: the second one has the greatest sum, then come the third and the first */
    expect_routed(&(struct route_rule){.score = ROUTE_SIGMOID, .groups = 4, .top_groups = 1}, NULL,
                  2, (float[]){2, 3}, (float[]){c, sigmoid(0.25f)});
    expect_routed(&(struct route_rule){.score = ROUTE_SIGMOID, .groups = 4, .top_groups = 2}, NULL,
                  3, (float[]){2, 3, 4}, (float[]){c, sigmoid(0.25f), d});
    expect_routed(&(struct route_rule){.score = ROUTE_SIGMOID, .groups = 2, .top_groups = 1}, bias,
                  2, (float[]){1, 2}, (float[]){b, c});
}

/* ---- products ---- */

enum { EXPERTS = 5, CHOSEN = 3, IN = 70, OUT = 45, ROWS = 230 };

/* A product's arguments, with a router's choices that `choose` makes. */
struct routed {
    struct backend *backend;
    struct weight *all, *alone[EXPERTS];
    float *x, *choices;
};

static struct backend *open_backend(const char *set, enum weight_format format)
{
    const struct cpu_options options = {
        .threads = 2, .instruction_set = set, .weights = format, .share_always = true};
    const struct ops_limits limits = {.max_rows = ROWS,
                                      .max_input = (IN + 31) / 32 * 32,
                                      .max_experts = EXPERTS,
                                      .max_chosen = CHOSEN,
                                      .max_routed = CHOSEN * (IN + OUT)};
    struct backend *backend = NULL;
    if (cpu_open(&backend, &options, NULL) != 0)
        return NULL;
    cr_assert(cpu_ops.prepare(backend, &limits, NULL) == 0);
    return backend;
}

static void pack(struct routed *routed, enum weight_format format, const float *numbers,
                 const float *biases)
{
    struct matrix parts[EXPERTS];
    for (int e = 0; e < EXPERTS; e++)
        parts[e] = (struct matrix){.rows = OUT,
                                   .cols = IN,
                                   .dtype = DTYPE_F32,
                                   .data = numbers + e * OUT * IN,
                                   .bias = biases + e * OUT};
    cr_assert(cpu_ops.weight_create(routed->backend, &routed->all, parts, EXPERTS, EXPERTS, format,
                                    NULL) == 0);
    for (int e = 0; e < EXPERTS; e++)
        cr_assert(cpu_ops.weight_create(routed->backend, &routed->alone[e], &parts[e], 1, 1, format,
                                        NULL) == 0);
}

/* Expert i of a row: all rows choose the same ones, or each its own. */
static int choice(bool same, int row, int i)
{
    static const int sets[][CHOSEN] = {{0, 2, 4}, {0, 1, 2}, {2, 3, 4}, {1, 3, 4}};
    return sets[same ? 0 : row % 4][i];
}

/* Each row has the bits of ordinary products, of that row alone, with the matrices of its experts.
 */
static void check_routed(struct routed *routed, int rows, bool same, bool by_part, const char *what)
{
    const int64_t x_stride = CHOSEN * IN, y_stride = CHOSEN * OUT + 3;
    float *y = bench_nans((size_t)(rows * y_stride)), alone[OUT];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < CHOSEN; i++)
            routed->choices[r * 2 * CHOSEN + i] = (float)choice(same, r, i);
    perform_matmul(&cpu_ops, routed->backend,
                   &(struct ops_matmul){.weight = routed->all,
                                        .num_rows = rows,
                                        .x = {routed->x, x_stride},
                                        .y = {y, y_stride},
                                        .activation = FORMULA_SILU,
                                        .chosen = CHOSEN,
                                        .by_part = by_part,
                                        .choices = {routed->choices, 2 * CHOSEN}});
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < CHOSEN; i++) {
            float *x = routed->x + r * x_stride + (by_part ? i * IN : 0);
            perform_matmul(&cpu_ops, routed->backend,
                           &(struct ops_matmul){.weight = routed->alone[choice(same, r, i)],
                                                .num_rows = 1,
                                                .x = {x, IN},
                                                .y = {alone, OUT},
                                                .activation = FORMULA_SILU});
            const void *part = y + r * y_stride + i * OUT, *expected = alone;
            cr_expect(memcmp(part, expected, sizeof alone) == 0, "%s: row %d of %d, expert %d",
                      what, r, rows, i);
        }
    free(y);
}

Test(experts, a_row_has_the_bits_of_products_with_its_experts_alone)
{
    static const char *const sets[] = {"generic", "avx2", "avx512", "avx512vnni", "amx_emulated"};
    static const enum weight_format formats[] = {WEIGHTS_F32, WEIGHTS_BF16, WEIGHTS_F16,
                                                 WEIGHTS_Q8,  WEIGHTS_Q6,   WEIGHTS_Q4};
    static const int rows[] = {1, 2, 7, ROWS};
    float *numbers = bench_floats(EXPERTS * OUT * IN, -1, 1, 1);
    float *biases = bench_floats(EXPERTS * OUT, -1, 1, 2);
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            struct routed routed = {.backend = open_backend(sets[s], formats[f])};
            if (routed.backend == NULL)
                continue;
            cpu_ops.begin(routed.backend, &(struct batch){.num_rows = 1});
            pack(&routed, formats[f], numbers, biases);
            routed.x = bench_floats(ROWS * CHOSEN * IN, -2, 2, 3);
            routed.choices = bench_nans(ROWS * 2 * CHOSEN);
            for (int n = 0; n < 4; n++)
                for (int k = 0; k < 4; k++)
                    check_routed(&routed, rows[n], k % 2 == 1, k / 2 == 1, sets[s]);
            cpu_ops.send(routed.backend, NULL, 0);
            cpu_ops.weight_free(routed.backend, routed.all);
            for (int e = 0; e < EXPERTS; e++)
                cpu_ops.weight_free(routed.backend, routed.alone[e]);
            free(routed.x);
            free(routed.choices);
            cpu_ops.close(routed.backend);
        }
    free(numbers);
    free(biases);
}

/* ---- models ---- */

#define MIX "config.json: blocks.two_of_four[0].branches[1].mlp"
static const struct change changes[] = {
    {"blocks/two_of_four/0/branches/1/mlp/num_experts", "1",
     MIX ".num_experts: expected an integer in [2, 512], got 1"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts", "0",
     MIX ".num_experts: expected an integer in [2, 512], got 0"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts", "513",
     MIX ".num_experts: expected an integer in [2, 512], got 513"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts", "\"4\"",
     MIX ".num_experts: expected an integer in [2, 512], got \"4\""},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts", NULL,
     MIX ".num_experts_per_tok: only an mlp with num_experts has it"},
    {"blocks/two_of_four/0/branches/1/mlp", "{\"norm_topk_prob\": true}",
     MIX ".norm_topk_prob: only an mlp with num_experts has it"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts_per_tok", NULL,
     MIX ".num_experts_per_tok: expected an integer in [1, 4], got nothing"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts_per_tok", "0",
     MIX ".num_experts_per_tok: expected an integer in [1, 4], got 0"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts_per_tok", "5",
     MIX ".num_experts_per_tok: expected an integer in [1, 4], got 5"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts_per_tok", "4", NULL},
    {"blocks/two_of_four/0/branches/1/mlp/norm_topk_prob", "1",
     MIX ".norm_topk_prob: expected true or false, got 1"},
    {"blocks/two_of_four/0/branches/1/mlp/num_experts", "512", NULL},
};

Test(experts, configurations)
{
    expect_changes("experts", changes, sizeof changes / sizeof *changes);
}

/* `operations` and `weight_bytes` are those of the experts that tokens meet. */
Test(experts, a_token_costs_what_its_experts_cost)
{
    const struct engine_options options = {.threads = 1};
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, GOLDEN_DIRECTORY "experts", &options, &err) == 0, "%s",
              err.message);
    const struct program *program = engine_program(engine);
    double routed = 0, bytes[3] = {0}, all = (double)engine_info(engine)->weights_bytes;
    for (int i = 0; i < program->num_operations; i++) {
        const struct operation *operation = &program->operations[i];
        if (operation->kind != OPERATION_MATMUL || operation->matmul.chosen == 0)
            continue;
        const double packed =
            (double)program->ops->weight_bytes(operation->weight->packed, WEIGHTS_AUTO);
        const double elements = (double)operation->weight->rows * (double)operation->weight->cols;
        cr_expect_eq(operation->weight->heads, 2 * operation->matmul.chosen);
        cr_expect_eq(cost_of_operation(operation).operations, elements); /* half of two each */
        cr_expect_null(operation->matmul.next);
        routed += packed;
    }
    cr_expect_gt(routed, 0);
    for (int batch = 1; batch <= 3; batch++)
        bytes[batch - 1] =
            cost_of(program, &(struct cost_texts){.generates = true, .tokens = 1, .batch = batch})
                .weight_bytes;
    cr_expect_float_eq(bytes[0], all - routed / 2, 0.5);
    cr_expect_float_eq(bytes[1], all - routed / 4, 0.5); /* if they choose at random */
    cr_expect_float_eq(bytes[2], all - routed / 8, 0.5);
    /* as `regla info --json` tells of other formats */
    for (int format = WEIGHT_FORMAT_FIRST; format < WEIGHT_FORMAT_COUNT; format++) {
        double part = 0;
        for (int i = 0; i < program->num_operations; i++)
            if (program->operations[i].kind == OPERATION_MATMUL &&
                program->operations[i].matmul.chosen > 0)
                part += (double)program->ops->weight_bytes(program->operations[i].weight->packed,
                                                           (enum weight_format)format);
        cr_expect_float_eq(cost_weight_bytes(program, (enum weight_format)format,
                                             &(struct cost_texts){.batch = 1}),
                           (double)program->weights_bytes[format] - part / 2, 0.5);
    }
    /* as counted: three of four */
    cr_expect_eq(cost_experts(program), 2 + 4);
    cr_expect_float_eq(
        cost_weight_bytes(program, WEIGHTS_AUTO, &(struct cost_texts){.batch = 9, .experts = 0.75}),
        all - routed / 4, 0.5);
    engine_close(engine);
}

/* A model's router stays f32 whatever its other matrices become. */
Test(experts, routers_stay_f32)
{
    struct error err = ERROR_INIT;
    double bytes[2];
    for (int i = 0; i < 2; i++) {
        const struct engine_options options = {.threads = 1,
                                               .weights = i == 0 ? WEIGHTS_F32 : WEIGHTS_Q8};
        struct engine *engine = NULL;
        cr_assert(engine_open(&engine, GOLDEN_DIRECTORY "experts", &options, &err) == 0, "%s",
                  err.message);
        const struct program *program = engine_program(engine);
        bytes[i] = 0;
        for (int w = 0; w < program->num_weights; w++)
            if (strcmp(program->weights[w]->name, "router") == 0)
                bytes[i] +=
                    (double)program->ops->weight_bytes(program->weights[w]->packed, WEIGHTS_AUTO);
        engine_close(engine);
    }
    cr_expect(bytes[0] > 0 && bytes[0] == bytes[1], "%g and %g", bytes[0], bytes[1]);
}

Test(experts, are_not_quantized)
{
    const struct quantizer_options options = {.threads = 1, .max_step_tokens = 16};
    struct quantizer *quantizer;
    struct model *model;
    struct error err = ERROR_INIT;
    cr_assert(quantizer_open(&quantizer, &options, &err) == 0, "%s", err.message);
    cr_assert(model_open(&model, GOLDEN_DIRECTORY "experts", &err) == 0, "%s", err.message);
    cr_expect(quantizer_start(quantizer, model, &err) != 0);
    cr_expect(strstr(err.message, "expected MLPs without experts, got 2 experts in layer 0"), "%s",
              err.message);
    quantizer_close(quantizer);
    model_close(model);
}

/* A preset's experts are drawn as its other matrices are. */
Test(experts, of_a_preset)
{
    json_t *config = golden_config("experts");
    json_object_set_new(config, "shapes",
                        json_pack("{si si si sb sb}", "head_dim", 6, "value_dim", 5, "features", 6,
                                  "glu", true, "bias", false));
    char *text = json_dumps(config, 0);
    struct model *model;
    struct engine *engine;
    struct error err = ERROR_INIT;
    cr_assert(preset_load(&model, "experts", text, &err) == 0, "%s", err.message);
    const struct mlp *mlp = layer_branch(&model->layers[1], 1)->mlp;
    cr_expect(mlp->num_experts == 4 && mlp->router.rows == 4 &&
              mlp->experts[3].gate_proj.rows == 21);
    cr_expect(memcmp(mlp->experts[0].up_proj.data, mlp->experts[1].up_proj.data,
                     model_matrix_bytes(&mlp->experts[0].up_proj)) != 0);
    const struct engine_options options = {.threads = 1, .weights = WEIGHTS_Q8};
    cr_assert(engine_open_model(&engine, model, &options, &err) == 0, "%s", err.message);
    engine_close(engine);
    json_decref(config);
    free(text);
}
