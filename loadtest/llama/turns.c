/* SPDX-License-Identifier: Apache-2.0 */
/* Regla's engine and llama.cpp's on one model in one process, in turns of some 50 ms: where the
 * memory's pace changes from second to second, only such pairs compare. The commands' own
 * benchmarks, whole, are loadtest/peers.py's `--programs`.
 *
 *   turns speed MODEL GGUF WEIGHTS TEST TOKENS DEPTH TEXTS SECONDS FLASH LOAD
 *     TEST pp or tg; FLASH -1, 0, 1 and LOAD as in peer.h. Prints for each pair of slices both
 *     tokens/s, regla's share of its limit, and who was first, as one line of JSON.
 *   turns same MODEL GGUF WEIGHTS TOKENS [IDS]
 *     What both say after each of so many tokens, with f32 keys and values: random ones, or the
 *     first of a file of ids.
 *   turns quantize GGUF TO TYPE
 *     TYPE as llama-quantize has it: Q4_0, Q4_K_M.
 */
#include "bench/bench_text.h"
#include "engine/engine.h"
#include "lib/base/clock.h"
#include "loadtest/llama/peer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As `regla bench` has it. */
static const double SLICE_SECONDS = 0.05;
/* After a turn, for the threads of who had it to be asleep. */
enum { REST_MICROSECONDS = 5000 };
/* Tokens that `same` reads at once. */
enum { SAME_STEP = 128 };

struct turns {
    struct engine *engine;
    struct bench_texts *texts;
    struct bench_case test;
    struct peer peer;
    double bandwidth, operations; /* of the last measurement */
    double seconds;               /* how long to go on */
};

static int open_both(struct turns *turns, const char *directory, struct peer_options *peer,
                     struct error *err)
{
    const struct engine_options options = {.weights = turns->test.weights,
                                           .kv = turns->test.kv,
                                           .activations = turns->test.activations};
    if (engine_open(&turns->engine, directory, &options, err) != 0)
        return -1;
    turns->test.threads = peer->threads = engine_info(turns->engine)->threads;
    return peer_open(&turns->peer, peer, err);
}

static void close_both(struct turns *turns)
{
    bench_texts_close(turns->texts);
    if (turns->engine != NULL)
        engine_close(turns->engine);
    peer_close(&turns->peer);
}

static int begin(struct turns *turns, struct error *err)
{
    bench_texts_end(turns->texts);
    if (bench_texts_begin(turns->texts, turns->test.tokens, err) != 0)
        return -1;
    return peer_cut(&turns->peer, turns->test.depth, err);
}

/* One slice of both; who is first changes. */
static int pair(struct turns *turns, int number, int tokens, double seconds[2], struct error *err)
{
    for (int i = 0; i < 2; i++) {
        int side = (i + number) % 2;
        int result =
            side == 0
                ? bench_texts_run(turns->texts, turns->test.generates, tokens, &seconds[0], err)
                : peer_run(&turns->peer, turns->test.generates, tokens, &seconds[1], err);
        if (result < 0)
            return -1;
        usleep(REST_MICROSECONDS);
    }
    return 0;
}

static int measure(struct turns *turns, struct error *err)
{
    return engine_measure(turns->engine, &turns->bandwidth, &turns->operations, err);
}

/* Share of what memory or arithmetic allows at the higher of two paces. */
static double share(const struct turns *turns, const struct turns *before, int done, int tokens,
                    double seconds)
{
    struct bench_case slice = turns->test;
    slice.tokens = tokens;
    slice.depth += done;
    const struct cost cost = bench_texts_cost(turns->texts, &slice);
    double least = slice.generates ? cost.bytes / fmax(before->bandwidth, turns->bandwidth)
                                   : cost.operations / fmax(before->operations, turns->operations);
    return least / seconds;
}

