/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include "bench/statistics.h"

#include <string.h>

static double quantity_of(const struct study_point *p, enum study_quantity quantity)
{
    double state = (double)p->recurrent_bytes + (double)p->kv_bytes;
    switch (quantity) {
    case STUDY_TOTAL_S:
        return p->total_s;
    case STUDY_TTFT_S:
        return p->ttft_s;
    case STUDY_TOKENS_PER_SECOND:
        return p->tokens_per_second;
    case STUDY_STATE_BYTES:
        return state;
    case STUDY_BYTES:
        return state + (double)p->weights_bytes + (double)p->workspace_bytes;
    case STUDY_PROCESS_BYTES:
        return (double)p->process_peak_bytes;
    case STUDY_MS_PER_TOKEN:
        break;
    }
    return 0;
}

/* The bandwidth at which most turns of the batch were; 0: there are none. */
static double common_pace(const struct study_plan *plan, int batch)
{
    double bandwidths[2 * BENCH_MOST_PACES];
    size_t counts[2 * BENCH_MOST_PACES] = {0}, most = 0;
    int found = 0;
    for (size_t i = 0; i < plan->num_turns; i++) {
        struct bench_pace paces[BENCH_MOST_PACES];
        int count =
            plan->turns[i].batch == batch ? study_turns_paces(&plan->turns[i], NULL, paces) : 0;
        for (int j = 0; j < count; j++) {
            int k = 0;
            while (k < found && !bench_same_pace(bandwidths[k], paces[j].bandwidth))
                k++;
            if (k == found && found == 2 * BENCH_MOST_PACES)
                continue;
            if (k == found)
                bandwidths[found++] = paces[j].bandwidth;
            counts[k] += paces[j].share.count;
        }
    }
    double common = 0;
    for (int k = 0; k < found; k++)
        if (counts[k] > most) {
            most = counts[k];
            common = bandwidths[k];
        }
    return common;
}

static struct study_value time_per_token(const struct study_plan *plan, const char *system,
                                         int length, int batch)
{
    const struct study_turns *turns = study_turns_find(plan, system, length, batch);
    struct bench_pace paces[BENCH_MOST_PACES];
    int count = turns != NULL ? study_turns_paces(turns, NULL, paces) : 0;
    double common = count > 0 ? common_pace(plan, batch) : 0;
    for (int i = 0; i < count; i++)
        if (bench_same_pace(paces[i].bandwidth, common))
            return (struct study_value){(int)paces[i].share.count, paces[i].share.median,
                                        paces[i].share.low, paces[i].share.high};
    return (struct study_value){0};
}

struct study_value study_value(const struct study_plan *plan, const char *system, int length,
                               int batch, enum study_quantity quantity)
{
    enum { MOST = 64 };
    if (quantity == STUDY_MS_PER_TOKEN)
        return time_per_token(plan, system, length, batch);
    double values[MOST];
    int count = 0;
    for (size_t i = 0; i < plan->count && count < MOST; i++) {
        const struct study_point *p = &plan->points[i];
        if (p->measured && p->length == length && p->batch == batch &&
            strcmp(p->system, system) == 0)
            values[count++] = quantity_of(p, quantity);
    }
    if (count == 0)
        return (struct study_value){0};
    double median = statistics_median(values, (size_t)count);
    return (struct study_value){count, median, values[0], values[count - 1]};
}

static double spread_percent(struct study_value value)
{
    return value.median > 0 ? (value.greatest - value.least) / value.median * 100 : 0;
}

static const double MIB = 1024.0 * 1024.0;

