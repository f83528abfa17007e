/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/bench_paces.h"
#include "bench/bench_plan.h"
#include "bench/statistics.h"
#include "lib/base/philox.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const struct bench_lists defaults = {.pp = "512",
                                            .tg = "64",
                                            .depth = "0",
                                            .batch = "1",
                                            .weights = "auto",
                                            .kv = "auto",
                                            .activations = "f32",
                                            .products = "own",
                                            .threads = "0"};

static void expect_name(const struct bench_case *test, const char *expected)
{
    char name[48];
    bench_case_name(test, name);
    cr_expect(strcmp(name, expected) == 0, "expected %s, got %s", expected, name);
}

Test(bench, without_lists_there_are_two_tests)
{
    struct bench_plan plan;
    cr_assert(bench_plan_make(&plan, &defaults, NULL) == 0);
    cr_assert(plan.count == 2);
    expect_name(&plan.cases[0], "pp512");
    expect_name(&plan.cases[1], "tg64");
    for (int i = 0; i < 2; i++) {
        const struct bench_case *test = &plan.cases[i];
        cr_expect(test->generates == (i == 1) && test->depth == 0 && test->batch == 1);
        cr_expect(test->weights == WEIGHTS_AUTO && test->kv == KV_AUTO);
        cr_expect(test->threads == 0);
    }
    bench_plan_clear(&plan);
}

Test(bench, formats_in_one_word)
{
    static const struct {
        const char *text, *name;
    } cases[] = {
        {"q8/8bit/f16", "q8/8bit/f16"}, {"q8", "q8/auto/auto"},
        {"/f32", "auto/f32/auto"},      {"//bf16", "auto/auto/bf16"},
        {"", "auto/auto/auto"},         {"q4/", "q4/auto/auto"},
        {"q4//", "q4/auto/auto"},       {"auto/16bit", "auto/16bit/auto"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_case test = {0};
        struct error err = ERROR_INIT;
        char name[BENCH_FORMATS_SIZE];
        cr_assert(bench_formats_read(&test, cases[i].text, &err) == 0, "%s", err.message);
        bench_formats_name(&test, name);
        cr_expect_str_eq(name, cases[i].name);
    }
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"q9", "weights: expected auto, f32, bf16, f16, q8, q6 or q4, got \"q9\""},
        {"q8/4bit", "activations: expected auto, f32, 16bit or 8bit, got \"4bit\""},
        {"q8/8bit/q8", "KV: expected auto, f32, f16 or bf16, got \"q8\""},
        {"q8/8bit/f16/", "expected WEIGHTS/ACTIVATIONS/KV, as q8/8bit/f16, got \"q8/8bit/f16/\""},
        {"q8,8bit", "weights: expected auto, f32, bf16, f16, q8, q6 or q4, got \"q8,8bit\""},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct bench_case test = {0};
        struct error err = ERROR_INIT;
        cr_expect(bench_formats_read(&test, wrong[i].text, &err) == -1);
        cr_expect_str_eq(err.message, wrong[i].message);
    }
}

Test(bench, every_combination_is_a_test_once)
{
    struct bench_lists lists = defaults;
    struct bench_plan plan;
    lists.pp = "0,7";
    lists.tg = "3,4";
    lists.depth = "0,8000";
    lists.batch = "1,16";
    lists.weights = "f32,q8,bf16";
    lists.kv = "f16,f32";
    lists.products = "own,cublaslt";
    lists.threads = "1,2";
    cr_assert(bench_plan_make(&plan, &lists, NULL) == 0);
    cr_assert(plan.count == 3 * 2 * 2 * 3 * 2 * 2 * 2);
    for (int i = 0; i < plan.count; i++) {
        for (int j = 0; j < i; j++)
            cr_expect(memcmp(&plan.cases[i], &plan.cases[j], sizeof *plan.cases) != 0, "%d %d", i,
                      j);
        cr_expect(plan.cases[i].tokens == 7 || plan.cases[i].generates);
    }
    expect_name(&plan.cases[0], "pp7");
    expect_name(&plan.cases[plan.count - 1], "tg4@8000");
    bench_plan_clear(&plan);
}

