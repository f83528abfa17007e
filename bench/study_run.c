/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include "lib/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct study {
    const struct study_options *options;
    struct study_plan plan;
    struct study_plan kept; /* what the files have besides, of earlier runs with other axes */
    char csv[4096], json[4096];
    FILE *lines;                 /* of csv, to write behind those that it has */
    double began, planned, done; /* clock_seconds(); steps, weighed, of what this run measures */
};

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
    enum { MOST_ARGUMENTS = 32 };
    char spec[128];
    const char *arguments[MOST_ARGUMENTS + 2] = {0};
    int count = 0;
    while (options->child[count] != NULL && count < MOST_ARGUMENTS) {
        arguments[count] = options->child[count];
        count++;
    }
    snprintf(spec, sizeof spec, "%s:%d:%d:%d", point->system, point->length, point->batch,
             point->repeat);
    arguments[count] = spec;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(to, STDOUT_FILENO);
    execv("/proc/self/exe", (char *const *)arguments);
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

static int save(const struct study *study, struct error *err)
{
    return study_json_write(study->json, &study->plan, &study->kept, &study->options->settings,
                            err);
}

static int measure_turns(struct study *study, const struct study_axes *axes, struct error *err)
{
    const struct study_options *options = study->options;
    bool progress = !options->quiet && isatty(2);
    for (int group = 0; group < study_turns_groups(axes); group++) {
        int measured =
            study_turns_measure(&study->plan, axes, group, &options->engine, progress, err);
        if (measured < 0 || (measured > 0 && save(study, err) != 0))
            return -1;
    }
    return 0;
}

/* What earlier runs left. More than plots can show is refused before anything is measured. */
static int resume(struct study *study, const struct study_axes *axes, size_t *known,
                  struct error *err)
{
    if (study_json_check(study->json, &study->options->settings, err) != 0 ||
        study_csv_resume(&study->plan, &study->kept, study->csv, known, err) != 0 ||
        study_json_resume(&study->plan, &study->kept, study->json, axes, err) != 0)
        return -1;
    struct study_choice all = {0};
    int result =
        study_choice_span(&all, &study->plan, err) == 0 &&
                study_choice_span(&all, &study->kept, err) == 0
            ? 0
            : error_prefix(err, "%s has points of others: choose another --out", study->csv);
    study_choice_clear(&all);
    return result;
}

static int run(struct study *study, const struct study_axes *axes, struct error *err)
{
    const struct study_options *options = study->options;
    size_t known = 0;
    if (study_plan_create(&study->plan, axes, err) != 0 || make_folder(options->out, err) != 0 ||
        resume(study, axes, &known, err) != 0)
        return -1;
    if (known > 0 && !options->quiet)
        fprintf(stderr, "%s holds %zu of %zu points: going on\n", study->csv, known,
                study->plan.count);
    if (open_lines(study, err) != 0 || save(study, err) != 0 || measure_all(study, err) != 0 ||
        save(study, err) != 0 || measure_turns(study, axes, err) != 0)
        return -1;
    study_report(stdout, &study->plan, axes);
    int drawn = study_draw(options->out, err);
    if (drawn < 0)
        return -1;
    printf("\nwritten: %s/study.csv, study.json and %s\n", options->out,
           drawn > 0 ? "plots (*.svg, *.png)" : "no plots");
    return 0;
}

int study_run(const struct study_options *options, const struct study_axes *axes, struct error *err)
{
    struct study study = {.options = options};
    if (snprintf(study.csv, sizeof study.csv, "%s/study.csv", options->out) >=
            (int)sizeof study.csv ||
        snprintf(study.json, sizeof study.json, "%s/study.json", options->out) >=
            (int)sizeof study.json)
        return error_set(err, ERROR_INVALID, "--out: the path is too long");
    int result = run(&study, axes, err);
    if (study.lines != NULL)
        fclose(study.lines); /* each line is on the disk */
    study_plan_clear(&study.plan);
    study_plan_clear(&study.kept);
    return result;
}
