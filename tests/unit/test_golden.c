/* SPDX-License-Identifier: Apache-2.0 */
/* The golden cases: right within their tolerance, and the same bits however they are computed. */
#include "cli/expected.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/ops/sampler.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/sanitized.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_TEXT = 150, OTHERS = 7 };
/* No case may ask for less with f32 keys and values: those of libraries' forward passes are so. */
static const double MOST_TOLERANCE = 5e-4;

#if defined(__aarch64__)
static const char *const sets[] = {"neonmm", "neondot", "neon", "generic"};
#else
static const char *const sets[] = {"avx512vnni", "avx512", "avx2", "generic"};
#endif
/* Those that multiply by tiles. */
static const char *const tile_sets[] = {"amx", "amx_emulated"};

/* What a test varies: threads, instruction_set, weights and kv of the options. */
static struct engine *open_case(const char *path, struct engine_options options)
{
    options.state_memory_bytes = (size_t)32 << 20;
    options.max_step_tokens = 256;
    options.max_step_logits = 256;
    options.poison = true;
    options.share_always = true;
    struct engine *engine = NULL;
    struct error err = ERROR_INIT;
    cr_assert(engine_open(&engine, path, &options, &err) == 0, "%s: %s", path, err.message);
    return engine;
}

/* Feeds the prompt and follows `greedy`; the worst error of all log-probabilities. */
static double worst_error(struct engine *engine, const struct expected *expected, const char *name)
{
    int32_t vocab = engine_info(engine)->vocab_size;
    size_t n = expected->num_prompt;
    double worst = 0.0;
    struct state *state;
    struct error err = ERROR_INIT;
    cr_assert(state_create(&state, engine, (int64_t)(n + expected->num_greedy), &err) == 0, "%s",
              err.message);
    struct span span = {
        .state = state, .tokens = expected->prompt, .num_tokens = (int)n, .num_logits = (int)n};
    cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s: %s", name, err.message);
    for (size_t i = 0; i < n; i++) {
        const float *logits = span.logits + i * (size_t)vocab;
        double error = i + 1 == n ? 0.0
                                  : fabs(logprob_of(logits, vocab, expected->prompt[i + 1]) -
                                         (double)expected->prompt_logprobs[i]);
        worst = error <= worst ? worst : error;
        for (size_t j = 0; j < EXPECTED_TOP; j++) {
            const struct token_logprob *top = &expected->top[i * EXPECTED_TOP + j];
            error = fabs(logprob_of(logits, vocab, top->id) - (double)top->logprob);
            worst = error <= worst ? worst : error;
        }
    }
    const float *last = span.logits + (n - 1) * (size_t)vocab;
    for (size_t i = 0; i < expected->num_greedy && expected->greedy_margin[i] >= 1e-3f; i++) {
        struct token_logprob best;
        logprobs_top(last, vocab, 0, 1, &best);
        cr_expect(best.id == expected->greedy[i], "%s: greedy[%zu]: expected %d, got %d", name, i,
                  expected->greedy[i], best.id);
        struct span next = {
            .state = state, .tokens = &expected->greedy[i], .num_tokens = 1, .num_logits = 1};
        cr_assert(engine_step(engine, &next, 1, &err) == 0, "%s: %s", name, err.message);
        last = next.logits;
    }
    state_free(state);
    return worst;
}

static void check_values_with(const char *path, const char *name, const char *set,
                              enum kv_format kv)
{
    struct engine *engine =
        open_case(path, (struct engine_options){.threads = 2, .instruction_set = set, .kv = kv});
    struct expected expected;
    struct error err = ERROR_INIT;
    cr_assert(expected_open(&expected, path, engine_info(engine)->vocab_size, &err) == 0, "%s",
              err.message);
    double worst = worst_error(engine, &expected, name);
    double tolerance =
        engine_info(engine)->kv == KV_F32 ? expected.tolerance_f32 : expected.tolerance;
    cr_expect(expected.tolerance_f32 <= MOST_TOLERANCE, "%s: %g", name, expected.tolerance_f32);
    cr_expect(worst <= tolerance, "%s on %s, KV %s: %g, tolerance %g", name, set,
              kv_format_name(engine_info(engine)->kv), worst, tolerance);
    expected_clear(&expected);
    engine_close(engine);
}

