/* SPDX-License-Identifier: Apache-2.0 */
/* regla study: time and memory as texts grow, for every system, by one command.
 *
 * Each point is measured by a process of its own (this program with --point), one at a time; its
 * line goes to study.csv at once, so that a study that was stopped goes on where it was. */
#include "cli/command.h"

#include "bench/study.h"
#include "cli/command_model.h"
#include "engine/base/clock.h"
#include "engine/device.h"
#include "engine/model/preset.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef REGLA_COMMIT
#define REGLA_COMMIT "unknown"
#endif

enum { MOST_SYSTEMS = 32, MOST_BATCHES = 16 };

#define DEFAULT_LENGTHS "64,128,256,512,1024,2048,4096,8192"
#define DEFAULT_REPEAT "3"

struct study_options {
    struct command_model_options model;
    const char *systems, *batch, *lengths, *out, *point;
    int64_t repeat, long_repeat;
    bool quick, quiet;
};

#define AT(field) offsetof(struct study_options, field)

static const struct option items[] = {
    {"systems", OPTION_TEXT, AT(systems), "NAMES", NULL, 0, 0, NULL,
     "presets without \"-6l\", separated by commas; all: every one of them; without it\n      "
     "softmax,fast_decay,regla,hybrid_regla,transnormer_t1,transnormer_t2"},
    {"batch", OPTION_TEXT, AT(batch), "NUMBERS", "1", 0, 0, NULL,
     "texts generated at once, e.g. 1,16,64"},
    {"lengths", OPTION_TEXT, AT(lengths), "NUMBERS", DEFAULT_LENGTHS, 0, 0, NULL,
     "tokens generated of each text, rising"},
    {"repeat", OPTION_INTEGER, AT(repeat), "runs", DEFAULT_REPEAT, 1, 64, NULL,
     "of each point up to 1,024 tokens"},
    {"long-repeat", OPTION_INTEGER, AT(long_repeat), "runs", "1", 1, 64, NULL,
     "of each point above"},
    {"out", OPTION_TEXT, AT(out), "DIR", "study", 0, 0, NULL,
     "where study.csv, study.json and the plots go; a study that is there goes on"},
    {"quick", OPTION_FLAG, AT(quick), NULL, "false", 0, 0, NULL,
     "lengths 64 and 256, one run, for a look"},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "false", 0, 0, NULL,
     "print no progress to standard error"},
    {"point", OPTION_TEXT, AT(point), "SPEC", NULL, 0, 0, NULL,
     "measure only system:length:batch:repeat, in this process, and print its line of CSV"},
    COMMAND_MODEL_OPTIONS(struct study_options),
};

