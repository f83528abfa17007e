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
    if (base != NULL && base->measurement != turns->measurement)
        return 0;
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

/* The tests of some systems, beside each other at each length. */
struct group {
    const char *systems[MOST_TOGETHER];
    char presets[MOST_TOGETHER][STUDY_PRESET_SIZE];
    int count, batch;
};

/* Whether it has all its turns, of one measurement: only such can be compared. */
static bool is_whole(const struct study_plan *plan, const struct study_axes *axes,
                     const struct group *group)
{
    const struct study_turns *first =
        study_turns_find(plan, group->systems[0], axes->lengths[0], group->batch);
    for (int s = 0; s < group->count && first != NULL; s++)
        for (int l = 0; l < axes->num_lengths; l++) {
            const struct study_turns *turns =
                study_turns_find(plan, group->systems[s], axes->lengths[l], group->batch);
            if (turns == NULL || turns->count < (size_t)axes->turns ||
                turns->measurement != first->measurement)
                return false;
        }
    return first != NULL;
}

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

/* Removes those of an earlier measurement, if there are any. */
static void drop(struct study_plan *plan, const char *system, int length, int batch)
{
    const struct study_turns *found = study_turns_find(plan, system, length, batch);
    if (found == NULL)
        return;
    struct study_turns *at = &plan->turns[found - plan->turns];
    free(at->slices);
    *at = plan->turns[--plan->num_turns];
}

static int keep(struct study_plan *plan, const struct bench *bench, const struct group *group,
                const struct study_axes *axes, struct error *err)
{
    plan->measurements++;
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *result = &bench_results(bench)[i];
        const char *system = group->systems[i % group->count];
        int length = axes->lengths[i / group->count];
        drop(plan, system, length, group->batch);
        struct study_turns *turns =
            study_turns_add(plan, system, length, group->batch, result->num_slices, err);
        if (turns == NULL)
            return -1;
        turns->measurement = plan->measurements;
        memcpy(turns->slices, result->slices, turns->count * sizeof *turns->slices);
    }
    return 0;
}

static int measure_group(struct study_plan *plan, struct group *group,
                         const struct study_axes *axes, const struct engine_options *options,
                         bool progress, struct error *err)
{
    struct bench_case cases[MOST_TOGETHER * STUDY_MOST_LENGTHS];
    const struct bench_plan tests = {cases, group->count * axes->num_lengths};
    for (int i = 0; i < tests.count; i++) {
        char *preset = group->presets[i % group->count];
        if (!study_preset(preset, group->systems[i % group->count]))
            return error_set(err, ERROR_INVALID, "unknown system \"%s\"",
                             group->systems[i % group->count]);
        cases[i] = case_of(options, preset, axes->lengths[i / group->count], group->batch);
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
    int result = keep(plan, bench, group, axes, err);
    bench_free(bench);
    return result;
}

/* Compared with each other (study_compare): in one group. */
static bool is_compared(const char *system)
{
    return strcmp(system, "fast_decay") == 0 || strcmp(system, "regla") == 0 ||
           strcmp(system, "softmax") == 0;
}

static int groups_of_a_batch(const struct study_axes *axes)
{
    return (axes->num_systems + MOST_TOGETHER - 1) / MOST_TOGETHER;
}

int study_turns_groups(const struct study_axes *axes)
{
    return axes->turns > 0 ? axes->num_batches * groups_of_a_batch(axes) : 0;
}

/* Its systems: those compared are in the first one. */
static void fill_group(struct group *group, const struct study_axes *axes, int index)
{
    const char *ordered[STUDY_MOST_SYSTEMS];
    int count = 0, first = index % groups_of_a_batch(axes) * MOST_TOGETHER;
    for (int compared = 1; compared >= 0; compared--)
        for (int s = 0; s < axes->num_systems; s++)
            if (is_compared(axes->systems[s]) == (compared == 1))
                ordered[count++] = axes->systems[s];
    count -= first;
    group->count = count < MOST_TOGETHER ? count : MOST_TOGETHER;
    memcpy(group->systems, ordered + first, (size_t)group->count * sizeof *ordered);
    group->batch = axes->batches[index / groups_of_a_batch(axes)];
}

int study_turns_measure(struct study_plan *plan, const struct study_axes *axes, int index,
                        const struct engine_options *options, bool progress, struct error *err)
{
    struct group group;
    fill_group(&group, axes, index);
    if (is_whole(plan, axes, &group))
        return 0;
    return measure_group(plan, &group, axes, options, progress, err) == 0 ? 1 : -1;
}
