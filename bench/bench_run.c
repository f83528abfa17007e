/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_run.h"

#include "bench/bench_text.h"
#include "bench/statistics.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_STEP_TOKENS = 512,
    WARM_UP_TOKENS = 4096, /* of each text, between two words on how far it is */
};

/* Of the fastest test that generates: much longer than it takes caches and threads to be back from
 * other tests, and much shorter than the machine keeps one pace. */
static const double SLICE_SECONDS = 0.05;

/* An engine, with what of a test it was opened for. */
struct device {
    struct engine *engine;
    struct bench_case asked;
    struct bench_peaks highest; /* that it has measured */
};

/* One test of the plan while it runs. */
struct entry {
    struct device *device;
    struct device *meter; /* measures the peaks: of as many threads, and of the same unit */
    struct bench_texts *texts;
    double *rates, *shares;     /* [repeat] */
    size_t num_slices;          /* of a run */
    struct bench_slice *slices; /* [repeat, num_slices] */
    double *scratch;            /* [2, repeat, num_slices] */
    double pace;                /* seconds per token of each text, as it warmed up */
    /* Of the run under way, or ended: tokens of each text, time taken, and the least there is. */
    int done;
    double seconds, least;
};

struct bench {
    struct bench_options options;
    int count;
    struct bench_result *results; /* [count] */
    struct entry *entries;        /* [count] */
    struct device *devices;       /* [num_devices], of at most count */
    int num_devices;
    int num_engines; /* as many will there be */
    struct bench_peaks highest;
    const struct device *measured; /* NULL: something else has run since the last measurement */
    struct bench_peaks last;
    int slice_tokens; /* of each text, generating */
    /* What there is to measure, by the pace of warming up, and how much of it took how long. */
    double all, done, start;
};

static double seconds_left(const struct bench *bench)
{
    double done = bench->done, left = fmax(0, bench->all - done);
    return done > 0 ? left * (clock_seconds() - bench->start) / done : left;
}

static void progress(const struct bench *bench, const char *what, int index)
{
    char name[48];
    if (!bench->options.progress)
        return;
    fprintf(stderr, "\r\033[K");
    if (what == NULL)
        return;
    const struct bench_case *test = &bench->results[index].test;
    bench_case_name(test, name);
    fprintf(stderr, "%s: %d of %d, %s%s%s %s", what, index + 1, bench->count,
            test->preset ? test->preset : "", test->preset ? " " : "", name,
            weight_format_name(test->weights));
    if (test->activations != ACTIVATIONS_F32 && test->activations != ACTIVATIONS_AUTO)
        fprintf(stderr, " %s", activation_format_name(test->activations));
    if (test->products != PRODUCTS_OWN)
        fprintf(stderr, " %s", products_name(test->products));
    if (bench->entries[index].done > 0)
        fprintf(stderr, ", %.0f%%",
                100.0 * bench->entries[index].done / bench->results[index].test.tokens);
    if (bench->all > 0)
        fprintf(stderr, ", about %.0f s left in all", seconds_left(bench));
    fflush(stderr);
}

static bool same_engine(const struct bench_case *a, const struct bench_case *b)
{
    bool one = a->preset == b->preset ||
               (a->preset != NULL && b->preset != NULL && strcmp(a->preset, b->preset) == 0);
    return one && a->weights == b->weights && a->kv == b->kv && a->activations == b->activations &&
           a->products == b->products && a->threads == b->threads;
}

static int count_engines(const struct bench *bench)
{
    int count = 0;
    for (int i = 0; i < bench->count; i++) {
        bool first = true;
        for (int k = 0; k < i && first; k++)
            first = !same_engine(&bench->results[k].test, &bench->results[i].test);
        count += first;
    }
    return count;
}

/* The engine for a test: opened, or the one that is. max_batch: of all tests. */
static int find_device(struct bench *bench, struct device **out, const struct bench_case *test,
                       int max_batch, struct error *err)
{
    for (int i = 0; i < bench->num_devices; i++) {
        *out = &bench->devices[i];
        if (same_engine(&bench->devices[i].asked, test))
            return 0;
    }
    struct device *device = &bench->devices[bench->num_devices];
    const char *preset = test->preset != NULL ? test->preset : bench->options.preset;
    const size_t engines = (size_t)bench->num_engines;
    const struct engine_options options = {
        .device = bench->options.device,
        .weights = test->weights,
        .kv = test->kv,
        .activations = test->activations,
        .products = test->products,
        .threads = test->threads,
        .state_memory_bytes = bench->options.state_memory_bytes / engines,
        .device_memory_bytes = bench->options.device_memory_bytes / engines,
        .max_step_tokens = max_batch > LEAST_STEP_TOKENS ? max_batch : LEAST_STEP_TOKENS,
        .max_step_logits = max_batch,
        /* Of several one part more stays free: to measure peaks takes memory, too. */
        .sharing = bench->num_engines - bench->num_devices + (bench->num_engines > 1),
    };
    int result = preset != NULL
                     ? engine_open_preset(&device->engine, preset, &options, err)
                     : engine_open(&device->engine, bench->options.directory, &options, err);
    if (result != 0)
        return -1;
    device->asked = *test;
    bench->num_devices++;
    *out = device;
    return 0;
}

