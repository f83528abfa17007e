/* SPDX-License-Identifier: Apache-2.0 */
/* regla study: its flags. bench/study_run.c runs the study, by this program with --point. */
#include "cli/command.h"

#include "bench/study.h"
#include "cli/command_model.h"
#include "engine/device.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_LENGTHS "64,128,256,512,1024,2048,4096,8192"
#define DEFAULT_REPEAT "3"
enum { QUICK_TURNS = 5 };

struct study_flags {
    struct command_model_options model;
    const char *systems, *batch, *lengths, *out, *point;
    int64_t repeat, long_repeat, turns;
    bool quick, quiet;
};

#define AT(field) offsetof(struct study_flags, field)

static const struct option items[] = {
    {"systems", OPTION_TEXT, AT(systems), "NAMES", NULL, 0, 0, OPTION_SYSTEMS,
     "presets, \"-6l\" left out, separated by commas; all: every one with it; without it\n      "
     "softmax,fast_decay,regla,hybrid_regla,transnormer_t1,transnormer_t2"},
    {"batch", OPTION_TEXT, AT(batch), "NUMBERS", "1", 0, 0, NULL,
     "texts generated at once, e.g. 1,16,64"},
    {"lengths", OPTION_TEXT, AT(lengths), "NUMBERS", DEFAULT_LENGTHS, 0, 0, NULL,
     "tokens generated of each text, rising"},
    {"repeat", OPTION_INTEGER, AT(repeat), "runs", DEFAULT_REPEAT, 1, 64, NULL,
     "of each point up to 1,024 tokens"},
    {"long-repeat", OPTION_INTEGER, AT(long_repeat), "runs", "1", 1, 64, NULL,
     "of each point above"},
    {"turns", OPTION_INTEGER, AT(turns), "turns", "30", 0, 10000, NULL,
     "in which all systems generate the last tokens of each length, for times per token;\n      "
     "0: none"},
    {"out", OPTION_TEXT, AT(out), "DIR", "study", 0, 0, NULL,
     "where study.csv, study.json and the plots go; a study that is there goes on"},
    {"quick", OPTION_FLAG, AT(quick), NULL, "false", 0, 0, NULL,
     "lengths 64 and 256, one run, at most 5 turns, for a look"},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "false", 0, 0, NULL,
     "print no progress to standard error"},
    {"point", OPTION_TEXT, AT(point), "SPEC", NULL, 0, 0, NULL,
     "measure only system:length:batch:repeat, in this process, and print its line of CSV"},
    COMMAND_MODEL_OPTIONS(struct study_flags, "auto"),
};

const struct options command_study_options = {
    .usage = "regla study [--systems NAMES] [--batch NUMBERS] [--out DIR] [options]",
    .summary = "Measures time and memory against the number of generated tokens, for models of 6 "
               "layers\nwith random weights (ReGLA, section 5.2): prints a table and verdicts, and "
               "writes study.csv,\nstudy.json and plots (SVG, PNG). Run again, it goes on where it "
               "was stopped.",
    .items = items,
    .count = sizeof items / sizeof *items,
};

static const char DEFAULT_SYSTEMS[] =
    "softmax,fast_decay,regla,hybrid_regla,transnormer_t1,transnormer_t2";

static int parse_choice(const struct study_flags *flags, struct study_choice *choice,
                        struct error *err)
{
    const struct study_lists lists = {
        .systems = flags->systems ? flags->systems : DEFAULT_SYSTEMS,
        .lengths = flags->quick ? "64,256" : flags->lengths,
        .batches = flags->batch,
        .repeats = flags->quick ? 1 : (int)flags->repeat,
        .long_repeats = flags->quick ? 1 : (int)flags->long_repeat,
        .turns = flags->quick && flags->turns > QUICK_TURNS ? QUICK_TURNS : (int)flags->turns,
    };
    const char *other = strcmp(flags->lengths, DEFAULT_LENGTHS) != 0        ? "lengths"
                        : flags->repeat != strtol(DEFAULT_REPEAT, NULL, 10) ? "repeat"
                                                                            : NULL;
    if (flags->quick && other != NULL)
        return error_set(err, ERROR_INVALID, "expected --quick or --%s, got both", other);
    return study_choice_parse(choice, &lists, err);
}

