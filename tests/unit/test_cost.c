/* SPDX-License-Identifier: Apache-2.0 */
/* What models cost: operations, bytes, and the longest text, by the budget and by the device. */
#include "engine/cost.h"
#include "engine/model/model.h"
#include "tests/unit/golden_cases.h"

#include <criterion/criterion.h>
#include <math.h>

Test(cost, the_longest_text_fits_the_budget_and_a_step)
{
    const struct engine_options options = {.threads = 1, .state_memory_bytes = (size_t)4 << 20};
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, GOLDEN_DIRECTORY "hybrid_regla", &options, &err) == 0, "%s",
              err.message);
    struct engine_info *info = (struct engine_info *)engine_info(engine); /* as another device's */
    int64_t longest = cost_longest_text(engine, 0);
    cr_expect(engine_state_bytes(engine, longest) <= info->state_memory_bytes);
    cr_expect(engine_state_bytes(engine, longest + 1) > info->state_memory_bytes);
    int64_t pages = (longest + info->kv_page_tokens - 1) / info->kv_page_tokens;
    cr_assert_gt(pages, 3);
    info->max_step_pages = pages;
    cr_expect_eq(cost_longest_text(engine, 0), longest);
    info->max_step_pages = 3;
    cr_expect_eq(cost_longest_text(engine, 0), 3 * info->kv_page_tokens);
    engine_close(engine);
}

/* What layers cost is all that a text keeps, but for padding, and all operations but the head's. */
Test(cost, of_each_layer)
{
    static const char *const names[] = {
        "hybrid_regla", "blocks_branches", "blocks_post_norm",   "transformer_ls",
        "flash",        "convolutions",    "gated_convolutions", "lfm2",
        "mamba2",       "falcon_h1",       "granitemoehybrid",   "nemotron_h",
        "experts"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct engine_options options = {.threads = 1};
        const struct cost_texts first = {.generates = false, .tokens = 1, .batch = 1};
        struct engine *engine = NULL;
        struct error err = ERROR_INIT;
        char path[512];
        snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", names[i]);
        cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s", err.message);
        const struct engine_info *info = engine_info(engine);
        const struct model *model = engine_model(engine);
        const struct program *program = engine_program(engine);
        struct cost_layer sum = {0};
        for (int layer = 0; layer < model->num_layers; layer++) {
            const struct cost_layer cost = cost_of_layer(program, layer);
            sum.weight_bytes += cost.weight_bytes;
            sum.state_bytes += cost.state_bytes;
            sum.kv_bytes_per_token += cost.kv_bytes_per_token;
            sum.operations += cost.operations;
        }
        const double head = (double)model->lm_head.rows * (double)model->lm_head.cols;
        const double padding = 64.0 * model->num_layers * 4;
        cr_expect_float_eq(sum.operations, cost_of(program, &first).operations - 2 * head, 0.5);
        cr_expect(sum.weight_bytes > 0 && sum.weight_bytes < (double)info->weights_bytes);
        cr_expect(sum.state_bytes <= (double)info->recurrent_bytes_per_text &&
                      sum.state_bytes > (double)info->recurrent_bytes_per_text - padding,
                  "%s", names[i]);
        cr_expect(sum.kv_bytes_per_token <= (double)info->kv_bytes_per_token + 1 &&
                      sum.kv_bytes_per_token > (double)info->kv_bytes_per_token - padding / 64,
                  "%s", names[i]);
        engine_close(engine);
    }
}

/* Two layers of hidden size 8, vocabulary 100, MLP 32: refined ReGLA with 2 heads of 4 (a state of
 * 4 rows lies as 16), and softmax with 2 heads of 4 and one of keys. */
static struct program_weight projections[2] = {{.rows = 40, .cols = 8}, {.rows = 16, .cols = 8}};
static struct program_weight output = {.rows = 8, .cols = 8}, up = {.rows = 32, .cols = 8},
                             down = {.rows = 8, .cols = 32}, head = {.rows = 100, .cols = 8};
static float number; /* what is there of a factor */
enum { CONV = 2, LINEAR = 6, SEGMENTS = 7, SOFTMAX = 8, OPERATIONS = 16 };
static struct operation operations[OPERATIONS];
static const struct program program = {.operations = operations,
                                       .num_operations = OPERATIONS,
                                       .weights_bytes = {[WEIGHTS_AUTO] = 5000}};