/* Says which test it was. Returns -1. */
static int failed(const struct bench *bench, int index, struct error *err)
{
    const struct bench_case *test = &bench->results[index].test;
    char name[48];
    bench_case_name(test, name);
    return error_prefix(err, "%s, batch %d", name, test->batch);
}

static int open_texts(struct bench *bench, int index, struct error *err)
{
    const struct bench_case *test = &bench->results[index].test;
    struct entry *entry = &bench->entries[index];
    const struct bench_texts *like = NULL;
    for (int i = 0; i < index && like == NULL; i++) {
        const struct bench_case *other = &bench->results[i].test;
        if (bench->entries[i].device == entry->device && other->depth == test->depth &&
            other->batch == test->batch)
            like = bench->entries[i].texts;
    }
    progress(bench, "filling", index);
    if (bench_texts_open(&entry->texts, entry->device->engine, like, test->depth, test->batch,
                         err) != 0)
        return failed(bench, index, err);
    return 0;
}

/* Whether a device's peaks are those that an engine is compared with. */
static bool measures(const struct device *device, const struct engine_info *info)
{
    const struct engine_info *own = engine_info(device->engine);
    return own->threads == info->threads && strcmp(own->measured_unit, info->measured_unit) == 0;
}

static int open_entry(struct bench *bench, int index, int max_batch, struct error *err)
{
    struct bench_result *result = &bench->results[index];
    struct entry *entry = &bench->entries[index];
    progress(bench, "loading", index);
    if (find_device(bench, &entry->device, &result->test, max_batch, err) != 0)
        return -1;
    const struct engine_info *info = engine_info(entry->device->engine);
    result->model = engine_model(entry->device->engine)->name;
    result->test.weights = info->weights;
    result->test.activations = info->activations;
    result->test.kv = info->kv;
    result->test.threads = info->threads;
    result->unit = info->unit;
    result->measured_unit = info->measured_unit;
    for (entry->meter = bench->devices; !measures(entry->meter, info);)
        entry->meter++;
    return open_texts(bench, index, err);
}

static void raise_peaks(struct bench_peaks *highest, const struct bench_peaks *last)
{
    highest->bytes = fmax(last->bytes, highest->bytes);
    highest->operations = fmax(last->operations, highest->operations);
}

static int measure(struct bench *bench, struct device *meter, struct error *err)
{
    struct bench_peaks *last = &bench->last;
    if (engine_measure(meter->engine, &last->bytes, &last->operations, err) != 0)
        return -1;
    bench->measured = meter;
    raise_peaks(&bench->highest, last);
    raise_peaks(&meter->highest, last);
    return 0;
}

/* Runs a test once, untimed, and says how far it is. */
static int run_whole(struct bench *bench, const char *what, int index, double *seconds,
                     struct error *err)
{
    const struct bench_case *test = &bench->results[index].test;
    struct entry *entry = &bench->entries[index];
    *seconds = 0;
    if (bench_texts_begin(entry->texts, test->tokens, err) != 0)
        return -1;
    for (entry->done = 0; entry->done < test->tokens;) {
        double passed;
        int left = test->tokens - entry->done,
            count = left < WARM_UP_TOKENS ? left : WARM_UP_TOKENS;
        progress(bench, what, index);
        if (bench_texts_run(entry->texts, test->generates, count, &passed, err) != 0)
            return -1;
        entry->done += count;
        *seconds += passed;
    }
    bench_texts_end(entry->texts);
    entry->done = 0;
    return 0;
}

/* Runs each test once, which also says how long slices are and how long all will take. */
static int warm_up(struct bench *bench, struct error *err)
{
    double least = INFINITY, all = 0;
    for (int i = 0; i < bench->count; i++) {
        const struct bench_case *test = &bench->results[i].test;
        double seconds;
        if (run_whole(bench, "warming up", i, &seconds, err) != 0)
            return failed(bench, i, err);
        bench->entries[i].pace = seconds / test->tokens;
        if (test->generates && bench->entries[i].pace < least)
            least = bench->entries[i].pace;
        all += seconds * bench->options.repeat;
    }
    double tokens = ceil(SLICE_SECONDS / least);
    bench->slice_tokens = bench->options.slice_tokens > 0 ? bench->options.slice_tokens
                          : tokens < INT_MAX              ? (int)tokens
                                                          : INT_MAX;
    bench->all = all;
    bench->start = clock_seconds();
    return 0;
}