/* What a study says of itself is what it measured, not `auto`. Presets' own weights are f32. */
static enum activation_format activations_of(const struct engine_options *engine)
{
    if (engine->activations != ACTIVATIONS_AUTO)
        return engine->activations;
    return device_activations(engine->device, NULL,
                              engine->weights == WEIGHTS_AUTO ? WEIGHTS_EXACT : engine->weights);
}

static int run_study(const struct study_flags *flags, const struct study_axes *axes,
                     struct error *err)
{
    const struct command_model_options *model = &flags->model;
    const struct engine_options engine = command_engine_options(model);
    if (device_find(model->device, err) != 0)
        return -1;
    const char *activations = activation_format_name(activations_of(&engine));
    char threads[24], memory[24], device_memory[24];
    snprintf(threads, sizeof threads, "%lld", (long long)model->threads);
    snprintf(memory, sizeof memory, "%lld", (long long)model->state_memory);
    snprintf(device_memory, sizeof device_memory, "%lld", (long long)model->device_memory);
    const char *const child[] = {
        "regla",     "study",        "--threads",     threads,           "--state-memory",
        memory,      "--device",     model->device,   "--device-memory", device_memory,
        "--weights", model->weights, "--kv",          model->kv,         "--activations",
        activations, "--products",   model->products, "--point",         NULL};
    const struct study_options options = {
        .out = flags->out,
        .quiet = flags->quiet,
        .settings = {.device = model->device,
                     .weights = model->weights,
                     .kv = model->kv,
                     .activations = activations,
                     .products = model->products,
                     .threads = (int)model->threads},
        .engine = engine,
        .child = child,
    };
    return study_run(&options, axes, err);
}

enum { SYSTEM_SIZE = 48 };

/* What --point says; its system is put into `system`. */
static int parse_point(const struct study_flags *flags, char system[SYSTEM_SIZE],
                       struct study_point *out, struct error *err)
{
    struct study_point point = {.system = system};
    char preset[STUDY_PRESET_SIZE];
    int end = 0;
    if (sscanf(flags->point, "%47[^:]:%d:%d:%d%n", system, &point.length, &point.batch,
               &point.repeat, &end) != 4 ||
        flags->point[end] != 0 || point.length < 1 || point.batch < 1 || point.batch > 4096 ||
        point.length > 1 << 24 || point.repeat < 1 || !study_preset(preset, system))
        return error_set(err, ERROR_INVALID,
                         "--point: expected system:length:batch:repeat, got \"%.60s\"",
                         flags->point);
    *out = point;
    return 0;
}

static int run_point(const struct study_flags *flags, struct study_point *point, struct error *err)
{
    struct engine_options engine = command_engine_options(&flags->model);
    if (study_measure(point, &engine, err) != 0)
        return -1;
    study_csv_line(stdout, point);
    return 0;
}

int command_study(int argc, char **argv)
{
    struct study_flags flags = {0};
    struct study_choice choice = {0};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_study_options, &flags, argc, argv, NULL, &status) == 0) {
        struct study_point point;
        char system[SYSTEM_SIZE];
        if (flags.point ? parse_point(&flags, system, &point, &err) != 0
                        : parse_choice(&flags, &choice, &err) != 0)
            status = command_misused(argv[0], &err);
        else if (flags.point ? run_point(&flags, &point, &err) != 0
                             : run_study(&flags, &choice.axes, &err) != 0)
            status = command_failed(argv[0], &err);
    }
    study_choice_clear(&choice);
    options_clear(&command_study_options, &flags);
    return status;
}
