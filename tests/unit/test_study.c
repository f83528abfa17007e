/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const SYSTEMS[] = {"softmax", "regla", "fast_decay"};
static const int LENGTHS[] = {64, 1024, 2048}, BATCHES[] = {1, 16};
static const struct study_axes AXES = {.systems = SYSTEMS,
                                       .lengths = LENGTHS,
                                       .batches = BATCHES,
                                       .num_systems = 3,
                                       .num_lengths = 3,
                                       .num_batches = 2,
                                       .repeats = 3,
                                       .long_repeats = 1};

static struct study_plan make_plan(void)
{
    struct study_plan plan;
    cr_assert_eq(study_plan_create(&plan, &AXES, NULL), 0);
    return plan;
}

/* Seconds of a step: softmax costs more per token as texts grow, the others do not. */
static double step_seconds(const char *system, int length)
{
    return strcmp(system, "softmax") == 0 ? 0.001 + length * 1e-6 : 0.0015;
}

enum { TURNS = 12 };

/* A third of the turns while memory is half as fast, which doubles all times; and fast_decay's is
 * 1 % shorter. */
static void fill_turns(struct study_plan *plan)
{
    for (int b = 0; b < 2; b++)
        for (int s = 0; s < 3; s++)
            for (int l = 0; l < 3; l++) {
                struct study_turns *turns =
                    study_turns_add(plan, SYSTEMS[s], LENGTHS[l], BATCHES[b], TURNS, NULL);
                cr_assert_not_null(turns);
                for (int i = 0; i < TURNS; i++) {
                    double pace = i % 3 == 0 ? 0.5 : 1, noise = 1 + 0.002 * (i * 5 % 7 - 3);
                    double ms = step_seconds(SYSTEMS[s], LENGTHS[l]) * (s == 2 ? 0.99 : 1);
                    turns->slices[i] =
                        (struct bench_slice){.tokens_per_second = BATCHES[b] * pace * noise / ms,
                                             .before = pace * 40e9,
                                             .after = pace * 41e9};
                }
            }
}

static void fill(struct study_plan *plan)
{
    fill_turns(plan);
    for (size_t i = 0; i < plan->count; i++) {
        struct study_point *p = &plan->points[i];
        bool softmax = strcmp(p->system, "softmax") == 0;
        double per_token = step_seconds(p->system, p->length);
        p->measured = true;
        p->ttft_s = 0.01;
        p->total_s = 0.01 + (p->length - 1) * per_token * (1 + 0.01 * (p->repeat - 2));
        p->tokens_per_second = p->batch * p->length / p->total_s;
        p->recurrent_bytes = softmax ? 0 : 1000;
        p->kv_bytes = softmax ? p->length * 100 : 0;
        p->weights_bytes = 5000;
        p->process_peak_bytes = 1 << 20;
    }
}

Test(study, plan_puts_systems_next_to_each_other)
{
    struct study_plan plan = make_plan();
    cr_assert_eq(plan.count, (3 + 3 + 1) * 2 * 3);
    for (size_t i = 0; i < plan.count; i += 3)
        for (size_t s = 0; s < 3; s++) {
            cr_expect_str_eq(plan.points[i + s].system, SYSTEMS[s]);
            cr_expect_eq(plan.points[i + s].length, plan.points[i].length);
            cr_expect_eq(plan.points[i + s].repeat, plan.points[i].repeat);
        }
    cr_expect_eq(plan.points[plan.count - 1].length, 2048);
    cr_expect_eq(plan.points[plan.count - 1].repeat, 1);
    study_plan_clear(&plan);
}