/* The format of a case's file. */
static enum weight_format weights_of(const char *path)
{
    struct engine *engine = open_case(path, (struct engine_options){.threads = 1});
    const enum weight_format weights = engine_info(engine)->weights;
    engine_close(engine);
    return weights;
}

/* Which sets a machine has: test_instruction_set.c. */
static void need_set(const char *set)
{
    if (!golden_has_set(set))
        cr_skip_test("no %s on this machine", set);
}

static void check_values(const char *set)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        check_values_with(path, name, set, KV_AUTO);
        check_values_with(path, name, set, KV_F32);
    }
}

Test(golden, every_case_is_right_on_the_second_best_set)
{
    need_set(sets[1]);
    check_values(sets[1]);
}

Test(golden, every_case_is_right_on_the_third_best_set)
{
    need_set(sets[2]);
    check_values(sets[2]);
}

/* Files in bf16 and f16 alone: with others no product of these sets is one by tiles. */
static void check_tile_values(const char *set)
{
    char path[512], name[256];
    int cases = 0;
    need_set(set);
    for (int i = 0; golden_case(i, path, name); i++)
        if (weights_of(path) == WEIGHTS_BF16 || weights_of(path) == WEIGHTS_F16) {
            check_values_with(path, name, set, KV_F32);
            cases++;
        }
    cr_expect(cases > 5, "%d cases", cases);
}

Test(golden, cases_in_two_bytes_are_right_on_amx)
{
    check_tile_values(tile_sets[0]);
}

Test(golden, cases_in_two_bytes_are_right_on_emulated_amx)
{
    check_tile_values(tile_sets[1]);
}

Test(golden, every_case_is_right_on_the_portable_kernels)
{
    check_values(sets[3]);
}

struct text {
    struct state *state;
    int32_t tokens[LONG_TEXT];
    int length, done, chunk;
};

static void start_text(struct text *text, struct engine *engine, int which, int length, int chunk)
{
    struct error err = ERROR_INIT;
    *text = (struct text){.length = length, .chunk = chunk};
    for (int i = 0; i < length; i++)
        text->tokens[i] = golden_token(which, i, engine_info(engine)->vocab_size);
    cr_assert(state_create(&text->state, engine, length, &err) == 0, "%s", err.message);
}

/* Runs text 0 to its end, `chunk` tokens a step, beside `others` texts of other lengths and
 * chunks that come and go; its logits are [length, V] in out. */
static void run_text(struct engine *engine, int length, int chunk, int others, float *out)
{
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    struct text texts[1 + OTHERS];
    struct error err = ERROR_INIT;
    start_text(&texts[0], engine, 0, length, chunk);
    for (int i = 1; i <= others; i++)
        start_text(&texts[i], engine, i, length - 3 * i, i % 5 + 1);
    for (int step = 0; texts[0].done < length; step++) {
        struct span spans[1 + OTHERS];
        int owners[1 + OTHERS], count = 0;
        for (int i = 0; i <= others; i++) {
            int which = (i + step) % (others + 1); /* the place in the step changes as well */
            struct text *text = &texts[which];
            int n =
                text->length - text->done < text->chunk ? text->length - text->done : text->chunk;
            if (n == 0)
                continue;
            spans[count] = (struct span){.state = text->state,
                                         .tokens = text->tokens + text->done,
                                         .num_tokens = n,
                                         .num_logits = which == 0 ? n : step % 2};
            owners[count++] = which;
        }
        cr_assert(engine_step(engine, spans, count, &err) == 0, "%s", err.message);
        for (int i = 0; i < count; i++) {
            struct text *text = &texts[owners[i]];
            if (owners[i] == 0)
                memcpy(out + (size_t)text->done * vocab, spans[i].logits,
                       (size_t)spans[i].num_tokens * vocab * sizeof(float));
            text->done += spans[i].num_tokens;
        }
    }
    for (int i = 0; i <= others; i++)
        state_free(texts[i].state);
}

