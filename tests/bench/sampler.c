/* SPDX-License-Identifier: Apache-2.0 */
/* Microseconds of CPU time for a draw from 50,304 logits, the median of 101, by kind of logits and
 * settings: cmake --build BUILD --target bench_sampler && BUILD/bench_sampler */
#include "engine/ops/sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { VOCAB = 50304, ROUNDS = 101, KINDS = 3 };

static float logits[ROUNDS][VOCAB];

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sums of four uniform numbers: a bell of this deviation. */
static void fill(float deviation)
{
    uint32_t state = 1;
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < VOCAB; i++) {
            float sum = -2;
            for (int j = 0; j < 4; j++) {
                state = state * 1664525u + 1013904223u;
                sum += (float)(state >> 8) * 0x1p-24f;
            }
            logits[r][i] = sum * 1.7320508f * deviation;
        }
}

static double time_draws(const struct sampling *sampling)
{
    double times[ROUNDS];
    struct sampler *sampler;
    if (sampler_create(&sampler, sampling, VOCAB, NULL, 0, NULL) != 0)
        exit(1);
    for (int r = 0; r < ROUNDS; r++) {
        double start = now_us();
        struct draw draw = {.sampler = sampler};
        sampler_draw(&draw, logits[r]);
        if (draw.id < 0)
            exit(1);
        times[r] = now_us() - start;
    }
    sampler_free(sampler);
    qsort(times, ROUNDS, sizeof *times, rising);
    return times[ROUNDS / 2];
}

static double time_logprobs(void)
{
    double times[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        struct token_logprob top[20];
        double start = now_us();
        logprobs_top(logits[r], VOCAB, r, 20, top);
        times[r] = now_us() - start;
    }
    qsort(times, ROUNDS, sizeof *times, rising);
    return times[ROUNDS / 2];
}

int main(void)
{
    static const float deviations[KINDS] = {3, 0.01f, 0};
    static const struct {
        const char *name;
        struct sampling sampling;
    } settings[] = {
        {"temperature 0", {.temperature = 0, .top_p = 1, .repetition_penalty = 1}},
        {"temperature 1", {.temperature = 1, .top_p = 1, .repetition_penalty = 1}},
        {"top_p 0.95", {.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1}},
        {"top_k 50", {.temperature = 1, .top_p = 1, .top_k = 50, .repetition_penalty = 1}},
        {"top_k 20000, top_p 0.9",
         {.temperature = 1, .top_p = 0.9f, .top_k = 20000, .repetition_penalty = 1}},
        {"min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05f, .repetition_penalty = 1}},
    };
    printf("%-10s %-24s %8s\n", "deviation", "settings", "us");
    for (int kind = 0; kind < KINDS; kind++) {
        fill(deviations[kind]);
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
            printf("%-10g %-24s %8.1f\n", (double)deviations[kind], settings[i].name,
                   time_draws(&settings[i].sampling));
        printf("%-10g %-24s %8.1f\n", (double)deviations[kind], "logprobs 20", time_logprobs());
    }
    return 0;
}