static const struct options table = {
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

/* The axes and what holds their strings and numbers. */
struct study {
    const struct study_options *options;
    struct study_axes axes;
    struct study_plan plan;
    char *names;
    const char *systems[MOST_SYSTEMS];
    int lengths[STUDY_MOST_LENGTHS], batches[MOST_BATCHES];
    char csv[4096];
    FILE *lines;                 /* of csv, to write behind those that it has */
    double began, planned, done; /* clock_seconds(); steps, weighed, of what this run measures */
};

static int parse_numbers(const char *flag, const char *list, long most_value, int *out, int most,
                         struct error *err)
{
    int count = 0;
    if (*list == 0)
        return error_set(err, ERROR_INVALID, "--%s: expected numbers, got nothing", flag);
    for (const char *at = list; at != NULL;) {
        char *end;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (end == at || errno != 0 || value < 1 || value > most_value ||
            (*end != 0 && *end != ','))
            return error_set(err, ERROR_INVALID,
                             "--%s: expected numbers from 1 to %ld, got \"%.40s\"", flag,
                             most_value, at);
        if (count == most)
            return error_set(err, ERROR_INVALID, "--%s: expected at most %d numbers, got more",
                             flag, most);
        for (int i = 0; i < count; i++)
            if (out[i] == value)
                return error_set(err, ERROR_INVALID, "--%s: expected each once, got %ld twice",
                                 flag, value);
        out[count++] = (int)value;
        at = *end == ',' ? end + 1 : NULL;
    }
    return count;
}

static bool is_study_preset(const char *system)
{
    char name[64];
    int length = snprintf(name, sizeof name, "%s-6l", system);
    return length > 0 && (size_t)length < sizeof name && preset_find(name) != NULL;
}

static int add_system(struct study *study, const char *system, struct error *err)
{
    if (!is_study_preset(system))
        return error_set(err, ERROR_INVALID,
                         "--systems: unknown system \"%.40s\": expected all alone, or names that "
                         "`regla info --presets` lists with -6l, without that",
                         system);
    for (int i = 0; i < study->axes.num_systems; i++)
        if (strcmp(study->systems[i], system) == 0)
            return error_set(err, ERROR_INVALID, "--systems: expected each once, got %s twice",
                             system);
    if (study->axes.num_systems == MOST_SYSTEMS)
        return error_set(err, ERROR_INVALID, "--systems: expected at most %d", MOST_SYSTEMS);
    study->systems[study->axes.num_systems++] = system;
    return 0;
}

/* "regla-6l" of the list of presets becomes "regla". */
static int add_all_systems(struct study *study, struct error *err)
{
    size_t size = 1;
    for (size_t i = 0; i < num_presets; i++)
        size += strlen(presets[i].name) + 1;
    char *at = study->names = malloc(size);
    if (at == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < num_presets; i++) {
        const char *name = presets[i].name;
        size_t length = strlen(name);
        if (length < 4 || strcmp(name + length - 3, "-6l") != 0)
            continue;
        memcpy(at, name, length - 3);
        at[length - 3] = 0;
        if (add_system(study, at, err) != 0)
            return -1;
        at += length - 2;
    }
    return 0;
}

static int parse_systems(struct study *study, struct error *err)
{
    const char *list = study->options->systems ? study->options->systems : DEFAULT_SYSTEMS;
    if (strcmp(list, "all") == 0)
        return add_all_systems(study, err);
    study->names = strdup(list);
    if (study->names == NULL)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    char *rest = NULL;
    for (char *name = strtok_r(study->names, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (add_system(study, name, err) != 0)
            return -1;
    if (study->axes.num_systems == 0)
        return error_set(err, ERROR_INVALID, "--systems: expected names, got nothing");
    return 0;
}

static int parse_axes(struct study *study, struct error *err)
{
    const struct study_options *options = study->options;
    struct study_axes *axes = &study->axes;
    if (parse_systems(study, err) != 0)
        return -1;
    const char *other = strcmp(options->lengths, DEFAULT_LENGTHS) != 0        ? "lengths"
                        : options->repeat != strtol(DEFAULT_REPEAT, NULL, 10) ? "repeat"
                                                                              : NULL;
    if (options->quick && other != NULL)
        return error_set(err, ERROR_INVALID, "expected --quick or --%s, got both", other);
    axes->num_lengths = parse_numbers("lengths", options->quick ? "64,256" : options->lengths,
                                      1 << 24, study->lengths, STUDY_MOST_LENGTHS, err);
    axes->num_batches = axes->num_lengths < 0 ? -1
                                              : parse_numbers("batch", options->batch, 4096,
                                                              study->batches, MOST_BATCHES, err);
    if (axes->num_batches < 0)
        return -1;
    for (int i = 1; i < axes->num_lengths; i++)
        if (study->lengths[i] <= study->lengths[i - 1])
            return error_set(err, ERROR_INVALID,
                             "--lengths: expected rising numbers, got %d after %d",
                             study->lengths[i], study->lengths[i - 1]);
    axes->systems = study->systems;
    axes->lengths = study->lengths;
    axes->batches = study->batches;
    axes->repeats = options->quick ? 1 : (int)options->repeat;
    axes->long_repeats = options->quick ? 1 : (int)options->long_repeat;
    return 0;
}

/* What a point costs, in arbitrary units: steps, longer ones where keys add up, and the start. */
static double cost_of(const struct study_point *point)
{
    enum { START_STEPS = 300 };
    return START_STEPS + point->length * (0.6 + 0.4 * point->batch);
}

static void show_progress(struct study *study, const struct study_point *point, size_t number)
{
    if (study->options->quiet)
        return;
    double now = clock_seconds(), left = 0;
    if (study->done > 0)
        left = (now - study->began) / study->done * (study->planned - study->done);
    enum { BAR = 24 };
    int filled = (int)(BAR * study->done / study->planned);
    fprintf(stderr, "%s[%.*s%.*s] %zu of %zu, %s %d tokens, batch %d", isatty(2) ? "\r\x1b[K" : "",
            filled, "########################", BAR - filled, "........................", number,
            study->plan.count, point->system, point->length, point->batch);
    if (left > 0)
        fprintf(stderr, ", %.0f:%02.0f left", (left - (int)left % 60) / 60,
                (double)((int)left % 60));
    if (!isatty(2))
        fputc('\n', stderr);
}

/* Reads the one line that a child prints. */
static int read_line(int from, char *line, size_t size)
{
    size_t length = 0;
    ssize_t got;
    while (length + 1 < size && (got = read(from, line + length, size - 1 - length)) != 0) {
        if (got < 0 && errno != EINTR)
            return -1;
        length += got > 0 ? (size_t)got : 0;
    }
    line[length] = 0;
    if (length == 0 || line[length - 1] != '\n')
        return -1;
    line[length - 1] = 0;
    return 0;
}

static void run_child(const struct study_options *options, const struct study_point *point, int to)
{
    const struct command_model_options *model = &options->model;
    char spec[128], threads[24], memory[24], device_memory[24];
    snprintf(spec, sizeof spec, "%s:%d:%d:%d", point->system, point->length, point->batch,
             point->repeat);
    snprintf(threads, sizeof threads, "%lld", (long long)model->threads);
    snprintf(memory, sizeof memory, "%lld", (long long)model->state_memory);
    snprintf(device_memory, sizeof device_memory, "%lld", (long long)model->device_memory);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(to, STDOUT_FILENO);
    execl("/proc/self/exe", "regla", "study", "--point", spec, "--threads", threads,
          "--state-memory", memory, "--device", model->device, "--device-memory", device_memory,
          "--weights", model->weights, "--kv", model->kv, "--activations", model->activations,
          (char *)NULL);
    _exit(127);
}

static int measure_in_child(struct study *study, struct study_point *point, struct error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(err, ERROR_IO, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        run_child(study->options, point, ends[1]);
    close(ends[1]);
    char line[512] = "";
    int read_result = child < 0 ? -1 : read_line(ends[0], line, sizeof line);
    close(ends[0]);
    int status = 0;
    if (child < 0)
        return error_set(err, ERROR_IO, "fork: %s", strerror(errno));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    struct study_point found;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || read_result != 0 ||
        !study_csv_parse(line, &found) || found.length != point->length)
        return error_set(err, ERROR_INTERNAL,
                         "%s, %d tokens, batch %d: the measuring process %s %d", point->system,
                         point->length, point->batch,
                         WIFSIGNALED(status) ? "was killed by signal" : "ended with status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    found.system = point->system;
    *point = found;
    return 0;
}

static int open_lines(struct study *study, struct error *err)
{
    study->lines = fopen(study->csv, "ae");
    if (study->lines == NULL)
        return error_set(err, ERROR_IO, "--out: %s: cannot be written: %s", study->csv,
                         strerror(errno));
    fseek(study->lines, 0, SEEK_END);
    if (ftell(study->lines) == 0)
        study_csv_header(study->lines);
    return 0;
}

static int append_line(struct study *study, const struct study_point *point, struct error *err)
{
    study_csv_line(study->lines, point);
    if (fflush(study->lines) != 0 || fsync(fileno(study->lines)) != 0)
        return error_set(err, ERROR_IO, "%s: %s", study->csv, strerror(errno));
    return 0;
}

static int measure_all(struct study *study, struct error *err)
{
    for (size_t i = 0; i < study->plan.count; i++)
        if (!study->plan.points[i].measured)
            study->planned += cost_of(&study->plan.points[i]);
    study->began = clock_seconds();
    for (size_t i = 0; i < study->plan.count; i++) {
        struct study_point *point = &study->plan.points[i];
        if (point->measured)
            continue;
        show_progress(study, point, i + 1);
        if (measure_in_child(study, point, err) != 0 || append_line(study, point, err) != 0)
            return -1;
        study->done += cost_of(point);
    }
    if (!study->options->quiet && isatty(2))
        fprintf(stderr, "\r\x1b[K");
    return 0;
}

static void processor_name(char *name, size_t size)
{
    snprintf(name, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL)
            continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (file != NULL)
        fclose(file);
}

/* What may not change in the course of a study; compared with study.json when it goes on. */
static json_t *settings_of(const struct study_options *options)
{
    char processor[256];
    struct utsname system;
    processor_name(processor, sizeof processor);
    uname(&system);
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:i, s:s, s:s, s:s}", "processor", processor,
                     "system", system.sysname, "release", system.release, "cores",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "device", options->model.device, "threads",
                     (int)options->model.threads, "weights", options->model.weights, "kv",
                     options->model.kv, "activations", options->model.activations);
}

static json_t *points_json(const struct study_plan *plan)
{
    json_t *points = json_array();
    for (size_t i = 0; points != NULL && i < plan->count; i++) {
        const struct study_point *p = &plan->points[i];
        if (!p->measured)
            continue;
        json_t *point = json_pack(
            "{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "system",
            p->system, "length", p->length, "batch", p->batch, "repeat", p->repeat, "total_s",
            p->total_s, "ttft_s", p->ttft_s, "tokens_per_second", p->tokens_per_second,
            "weights_bytes", (json_int_t)p->weights_bytes, "recurrent_bytes",
            (json_int_t)p->recurrent_bytes, "kv_bytes", (json_int_t)p->kv_bytes, "workspace_bytes",
            (json_int_t)p->workspace_bytes, "process_peak_bytes", (json_int_t)p->process_peak_bytes,
            "device_peak_bytes", (json_int_t)p->device_peak_bytes);
        json_array_append_new(points, point);
    }
    return points;
}

static int write_json(const struct study *study, const char *path, struct error *err)
{
    json_t *json =
        json_pack("{s:s, s:s, s:o?, s:o?}", "regla", REGLA_VERSION, "commit", REGLA_COMMIT,
                  "settings", settings_of(study->options), "points", points_json(&study->plan));
    int failed = json == NULL || json_dump_file(json, path, JSON_INDENT(1)) != 0;
    json_decref(json);
    if (failed)
        return error_set(err, ERROR_IO, "%s: cannot be written: %s", path, strerror(errno));
    return 0;
}

static int check_settings(const struct study *study, const char *path, struct error *err)
{
    if (access(path, F_OK) != 0)
        return 0;
    json_error_t where;
    json_t *json = json_load_file(path, 0, &where);
    if (json == NULL)
        return error_set(err, ERROR_INVALID, "%s: %s", path, where.text);
    json_t *now = settings_of(study->options), *then = json_object_get(json, "settings");
    int result = 0;
    const char *key;
    json_t *value;
    json_object_foreach(now, key, value)
    {
        json_t *before = json_object_get(then, key);
        if (result != 0 || json_equal(value, before))
            continue;
        char *got = json_dumps(value, JSON_ENCODE_ANY), *had = json_dumps(before, JSON_ENCODE_ANY);
        result = error_set(err, ERROR_INVALID,
                           "%s is of a study with %s %s, this one has %s: choose another --out",
                           path, key, had ? had : "(none)", got ? got : "?");
        free(got);
        free(had);
    }
    json_decref(now);
    json_decref(json);
    return result;
}

/* What would otherwise be found after the first point, or the last. */
static int make_folder(const char *out, struct error *err)
{
    struct stat found;
    if (mkdir(out, 0777) == 0)
        return 0;
    int why = errno;
    if (why == ENOENT)
        return error_set(err, ERROR_IO,
                         "--out: \"%s\": expected its parent to be a directory, got "
                         "nothing there",
                         out);
    if (stat(out, &found) != 0)
        return error_set(err, ERROR_IO, "--out: \"%s\": cannot make this directory: %s", out,
                         strerror(why));
    if (!S_ISDIR(found.st_mode))
        return error_set(err, ERROR_INVALID, "--out: %s: expected a directory, got a file", out);
    if (access(out, W_OK | X_OK) != 0)
        return error_set(err, ERROR_IO, "--out: %s: cannot write into this directory: %s", out,
                         strerror(errno));
    return 0;
}

static int run_study(struct study *study, struct error *err)
{
    const char *out = study->options->out;
    char json[4096];
    size_t known = 0;
    if (device_find(study->options->model.device, err) != 0)
        return -1;
    if (snprintf(study->csv, sizeof study->csv, "%s/study.csv", out) >= (int)sizeof study->csv ||
        snprintf(json, sizeof json, "%s/study.json", out) >= (int)sizeof json)
        return error_set(err, ERROR_INVALID, "--out: the path is too long");
    if (study_plan_create(&study->plan, &study->axes, err) != 0 || make_folder(out, err) != 0 ||
        check_settings(study, json, err) != 0 ||
        study_csv_resume(&study->plan, study->csv, &known, err) != 0)
        return -1;
    if (known > 0 && !study->options->quiet)
        fprintf(stderr, "%s holds %zu of %zu points: going on\n", study->csv, known,
                study->plan.count);
    if (open_lines(study, err) != 0 || write_json(study, json, err) != 0 ||
        measure_all(study, err) != 0 || write_json(study, json, err) != 0 ||
        study_plots(out, &study->plan, &study->axes, err) != 0)
        return -1;
    study_report(stdout, &study->plan, &study->axes);
    printf("\nwritten: %s/study.csv, study.json and plots (*.svg, *.png)\n", out);
    return 0;
}

enum { SYSTEM_SIZE = 48 };

/* What --point says; its system is put into `system`. */
static int parse_point(const struct study_options *options, char system[SYSTEM_SIZE],
                       struct study_point *out, struct error *err)
{
    struct study_point point = {.system = system};
    int end = 0;
    if (sscanf(options->point, "%47[^:]:%d:%d:%d%n", system, &point.length, &point.batch,
               &point.repeat, &end) != 4 ||
        options->point[end] != 0 || point.length < 1 || point.batch < 1 || point.batch > 4096 ||
        point.length > 1 << 24 || point.repeat < 1 || !is_study_preset(system))
        return error_set(err, ERROR_INVALID,
                         "--point: expected system:length:batch:repeat, got \"%.60s\"",
                         options->point);
    *out = point;
    return 0;
}

static int run_point(const struct study_options *options, struct study_point *point,
                     struct error *err)
{
    struct engine_options engine = command_engine_options(&options->model);
    if (study_measure(point, &engine, err) != 0)
        return -1;
    study_csv_line(stdout, point);
    return 0;
}

int command_study(int argc, char **argv)
{
    struct study_options options = {0};
    struct study study = {.options = &options};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&table, &options, argc, argv, NULL, &status) == 0) {
        struct study_point point;
        char system[SYSTEM_SIZE];
        if (options.point ? parse_point(&options, system, &point, &err) != 0
                          : parse_axes(&study, &err) != 0)
            status = command_misused(argv[0], &err);
        else if (options.point ? run_point(&options, &point, &err) != 0
                               : run_study(&study, &err) != 0)
            status = command_failed(argv[0], &err);
    }
    if (study.lines != NULL)
        fclose(study.lines); /* each line is on the disk */
    study_plan_clear(&study.plan);
    free(study.names);
    options_clear(&table, &options);
    return status;
}