Test(bench, a_bad_list_is_named_with_its_item)
{
    static const struct {
        size_t list;
        const char *text, *expected;
    } cases[] = {
        {offsetof(struct bench_lists, pp), "", "--pp: item 1: expected an integer from 0"},
        {offsetof(struct bench_lists, pp), "1,", "--pp: item 2: expected an integer from 0"},
        {offsetof(struct bench_lists, tg), "5,-1", "--tg: item 2: expected an integer from 0 to"},
        {offsetof(struct bench_lists, tg), "1 ,2", "got \"1 \""},
        {offsetof(struct bench_lists, depth), "99999999999999999999", "--depth: item 1: "},
        {offsetof(struct bench_lists, batch), "1,2,0",
         "--batch: item 3: expected an integer from "},
        {offsetof(struct bench_lists, weights), "f32,f64", "f16, q8, q6 or q4, got \"f64\""},
        {offsetof(struct bench_lists, kv), "q8", "--kv: item 1: expected auto, f32, f16 or bf16"},
        {offsetof(struct bench_lists, activations), "16bit,bf16",
         "--activations: item 2: expected auto, f32, 16bit or 8bit, got \"bf16\""},
        {offsetof(struct bench_lists, products), "own,cublas",
         "--products: item 2: expected own or cublaslt, got \"cublas\""},
        {offsetof(struct bench_lists, threads), "1025", "from 0 to 1024, got \"1025\""},
        {offsetof(struct bench_lists, threads), "1x", "got \"1x\""},
        {offsetof(struct bench_lists, pp),
         "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
         "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
         "--pp: expected at most 64 items"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_lists lists = defaults;
        struct bench_plan plan;
        struct error err = ERROR_INIT;
        *(const char **)((char *)&lists + cases[i].list) = cases[i].text;
        cr_expect(bench_plan_make(&plan, &lists, &err) == -1 && err.code == ERROR_INVALID);
        cr_expect(strstr(err.message, cases[i].expected) != NULL, "%s", err.message);
        bench_plan_clear(&plan);
    }
}

Test(bench, too_many_tests_and_none_are_refused)
{
    struct bench_lists lists = defaults;
    struct bench_plan plan;
    struct error err = ERROR_INIT;
    lists.pp = lists.tg = lists.depth = "1,2,3,4,5,6,7,8,9";
    lists.batch = lists.threads = "1,2,3,4,5,6,7,8,9";
    cr_expect(bench_plan_make(&plan, &lists, &err) == -1);
    cr_expect(strstr(err.message, "13122 combinations, expected at most 4096") != NULL, "%s",
              err.message);
    bench_plan_clear(&plan);
    error_clear(&err);
    lists = defaults;
    lists.pp = lists.tg = "0,0";
    cr_expect(bench_plan_make(&plan, &lists, &err) == -1);
    cr_expect(strstr(err.message, "--pp, --tg: expected at least one") != NULL, "%s", err.message);
    bench_plan_clear(&plan);
}

static void expect_interval(size_t count, size_t low, size_t high)
{
    double values[100], sorted[100];
    for (size_t i = 0; i < count; i++) /* each of 0 to count - 1, below and above in turns */
        values[i] = (double)(i % 2 == 0 ? i / 2 : count - 1 - i / 2);
    struct statistics_interval got = statistics_interval(values, sorted, count);
    cr_expect(fabs(got.median - (double)(count - 1) / 2) < 1e-9);
    cr_expect(got.count == count && got.low == (double)low && got.high == (double)high,
              "%zu values: expected %zu to %zu, got %g to %g", count, low, high, got.low, got.high);
}

/* Of so many throws of a coin, `low` or fewer or more than `high` are heads in about 5 of 100
 * cases, where there are 6 or more. */
Test(bench, the_interval_of_a_median)
{
    expect_interval(1, 0, 0);
    expect_interval(5, 0, 4);
    expect_interval(6, 0, 5);
    expect_interval(9, 1, 7);
    expect_interval(25, 7, 17);
    expect_interval(100, 40, 59);
}

/* About normal, mean 0 and deviation 1. */
static double noise(uint32_t number, uint32_t series)
{
    double sum = -6;
    for (uint32_t i = 0; i < 3; i++) {
        struct philox random = philox4x32_10((struct philox){{number, series, i, 0}}, 1, 2);
        for (int word = 0; word < 4; word++)
            sum += (double)random.word[word] / 4294967296.0;
    }
    return sum;
}

/* In how many of 1000 series of 200 values the interval holds their true median, 0; each value is
 * `like` times the last one and something new. *width: the mean of their widths. */
static int held(double like, double *width)
{
    enum { SERIES = 1000, COUNT = 200, BEFORE = 100 };
    int within = 0;
    *width = 0;
    for (uint32_t series = 0; series < SERIES; series++) {
        double values[COUNT], sorted[COUNT], last = 0;
        for (uint32_t i = 0; i < BEFORE + COUNT; i++) {
            last = like * last + noise(i, series);
            if (i >= BEFORE)
                values[i - BEFORE] = last;
        }
        struct statistics_interval got = statistics_interval(values, sorted, COUNT);
        within += got.low <= 0 && got.high >= 0;
        *width += (got.high - got.low) / SERIES;
    }
    return within;
}

/* A machine keeps one pace for seconds, so that slices are like those before them. */
Test(bench, the_interval_holds_where_values_depend_on_those_before)
{
    double width, like_width;
    cr_expect_geq(held(0, &width), 940);
    cr_expect_lt(width, 0.4);                   /* were they known to be independent: 0.345 */
    cr_expect_geq(held(0.8, &like_width), 900); /* taken for independent: 546 */
    cr_expect_geq(held(0.9, &like_width), 850); /* 414 */
}

/* A slice between readings of `before` and `after` that takes so many times as long as it needs. */
static struct bench_slice slice(double before, double after, double times)
{
    return (struct bench_slice){
        .tokens_per_second = 8 / times, .share = 1 / times, .before = before, .after = after};
}

Test(bench, slices_are_told_apart_by_the_pace_of_memory)
{
    const struct bench_slice slices[] = {
        slice(30, 31, 1.25), slice(60, 62, 2),  slice(30, 60, 4), slice(32, 30, 1.25),
        slice(62, 58, 4),    slice(60, 30, 40), slice(33, 32, 2), slice(61, 60, 2),
    };
    enum { COUNT = sizeof slices / sizeof *slices };
    double scratch[2 * COUNT];
    struct bench_pace paces[BENCH_MOST_PACES];
    cr_assert(bench_paces(slices, COUNT, scratch, paces) == 2);
    const struct bench_pace *slow = &paces[0], *fast = &paces[1];
    cr_expect(slow->bandwidth == 32 && slow->share.count == 3);
    cr_expect(fabs(slow->share.median - 0.8) < 1e-9);
    cr_expect(fabs(slow->share.low - 0.5) < 1e-9);
    cr_expect(fabs(slow->tokens_per_second - 8 / 1.25) < 1e-9);
    cr_expect(fast->bandwidth == 62 && fast->share.count == 3);
    cr_expect(fabs(fast->share.median - 0.5) < 1e-9);
    cr_expect(fabs(fast->share.high - 0.5) < 1e-9);
    cr_expect(fabs(fast->tokens_per_second - 8.0 / 2) < 1e-9);
}

Test(bench, one_pace_is_one_and_a_slice_between_two_has_none)
{
    const struct bench_slice slices[] = {slice(30, 31, 1.25), slice(36, 34, 1.25),
                                         slice(30, 60, 4)};
    double scratch[6];
    struct bench_pace paces[BENCH_MOST_PACES];
    cr_assert(bench_paces(slices, 3, scratch, paces) == 1);
    cr_expect(paces[0].share.count == 2);
    cr_expect(fabs(paces[0].share.median - 0.8) < 1e-9);
    cr_expect(bench_paces(slices + 2, 1, scratch, paces) == 0);
}
