#include "server/bench_run.h"

#include "server/bench_text.h"
#include "server/statistics.h"

#include <stdio.h>
#include <stdlib.h>

enum { LEAST_STEP_TOKENS = 512 };

/* An engine, with what of a test it was opened for. */
struct device {
    struct engine *engine;
    struct bench_case asked;
};

/* One test of the plan while it runs. */
struct entry {
    struct device *device;
    struct device *meter;      /* measures the peaks: of the same number of threads */
    struct bench_texts *texts; /* maybe those of an entry before */
    bool owns_texts;
    double *rates, *shares; /* [repeat] */
};

struct bench {
    struct bench_options options;
    int count;
    struct bench_result *results; /* [count] */
    struct entry *entries;        /* [count] */
    struct device *devices;       /* [num_devices], of at most count */
    int num_devices;
    struct bench_peaks highest;
    const struct device *measured; /* NULL: something else has run since the last measurement */
    struct bench_peaks last;
};

static void progress(const struct bench *bench, const char *what, int index)
{
    char name[48];
    if (!bench->options.progress)
        return;
    fprintf(stderr, "\r\033[K");
    if (what == NULL)
        return;
    bench_case_name(&bench->results[index].test, name);
    fprintf(stderr, "%s: %d of %d, %s %s", what, index + 1, bench->count, name,
            weight_format_name(bench->results[index].test.weights));
    fflush(stderr);
}

/* The engine for a test: opened, or the one that is. max_batch: of all tests. */
static int find_device(struct bench *bench, struct device **out, const struct bench_case *test,
                       int max_batch, struct error *err)
{
    for (int i = 0; i < bench->num_devices; i++) {
        const struct bench_case *asked = &bench->devices[i].asked;
        *out = &bench->devices[i];
        if (asked->weights == test->weights && asked->kv == test->kv &&
            asked->threads == test->threads)
            return 0;
    }
    struct device *device = &bench->devices[bench->num_devices];
    const struct engine_options options = {
        .weights = test->weights,
        .kv = test->kv,
        .threads = test->threads,
        .max_step_tokens = max_batch > LEAST_STEP_TOKENS ? max_batch : LEAST_STEP_TOKENS,
        .max_step_logits = max_batch,
    };
    int result = bench->options.preset != NULL
                     ? engine_open_preset(&device->engine, bench->options.preset, &options, err)
                     : engine_open(&device->engine, bench->options.directory, &options, err);
    if (result != 0)
        return -1;
    device->asked = *test;
    bench->num_devices++;
    *out = device;
    return 0;
}

static int find_texts(struct bench *bench, int index, struct error *err)
{
    const struct bench_case *test = &bench->results[index].test;
    struct entry *entry = &bench->entries[index];
    for (int i = 0; i < index; i++) {
        const struct bench_case *other = &bench->results[i].test;
        if (bench->entries[i].device == entry->device && other->depth == test->depth &&
            other->batch == test->batch) {
            entry->texts = bench->entries[i].texts;
            return 0;
        }
    }
    progress(bench, "filling", index);
    entry->owns_texts = true;
    return bench_texts_open(&entry->texts, entry->device->engine, test->depth, test->batch, err);
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
    result->test.kv = info->kv;
    result->test.threads = info->threads;
    result->need = bench_need(engine_model(entry->device->engine), info, &result->test);
    for (entry->meter = bench->devices;
         engine_info(entry->meter->engine)->threads != result->test.threads;)
        entry->meter++;
    entry->rates = calloc((size_t)result->test.repeat, sizeof(double));
    entry->shares = calloc((size_t)result->test.repeat, sizeof(double));
    if (entry->rates == NULL || entry->shares == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %d repeats", result->test.repeat);
    return find_texts(bench, index, err);
}

static int measure(struct bench *bench, const struct device *meter, struct error *err)
{
    struct bench_peaks *last = &bench->last, *highest = &bench->highest;
    if (engine_measure(meter->engine, &last->bytes, &last->operations, err) != 0)
        return -1;
    bench->measured = meter;
    highest->bytes = last->bytes > highest->bytes ? last->bytes : highest->bytes;
    highest->operations =
        last->operations > highest->operations ? last->operations : highest->operations;
    return 0;
}

/* Runs a test once; its results are kept unless `repeat` is negative (to warm up). */
static int run_once(struct bench *bench, int index, int repeat, struct error *err)
{
    const struct bench_result *result = &bench->results[index];
    struct entry *entry = &bench->entries[index];
    double seconds;
    progress(bench, repeat < 0 ? "warming up" : "measuring", index);
    if (repeat < 0)
        return bench_texts_run(entry->texts, &result->test, &seconds, err);
    if (bench->measured != entry->meter && measure(bench, entry->meter, err) != 0)
        return -1;
    struct bench_peaks before = bench->last;
    if (bench_texts_run(entry->texts, &result->test, &seconds, err) != 0 ||
        measure(bench, entry->meter, err) != 0)
        return -1;
    const struct bench_peaks *after = &bench->last;
    double least =
        result->test.generates
            ? result->need.bytes / (before.bytes > after->bytes ? before.bytes : after->bytes)
            : result->need.operations /
                  (before.operations > after->operations ? before.operations : after->operations);
    entry->rates[repeat] = (double)result->test.tokens * result->test.batch / seconds;
    entry->shares[repeat] = least / seconds;
    return 0;
}

static int profile(struct bench *bench, int index, struct error *err)
{
    struct bench_result *result = &bench->results[index];
    const struct entry *entry = &bench->entries[index];
    double seconds;
    progress(bench, "profiling", index);
    engine_profile(entry->device->engine, result->operations);
    int failed = bench_texts_run(entry->texts, &result->test, &seconds, err);
    engine_profile(entry->device->engine, NULL);
    for (int i = 0; i < NUM_PROFILE_KINDS; i++)
        result->operations[i] /= seconds;
    return failed;
}

static void conclude(struct bench_result *result, const struct entry *entry)
{
    int repeat = result->test.repeat;
    result->tokens_per_second = statistics_median(entry->rates, (size_t)repeat);
    result->spread = (entry->rates[repeat - 1] - entry->rates[0]) / result->tokens_per_second;
    result->share_of_limit = statistics_median(entry->shares, (size_t)repeat);
}

static int run_all(struct bench *bench, struct error *err)
{
    int max_batch = 1, max_repeat = 1;
    for (int i = 0; i < bench->count; i++) {
        const struct bench_case *test = &bench->results[i].test;
        max_batch = test->batch > max_batch ? test->batch : max_batch;
        max_repeat = test->repeat > max_repeat ? test->repeat : max_repeat;
    }
    for (int i = 0; i < bench->count; i++)
        if (open_entry(bench, i, max_batch, err) != 0)
            return -1;
    for (int repeat = -1; repeat < max_repeat; repeat++)
        for (int i = 0; i < bench->count; i++)
            if (repeat < bench->results[i].test.repeat && run_once(bench, i, repeat, err) != 0)
                return -1;
    for (int i = 0; i < bench->count; i++) {
        conclude(&bench->results[i], &bench->entries[i]);
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
        if (bench->entries[i].owns_texts)
            bench_texts_close(bench->entries[i].texts);
        free(bench->entries[i].rates);
        free(bench->entries[i].shares);
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

bool bench_has_operations(const struct bench *bench)
{
    return bench->options.operations;
}