enum { MLP = 2 * 8 * 32, HEAD = 8 * 100 };

static struct operation product(const struct program_weight *weight, enum operation_when when)
{
    return (struct operation){.kind = OPERATION_MATMUL, .when = when, .weight = weight};
}

static void fill_program(enum window_kind window)
{
    const struct program_weight *const weights[] = {
        &projections[0], &projections[1], &output, &output, &up, &up, &down, &down};
    for (int i = 0; i < OPERATIONS; i++)
        operations[i] = (struct operation){.kind = OPERATION_NORM};
    for (int i = 0; i < 8; i++)
        operations[i < 2 ? i : i + 7] = product(weights[i], WHEN_ALWAYS);
    operations[3] = product(&head, WHEN_SOME_LOGITS);
    operations[4] = product(&head, WHEN_ALL_LOGITS);
    operations[LINEAR].kind = OPERATION_RECURRENCE;
    operations[LINEAR].recurrence = (struct ops_recurrence){.num_heads = 2,
                                                            .num_qk_heads = 2,
                                                            .num_kv_heads = 2,
                                                            .value_dim = 4,
                                                            .features = 4,
                                                            .row_decay.u = {&number, 16}};
    operations[SOFTMAX].kind = OPERATION_ATTENTION;
    operations[SOFTMAX].attention = (struct ops_attention){.num_heads = 2,
                                                           .num_kv_heads = 1,
                                                           .key_dim = 4,
                                                           .value_dim = 4,
                                                           .window = window,
                                                           .window_size = 3,
                                                           .kv = KV_F32};
}

static const double PER_TOKEN = 2.0 * (6 * 64 + MLP)         /* the first layer's products */
                                + 5.0 * 4 * 4 * 2            /* its recurrence: 5 for each of S */
                                + 2.0 * (2 * 64 + 64 + MLP); /* the second layer's products */
static const double STATE = 2.0 * (16 * 4 * 4) * 2;          /* read and written, of two heads */
static const double PER_KEY = 2.0 * (4 + 4) * 2;             /* q.k and score v, of two heads */
enum { PAGES = (4 + 16) * 4 };                               /* of a token: K, V padded to 16 */

static struct cost need_of(bool generates, int tokens, int depth, int batch)
{
    const struct cost_texts texts = {
        .generates = generates, .tokens = tokens, .depth = depth, .batch = batch};
    return cost_of(&program, &texts);
}

static void expect_close(double got, double expected)
{
    cr_expect(fabs(got - expected) < 1e-6 * expected + 1e-9, "expected %.17g, got %.17g", expected,
              got);
}

Test(cost, a_prompt_needs_operations)
{
    fill_program(WINDOW_FULL);
    struct cost need = need_of(false, 3, 0, 1); /* sees 1 + 2 + 3 keys */
    expect_close(need.operations, 3 * PER_TOKEN + 6 * PER_KEY + 2 * HEAD);
    cr_expect(need.bytes == 0 && need.weight_bytes == 0);
    need = need_of(false, 2, 10, 4); /* sees 11 + 12 */
    expect_close(need.operations, 4 * (2 * PER_TOKEN + 23 * PER_KEY + 2 * HEAD));
}

Test(cost, generating_needs_bytes)
{
    fill_program(WINDOW_FULL);
    struct cost need = need_of(true, 3, 0, 1); /* reads 1 + 2 + 3 keys, writes 3 */
    expect_close(need.weight_bytes, 3 * 5000);
    expect_close(need.bytes, 3 * 5000 + 3 * STATE + PAGES * (6 + 3));
    expect_close(need.operations, 3 * PER_TOKEN + 6 * PER_KEY + 3 * 2 * HEAD);
    need = need_of(true, 2, 10, 4);
    expect_close(need.weight_bytes, 2 * 5000);
    expect_close(need.bytes, 2 * 5000 + 4 * (2 * STATE + PAGES * (23 + 2)));
}

