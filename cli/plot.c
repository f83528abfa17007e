/* SPDX-License-Identifier: Apache-2.0 */
/* regla-plot: draws the plots of studies. A program of its own, so that regla needs no drawing
 * library; `regla study` runs it. */
#include "bench/study.h"
#include "cli/plot_options.h"

#include <string.h>

enum { MOST_DIRECTORIES = 64 };

static int plot(const char *directory, struct error *err)
{
    char path[4096];
    struct study_plan plan = {0};
    struct study_choice choice = {0};
    if (snprintf(path, sizeof path, "%s/study.json", directory) >= (int)sizeof path)
        return error_set(err, ERROR_INVALID, "%.40s...: the path is too long", directory);
    int result = study_json_read(path, &plan, &choice, err);
    if (result == 0)
        result = study_plots(directory, &plan, &choice.axes, err);
    study_plan_clear(&plan);
    study_choice_clear(&choice);
    return result;
}

static int refuse(const char *message)
{
    fprintf(stderr, "regla-plot: %s\n", message);
    return 2;
}

int main(int argc, char **argv)
{
    const char *directories[MOST_DIRECTORIES];
    struct option_arguments given = {.items = directories, .capacity = MOST_DIRECTORIES};
    struct error err = ERROR_INIT;
    if (argc == 2 && strcmp(argv[1], "--version") == 0)
        return printf("regla-plot %s\n", REGLA_VERSION) < 0;
    int parsed = options_parse(&plot_options, NULL, argc, argv, &given, &err);
    if (parsed > 0) {
        options_help(&plot_options, stdout);
        return fflush(stdout) != 0;
    }
    if (parsed < 0)
        return refuse(err.message);
    if (given.count == 0)
        return refuse("expected directories of studies; usage: regla-plot DIR...");
    int status = 0;
    for (int i = 0; i < given.count; i++) {
        error_clear(&err);
        if (plot(given.items[i], &err) != 0) {
            fprintf(stderr, "regla-plot: %s\n", err.message);
            status = 1;
        }
    }
    return status;
}