Test(study, a_line_goes_there_and_back)
{
    struct study_point point = {.system = "regla",
                                .length = 256,
                                .batch = 16,
                                .repeat = 2,
                                .total_s = 1.5,
                                .ttft_s = 0.25,
                                .tokens_per_second = 2730.667,
                                .weights_bytes = 1,
                                .recurrent_bytes = 2,
                                .kv_bytes = 3,
                                .workspace_bytes = 4,
                                .process_peak_bytes = 5000000000,
                                .device_peak_bytes = 6};
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    study_csv_line(file, &point);
    fclose(file);
    text[strlen(text) - 1] = 0;
    struct study_point found;
    cr_assert(study_csv_parse(text, &found));
    cr_expect_str_eq(found.system, "regla");
    cr_expect_eq(found.length, 256);
    cr_expect_eq(found.batch, 16);
    cr_expect_eq(found.repeat, 2);
    cr_expect_eq(found.total_s, 1.5);
    cr_expect_eq(found.ttft_s, 0.25);
    cr_expect_eq(found.process_peak_bytes, 5000000000);
    cr_expect_eq(found.device_peak_bytes, 6);
    free(text);
    const char *const wrong[] = {"",
                                 "regla",
                                 "regla,1,1",
                                 "regla,64,1,1,1.0,0.1,64,1,2,3,4,5",
                                 "regla,64,1,1,1.0,0.1,64,1,2,3,4,5,6,7",
                                 "regla,64,1,1,nan,0.1,64,1,2,3,4,5,6"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char line[128];
        strcpy(line, wrong[i]);
        cr_expect_not(study_csv_parse(line, &found), "%s", wrong[i]);
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

static long file_bytes(const char *path)
{
    struct stat status;
    cr_assert_eq(stat(path, &status), 0);
    return (long)status.st_size;
}

static const char HEADER[] =
    "system,length,batch,repeat,total_s,ttft_s,tokens_per_second,weights_bytes,recurrent_bytes,"
    "kv_bytes,workspace_bytes,process_peak_bytes,device_peak_bytes\n";

Test(study, goes_on_and_takes_a_torn_line_away)
{
    char path[] = "/tmp/regla-study-XXXXXX";
    close(mkstemp(path));
    char text[1024];
    snprintf(text, sizeof text, "%s%s%s%s%s", HEADER, "regla,64,1,2,1.0,0.1,64,1,2,3,4,5,0\n",
             "unknown,64,1,1,1.0,0.1,64,1,2,3,4,5,6\n", "unknown,64,1,1,2.0,0.1,64,1,2,3,4,5,7\n",
             "softmax,64,1,1,1.0,0.");
    write_file(path, text);
    struct study_plan plan = make_plan(), kept = {0};
    size_t known;
    cr_assert_eq(study_csv_resume(&plan, &kept, path, &known, NULL), 0);
    cr_expect_eq(known, 1);
    cr_assert_eq(kept.count, 1, "a point outside the plan, once");
    cr_expect_str_eq(kept.points[0].system, "unknown");
    cr_expect_eq(kept.points[0].device_peak_bytes, 6);
    size_t measured = 0;
    for (size_t i = 0; i < plan.count; i++)
        if (plan.points[i].measured) {
            measured++;
            cr_expect_str_eq(plan.points[i].system, "regla");
            cr_expect_eq(plan.points[i].repeat, 2);
        }
    cr_expect_eq(measured, 1);
    cr_expect_eq(file_bytes(path), (long)(strlen(text) - strlen("softmax,64,1,1,1.0,0.")));
    study_plan_clear(&kept);
    study_plan_clear(&plan);
    unlink(path);
}

Test(study, refuses_another_file)
{
    char path[] = "/tmp/regla-study-XXXXXX";
    close(mkstemp(path));
    write_file(path, "name,age\nx,1\n");
    struct study_plan plan = make_plan(), kept = {0};
    struct error err = ERROR_INIT;
    size_t known;
    cr_assert_eq(study_csv_resume(&plan, &kept, path, &known, &err), -1);
    cr_expect(strstr(err.message, ":1: expected a line of a study, got \"name,age\"") != NULL, "%s",
              err.message);
    cr_expect_eq(file_bytes(path), 13, "the file stays as it was");
    cr_expect_eq(study_csv_resume(&plan, &kept, "/tmp/regla-there-is-no-such-file", &known, NULL),
                 0);
    cr_expect_eq(known, 0);
    study_plan_clear(&kept);
    study_plan_clear(&plan);
    unlink(path);
}

static const struct study_settings SETTINGS = {.device = "auto",
                                               .weights = "auto",
                                               .kv = "auto",
                                               .activations = "f32",
                                               .products = "own",
                                               .threads = 2};

/* regla-plot knows of a study what its JSON says. */
Test(study, json_goes_there_and_back)
{
    char path[] = "/tmp/regla-study-XXXXXX";
    close(mkstemp(path));
    struct study_plan plan = make_plan(), none = {0}, read;
    struct study_choice choice;
    struct error err = ERROR_INIT;
    fill(&plan);
    cr_assert_eq(study_json_write(path, &plan, &none, &SETTINGS, &err), 0, "%s", err.message);
    cr_expect_eq(study_json_check(path, &SETTINGS, &err), 0, "%s", err.message);
    struct study_settings other = SETTINGS;
    other.weights = "q8";
    cr_expect_eq(study_json_check(path, &other, &err), -1);
    cr_expect(strstr(err.message, "choose another --out") != NULL, "%s", err.message);
    error_clear(&err);
    cr_assert_eq(study_json_read(path, &read, &choice, &err), 0, "%s", err.message);
    cr_assert_eq(read.count, plan.count);
    for (size_t i = 0; i < plan.count; i++) {
        cr_expect_str_eq(read.points[i].system, plan.points[i].system);
        read.points[i].system = plan.points[i].system;
        cr_expect_arr_eq(&read.points[i], &plan.points[i], sizeof *plan.points);
    }
    cr_assert_eq(read.num_turns, plan.num_turns);
    for (size_t i = 0; i < plan.num_turns; i++) {
        cr_expect_str_eq(read.turns[i].system, plan.turns[i].system);
        cr_expect(read.turns[i].length == plan.turns[i].length &&
                  read.turns[i].batch == plan.turns[i].batch);
        cr_assert_eq(read.turns[i].count, TURNS);
        cr_expect_arr_eq(read.turns[i].slices, plan.turns[i].slices,
                         TURNS * sizeof *plan.turns[i].slices);
    }
    const struct study_axes *axes = &choice.axes;
    cr_assert(axes->num_systems == 3 && axes->num_lengths == 3 && axes->num_batches == 2);
    for (int i = 0; i < 3; i++) {
        cr_expect_str_eq(axes->systems[i], SYSTEMS[i]);
        cr_expect_eq(axes->lengths[i], LENGTHS[i]);
    }
    cr_expect(axes->batches[0] == 1 && axes->batches[1] == 16);
    study_plan_clear(&read);
    study_choice_clear(&choice);
    study_plan_clear(&plan);
    unlink(path);
}

/* What the axes name goes to the plan, everything else is kept; together they are the file's. */
Test(study, json_keeps_what_the_axes_do_not_name)
{
    char path[] = "/tmp/regla-study-XXXXXX";
    close(mkstemp(path));
    static const int FEWER[] = {1024};
    struct study_axes fewer = AXES;
    fewer.lengths = FEWER;
    fewer.num_lengths = fewer.num_batches = 1;
    fewer.num_systems = 2;
    struct study_plan plan = make_plan(), mine = {0}, kept = {0}, read;
    struct study_choice choice;
    struct error err = ERROR_INIT;
    fill(&plan);
    for (size_t i = 0; i < plan.num_turns; i++)
        plan.turns[i].measurement = (int)i + 1;
    cr_assert_eq(study_json_write(path, &plan, &kept, &SETTINGS, &err), 0, "%s", err.message);
    cr_assert_eq(study_json_resume(&mine, &kept, path, &fewer, &err), 0, "%s", err.message);
    cr_expect_eq(mine.num_turns, 2);
    cr_expect_eq(mine.measurements, (int)plan.num_turns, "the highest number, of kept ones too");
    cr_expect_eq(kept.num_turns, plan.num_turns - 2);
    for (size_t i = 0; i < plan.count; i++)
        if (i % 2 == 1)
            cr_assert_eq(study_plan_add(&kept, &plan.points[i], NULL), 0);
    cr_assert_eq(study_json_write(path, &mine, &kept, &SETTINGS, &err), 0, "%s", err.message);
    cr_assert_eq(study_json_read(path, &read, &choice, &err), 0, "%s", err.message);
    cr_expect_eq(read.count, plan.count / 2);
    cr_assert_eq(read.num_turns, plan.num_turns);
    for (size_t i = 0; i < plan.num_turns; i++) {
        const struct study_turns *turns = &plan.turns[i],
                                 *found = study_turns_find(&read, turns->system, turns->length,
                                                           turns->batch);
        cr_assert_not_null(found);
        cr_expect_eq(found->measurement, turns->measurement);
        cr_expect_arr_eq(found->slices, turns->slices, TURNS * sizeof *turns->slices);
    }
    study_plan_clear(&read);
    study_choice_clear(&choice);
    study_plan_clear(&mine);
    study_plan_clear(&kept);
    study_plan_clear(&plan);
    unlink(path);
}

Test(study, axes_span_points_in_rising_lengths)
{
    struct study_plan plan = {0};
    struct study_choice choice = {0};
    struct error err = ERROR_INIT;
    for (int i = STUDY_MOST_LENGTHS; i > 0; i--) {
        const struct study_point point = {.system = "regla", .length = i, .batch = 1, .repeat = 1};
        cr_assert_eq(study_plan_add(&plan, &point, NULL), 0);
    }
    cr_assert_eq(study_choice_span(&choice, &plan, &err), 0, "%s", err.message);
    cr_assert_eq(choice.axes.num_lengths, STUDY_MOST_LENGTHS);
    for (int i = 0; i < STUDY_MOST_LENGTHS; i++)
        cr_expect_eq(choice.axes.lengths[i], i + 1);
    cr_expect(choice.axes.num_systems == 1 && choice.axes.num_batches == 1);
    const struct study_point more = {.system = "regla", .length = 99, .batch = 1, .repeat = 1};
    cr_assert_eq(study_plan_add(&plan, &more, NULL), 0);
    cr_expect_eq(study_choice_span(&choice, &plan, &err), -1);
    cr_expect(strstr(err.message, "at most 64 systems, 16 lengths and 16 batches") != NULL, "%s",
              err.message);
    study_choice_clear(&choice);
    study_plan_clear(&plan);
}

/* Turns of two measurements are not told as if they had been beside each other. */
Test(study, only_turns_of_one_measurement_are_compared)
{
    struct study_plan plan = make_plan();
    char *text = NULL;
    size_t size;
    fill(&plan);
    for (size_t i = 0; i < plan.num_turns; i++)
        plan.turns[i].measurement = strcmp(plan.turns[i].system, "regla") == 0;
    FILE *file = open_memstream(&text, &size);
    study_report(file, &plan, &AXES);
    fclose(file);
    cr_expect(strstr(text, "over fast_decay's") == NULL, "%s", text);
    cr_expect(strstr(text, "of 8    1.000  1.000 to 1.000, of 8 pairs: within 3 %\n") != NULL,
              "lengths of a system were: %s", text);
    free(text);
    study_plan_clear(&plan);
}

Test(study, a_group_that_is_whole_is_not_measured_again)
{
    struct study_plan plan = make_plan();
    struct study_axes axes = AXES;
    struct engine_options none = {.device = "no such device"};
    struct error err = ERROR_INIT;
    fill_turns(&plan);
    axes.turns = 0;
    cr_expect_eq(study_turns_groups(&axes), 0);
    axes.turns = TURNS;
    cr_assert_eq(study_turns_groups(&axes), 2, "one of each batch");
    for (int group = 0; group < 2; group++)
        cr_expect_eq(study_turns_measure(&plan, &axes, group, &none, false, &err), 0);
    plan.turns[0].measurement = 1;
    cr_expect_eq(study_turns_measure(&plan, &axes, 0, &none, false, &err), -1, "it is of two");
    cr_expect_eq(study_turns_measure(&plan, &axes, 1, &none, false, &err), 0, "the other one's");
    cr_expect_eq(plan.num_turns, 18, "what could not be measured anew stays");
    axes.turns++;
    cr_expect_eq(study_turns_measure(&plan, &axes, 1, &none, false, NULL), -1, "it has too few");
    study_plan_clear(&plan);
}

#define POINT                                                                                      \
    "{\"points\": [{\"system\": \"regla\", \"length\": 1, \"batch\": 1, \"repeat\": 1, "           \
    "\"total_s\": 1.0, \"ttft_s\": 1.0, \"tokens_per_second\": 1.0, \"weights_bytes\": 1, "        \
    "\"recurrent_bytes\": 1, \"kv_bytes\": 1, \"workspace_bytes\": 1, \"process_peak_bytes\": 1, " \
    "\"device_peak_bytes\": 1}], "

Test(study, json_of_no_study_is_refused)
{
    static const struct {
        const char *text, *message;
    } CASES[] = {
        {"{", "expected"},
        {"{}", "expected points of a study, got none"},
        {"{\"points\": {\"a\": 1}}", "expected points of a study, got none"},
        {"{\"points\": [1]}", "points[0]: expected a point of a study"},
        {"{\"points\": [{\"system\": \"regla\", \"length\": 1}]}", "points[0]: expected a point"},
        {POINT "\"turns\": [{\"system\": \"regla\"}]}", "turns[0]: expected turns of a study"},
        {POINT "\"turns\": [{\"system\": \"regla\", \"length\": 1, \"batch\": 1, "
               "\"tokens_per_second\": [1.0, 2.0], \"read_before\": [1.0, 0.0], "
               "\"read_after\": [1.0, 1.0]}]}",
         "turns[0]: expected as many numbers > 0 of each kind"},
    };
    char path[] = "/tmp/regla-study-XXXXXX";
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct study_plan plan;
        struct study_choice choice;
        struct error err = ERROR_INIT;
        write_file(path, CASES[i].text);
        cr_expect_eq(study_json_read(path, &plan, &choice, &err), -1);
        cr_expect(strstr(err.message, CASES[i].message) != NULL, "%s", err.message);
        study_plan_clear(&plan);
        study_choice_clear(&choice);
    }
    unlink(path);
}

Test(study, values_are_medians_of_what_was_measured)
{
    struct study_plan plan = make_plan();
    cr_expect_eq(study_value(&plan, "regla", 64, 1, STUDY_TOTAL_S).count, 0);
    fill(&plan);
    struct study_value value = study_value(&plan, "regla", 64, 1, STUDY_MS_PER_TOKEN);
    cr_expect_eq(value.count, TURNS / 3 * 2, "those at the pace of most");
    cr_expect_float_eq(value.median, 1.5, 0.01);
    cr_expect(value.least < value.median && value.median < value.greatest);
    cr_expect(value.greatest < 1.52);
    value = study_value(&plan, "regla", 64, 1, STUDY_TOTAL_S);
    cr_expect_eq(value.count, 3);
    cr_expect_lt(value.least, value.greatest);
    cr_expect_eq(study_value(&plan, "softmax", 1024, 1, STUDY_STATE_BYTES).median, 102400);
    cr_expect_eq(study_value(&plan, "softmax", 1024, 1, STUDY_BYTES).median, 107400);
    study_plan_clear(&plan);
}

Test(study, verdicts)
{
    struct study_plan plan = make_plan();
    fill(&plan);
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    study_report(file, &plan, &AXES);
    fclose(file);
    /* 1 us + 1 ns per token passes 1.5 us between 64 and 1,024 tokens. */
    cr_expect(strstr(text, "crossover: from 1024 tokens on, regla") != NULL, "%s", text);
    static const char *const LINES[] = {
        "over fast_decay's, 1024        20.5 GB/s    1.010  1.010 to 1.010, of 4 pairs: too few\n",
        "over fast_decay's, 1024        41.0 GB/s    1.010  1.010 to 1.010, of 8 pairs: within 3 "
        "%\n",
        "over fast_decay's, all         41.0 GB/s    1.010  1.010 to 1.010, of 24 pairs: within 3 "
        "%\n",
        "softmax                  64    41.0 GB/s     1.061  1.058 to 1.068, of 8\n",
        "of 8    2.865  2.865 to 2.865, of 8 pairs: not within 3 %\n",
        "of 8    1.000  1.000 to 1.000, of 8 pairs: within 3 %\n"};
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++)
        cr_expect(strstr(text, LINES[i]) != NULL, "%s%s", LINES[i], text);
    cr_expect(strstr(text, "32.000x") != NULL, "softmax's KV from 64 to 2,048 tokens: %s", text);
    cr_expect(strstr(text, "state: constant") != NULL, "%s", text);
    free(text);
    study_plan_clear(&plan);
}

Test(study, plots_are_svg_and_png)
{
    char directory[] = "/tmp/regla-study-XXXXXX", path[64], command[64];
    cr_assert_not_null(mkdtemp(directory));
    struct study_plan plan = make_plan();
    fill(&plan);
    cr_assert_eq(study_plots(directory, &plan, &AXES, NULL), 0);
    static const char *const NAMES[] = {"time", "memory", "state", "speed", "token"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        for (int b = 0; b < 2; b++) {
            snprintf(path, sizeof path, "%s/%s-b%d.svg", directory, NAMES[i], BATCHES[b]);
            cr_expect_gt(file_bytes(path), 2000);
            snprintf(path, sizeof path, "%s/%s-b%d.png", directory, NAMES[i], BATCHES[b]);
            cr_expect_gt(file_bytes(path), 5000);
        }
    struct error err = ERROR_INIT;
    cr_expect_eq(study_plots("/tmp/regla-there-is-no-such-directory", &plan, &AXES, &err), -1);
    cr_expect(strstr(err.message, "no-such-directory") != NULL, "%s", err.message);
    study_plan_clear(&plan);
    snprintf(command, sizeof command, "rm -r %s", directory);
    cr_assert_eq(system(command), 0);
}
