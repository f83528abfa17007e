/* SPDX-License-Identifier: Apache-2.0 */
/* regla: one program, several commands. */
#include "cli/command.h"

#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command COMMANDS[] = {
    {"serve", command_serve, "serve a model over HTTP (the OpenAI completions API)"},
    {"generate", command_generate, "continue a prompt on the terminal"},
    {"perplexity", command_perplexity, "score a file of text"},
    {"tokenize", command_tokenize, "texts to token ids and back"},
    {"info", command_info, "say what a model is and what it costs"},
    {"check", command_check, "compare a checkpoint with its expected.json"},
    {"bench", command_bench, "measure how fast a model is, and against what the machine can do"},
    {"study", command_study, "time and memory against the length of texts, with plots"},
};
enum { NUM_COMMANDS = sizeof COMMANDS / sizeof *COMMANDS };

static void print_help(FILE *out)
{
    fprintf(out, "usage: regla COMMAND [options]\n\n");
    for (int i = 0; i < NUM_COMMANDS; i++)
        fprintf(out, "  %-12s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    fprintf(out, "\n`regla COMMAND --help` lists a command's options; `regla --version`.\n");
}

static int run_command(int argc, char **argv)
{
    for (int i = 0; i < NUM_COMMANDS; i++)
        if (strcmp(argv[0], COMMANDS[i].name) == 0)
            return COMMANDS[i].run(argc, argv);
    const char *nearest = options_nearest(argv[0], COMMANDS, NUM_COMMANDS, sizeof *COMMANDS);
    fprintf(stderr, "regla: unknown command \"%s\"", argv[0]);
    if (nearest)
        fprintf(stderr, " (did you mean %s?)", nearest);
    fprintf(stderr, "; `regla --help` lists them\n");
    return 2;
}

static int run(int argc, char **argv)
{
    static char help[] = "--help";
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], help) == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        if (argc > 2)
            return run_command(2, (char *[]){argv[2], help, NULL});
        print_help(stdout);
        return 0;
    }
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
