/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of a decode step on a CUDA device: when each of its kernels begins, has waited for the
 * one before, and ends, as the first thread of its first CTA saw it; medians over steps that are
 * launched as one graph. What it costs to store this is in it (engine/cuda/timestamps.cuh).
 *
 * Usage: cuda_chain [--preset NAME | --model FOLDER] [--batch N] [--steps N] [--device cuda:N]
 * Status: 0, 1 after an error, 77 without a device. Build: the preset cuda-chain. */
#include "engine/cuda/backend.h"
#include "engine/cuda/timestamps.h"
#include "engine/engine.h"
#include "engine/ops/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps are of one kind as long as no text has more than 64 tokens. A kind has two graphs
 * (engine/cuda/graphs.cu): its first step runs as it is, the next two are recorded. (Without
 * mapped memory it has one, and the third is its first replay.) */
enum { RECORDED = 1, STEPS_BEFORE = 3, MOST_STEPS = 60, MOST_BATCH = 256, NO_DEVICE = 77 };

struct chain {
    const char *preset, *model, *device;
    int batch, steps;
    struct engine *engine;
    struct state *states[MOST_BATCH];
    struct sampler *samplers[MOST_BATCH];
    struct draw draws[MOST_BATCH];
    int32_t tokens[MOST_BATCH];
    struct kernel_time times[MOST_STEPS][MOST_KERNEL_TIMES];
    int kernels;
};

static void must(int result, const struct error *err)
{
    if (result != 0) {
        fprintf(stderr, "cuda_chain: %s\n", err->message);
        exit(1);
    }
}

static int number(const char *name, const char *text, int most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < 1 || value > most) {
        fprintf(stderr, "cuda_chain: %s: expected a number from 1 to %d, got %s\n", name, most,
                text);
        exit(1);
    }
    return (int)value;
}

static void read_options(struct chain *chain, int count, char **words)
{
    for (int i = 1; i < count; i++) {
        const char *name = words[i], *value = i + 1 < count ? words[++i] : NULL;
        if (value != NULL && strcmp(name, "--preset") == 0)
            chain->preset = value;
        else if (value != NULL && strcmp(name, "--model") == 0)
            chain->model = value;
        else if (value != NULL && strcmp(name, "--device") == 0)
            chain->device = value;
        else if (value != NULL && strcmp(name, "--batch") == 0)
            chain->batch = number(name, value, MOST_BATCH);
        else if (value != NULL && strcmp(name, "--steps") == 0)
            chain->steps = number(name, value, MOST_STEPS);
        else {
            fprintf(stderr,
                    "cuda_chain: expected [--preset NAME | --model FOLDER] [--batch N] [--steps N] "
                    "[--device cuda:N], got %s\n",
                    name);
            exit(1);
        }
    }
}

static void open_texts(struct chain *chain)
{
    const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    const struct engine_options options = {
        .weights =
            chain->preset != NULL ? WEIGHTS_BF16 : WEIGHTS_AUTO, /* as the session's benches */
        .device = chain->device,
        .max_step_tokens = MOST_BATCH,
        .max_step_logits = MOST_BATCH};
    struct error err = ERROR_INIT;
    must(chain->model != NULL ? engine_open(&chain->engine, chain->model, &options, &err)
                              : engine_open_preset(&chain->engine, chain->preset, &options, &err),
         &err);
    int vocab = engine_info(chain->engine)->vocab_size;
    for (int t = 0; t < chain->batch; t++) {
        must(state_create(&chain->states[t], chain->engine, STEPS_BEFORE + MOST_STEPS, &err), &err);
        must(sampler_create(&chain->samplers[t], &greedy, vocab, NULL, 0, &err), &err);
        chain->tokens[t] = (7 * t + 1) % vocab;
    }
}

/* A token of each text, which draws the next one. */
static void step(struct chain *chain)
{
    struct error err = ERROR_INIT;
    struct span spans[MOST_BATCH];
    for (int t = 0; t < chain->batch; t++) {
        chain->draws[t] = (struct draw){.sampler = chain->samplers[t]};
        spans[t] = (struct span){.state = chain->states[t],
                                 .tokens = &chain->tokens[t],
                                 .num_tokens = 1,
                                 .draw = &chain->draws[t]};
    }
    must(engine_step(chain->engine, spans, chain->batch, &err), &err);
    for (int t = 0; t < chain->batch; t++) {
        must(draw_check(&chain->draws[t], &err), &err);
        chain->tokens[t] = chain->draws[t].id;
    }
}