static void check_bits(const char *path, const char *name, struct engine_options options,
                       const int *chunks, int num_chunks)
{
    int threads = options.threads;
    struct engine *engine = open_case(path, options);
    options.threads = 1;
    struct engine *one = open_case(path, options);
    const struct engine_info *info = engine_info(one);
    int length = LONG_TEXT;
    if (info->max_positions > 0 && info->max_positions < length)
        length = (int)info->max_positions;
    if (threads > 1 && length > 75) /* still beyond a tile and a page */
        length = 75;
    size_t bytes = (size_t)length * (size_t)info->vocab_size * sizeof(float);
    float *expected = malloc(bytes), *got = malloc(bytes);
    run_text(one, length, length, 0, expected);
    cr_expect(isfinite(expected[bytes / sizeof(float) - 1]), "%s", name);
    for (int i = 0; i < num_chunks; i++)
        for (int others = 0; others <= OTHERS; others += OTHERS) {
            memset(got, 0xff, bytes);
            run_text(engine, length, chunks[i], others, got);
            cr_expect(memcmp(expected, got, bytes) == 0,
                      "%s on %s, %s: other bits with %d threads, chunks of %d, beside %d", name,
                      info->instruction_set, weight_format_name(options.weights), threads,
                      chunks[i], others);
        }
    struct engine_memory memory;
    engine_memory(engine, &memory);
    cr_expect(memory.states == 0 && memory.kv_reserved_bytes == 0 &&
              memory.recurrent_reserved_bytes == 0);
    free(expected);
    free(got);
    engine_close(one);
    engine_close(engine);
}

static void check_all_bits(const char *set, enum weight_format weights, int threads,
                           const int *chunks, int num_chunks)
{
    const struct engine_options options = {
        .instruction_set = set, .weights = weights, .threads = threads};
    char path[512], name[256];
    /* The products of a format know nothing of the mixer. */
    int step = SANITIZED && weights != WEIGHTS_AUTO ? 4 : 1;
    for (int i = 0; golden_case(i, path, name); i += step)
        check_bits(path, name, options, chunks, num_chunks);
}

static const int all_chunks[] = {1, 3, 7};
static const int one_chunk[] = {7};

Test(golden, bits_do_not_depend_on_chunks_and_batch)
{
    check_all_bits(NULL, WEIGHTS_AUTO, 1, all_chunks, 3);
}

/* Tokens that a model's first convolution looks back; 0: it has none. */
static int reach_of(const char *path)
{
    struct engine *engine = open_case(path, (struct engine_options){.threads = 1});
    const struct model *model = engine_model(engine);
    int reach = 0;
    for (int i = 0; i < model->num_layers && reach == 0; i++) {
        const struct mixer *mixer = layer_branch(&model->layers[i], 0)->mixer;
        reach = mixer != NULL && mixer->conv.width > 0 ? mixer->conv.width - 1 : 0;
    }
    engine_close(engine);
    return reach;
}

/* A chunk that replaces all of a convolution's state, and one that leaves a row of it. */
Test(golden, bits_do_not_depend_on_chunks_of_a_convolutions_reach)
{
    char path[512], name[256];
    int cases = 0;
    for (int i = 0; golden_case(i, path, name); i++) {
        const int reach = reach_of(path);
        const int chunks[] = {reach, reach > 1 ? reach - 1 : reach + 1};
        if (reach == 0)
            continue;
        check_bits(path, name, (struct engine_options){.threads = 2}, chunks, 2);
        cases++;
    }
    cr_expect(cases > 10, "%d cases", cases);
}

Test(golden, bits_do_not_depend_on_two_threads)
{
    check_all_bits(NULL, WEIGHTS_AUTO, 2, all_chunks, 3);
}