static int slice_tokens(const struct bench *bench, const struct bench_case *test)
{
    return test->generates && bench->slice_tokens < test->tokens ? bench->slice_tokens
                                                                 : test->tokens;
}

static int allocate_figures(struct bench *bench, struct error *err)
{
    for (int i = 0; i < bench->count; i++) {
        struct entry *entry = &bench->entries[i];
        const struct bench_case *test = &bench->results[i].test;
        size_t repeat = (size_t)bench->options.repeat;
        int length = slice_tokens(bench, test);
        entry->num_slices = (size_t)((test->tokens - 1) / length + 1);
        entry->rates = calloc(repeat, sizeof(double));
        entry->shares = calloc(repeat, sizeof(double));
        entry->slices = calloc(repeat * entry->num_slices, sizeof *entry->slices);
        entry->scratch = calloc(2 * repeat * entry->num_slices, sizeof(double));
        if (entry->rates == NULL || entry->shares == NULL || entry->slices == NULL ||
            entry->scratch == NULL)
            return error_set(err, ERROR_NO_MEMORY, "no memory for %zu repeats", repeat);
    }
    return 0;
}

/* The next slice of a test's run. */
static int run_slice(struct bench *bench, int index, int repeat, struct error *err)
{
    struct entry *entry = &bench->entries[index];
    struct bench_case slice = bench->results[index].test;
    int length = slice_tokens(bench, &slice), left = slice.tokens - entry->done;
    slice.tokens = left < length ? left : length;
    slice.depth += entry->done;
    progress(bench, "measuring", index);
    if (bench->measured != entry->meter && measure(bench, entry->meter, err) != 0)
        return -1;
    struct bench_peaks before = bench->last;
    double seconds;
    if (bench_texts_run(entry->texts, slice.generates, slice.tokens, &seconds, err) != 0 ||
        measure(bench, entry->meter, err) != 0)
        return -1;
    const struct bench_peaks *after = &bench->last;
    const struct cost cost = bench_texts_cost(entry->texts, &slice);
    struct cost *all = &bench->results[index].cost;
    all->weight_bytes += cost.weight_bytes;
    all->bytes += cost.bytes;
    all->operations += cost.operations;
    double least = slice.generates ? cost.bytes / fmax(before.bytes, after->bytes)
                                   : cost.operations / fmax(before.operations, after->operations);
    entry->slices[(size_t)repeat * entry->num_slices + (size_t)(entry->done / length)] =
        (struct bench_slice){.tokens_per_second = slice.tokens * slice.batch / seconds,
                             .share = least / seconds,
                             .before = before.bytes,
                             .after = after->bytes};
    entry->least += least;
    entry->seconds += seconds;
    entry->done += slice.tokens;
    bench->done += entry->pace * slice.tokens;
    return 0;
}

/* One run of each test, in turns. */
static int run_repeat(struct bench *bench, int repeat, struct error *err)
{
    bool more = false;
    for (int i = 0; i < bench->count; i++) {
        struct entry *entry = &bench->entries[i];
        entry->done = 0;
        entry->seconds = entry->least = 0;
        if (bench_texts_begin(entry->texts, bench->results[i].test.tokens, err) != 0)
            return -1;
    }
    bench->measured = NULL;
    do {
        more = false;
        for (int i = 0; i < bench->count; i++) {
            if (bench->entries[i].done == bench->results[i].test.tokens)
                continue;
            if (run_slice(bench, i, repeat, err) != 0)
                return -1;
            more = true;
        }
    } while (more);
    for (int i = 0; i < bench->count; i++) {
        struct entry *entry = &bench->entries[i];
        const struct bench_case *test = &bench->results[i].test;
        bench_texts_end(entry->texts);
        entry->rates[repeat] = (double)test->tokens * test->batch / entry->seconds;
        entry->shares[repeat] = entry->least / entry->seconds;
    }
    return 0;
}

static int profile(struct bench *bench, int index, struct error *err)
{
    struct bench_result *result = &bench->results[index];
    struct engine *engine = bench->entries[index].device->engine;
    double times[PROFILE_SECONDS] = {0}, seconds;
    engine_profile(engine, times);
    int failed = run_whole(bench, "profiling", index, &seconds, err);
    engine_profile(engine, NULL);
    for (int i = 0; i < NUM_PROFILE_KINDS && failed == 0; i++)
        result->operations[i] = times[i] / (seconds - times[PROFILE_DELAY]);
    return failed;
}

