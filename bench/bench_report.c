/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

static const char *const kinds[] = {PROFILE_KINDS(PROFILE_NAME)};

/* Per second: of a result, in billions. */
struct pace {
    double weights_gbps, moved_gbps, gflops;
};

static struct pace pace_of(const struct bench_result *result)
{
    double tokens = (double)result->test.tokens * result->test.batch;
    double runs = result->tokens_per_second / tokens * 1e-9;
    return (struct pace){.weights_gbps = result->cost.weight_bytes * runs,
                         .moved_gbps = result->cost.bytes * runs,
                         .gflops = result->cost.operations * runs};
}

static void print_operations(const struct bench *bench, FILE *out)
{
    fprintf(out, "\n%-7s %-6s %-8s %5s  %-14s  share of the time\n", "weights", "inputs",
            "products", "batch", "test");
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *r = &bench_results(bench)[i];
        char name[48];
        bench_case_name(&r->test, name);
        fprintf(out, "%-7s %-6s %-8s %5d  %-14s ", weight_format_name(r->test.weights),
                activation_format_name(r->test.activations), products_name(r->test.products),
                r->test.batch, name);
        for (int kind = 0; kind < NUM_PROFILE_KINDS; kind++)
            if (r->operations[kind] > 0)
                fprintf(out, " %s %.1f%%", kinds[kind], r->operations[kind] * 100);
        putc('\n', out);
    }
}

/* The beginnings of tables' lines. */
static void print_heading(FILE *out)
{
    fprintf(out, "%-7s %-4s %-6s %-8s %7s %5s  %-14s ", "weights", "kv", "inputs", "products",
            "threads", "batch", "test");
}

static void print_test(const struct bench_case *test, FILE *out)
{
    char name[48];
    bench_case_name(test, name);
    fprintf(out, "%-7s %-4s %-6s %-8s %7d %5d  %-14s ", weight_format_name(test->weights),
            kv_format_name(test->kv), activation_format_name(test->activations),
            products_name(test->products), test->threads, test->batch, name);
}

/* Of tests that differ in depth only. */
static void print_depths(const struct bench *bench, FILE *out)
{
    bool begun = false;
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *r = &bench_results(bench)[i];
        const struct statistics_interval *share = &r->of_depth_0;
        if (share->count == 0)
            continue;
        if (!begun) {
            putc('\n', out);
            print_heading(out);
            fprintf(out, "%12s  95%% certain\n", "of depth 0");
        }
        begun = true;
        print_test(&r->test, out);
        fprintf(out, "%11.1f%%  %.1f to %.1f%%, of %zu pairs\n", share->median * 100,
                share->low * 100, share->high * 100, share->count);
    }
}

/* Of tests that generate. */
static void print_paces(const struct bench *bench, FILE *out)
{
    bool begun = false;
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *r = &bench_results(bench)[i];
        for (int j = 0; j < r->num_paces; j++) {
            const struct bench_pace *pace = &r->paces[j];
            const struct statistics_interval *share = &pace->share;
            if (!begun) {
                putc('\n', out);
                print_heading(out);
                fprintf(out, "%12s %10s %8s  95%% certain\n", "memory reads", "tokens/s",
                        "of limit");
            }
            begun = true;
            print_test(&r->test, out);
            fprintf(out, "%7.1f GB/s %10.1f %7.1f%%  %.1f to %.1f%%, of %zu slices\n",
                    pace->bandwidth * 1e-9, pace->tokens_per_second, share->median * 100,
                    share->low * 100, share->high * 100, share->count);
        }
    }
}

/* What some of the tests' products break. */
static void print_caution(const struct bench *bench, FILE *out)
{
    const char *caution = NULL;
    for (int i = 0; i < bench_count(bench) && caution == NULL; i++)
        caution = products_caution(bench_results(bench)[i].test.products);
    if (caution != NULL)
        fprintf(out, "%s\n\n", caution);
}