Test(golden, bits_do_not_depend_on_three_threads)
{
    check_all_bits(NULL, WEIGHTS_AUTO, 3, all_chunks, 3);
}

Test(golden, bits_do_not_depend_on_the_step_on_the_third_best_set)
{
    need_set(sets[2]);
    check_all_bits(sets[2], WEIGHTS_AUTO, 3, one_chunk, 1);
}

Test(golden, bits_do_not_depend_on_the_step_on_the_portable_kernels)
{
    check_all_bits(sets[3], WEIGHTS_AUTO, 3, one_chunk, 1);
}

/* With 1 thread and 2, and on every instruction set with 1 and 3. */
static void check_format(enum weight_format weights)
{
    check_all_bits(NULL, weights, 2, one_chunk, 1);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (golden_has_set(sets[i]))
            check_all_bits(sets[i], weights, 3, one_chunk, 1);
}

Test(golden, bits_do_not_depend_on_the_step_in_f32)
{
    check_format(WEIGHTS_F32);
}

Test(golden, bits_do_not_depend_on_the_step_in_bf16)
{
    check_format(WEIGHTS_BF16);
}

Test(golden, bits_do_not_depend_on_the_step_in_f16)
{
    check_format(WEIGHTS_F16);
}

Test(golden, bits_do_not_depend_on_the_step_in_q8)
{
    check_format(WEIGHTS_Q8);
}

Test(golden, bits_do_not_depend_on_the_step_in_q6)
{
    check_format(WEIGHTS_Q6);
}

Test(golden, bits_do_not_depend_on_the_step_in_q4)
{
    check_format(WEIGHTS_Q4);
}

/* Tiles know nothing of the mixer, so some cases of each kind. */
static void check_tile_bits(const char *set)
{
    static const struct {
        enum weight_format weights;
        enum activation_format activations;
        enum kv_format kv; /* tiles meet f16 where inputs are rounded, bf16 always */
    } kinds[] = {
        {WEIGHTS_BF16, ACTIVATIONS_F32, KV_BF16}, {WEIGHTS_BF16, ACTIVATIONS_16BIT, KV_F16},
        {WEIGHTS_F16, ACTIVATIONS_F32, KV_F16},   {WEIGHTS_F16, ACTIVATIONS_16BIT, KV_BF16},
        {WEIGHTS_Q8, ACTIVATIONS_8BIT, KV_F16},   {WEIGHTS_Q4, ACTIVATIONS_16BIT, KV_F16}};
    char path[512], name[256];
    need_set(set);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int i = (int)k; golden_case(i, path, name); i += SANITIZED ? 40 : 10)
            check_bits(path, name,
                       (struct engine_options){.instruction_set = set,
                                               .weights = kinds[k].weights,
                                               .activations = kinds[k].activations,
                                               .kv = kinds[k].kv,
                                               .threads = 2},
                       one_chunk, 1);
}

Test(golden, bits_do_not_depend_on_the_step_on_amx)
{
    check_tile_bits(tile_sets[0]);
}

Test(golden, bits_do_not_depend_on_the_step_on_emulated_amx)
{
    check_tile_bits(tile_sets[1]);
}

/* The prompt's logits [length, V], with f32 keys; the caller frees them. */
static float *logits_of(const char *path, const char *set, enum weight_format weights, int *count,
                        struct engine_info *info)
{
    const struct engine_options options = {
        .threads = 2, .instruction_set = set, .weights = weights, .kv = KV_F32};
    struct engine *engine = open_case(path, options);
    *info = *engine_info(engine);
    int limit = (int)info->max_positions, length = limit > 0 && limit < 40 ? limit : 40;
    *count = length * info->vocab_size;
    float *logits = malloc((size_t)*count * sizeof *logits);
    run_text(engine, length, length, 0, logits);
    engine_close(engine);
    return logits;
}

/* Two bytes are multiplied as exactly as four: a file's own format, f32 and auto agree to the bit
 * (and so may others, for the numbers that they have in common). */
