/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_run.h"
#include "bench/study.h"

#include <stdlib.h>
#include <string.h>

/* Engines that are open at once: as many take some GB. */
enum { MOST_TOGETHER = 8 };

struct study_turns *study_turns_add(struct study_plan *plan, const char *system, int length,
                                    int batch, size_t count, struct error *err)
{
    struct study_turns *turns = realloc(plan->turns, (plan->num_turns + 1) * sizeof *plan->turns);
    struct bench_slice *slices = calloc(count + 1, sizeof *slices);
    if (turns != NULL)
        plan->turns = turns;
    if (turns == NULL || slices == NULL) {
        free(slices);
        error_set(err, ERROR_NO_MEMORY, "out of memory for %zu turns", count);
        return NULL;
    }
    turns += plan->num_turns++;
    *turns = (struct study_turns){
        .system = system, .length = length, .batch = batch, .slices = slices, .count = count};
    return turns;
}

void study_turns_clear(struct study_plan *plan)
{
    for (size_t i = 0; i < plan->num_turns; i++)
        free(plan->turns[i].slices);
    free(plan->turns);
    plan->turns = NULL;
    plan->num_turns = 0;
}

const struct study_turns *study_turns_find(const struct study_plan *plan, const char *system,
                                           int length, int batch)
{
    for (size_t i = 0; i < plan->num_turns; i++) {
        const struct study_turns *turns = &plan->turns[i];
        if (turns->length == length && turns->batch == batch && strcmp(turns->system, system) == 0)
            return turns;
    }
    return NULL;
}

int study_turns_paces(const struct study_turns *turns, const struct study_turns *base,
                      struct bench_pace paces[BENCH_MOST_PACES])
{
    size_t count = base != NULL && base->count < turns->count ? base->count : turns->count;
    struct bench_slice *slices = calloc(count + 1, sizeof *slices);
    double *scratch = calloc(2 * count + 1, sizeof *scratch);
    int found = 0;
    if (slices != NULL && scratch != NULL) {
        for (size_t i = 0; i < count; i++) {
            const struct bench_slice *slice = &turns->slices[i];
            slices[i] = *slice;
            slices[i].share = turns->batch * 1e3 / slice->tokens_per_second;
            if (base != NULL)
                slices[i] = bench_slice_pair(slice, &base->slices[i]);
        }
        found = bench_paces(slices, count, scratch, paces);
    }
    free(slices);
    free(scratch);
    return found;
}

/* ---- measuring ---- */

static bool has_all(const struct study_plan *plan, const struct study_axes *axes)
{
    for (int s = 0; s < axes->num_systems; s++)
        for (int l = 0; l < axes->num_lengths; l++)
            for (int b = 0; b < axes->num_batches; b++) {
                const struct study_turns *turns =
                    study_turns_find(plan, axes->systems[s], axes->lengths[l], axes->batches[b]);
                if (turns == NULL || turns->count < (size_t)axes->turns)
                    return false;
            }
    return true;
}

/* The tests of some systems, beside each other at each length. */
struct group {
    const char *systems[MOST_TOGETHER];
    char presets[MOST_TOGETHER][64];
    int count;
};

static struct bench_case case_of(const struct engine_options *options, const char *preset,
                                 int length, int batch)
{
    int tokens = length < STUDY_TURN_TOKENS ? length : STUDY_TURN_TOKENS;
    return (struct bench_case){.preset = preset,
                               .weights = options->weights,
                               .kv = options->kv,
                               .activations = options->activations,
                               .products = options->products,
                               .threads = options->threads,
                               .generates = true,
                               .tokens = tokens,
                               .depth = STUDY_PROMPT_TOKENS + length - tokens,
                               .batch = batch};
}

static int keep(struct study_plan *plan, const struct bench *bench, const struct group *group,
                const struct study_axes *axes, int batch, struct error *err)
{
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *result = &bench_results(bench)[i];
        struct study_turns *turns =
            study_turns_add(plan, group->systems[i % group->count], axes->lengths[i / group->count],
                            batch, result->num_slices, err);
        if (turns == NULL)
            return -1;
        memcpy(turns->slices, result->slices, turns->count * sizeof *turns->slices);
    }
    return 0;
}

static int measure_group(struct study_plan *plan, struct group *group,
                         const struct study_axes *axes, int batch,
                         const struct engine_options *options, bool progress, struct error *err)
{
    struct bench_case cases[MOST_TOGETHER * STUDY_MOST_LENGTHS];
    const struct bench_plan tests = {cases, group->count * axes->num_lengths};
    for (int i = 0; i < tests.count; i++) {
        char *preset = group->presets[i % group->count];
        snprintf(preset, sizeof group->presets[0], "%s-6l", group->systems[i % group->count]);
        cases[i] = case_of(options, preset, axes->lengths[i / group->count], batch);
    }
    const struct bench_options how = {.device = options->device,
                                      .state_memory_bytes = options->state_memory_bytes,
                                      .device_memory_bytes = options->device_memory_bytes,
                                      .repeat = axes->turns,
                                      .slice_tokens = STUDY_TURN_TOKENS,
                                      .progress = progress};
    struct bench *bench;
    if (bench_run(&bench, &tests, &how, err) != 0)
        return -1;
    int result = keep(plan, bench, group, axes, batch, err);
    bench_free(bench);
    return result;
}

/* Compared with each other (study_compare): in one group. */
static bool is_compared(const char *system)
{
    return strcmp(system, "fast_decay") == 0 || strcmp(system, "regla") == 0 ||
           strcmp(system, "softmax") == 0;
}

int study_turns_measure(struct study_plan *plan, const struct study_axes *axes,
                        const struct engine_options *options, bool progress, struct error *err)
{
    const char *ordered[STUDY_MOST_SYSTEMS];
    int count = 0;
    if (axes->turns == 0 || has_all(plan, axes))
        return 0;
    study_turns_clear(plan);
    for (int compared = 1; compared >= 0; compared--)
        for (int s = 0; s < axes->num_systems; s++)
            if (is_compared(axes->systems[s]) == (compared == 1))
                ordered[count++] = axes->systems[s];
    for (int b = 0; b < axes->num_batches; b++)
        for (int first = 0; first < count; first += MOST_TOGETHER) {
            int left = count - first;
            struct group group = {.count = left < MOST_TOGETHER ? left : MOST_TOGETHER};
            memcpy(group.systems, ordered + first, (size_t)group.count * sizeof *ordered);
            if (measure_group(plan, &group, axes, axes->batches[b], options, progress, err) != 0)
                return -1;
        }
    return 0;
}