static int speed(struct turns *turns, struct error *err)
{
    const struct bench_case *test = &turns->test;
    double seconds[2];
    if (bench_texts_open(&turns->texts, turns->engine, NULL, test->depth, test->batch, err) != 0 ||
        peer_fill(&turns->peer, test->depth, err) != 0 || begin(turns, err) != 0 ||
        pair(turns, 0, test->tokens, seconds, err) != 0 || measure(turns, err) != 0)
        return -1;
    int slice = test->tokens;
    if (test->generates)
        slice = (int)fmin(slice, ceil(SLICE_SECONDS / (seconds[0] / test->tokens)));
    double end = clock_seconds() + turns->seconds;
    for (int number = 1, done = test->tokens; clock_seconds() < end; number++) {
        if (done + slice > test->tokens) {
            if (begin(turns, err) != 0)
                return -1;
            done = 0;
        }
        const struct turns before = *turns;
        if (pair(turns, number, slice, seconds, err) != 0 || measure(turns, err) != 0)
            return -1;
        double tokens = (double)slice * test->batch;
        printf("{\"regla\": %.3f, \"llama\": %.3f, \"share_of_limit\": %.4f, \"bandwidth_gbps\": "
               "%.2f, "
               "\"first\": %d}\n",
               tokens / seconds[0], tokens / seconds[1],
               share(turns, &before, done, slice, seconds[0]), turns->bandwidth * 1e-9, number % 2);
        done += slice;
    }
    return 0;
}

/* log of the sum of exponentials */
static double log_sum(const float *logits, int count)
{
    double highest = logits[0], sum = 0;
    for (int i = 1; i < count; i++)
        highest = fmax(highest, logits[i]);
    for (int i = 0; i < count; i++)
        sum += exp(logits[i] - highest);
    return highest + log(sum);
}