static void check_exact(const char *set)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++) {
        struct engine_info info, other;
        int count;
        if (strcmp(name, "experts_gpt_oss_mxfp4") == 0)
            continue; /* its experts are in another format than its other matrices: auto keeps both
                       */
        float *as_is = logits_of(path, set, WEIGHTS_AUTO, &count, &info);
        static const enum weight_format formats[] = {WEIGHTS_F32, WEIGHTS_BF16, WEIGHTS_F16,
                                                     WEIGHTS_Q8,  WEIGHTS_Q6,   WEIGHTS_Q4};
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
            bool exact = formats[f] == WEIGHTS_F32 || formats[f] == info.weights;
            float *logits = logits_of(path, set, formats[f], &count, &other);
            bool same = memcmp(as_is, logits, (size_t)count * sizeof *logits) == 0;
            cr_expect(same == exact || (same && weight_format_block(formats[f]) == 1),
                      "%s on %s, a file of %s in %s: %s bits", name, info.instruction_set,
                      weight_format_name(info.weights), weight_format_name(formats[f]),
                      same ? "the same" : "other");
            cr_expect(other.weights == formats[f] &&
                      other.weights_bytes == info.weights_bytes_as[formats[f]]);
            cr_expect(isfinite(logits[count - 1]));
            free(logits);
        }
        cr_expect(info.weights != WEIGHTS_AUTO &&
                  info.weights_bytes == info.weights_bytes_as[info.weights]);
        free(as_is);
    }
}

Test(golden, weights_in_the_format_of_the_file_are_exact)
{
    check_exact(NULL);
    check_exact(sets[3]);
}

/* FNV-1a of what logits_of gives for a case. */
static uint64_t hash_of(const char *name, const char *set, enum weight_format weights)
{
    char path[512];
    struct engine_info info;
    int count;
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", name);
    float *logits = logits_of(path, set, weights, &count, &info);
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        for (int byte = 0; byte < 4; byte++)
            hash = (hash ^ (bits >> 8 * byte & 255)) * 0x100000001b3;
    }
    free(logits);
    return hash;
}

/* Sets of different processors that do the same operations give the same bits: the portable
 * kernels, those with fused multiply-adds, and those that multiply bytes. */
Test(golden, processors_agree_on_bits)
{
    static const struct {
        const char *name;
        enum weight_format weights;
        uint64_t portable, fused, bytes;
    } cases[] = {
        {"regla", WEIGHTS_F32, 0xd361b016228ff206, 0xeb27019a8051ead7, 0xeb27019a8051ead7},
        {"dense_llama", WEIGHTS_BF16, 0x38c328d22db180d9, 0xf8a92c230286cb56, 0xf8a92c230286cb56},
        {"gla", WEIGHTS_Q8, 0xf68258bd90321702, 0xd0058e539a9e017f, 0x8b4f4bca72de55c4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t expected[] = {cases[i].bytes, cases[i].bytes, cases[i].fused,
                                     cases[i].portable};
        for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
#if !defined(__aarch64__)
            if (s == 1) /* avx512 does not multiply bytes */
                continue;
#endif
            if (!golden_has_set(sets[s]))
                continue;
            uint64_t hash = hash_of(cases[i].name, sets[s], cases[i].weights);
            cr_expect(hash == expected[s], "%s in %s on %s: %#llx", cases[i].name,
                      weight_format_name(cases[i].weights), sets[s], (unsigned long long)hash);
        }
    }
}