/* The peaks, of each unit once. */
static void print_peaks(const struct bench *bench, FILE *out)
{
    const struct bench_result *results = bench_results(bench);
    fprintf(out, "%s: memory reads at most %.1f GB/s", results[0].model,
            bench_peaks(bench).bytes * 1e-9);
    for (int i = 0, j; i < bench_count(bench); i++) {
        double peak = 0;
        for (j = 0; j < i && strcmp(results[j].measured_unit, results[i].measured_unit) != 0;)
            j++;
        for (int k = i; k < bench_count(bench); k++)
            if (strcmp(results[k].measured_unit, results[i].measured_unit) == 0 &&
                results[k].peak_operations > peak)
                peak = results[k].peak_operations;
        if (j == i)
            fprintf(out, ", %s arithmetic %.0f GFLOP/s", results[i].measured_unit, peak * 1e-9);
    }
    fprintf(out, "\n\n");
}

/* The limit of a text that grows is what memory can read. */
static void print_cached(const struct bench *bench, FILE *out)
{
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *r = &bench_results(bench)[i];
        if (r->test.generates && r->share_of_limit > 1) {
            fprintf(out, "more than 100%% of the limit: caches hold the model, or a part of it, "
                         "which memory then does not read\n");
            return;
        }
    }
}

void bench_print_table(const struct bench *bench, FILE *out)
{
    const struct bench_result *results = bench_results(bench);
    print_peaks(bench, out);
    print_caution(bench, out);
    print_heading(out);
    fprintf(out, "%10s %7s  %-22s %8s  %s\n", "tokens/s", "spread", "pace", "of limit", "unit");
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *r = &results[i];
        struct pace pace = pace_of(r);
        char text[48];
        if (r->test.generates)
            snprintf(text, sizeof text, "%.1f GB/s of weights", pace.weights_gbps);
        else
            snprintf(text, sizeof text, "%.0f GFLOP/s", pace.gflops);
        print_test(&r->test, out);
        fprintf(out, "%10.1f %6.1f%%  %-22s %7.1f%%  %s\n", r->tokens_per_second, r->spread * 100,
                text, r->share_of_limit * 100, r->unit);
    }
    print_cached(bench, out);
    print_paces(bench, out);
    print_depths(bench, out);
    if (bench_has_operations(bench))
        print_operations(bench, out);
}

/* A quoted field: a directory's name may hold anything. */
static void print_quoted(const char *text, FILE *out)
{
    putc('"', out);
    for (; *text != 0; text++) {
        if (*text == '"')
            putc('"', out);
        putc(*text, out);
    }
    putc('"', out);
}

/* NULL: there is none. */
static void print_csv_pace(const struct bench_pace *pace, FILE *out)
{
    if (pace == NULL) {
        fprintf(out, ",,,,,,");
        return;
    }
    const struct statistics_interval *share = &pace->share;
    fprintf(out, ",%.6g,%.6g,%.4g,%.4g,%.4g,%zu", pace->bandwidth * 1e-9, pace->tokens_per_second,
            share->median, share->low, share->high, share->count);
}

void bench_print_csv(const struct bench *bench, FILE *out)
{
    fprintf(out,
            "model,weights,kv,activations,products,unit,test,batch,threads,repeat,"
            "tokens_per_second,spread,share_of_limit,weights_gbps,moved_gbps,gflops,of_depth_0,"
            "of_depth_0_low,of_depth_0_high");
    for (int i = 1; i <= BENCH_MOST_PACES; i++)
        fprintf(out,
                ",pace%d_gbps,pace%d_tokens_per_second,pace%d_share_of_limit,pace%d_low,"
                "pace%d_high,pace%d_slices",
                i, i, i, i, i, i);
    for (int kind = 0; bench_has_operations(bench) && kind < NUM_PROFILE_KINDS; kind++)
        fprintf(out, ",%s", kinds[kind]);
    putc('\n', out);
    for (int i = 0; i < bench_count(bench); i++) {
        const struct bench_result *r = &bench_results(bench)[i];
        struct pace pace = pace_of(r);
        char name[48];
        bench_case_name(&r->test, name);
        print_quoted(r->model, out);
        fprintf(out, ",%s,%s,%s,%s,%s,%s,%d,%d,%d,%.6g,%.4g,%.4g,%.6g,%.6g,%.6g",
                weight_format_name(r->test.weights), kv_format_name(r->test.kv),
                activation_format_name(r->test.activations), products_name(r->test.products),
                r->unit, name, r->test.batch, r->test.threads, bench_repeat(bench),
                r->tokens_per_second, r->spread, r->share_of_limit, pace.weights_gbps,
                pace.moved_gbps, pace.gflops);
        const struct statistics_interval *share = &r->of_depth_0;
        if (share->count > 0)
            fprintf(out, ",%.4g,%.4g,%.4g", share->median, share->low, share->high);
        else
            fprintf(out, ",,,");
        for (int j = 0; j < BENCH_MOST_PACES; j++)
            print_csv_pace(j < r->num_paces ? &r->paces[j] : NULL, out);
        for (int kind = 0; bench_has_operations(bench) && kind < NUM_PROFILE_KINDS; kind++)
            fprintf(out, ",%.4g", r->operations[kind]);
        putc('\n', out);
    }
}