/* Against the same test at depth 0, if there is one. */
static void compare_depths(struct bench *bench, int index)
{
    struct bench_result *result = &bench->results[index];
    const struct bench_case *test = &result->test;
    struct entry *entry = &bench->entries[index];
    size_t count = (size_t)bench->options.repeat * entry->num_slices;
    for (int i = 0; i < bench->count && test->depth > 0; i++) {
        const struct bench_case *base = &bench->results[i].test;
        if (bench->entries[i].device != entry->device || base->depth != 0 ||
            base->generates != test->generates || base->tokens != test->tokens ||
            base->batch != test->batch)
            continue;
        for (size_t j = 0; j < count; j++)
            entry->scratch[j] =
                entry->slices[j].tokens_per_second / bench->entries[i].slices[j].tokens_per_second;
        result->of_depth_0 = statistics_interval(entry->scratch, entry->scratch + count, count);
        return;
    }
}

static void conclude(struct bench *bench, int index)
{
    struct bench_result *result = &bench->results[index];
    const struct entry *entry = &bench->entries[index];
    int repeat = bench->options.repeat;
    result->cost.weight_bytes /= repeat;
    result->cost.bytes /= repeat;
    result->cost.operations /= repeat;
    result->tokens_per_second = statistics_median(entry->rates, (size_t)repeat);
    result->spread = (entry->rates[repeat - 1] - entry->rates[0]) / result->tokens_per_second;
    result->peak_operations = entry->meter->highest.operations;
    result->share_of_limit = statistics_median(entry->shares, (size_t)repeat);
    compare_depths(bench, index);
    result->slices = entry->slices;
    result->num_slices = (size_t)repeat * entry->num_slices;
    if (result->test.generates)
        result->num_paces = bench_paces(entry->slices, (size_t)repeat * entry->num_slices,
                                        entry->scratch, result->paces);
}

static int run_all(struct bench *bench, struct error *err)
{
    int max_batch = 1;
    for (int i = 0; i < bench->count; i++) {
        const struct bench_case *test = &bench->results[i].test;
        max_batch = test->batch > max_batch ? test->batch : max_batch;
    }
    bench->num_engines = count_engines(bench);
    for (int i = 0; i < bench->count; i++)
        if (open_entry(bench, i, max_batch, err) != 0)
            return -1;
    if (warm_up(bench, err) != 0 || allocate_figures(bench, err) != 0)
        return -1;
    for (int repeat = 0; repeat < bench->options.repeat; repeat++)
        if (run_repeat(bench, repeat, err) != 0)
            return -1;
    bench->all = 0;
    for (int i = 0; i < bench->count; i++) {
        conclude(bench, i);
        if (bench->options.operations && profile(bench, i, err) != 0)
            return -1;
    }
    return 0;
}

int bench_run(struct bench **out, const struct bench_plan *plan,
              const struct bench_options *options, struct error *err)
{
    size_t count = (size_t)plan->count;
    struct bench *bench = calloc(1, sizeof *bench);
    if (bench == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu tests", count);
    bench->options = *options;
    bench->results = calloc(count, sizeof *bench->results);
    bench->entries = calloc(count, sizeof *bench->entries);
    bench->devices = calloc(count, sizeof *bench->devices);
    int result;
    if (bench->results == NULL || bench->entries == NULL || bench->devices == NULL) {
        result = error_set(err, ERROR_NO_MEMORY, "no memory for %zu tests", count);
    } else {
        bench->count = plan->count;
        for (int i = 0; i < plan->count; i++)
            bench->results[i].test = plan->cases[i];
        result = run_all(bench, err);
    }
    progress(bench, NULL, 0);
    if (result == 0)
        *out = bench;
    else
        bench_free(bench);
    return result;
}

void bench_free(struct bench *bench)
{
    if (bench == NULL)
        return;
    for (int i = 0; i < bench->count; i++) {
        bench_texts_close(bench->entries[i].texts);
        free(bench->entries[i].rates);
        free(bench->entries[i].shares);
        free(bench->entries[i].slices);
        free(bench->entries[i].scratch);
    }
    for (int i = 0; i < bench->num_devices; i++)
        engine_close(bench->devices[i].engine);
    free(bench->results);
    free(bench->entries);
    free(bench->devices);
    free(bench);
}

int bench_count(const struct bench *bench)
{
    return bench->count;
}

const struct bench_result *bench_results(const struct bench *bench)
{
    return bench->results;
}

struct bench_peaks bench_peaks(const struct bench *bench)
{
    return bench->highest;
}

int bench_repeat(const struct bench *bench)
{
    return bench->options.repeat;
}

bool bench_has_operations(const struct bench *bench)
{
    return bench->options.operations;
}