static void table(FILE *out, const struct study_plan *plan, const struct study_axes *axes,
                  int batch)
{
    fprintf(out, "\nbatch %d%45s MiB in use at the end\n", batch, "");
    fprintf(out, "%-20s %6s %4s %9s %8s %9s %7s %9s %9s %9s\n", "system", "length", "runs",
            "total s", "ttft ms", "tokens/s", "spread", "state", "in all", "process");
    for (int s = 0; s < axes->num_systems; s++)
        for (int l = 0; l < axes->num_lengths; l++) {
            const char *system = axes->systems[s];
            int length = axes->lengths[l];
#define VALUE(quantity) study_value(plan, system, length, batch, quantity)
            struct study_value total = VALUE(STUDY_TOTAL_S);
            if (total.count == 0)
                continue;
            fprintf(out, "%-20s %6d %4d %9.3f %8.2f %9.1f %6.1f%% %9.2f %9.1f %9.1f\n",
                    l == 0 ? system : "", length, total.count, total.median,
                    VALUE(STUDY_TTFT_S).median * 1e3, VALUE(STUDY_TOKENS_PER_SECOND).median,
                    spread_percent(total), VALUE(STUDY_STATE_BYTES).median / MIB,
                    VALUE(STUDY_BYTES).median / MIB, VALUE(STUDY_PROCESS_BYTES).median / MIB);
#undef VALUE
        }
}

/* The least and greatest lengths that the system has points of; false: fewer than two. */
static bool ends(const struct study_plan *plan, const struct study_axes *axes, const char *system,
                 int batch, int *first, int *last)
{
    *first = *last = 0;
    for (int l = 0; l < axes->num_lengths; l++) {
        int length = axes->lengths[l];
        if (study_value(plan, system, length, batch, STUDY_TOTAL_S).count == 0)
            continue;
        if (*first == 0)
            *first = length;
        *last = length;
    }
    return *last > *first;
}

static void verdicts(FILE *out, const struct study_plan *plan, const struct study_axes *axes,
                     int batch)
{
    fprintf(out, "\n%-20s %14s %18s %18s\n", "growth with length", "from, to", "state memory",
            "process memory");
    for (int s = 0; s < axes->num_systems; s++) {
        const char *system = axes->systems[s];
        int first, last;
        if (!ends(plan, axes, system, batch, &first, &last))
            continue;
        double ratio[2];
        static const enum study_quantity quantities[] = {STUDY_STATE_BYTES, STUDY_PROCESS_BYTES};
        for (int q = 0; q < 2; q++) {
            double from = study_value(plan, system, first, batch, quantities[q]).median;
            double to = study_value(plan, system, last, batch, quantities[q]).median;
            ratio[q] = from > 0 ? to / from : 0;
        }
        fprintf(out, "%-20s %6d, %6d %17.3fx %17.3fx%s\n", system, first, last, ratio[0], ratio[1],
                ratio[0] == 1 ? "   state: constant" : "");
    }
}

/* Time per token at `length`, or a negative number. */
static double time_at(const struct study_plan *plan, const char *system, int length, int batch)
{
    struct study_value value = study_value(plan, system, length, batch, STUDY_MS_PER_TOKEN);
    return value.count == 0 ? -1 : value.median;
}

static void crossover(FILE *out, const struct study_plan *plan, const struct study_axes *axes,
                      int batch, const char *constant)
{
    int from = 0, measured = 0;
    for (int l = axes->num_lengths - 1; l >= 0; l--) {
        double a = time_at(plan, constant, axes->lengths[l], batch);
        double b = time_at(plan, "softmax", axes->lengths[l], batch);
        if (a < 0 || b < 0)
            continue;
        measured++;
        if (a >= b)
            break;
        from = axes->lengths[l];
    }
    if (measured == 0)
        return;
    if (from > 0)
        fprintf(out, "crossover: from %d tokens on, %s takes less time per token than softmax\n",
                from, constant);
    else
        fprintf(out, "crossover: %s takes no less time per token than softmax up to %d tokens\n",
                constant, axes->lengths[axes->num_lengths - 1]);
}

static bool has(const struct study_axes *axes, const char *system)
{
    for (int s = 0; s < axes->num_systems; s++)
        if (strcmp(axes->systems[s], system) == 0)
            return true;
    return false;
}

void study_report(FILE *out, const struct study_plan *plan, const struct study_axes *axes)
{
    for (int b = 0; b < axes->num_batches; b++) {
        int batch = axes->batches[b];
        table(out, plan, axes, batch);
        verdicts(out, plan, axes, batch);
        if (has(axes, "softmax") && has(axes, "regla"))
            crossover(out, plan, axes, batch, "regla");
        study_compare(out, plan, axes, batch);
    }
}