static int likeliest(const float *logits, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* How far apart both are, summed over positions. */
struct difference {
    int positions, agree, lost;
    double most, sum, ours_lost, theirs_lost;
};

/* After the ids [count] of a step, and `next` behind them, or -1. */
static void add_difference(struct difference *all, struct turns *turns, const float *ours,
                           const int *ids, int count, int next)
{
    const int vocab_size = turns->peer.vocab_size;
    for (int t = 0; t < count; t++, all->positions++) {
        const float *a = ours + (size_t)t * (size_t)vocab_size;
        const float *b = llama_get_logits_ith(turns->peer.context, t);
        double log_a = log_sum(a, vocab_size), log_b = log_sum(b, vocab_size);
        for (int i = 0; i < vocab_size; i++) {
            double difference = fabs((a[i] - log_a) - (b[i] - log_b));
            all->most = fmax(all->most, difference);
            all->sum += difference / vocab_size;
        }
        all->agree += likeliest(a, vocab_size) == likeliest(b, vocab_size);
        const int id = t + 1 < count ? ids[t + 1] : next;
        if (id >= 0) {
            all->ours_lost += log_a - a[id];
            all->theirs_lost += log_b - b[id];
            all->lost++;
        }
    }
}

static void print_difference(const struct difference *all, const struct turns *turns)
{
    printf("{\"positions\": %d, \"same_likeliest\": %d, \"most_difference\": %.3g, "
           "\"mean_difference\": %.3g, \"loss_regla\": %.6f, \"loss_llama\": %.6f, "
           "\"parameters\": %llu, \"weight_bytes_regla\": %zu, \"weight_bytes_llama\": %llu}\n",
           all->positions, all->agree, all->most, all->sum / all->positions,
           all->ours_lost / all->lost, all->theirs_lost / all->lost,
           (unsigned long long)llama_model_n_params(turns->peer.model),
           engine_info(turns->engine)->weights_bytes,
           (unsigned long long)llama_model_size(turns->peer.model));
}

/* The first ids [count] of a file, or random ones without it. */
static int find_ids(const char *path, int *ids, int count, int vocab_size, struct error *err)
{
    if (path != NULL)
        return peer_read_ids(path, ids, count, vocab_size, err);
    for (int i = 0; i < count; i++)
        ids[i] = (int)((unsigned)(i + 1) * 2654435761u % (unsigned)vocab_size);
    return 0;
}

/* Both read the ids step by step. */
static int compare(struct turns *turns, struct state *state, const int *ids, int count,
                   struct error *err)
{
    struct difference all = {0};
    for (int done = 0, step; done < count; done += step) {
        step = count - done < SAME_STEP ? count - done : SAME_STEP;
        struct span span = {
            .state = state, .tokens = ids + done, .num_tokens = step, .num_logits = step};
        if (engine_step(turns->engine, &span, 1, err) != 0 ||
            peer_read(&turns->peer, ids + done, step, err) != 0)
            return -1;
        add_difference(&all, turns, span.logits, ids + done, step,
                       done + step < count ? ids[done + step] : -1);
    }
    print_difference(&all, turns);
    return 0;
}

static int same(struct turns *turns, const char *path, struct error *err)
{
    int count = turns->test.tokens, vocab_size = engine_info(turns->engine)->vocab_size;
    if (turns->peer.vocab_size != vocab_size)
        return error_set(err, ERROR_INVALID, "vocabulary: expected %d tokens, got %d", vocab_size,
                         turns->peer.vocab_size);
    if (count < 2)
        return error_set(err, ERROR_INVALID, "tokens: expected 2 or more, got %d", count);
    int *ids = calloc((size_t)count, sizeof *ids);
    struct state *state = NULL;
    int result = -1;
    if (ids == NULL)
        error_set(err, ERROR_NO_MEMORY, "no memory for %d tokens", count);
    else if (find_ids(path, ids, count, vocab_size, err) == 0 &&
             state_create(&state, turns->engine, count, err) == 0)
        result = compare(turns, state, ids, count, err);
    state_free(state);
    free(ids);
    return result;
}

/* "bf16", or "bf16/16bit": regla's activations, too. */
static bool read_formats(char *text, struct bench_case *test)
{
    char *slash = strchr(text, '/');
    if (slash != NULL)
        *slash++ = 0;
    return weight_format_find(text, &test->weights) &&
           (slash == NULL || activation_format_find(slash, &test->activations));
}

static int quantize(char **argv)
{
    struct error err = ERROR_INIT;
    if (peer_quantize(argv[2], argv[3], argv[4], &err) == 0)
        return 0;
    fprintf(stderr, "turns: %s\n", err.message);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "quantize") == 0)
        return quantize(argv);
    bool compares = (argc == 6 || argc == 7) && strcmp(argv[1], "same") == 0;
    if (!compares && (argc != 12 || strcmp(argv[1], "speed") != 0)) {
        fprintf(stderr,
                "usage: turns quantize GGUF TO TYPE | turns same MODEL GGUF WEIGHTS TOKENS [IDS] | "
                "turns speed MODEL GGUF "
                "WEIGHTS pp|tg TOKENS DEPTH TEXTS SECONDS FLASH LOAD; WEIGHTS: bf16, or bf16/16bit "
                "with regla's activations\n");
        return 2;
    }
    struct error err = ERROR_INIT;
    struct turns turns = {.test = {.kv = compares ? KV_F32 : KV_F16, .batch = 1}};
    struct peer_options peer = {.path = argv[3],
                                .flash_attention = PEER_AS_IT_LIKES,
                                .load = PEER_AS_IT_LIKES,
                                .kv = turns.test.kv};
    bool known = read_formats(argv[4], &turns.test);
    turns.test.tokens = atoi(argv[compares ? 5 : 6]);
    if (!compares) {
        turns.test.generates = strcmp(argv[5], "tg") == 0;
        turns.test.depth = atoi(argv[7]);
        turns.test.batch = atoi(argv[8]);
        turns.seconds = atof(argv[9]);
        peer.flash_attention = atoi(argv[10]);
        peer.load = atoi(argv[11]);
    }
    peer.texts = turns.test.batch;
    peer.length = turns.test.depth + turns.test.tokens;
    int result = known ? open_both(&turns, argv[2], &peer, &err)
                       : error_set(&err, ERROR_INVALID, "weights: unknown format %s", argv[4]);
    if (result == 0)
        result = compares ? same(&turns, argc == 7 ? argv[6] : NULL, &err) : speed(&turns, &err);
    if (result != 0)
        fprintf(stderr, "turns: %s\n", err.message);
    close_both(&turns);
    return result != 0;
}