static void check_auto(const char *set, enum weight_format weights)
{
    enum activation_format said = ACTIVATIONS_F32;
    float *logits[3];
    size_t bytes = 0;
    for (int run = 0; run < 3; run++) { /* auto, what it is, f32 */
        const enum activation_format asked = run == 0   ? ACTIVATIONS_AUTO
                                             : run == 1 ? said
                                                        : ACTIVATIONS_F32;
        struct engine *engine = open_case(
            GOLDEN_DIRECTORY "gpt_neox",
            (struct engine_options){
                .threads = 1, .instruction_set = set, .weights = weights, .activations = asked});
        const struct engine_info *info = engine_info(engine);
        said = run == 0 ? info->activations : said;
        bytes = 40 * (size_t)info->vocab_size * sizeof(float);
        logits[run] = malloc(bytes);
        run_text(engine, 40, 40, 0, logits[run]);
        engine_close(engine);
    }
    cr_expect(memcmp(logits[0], logits[1], bytes) == 0, "%s, %s", weight_format_name(weights),
              activation_format_name(said));
    cr_expect((memcmp(logits[0], logits[2], bytes) == 0) == (said == ACTIVATIONS_F32),
              "%s, %s: is it f32?", weight_format_name(weights), activation_format_name(said));
    for (int run = 0; run < 3; run++)
        free(logits[run]);
}

/* What `auto` is said to be is what computes. */
Test(golden, auto_activations_are_those_that_info_names)
{
    static const enum weight_format formats[] = {WEIGHTS_F32, WEIGHTS_BF16, WEIGHTS_F16,
                                                 WEIGHTS_Q8};
    const char *const all[] = {NULL, tile_sets[1]};
    for (int i = 0; i < 2 * (int)(sizeof formats / sizeof *formats); i++)
        if (golden_has_set(all[i % 2]))
            check_auto(all[i % 2], formats[i / 2]);
}

/* `count` tokens of the text from `first` on give the logits of the undisturbed run. */
static void go_on(struct state *state, struct engine *engine, struct text *text, int first,
                  int count, const float *expected, const char *name)
{
    struct error err = ERROR_INIT;
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    struct span span = {
        .state = state, .tokens = text->tokens + first, .num_tokens = count, .num_logits = count};
    if (count == 0)
        return;
    cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
    cr_expect(memcmp(span.logits, expected + (size_t)first * vocab,
                     (size_t)count * vocab * sizeof(float)) == 0,
              "%s: %s goes on at %d with other bits", name,
              state == text->state ? "a text that was cloned" : "a clone", first);
}

/* A clone at any point goes on with the same bits, and so does the text it was cloned from. */
static void check_clones(const char *path, const char *name)
{
    struct engine *engine = open_case(path, (struct engine_options){.threads = 1});
    size_t vocab = (size_t)engine_info(engine)->vocab_size;
    int64_t limit = engine_info(engine)->max_positions;
    int length = limit > 0 && limit < LONG_TEXT ? (int)limit : LONG_TEXT;
    float *expected = malloc((size_t)length * vocab * sizeof(float));
    run_text(engine, length, length, 0, expected);
    static const int cuts[] = {1, 5, 63, 64, 65, 100, 128};
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts && cuts[c] < length; c++) {
        struct text text, other;
        struct error err = ERROR_INIT;
        int cut = cuts[c], rest = length - cut;
        start_text(&text, engine, 0, length, length);
        start_text(&other, engine, 9, length, length);
        struct span span = {.state = text.state, .tokens = text.tokens, .num_tokens = cut};
        cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
        struct state *clones[2];
        for (int i = 0; i < 2; i++)
            cr_assert(state_clone(&clones[i], text.state, length, &err) == 0, "%s", err.message);
        /* text and clone go half the way, then another clone takes other tokens to the end: the
         * rest of them must not see those */
        struct state *both[2] = {text.state, clones[0]};
        int half = rest / 2;
        for (int i = 0; i < 2; i++)
            go_on(both[i], engine, &text, cut, half, expected, name);
        struct span astray = {.state = clones[1], .tokens = other.tokens, .num_tokens = rest};
        cr_assert(engine_step(engine, &astray, 1, &err) == 0, "%s", err.message);
        for (int i = 0; i < 2; i++) {
            go_on(both[i], engine, &text, cut + half, rest - half, expected, name);
            state_free(both[i]);
        }
        state_free(clones[1]);
        state_free(other.state);
    }
    free(expected);
    engine_close(engine);
}

Test(golden, clones_go_on_with_the_same_bits)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++)
        check_clones(path, name);
}
