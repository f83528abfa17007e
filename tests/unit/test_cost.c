/* SPDX-License-Identifier: Apache-2.0 */
/* What models cost: operations, bytes, and the longest text, by the budget and by the device. */
#include "engine/cost.h"
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
        "mamba2",       "falcon_h1",       "granitemoehybrid",   "nemotron_h"};
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
        struct cost_layer sum = {0};
        for (int layer = 0; layer < model->num_layers; layer++) {
            const struct cost_layer cost = cost_of_layer(engine, layer);
            sum.weight_bytes += cost.weight_bytes;
            sum.state_bytes += cost.state_bytes;
            sum.kv_bytes_per_token += cost.kv_bytes_per_token;
            sum.operations += cost.operations;
        }
        const double head = (double)model->lm_head.rows * (double)model->lm_head.cols;
        const double padding = 64.0 * model->num_layers * 4;
        cr_expect_float_eq(sum.operations, cost_of(model, info, &first).operations - 2 * head, 0.5);
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
static struct mixer mixers[2];
static struct mlp mlp = {.up_proj = {.rows = 32, .cols = 8}, .down_proj = {.rows = 8, .cols = 32}};
static struct block blocks[2][2];
static struct layer layers[2];
static const struct model model = {
    .num_layers = 2, .hidden_size = 8, .lm_head = {.rows = 100, .cols = 8}, .layers = layers};
static const struct engine_info info = {.weights_bytes = 5000, .kv_bytes_per_token = 64};

enum { MLP = 2 * 8 * 32, HEAD = 8 * 100 };

static void fill_layers(enum window_kind window)
{
    const struct matrix square = {.rows = 8, .cols = 8}, half = {.rows = 4, .cols = 8};
    for (int i = 0; i < 2; i++) {
        mixers[i] = (struct mixer){.num_heads = 2,
                                   .head_dim = 4,
                                   .value_dim = 4,
                                   .features = 4,
                                   .features_positioned = 4,
                                   .q_proj = square,
                                   .o_proj = square};
        blocks[i][0] = (struct block){.branches = {{.mixer = &mixers[i]}}, .num_branches = 1};
        blocks[i][1] = (struct block){.branches = {{.mlp = &mlp}}, .num_branches = 1};
        layers[i] = (struct layer){.blocks = blocks[i], .num_blocks = 2};
    }
    struct mixer *linear = &mixers[0], *softmax = &mixers[1];
    linear->kind = MIXER_LINEAR;
    linear->gate = GATE_REFINED;
    linear->num_kv_heads = linear->num_qk_heads = 2;
    linear->k_proj = linear->v_proj = linear->g_proj = linear->r_proj = square;
    softmax->kind = MIXER_SOFTMAX;
    softmax->num_kv_heads = 1;
    softmax->k_proj = softmax->v_proj = half;
    softmax->window = window;
    softmax->window_size = 3;
}

static const double PER_TOKEN = 2.0 * (6 * 64 + MLP)         /* the first layer's products */
                                + 5.0 * 4 * 4 * 2            /* its recurrence: 5 for each of S */
                                + 2.0 * (2 * 64 + 64 + MLP); /* the second layer's products */
static const double STATE = 2.0 * (16 * 4 * 4) * 2;          /* read and written, of two heads */
static const double PER_KEY = 2.0 * (4 + 4) * 2;             /* q.k and score v, of two heads */

static struct cost need_of(bool generates, int tokens, int depth, int batch)
{
    const struct cost_texts texts = {
        .generates = generates, .tokens = tokens, .depth = depth, .batch = batch};
    return cost_of(&model, &info, &texts);
}

static void expect_close(double got, double expected)
{
    cr_expect(fabs(got - expected) < 1e-6 * expected + 1e-9, "expected %.17g, got %.17g", expected,
              got);
}

Test(cost, a_prompt_needs_operations)
{
    fill_layers(WINDOW_FULL);
    struct cost need = need_of(false, 3, 0, 1); /* sees 1 + 2 + 3 keys */
    expect_close(need.operations, 3 * PER_TOKEN + 6 * PER_KEY + 2 * HEAD);
    cr_expect(need.bytes == 0 && need.weight_bytes == 0);
    need = need_of(false, 2, 10, 4); /* sees 11 + 12 */
    expect_close(need.operations, 4 * (2 * PER_TOKEN + 23 * PER_KEY + 2 * HEAD));
}

