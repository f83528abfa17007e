/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_paces.h"

#include <math.h>

static const double SAME_PACE = 1.15, PACES_APART = 1.25;

static double pace_of_slice(const struct bench_slice *slice)
{
    return fmax(slice->before, slice->after);
}

static bool kept_one(const struct bench_slice *slice)
{
    return pace_of_slice(slice) <= SAME_PACE * fmin(slice->before, slice->after);
}

static double tokens_per_second(const struct bench_slice *slice)
{
    return slice->tokens_per_second;
}

static double share(const struct bench_slice *slice)
{
    return slice->share;
}

/* What `figure` says of the slices at paces from `low` to below `high`; returns how many. */
static size_t select_figures(const struct bench_slice *slices, size_t count, double low,
                             double high, double (*figure)(const struct bench_slice *), double *out)
{
    size_t selected = 0;
    for (size_t i = 0; i < count; i++)
        if (kept_one(&slices[i]) && pace_of_slice(&slices[i]) >= low &&
            pace_of_slice(&slices[i]) < high)
            out[selected++] = figure(&slices[i]);
    return selected;
}

static bool find_pace(const struct bench_slice *slices, size_t count, double low, double high,
                      double *scratch, struct bench_pace *pace)
{
    size_t selected = select_figures(slices, count, low, high, pace_of_slice, scratch);
    if (selected == 0)
        return false;
    pace->bandwidth = statistics_median(scratch, selected);
    select_figures(slices, count, low, high, tokens_per_second, scratch);
    pace->tokens_per_second = statistics_median(scratch, selected);
    select_figures(slices, count, low, high, share, scratch);
    pace->share = statistics_interval(scratch, scratch + count, selected);
    return true;
}

bool bench_same_pace(double a, double b)
{
    return fmax(a, b) < PACES_APART * fmin(a, b);
}

struct bench_slice bench_slice_pair(const struct bench_slice *slice, const struct bench_slice *base)
{
    return (struct bench_slice){
        .tokens_per_second = slice->tokens_per_second,
        .share = base->tokens_per_second / slice->tokens_per_second,
        .before = fmin(fmin(slice->before, slice->after), fmin(base->before, base->after)),
        .after = fmax(fmax(slice->before, slice->after), fmax(base->before, base->after))};
}

int bench_paces(const struct bench_slice *slices, size_t count, double *scratch,
                struct bench_pace paces[BENCH_MOST_PACES])
{
    double lowest = INFINITY, highest = 0;
    for (size_t i = 0; i < count; i++)
        if (kept_one(&slices[i])) {
            lowest = fmin(lowest, pace_of_slice(&slices[i]));
            highest = fmax(highest, pace_of_slice(&slices[i]));
        }
    double middle = bench_same_pace(lowest, highest) ? INFINITY : sqrt(lowest * highest);
    int found = 0;
    found += find_pace(slices, count, 0, middle, scratch, &paces[found]);
    found += find_pace(slices, count, middle, INFINITY, scratch, &paces[found]);
    return found;
}