Test(cost, a_window_bounds_what_is_seen)
{
    const double ring = (4 + 4) * 4; /* f32 of one key head */
    fill_program(WINDOW_SLIDING);    /* of 3: positions 0 to 4 see 1, 2, 3, 3, 3 */
    expect_close(need_of(true, 5, 0, 1).bytes, 5 * 5000 + 5 * STATE + ring * (12 + 5));
    expect_close(need_of(false, 5, 0, 1).operations, 5 * PER_TOKEN + 12 * PER_KEY + 2 * HEAD);
    fill_program(WINDOW_BLOCK); /* of 3: positions 2 to 6 see 3, 1, 2, 3, 1 */
    expect_close(need_of(false, 5, 2, 1).operations, 5 * PER_TOKEN + 10 * PER_KEY + 2 * HEAD);
}

/* Of 4 tokens, over 24 channels: each token multiplies 4 rows, reads 3 and writes 1. */
Test(cost, convolutions_need_their_rows)
{
    fill_program(WINDOW_FULL);
    operations[CONV].kind = OPERATION_CONV;
    operations[CONV].conv = (struct ops_conv){.width = 4, .channels = 24};
    expect_close(need_of(false, 3, 0, 1).operations,
                 3 * (PER_TOKEN + 2 * 4 * 24) + 6 * PER_KEY + 2 * HEAD);
    expect_close(need_of(true, 3, 0, 1).bytes,
                 3 * 5000 + 3 * (STATE + 4 * 24 * 4) + PAGES * (6 + 3));
}

Test(cost, segments_need_their_sums_and_vectors)
{
    const struct ops_segments segments = {
        .num_heads = 1, .key_dim = 4, .value_dim = 4, .length = 4, .rank = 2, .kv = KV_F32};
    const double ring = (4 + 4) * 4, sums = 2 * (2 + 4 + 4) * 4; /* two vectors */
    const double pages = (4 + 16) * 64 / 4 * 2 * 4 / 64.0;       /* of a token, likewise padded */
    fill_program(WINDOW_LONG_SHORT); /* positions 2 to 6 see 0, 0, 2, 2, 2 vectors */
    operations[SOFTMAX].attention.segments = &operations[SOFTMAX].vectors;
    operations[SOFTMAX].vectors = segments;
    operations[SEGMENTS].kind = OPERATION_SEGMENTS;
    operations[SEGMENTS].segments = segments;
    /* the sums are of heads of keys, of which there is one */
    expect_close(need_of(false, 5, 2, 1).operations,
                 5 * PER_TOKEN + (15 + 6 + 5 * 2 / 2.0) * PER_KEY + 2 * HEAD);
    expect_close(need_of(true, 5, 2, 1).bytes,
                 5 * (5000 + STATE + 2 * sums) + ring * (15 + 5) + pages * (3 + 4 + 5 + 6 + 7 + 5));
}

/* spe's codes are as many numbers for q as for k, of each cosine and sine. */
Test(cost, codes_are_products)
{
    fill_program(WINDOW_FULL);
    struct operation *linear = &operations[LINEAR];
    linear->recurrence.phi.after = &linear->after;
    linear->after = (struct ops_positions){.dim = 3, .num_sines = 2, .gated = true, .outputs = 4};
    expect_close(need_of(false, 3, 0, 1).operations,
                 3 * (PER_TOKEN + 2 * (2 + 2) * 3 * 5 * 4) + 6 * PER_KEY + 2 * HEAD);
}

Test(cost, slices_need_what_the_whole_does)
{
    static const enum window_kind windows[] = {WINDOW_FULL, WINDOW_SLIDING, WINDOW_BLOCK};
    for (int i = 0; i < 3; i++) {
        fill_program(windows[i]);
        struct cost whole = need_of(true, 7, 10, 4), sum = {0};
        for (int done = 0; done < 7; done += 3) {
            struct cost slice = need_of(true, done == 6 ? 1 : 3, 10 + done, 4);
            sum.weight_bytes += slice.weight_bytes;
            sum.bytes += slice.bytes;
            sum.operations += slice.operations;
        }
        expect_close(sum.weight_bytes, whole.weight_bytes);
        expect_close(sum.bytes, whole.bytes);
        expect_close(sum.operations, whole.operations);
    }
}