Test(cost, generating_needs_bytes)
{
    fill_layers(WINDOW_FULL);
    struct cost need = need_of(true, 3, 0, 1); /* reads 1 + 2 + 3 keys, writes 3 */
    expect_close(need.weight_bytes, 3 * 5000);
    expect_close(need.bytes, 3 * 5000 + 3 * STATE + 64 * (6 + 3));
    expect_close(need.operations, 3 * PER_TOKEN + 6 * PER_KEY + 3 * 2 * HEAD);
    need = need_of(true, 2, 10, 4);
    expect_close(need.weight_bytes, 2 * 5000);
    expect_close(need.bytes, 2 * 5000 + 4 * (2 * STATE + 64 * (23 + 2)));
}

Test(cost, a_window_bounds_what_is_seen)
{
    const double ring = (4 + 4) * 4; /* f32 of one key head */
    fill_layers(WINDOW_SLIDING);     /* of 3: positions 0 to 4 see 1, 2, 3, 3, 3 */
    expect_close(need_of(true, 5, 0, 1).bytes, 5 * 5000 + 5 * STATE + ring * (12 + 5));
    expect_close(need_of(false, 5, 0, 1).operations, 5 * PER_TOKEN + 12 * PER_KEY + 2 * HEAD);
    fill_layers(WINDOW_BLOCK); /* of 3: positions 2 to 6 see 3, 1, 2, 3, 1 */
    expect_close(need_of(false, 5, 2, 1).operations, 5 * PER_TOKEN + 10 * PER_KEY + 2 * HEAD);
}

/* Of 4 tokens, over 24 channels: each token multiplies 4 rows, reads 3 and writes 1. A mixer that
 * is a convolution, of 8 channels, multiplies twice more, before and behind it. */
Test(cost, convolutions_need_their_rows)
{
    fill_layers(WINDOW_FULL);
    mixers[0].conv.width = 4;
    expect_close(need_of(false, 3, 0, 1).operations,
                 3 * (PER_TOKEN + 2 * 4 * 24) + 6 * PER_KEY + 2 * HEAD);
    expect_close(need_of(true, 3, 0, 1).bytes, 3 * 5000 + 3 * (STATE + 4 * 24 * 4) + 64 * (6 + 3));
    mixers[0] = (struct mixer){.kind = MIXER_CONV,
                               .num_heads = 1,
                               .value_dim = 8,
                               .conv = {.width = 3},
                               .in_proj = {.rows = 24, .cols = 8},
                               .o_proj = {.rows = 8, .cols = 8}};
    const double products = 2.0 * (4 * 64 + MLP) + 2.0 * (2 * 64 + 64 + MLP);
    expect_close(need_of(false, 3, 0, 1).operations,
                 3 * (products + 2 * 3 * 8 + 2 * 8) + 6 * PER_KEY + 2 * HEAD);
    expect_close(need_of(true, 3, 0, 1).bytes, 3 * 5000 + 3 * (3 * 8 * 4) + 64 * (6 + 3));
}

Test(cost, segments_need_their_sums_and_vectors)
{
    const double ring = (4 + 4) * 4, sums = 2 * (2 + 4 + 4) * 4; /* two vectors */
    fill_layers(WINDOW_LONG_SHORT); /* positions 2 to 6 see 0, 0, 2, 2, 2 vectors */
    mixers[1].segment_length = 4;
    mixers[1].segment_rank = 2;
    expect_close(need_of(false, 5, 2, 1).operations,
                 5 * PER_TOKEN + (15 + 6 + 5 * 2) * PER_KEY + 2 * HEAD);
    expect_close(need_of(true, 5, 2, 1).bytes,
                 5 * (5000 + STATE + 2 * sums) + ring * (15 + 5) + 64 * (3 + 4 + 5 + 6 + 7 + 5));
}

Test(cost, slices_need_what_the_whole_does)
{
    static const enum window_kind windows[] = {WINDOW_FULL, WINDOW_SLIDING, WINDOW_BLOCK};
    for (int i = 0; i < 3; i++) {
        fill_layers(windows[i]);
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