static json_t *operations_json(const struct bench_result *r)
{
    json_t *json = json_object();
    for (int kind = 0; kind < NUM_PROFILE_KINDS; kind++)
        json_object_set_new(json, kinds[kind], json_real(r->operations[kind]));
    return json;
}

static json_t *interval_json(const struct statistics_interval *interval)
{
    return json_pack("{sf sf sf sI}", "median", interval->median, "low", interval->low, "high",
                     interval->high, "pairs", (json_int_t)interval->count);
}

static json_t *paces_json(const struct bench_result *r)
{
    json_t *json = json_array();
    for (int i = 0; i < r->num_paces; i++) {
        const struct bench_pace *pace = &r->paces[i];
        json_array_append_new(
            json, json_pack("{sf sf sf sf sf sI}", "bandwidth_gbps", pace->bandwidth * 1e-9,
                            "tokens_per_second", pace->tokens_per_second, "share_of_limit",
                            pace->share.median, "low", pace->share.low, "high", pace->share.high,
                            "slices", (json_int_t)pace->share.count));
    }
    return json;
}

static json_t *result_json(const struct bench *bench, int index)
{
    const struct bench_result *r = &bench_results(bench)[index];
    struct pace pace = pace_of(r);
    char name[48];
    bench_case_name(&r->test, name);
    return json_pack(
        "{ss ss ss ss ss ss ss si si si sf sf sf sf sf sf so* so* so*}", "model", r->model,
        "weights", weight_format_name(r->test.weights), "kv", kv_format_name(r->test.kv),
        "activations", activation_format_name(r->test.activations), "products",
        products_name(r->test.products), "unit", r->unit, "test", name, "batch", r->test.batch,
        "threads", r->test.threads, "repeat", bench_repeat(bench), "tokens_per_second",
        r->tokens_per_second, "spread", r->spread, "share_of_limit", r->share_of_limit,
        "weights_gbps", pace.weights_gbps, "moved_gbps", pace.moved_gbps, "gflops", pace.gflops,
        "of_depth_0", r->of_depth_0.count > 0 ? interval_json(&r->of_depth_0) : NULL, "paces",
        r->num_paces > 0 ? paces_json(r) : NULL, "operations",
        bench_has_operations(bench) ? operations_json(r) : NULL);
}

int bench_print_json(const struct bench *bench, FILE *out, struct error *err)
{
    struct bench_peaks peaks = bench_peaks(bench);
    json_t *results = json_array();
    for (int i = 0; i < bench_count(bench); i++)
        json_array_append_new(results, result_json(bench, i));
    json_t *json = json_pack("{sf sf so}", "bandwidth_gbps", peaks.bytes * 1e-9, "peak_gflops",
                             peaks.operations * 1e-9, "results", results);
    int failed = json == NULL || json_array_size(results) != (size_t)bench_count(bench) ||
                 json_dumpf(json, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0;
    json_decref(json);
    if (failed)
        return error_set(err, ERROR_INVALID, "cannot print these figures as JSON");
    putc('\n', out);
    return 0;
}
