/* regla bench: how fast a model reads prompts and generates, and how much of what the machine can
 * do that is. */
#include "server/command.h"

#include "server/bench_report.h"
#include "server/command_model.h"

#include <unistd.h>

struct command_bench_options {
    const char *model, *preset;
    struct bench_lists lists;
    bool operations, csv, json;
};

#define AT(field) offsetof(struct command_bench_options, field)

static const struct option items[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", NULL, 0, 0, NULL, "the model's directory"},
    {"preset", OPTION_TEXT, AT(preset), "NAME", NULL, 0, 0, NULL,
     "instead of a model: a preset with random weights, such as regla-160m"},
    {"pp", OPTION_TEXT, AT(lists.pp), "N,N,...", "512", 0, 0, NULL,
     "read a prompt of so many tokens, up to the last one's logits; 0: do not"},
    {"tg", OPTION_TEXT, AT(lists.tg), "N,N,...", "64", 0, 0, NULL,
     "generate so many tokens, without choosing them; 0: do not"},
    {"depth", OPTION_TEXT, AT(lists.depth), "N,N,...", "0", 0, 0, NULL,
     "tokens that each text has read before (not timed)"},
    {"batch", OPTION_TEXT, AT(lists.batch), "N,N,...", "1", 0, 0, NULL,
     "texts at once; tokens/s are of all together"},
    {"weights", OPTION_TEXT, AT(lists.weights), "FORMAT,...", "auto", 0, 0, NULL,
     "formats of the weights in memory: auto (as in the file), f32, bf16, f16, q8"},
    {"kv", OPTION_TEXT, AT(lists.kv), "FORMAT,...", "auto", 0, 0, NULL,
     "formats of the KV cache: auto (f32 when the weights are f32, else f16), f32, f16, bf16"},
    {"threads", OPTION_TEXT, AT(lists.threads), "N,N,...", "0", 0, 0, NULL,
     "compute threads; 0: as many as this process may use"},
    {"repeat", OPTION_TEXT, AT(lists.repeat), "N,N,...", "5", 0, 0, NULL,
     "timed runs of each test, after one to warm up"},
    {"operations", OPTION_FLAG, AT(operations), NULL, "false", 0, 0, NULL,
     "run each test once more and print what share of its time each kind of operation took"},
    {"csv", OPTION_FLAG, AT(csv), NULL, "false", 0, 0, NULL, "print comma-separated values"},
    {"json", OPTION_FLAG, AT(json), NULL, "false", 0, 0, NULL, "print one JSON object"},
};

static const struct options table = {
    .usage = "regla bench (--model DIR | --preset NAME) [options]",
    .summary =
        "Measures tokens per second: \"pp512\" reads a prompt of 512 tokens, \"tg64@8000\" "
        "generates "
        "64\nafter 8000. Every combination of the comma-separated lists is a test; all formats are "
        "in\nmemory at once, and the runs of all tests take turns. Median, and spread: (highest - "
        "lowest)\nof the runs / median.\n\n"
        "\"of limit\" compares with what the machine does at most on as many threads, measured "
        "right "
        "before\nand right after each run (the higher of both, since the pace of some machines "
        "changes from\nminute to minute). tg: bytes of weights, states and KV that must move / "
        "bandwidth of reading\nmemory. pp: operations that must be done, with the logits of the "
        "last position only / peak of f32\nmultiply-adds, whatever the format. bandwidth_gbps and "
        "peak_gflops are the highest measured.\nA model that fits into the caches can pass its "
        "limit.",
    .items = items,
    .count = sizeof items / sizeof *items,
};

static int run(const struct command_bench_options *options, const struct bench_plan *plan,
               struct error *err)
{
    struct bench *bench;
    const struct bench_options how = {.directory = options->model,
                                      .preset = options->preset,
                                      .operations = options->operations,
                                      .progress = isatty(STDERR_FILENO) != 0};
    if (bench_run(&bench, plan, &how, err) != 0)
        return -1;
    int result = 0;
    if (options->json)
        result = bench_print_json(bench, stdout, err);
    else if (options->csv)
        bench_print_csv(bench, stdout);
    else
        bench_print_table(bench, stdout);
    bench_free(bench);
    return result;
}

static int check(const struct command_bench_options *options, struct error *err)
{
    if ((options->model != NULL) == (options->preset != NULL))
        return error_set(err, ERROR_INVALID, "expected --model or --preset, got %s; usage: %s",
                         options->model != NULL ? "both" : "none of them", table.usage);
    if (options->csv && options->json)
        return error_set(err, ERROR_INVALID, "expected --csv or --json, got both");
    return 0;
}

int command_bench(int argc, char **argv)
{
    struct command_bench_options options = {0};
    struct bench_plan plan = {0};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&table, &options, argc, argv, NULL, &status) == 0) {
        const struct command_model_options model = {.preset = options.preset};
        if (check(&options, &err) != 0 || bench_plan_make(&plan, &options.lists, &err) != 0)
            status = command_misused(argv[0], &err);
        else if (options.preset != NULL)
            status = command_model_given(argv[0], NULL, &model, table.usage);
        if (status == 0 && run(&options, &plan, &err) != 0)
            status = command_failed(argv[0], &err);
    }
    bench_plan_clear(&plan);
    options_clear(&table, &options);
    return status;
}
