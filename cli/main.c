/* SPDX-License-Identifier: Apache-2.0 */
/* regla: one program, several commands. */
#include "api/parameter_documents.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/manual.h"

#include <string.h>

static void print_help(FILE *out)
{
    fprintf(out, "usage: regla COMMAND [options]\n\n");
    for (int i = 0; i < num_commands; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n`regla COMMAND --help` lists a command's options; `regla --version`.\n");
}

static int run_command(int argc, char **argv)
{
    for (int i = 0; i < num_commands; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc, argv);
    const char *nearest =
        options_nearest(argv[0], commands, (size_t)num_commands, sizeof *commands);
    fprintf(stderr, "regla: unknown command \"%s\"", argv[0]);
    if (nearest)
        fprintf(stderr, " (did you mean %s?)", nearest);
    fprintf(stderr, "; `regla --help` lists them\n");
    return 2;
}

static char help[] = "--help";

/* `regla help ...`: argv begins behind "help". */
static int run_help(int argc, char **argv)
{
    if (argc == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[0], "--man") == 0 && argc <= 2) {
        if (manual_print(stdout, argc == 2 ? argv[1] : "regla"))
            return 0;
        fprintf(stderr, "regla help: --man: expected regla or regla-plot, got \"%s\"\n", argv[1]);
        return 2;
    }
    if (strcmp(argv[0], "--parameters") == 0 && argc == 1) {
        parameter_documents_markdown(stdout);
        return 0;
    }
    if (strcmp(argv[0], "--schemas") == 0 && argc == 1)
        return parameter_documents_schemas(stdout) ? 1 : 0;
    if (strcmp(argv[0], "--completion") == 0) {
        if (argc == 2 && strcmp(argv[1], "bash") == 0) {
            completion_print(stdout);
            return 0;
        }
        fprintf(stderr, "regla help: --completion: expected bash, got %s\n",
                argc < 2 ? "nothing" : argv[1]);
        return 2;
    }
    return run_command(2, (char *[]){argv[0], help, NULL});
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], help) == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return run_help(argc - 2, argv + 2);
    if (strcmp(argv[1], "--version") == 0) {
        printf("regla %s\n", REGLA_VERSION);
        return 0;
    }
    return run_command(argc - 1, argv + 1);
}

/* What could not be written is a failure, whatever the command thinks. */
int main(int argc, char **argv)
{
    int status = run(argc, argv);
    bool lost = ferror(stdout) != 0;
    if (fflush(stdout) == 0 && !lost)
        return status;
    if (status == 0)
        fprintf(stderr, "regla: cannot write to the standard output\n");
    return status ? status : 1;
}