/* Of a step that is not recorded: what it launches beside its graph is less than all of it. */
static void check_replayed(int launched, int recorded)
{
    if (launched < recorded)
        return;
    fprintf(stderr, "cuda_chain: expected a step that is one graph, got one of %d launches\n",
            launched);
    exit(1);
}

static void run(struct chain *chain)
{
    struct error err = ERROR_INIT;
    int before = 0, recorded = 0;
    for (int i = 0; i < STEPS_BEFORE; i++) {
        before = timestamps_launches();
        timestamps_remember(i == RECORDED);
        step(chain);
        if (i == RECORDED)
            recorded = timestamps_launches() - before;
    }
    for (int i = 0; i < chain->steps; i++) {
        before = timestamps_launches();
        must(timestamps_clear(&err), &err);
        step(chain);
        check_replayed(timestamps_launches() - before, recorded);
        must(timestamps_read(chain->times[i], &chain->kernels, &err), &err);
    }
}

/* ---- what is printed, in us ---- */

enum column { ENTRY, WAITED, EXIT, GAP, TIME, COLUMNS };

/* Of kernel k in step i. Moments are from the beginning of the step's first kernel. */
static double value_of(const struct chain *chain, int i, int k, enum column column)
{
    const struct kernel_moments *first = &chain->times[i][0].moments;
    const struct kernel_moments *own = &chain->times[i][k].moments;
    const struct kernel_moments *before = k > 0 ? &chain->times[i][k - 1].moments : NULL;
    switch (column) {
    case ENTRY:
        return 1e-3 * ((double)own->entry - (double)first->entry);
    case WAITED:
        return 1e-3 * ((double)own->waited - (double)first->entry);
    case EXIT:
        return 1e-3 * ((double)own->exit - (double)first->entry);
    case GAP:
        return before == NULL ? 0 : 1e-3 * ((double)own->waited - (double)before->exit);
    default:
        return 1e-3 * ((double)own->exit - (double)own->waited);
    }
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Of kernel k; k < 0: of the sums over all kernels. */
static double median_of(const struct chain *chain, int k, enum column column)
{
    double values[MOST_STEPS] = {0};
    for (int i = 0; i < chain->steps; i++)
        for (int of = k < 0 ? 0 : k; of < (k < 0 ? chain->kernels : k + 1); of++)
            values[i] += value_of(chain, i, of, column);
    return median(values, chain->steps);
}

/* The least that two moments of a step are apart: what the clock can tell. */
static double tick(const struct chain *chain)
{
    double least = 0;
    for (int i = 0; i < chain->steps; i++)
        for (int k = 0; k < chain->kernels; k++) {
            const struct kernel_moments *m = &chain->times[i][k].moments;
            double apart = (double)(m->exit - m->waited);
            least = apart > 0 && (least == 0 || apart < least) ? apart : least;
        }
    return least;
}

static void print(const struct chain *chain)
{
    printf("%s, batch %d, medians of %d steps in us, %s; the clock's shortest time is %.0f ns\n",
           chain->model != NULL ? chain->model : chain->preset, chain->batch, chain->steps,
           engine_info(chain->engine)->instruction_set, tick(chain));
    printf("%3s %-24s %14s %7s %9s %9s %9s %8s %8s\n", "", "kernel", "grid", "threads", "entry",
           "waited", "exit", "gap", "time");
    for (int k = 0; k < chain->kernels; k++) {
        const struct kernel_time *kernel = &chain->times[0][k];
        char grid[40];
        snprintf(grid, sizeof grid, "%ux%ux%u", kernel->grid[0], kernel->grid[1], kernel->grid[2]);
        printf("%3d %-24s %14s %7u", k, kernel->name, grid, kernel->threads);
        for (int column = 0; column < COLUMNS; column++)
            printf(column < GAP ? " %9.2f" : " %8.2f", median_of(chain, k, column));
        printf("\n");
    }
    int last = chain->kernels - 1;
    printf("sum: %d kernels, gaps %.2f, times %.2f, from the first entry to the last exit %.2f\n",
           chain->kernels, median_of(chain, -1, GAP), median_of(chain, -1, TIME),
           median_of(chain, last, EXIT));
}

int main(int count, char **words)
{
    static struct chain chain = {.preset = "regla-6l", .device = "cuda", .batch = 1, .steps = 21};
    read_options(&chain, count, words);
    if (cuda_devices() == 0) {
        printf("cuda_chain: skipped: no CUDA device\n");
        return NO_DEVICE;
    }
    open_texts(&chain);
    run(&chain);
    print(&chain);
    for (int t = 0; t < chain.batch; t++) {
        state_free(chain.states[t]);
        sampler_free(chain.samplers[t]);
    }
    engine_close(chain.engine);
    return 0;
}
