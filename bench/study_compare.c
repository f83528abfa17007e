/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include <stdlib.h>
#include <string.h>

/* Of a ratio that a claim says is 1. */
static const double TOLERANCE = 0.03;
enum { FEWEST = 6 /* pairs: an interval of fewer is less certain */ };

static const char *verdict(const struct statistics_interval *ratio)
{
    if (ratio->count < FEWEST)
        return "too few";
    if (ratio->low >= 1 - TOLERANCE && ratio->high <= 1 + TOLERANCE)
        return "within 3 %";
    return ratio->high < 1 - TOLERANCE || ratio->low > 1 + TOLERANCE ? "not within 3 %"
                                                                     : "undecided";
}

static void print_ratio(FILE *out, const struct statistics_interval *ratio)
{
    fprintf(out, " %8.3f  %.3f to %.3f, of %zu pairs: %s", ratio->median, ratio->low, ratio->high,
            ratio->count, verdict(ratio));
}

/* Of one system and length at each pace, with what they are of the least length's. */
static void print_times(FILE *out, const struct study_turns *turns, const struct study_turns *first)
{
    struct bench_pace paces[BENCH_MOST_PACES], ratios[BENCH_MOST_PACES];
    int count = study_turns_paces(turns, NULL, paces);
    int pairs = turns != first ? study_turns_paces(turns, first, ratios) : 0;
    for (int i = 0; i < count; i++) {
        const struct statistics_interval *ms = &paces[i].share;
        fprintf(out, "%-20s %6d %7.1f GB/s %9.3f  %.3f to %.3f, of %zu", turns->system,
                turns->length, paces[i].bandwidth * 1e-9, ms->median, ms->low, ms->high, ms->count);
        for (int j = 0; j < pairs; j++)
            if (bench_same_pace(ratios[j].bandwidth, paces[i].bandwidth))
                print_ratio(out, &ratios[j].share);
        putc('\n', out);
    }
}

static void print_table(FILE *out, const struct study_plan *plan, const struct study_axes *axes,
                        int batch)
{
    fprintf(out, "\n%-20s %6s %12s %9s  %-28s %s\n", "time per token", "length", "memory reads",
            "ms", "95% certain, of turns", "of the least length's");
    for (int s = 0; s < axes->num_systems; s++) {
        const struct study_turns *first = NULL;
        for (int l = 0; l < axes->num_lengths; l++) {
            const struct study_turns *turns =
                study_turns_find(plan, axes->systems[s], axes->lengths[l], batch);
            first = first == NULL ? turns : first;
            if (turns != NULL)
                print_times(out, turns, first);
        }
    }
}

static void print_pair(FILE *out, const char *what, const struct study_turns *turns,
                       const struct study_turns *base)
{
    struct bench_pace paces[BENCH_MOST_PACES];
    int count = study_turns_paces(turns, base, paces);
    for (int i = 0; i < count; i++) {
        fprintf(out, "%-27s %7.1f GB/s", what, paces[i].bandwidth * 1e-9);
        print_ratio(out, &paces[i].share);
        putc('\n', out);
    }
}

/* The turns of all lengths as one's, in the order in which they were measured; of lengths at which
 * `other` was measured beside it. */
static int join_lengths(struct study_plan *joined, const struct study_plan *plan,
                        const struct study_axes *axes, const char *system, const char *other,
                        int batch)
{
    const struct study_turns *of[STUDY_MOST_LENGTHS];
    size_t most = 0, lengths = 0;
    for (int l = 0; l < axes->num_lengths; l++) {
        const struct study_turns *turns = study_turns_find(plan, system, axes->lengths[l], batch);
        const struct study_turns *base = study_turns_find(plan, other, axes->lengths[l], batch);
        if (turns == NULL || base == NULL || turns->measurement != base->measurement)
            continue;
        of[lengths++] = turns;
        most = turns->count > most ? turns->count : most;
    }
    struct study_turns *all = study_turns_add(joined, system, 0, batch, most * lengths, NULL);
    if (all == NULL)
        return -1;
    all->count = 0;
    for (size_t turn = 0; turn < most; turn++)
        for (size_t i = 0; i < lengths; i++)
            if (turn < of[i]->count)
                all->slices[all->count++] = of[i]->slices[turn];
    return 0;
}

void study_compare(FILE *out, const struct study_plan *plan, const struct study_axes *axes,
                   int batch)
{
    static const char *const PAIR[] = {"regla", "fast_decay"};
    struct study_plan joined = {0};
    bool begun = false;
    if (plan->num_turns == 0)
        return;
    print_table(out, plan, axes, batch);
    for (int l = 0; l < axes->num_lengths; l++) {
        const struct study_turns *turns[2];
        char what[64];
        for (int i = 0; i < 2; i++)
            turns[i] = study_turns_find(plan, PAIR[i], axes->lengths[l], batch);
        if (turns[0] == NULL || turns[1] == NULL || turns[0]->measurement != turns[1]->measurement)
            continue;
        if (!begun)
            fprintf(out, "\n%-27s %12s %8s  95%% certain\n", "regla's time, length", "memory reads",
                    "ratio");
        begun = true;
        snprintf(what, sizeof what, "over fast_decay's, %d", axes->lengths[l]);
        print_pair(out, what, turns[0], turns[1]);
    }
    if (begun && join_lengths(&joined, plan, axes, PAIR[0], PAIR[1], batch) == 0 &&
        join_lengths(&joined, plan, axes, PAIR[1], PAIR[0], batch) == 0)
        print_pair(out, "over fast_decay's, all", &joined.turns[0], &joined.turns[1]);
    study_turns_clear(&joined);
}
