/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/manual.h"

#include "cli/command.h"
#include "cli/plot_options.h"

#include <ctype.h>
#include <string.h>

/* A text as it is to be read: troff's own characters escaped, and white space as one blank, so that
 * no line begins with a control character. An empty line stays one: a new paragraph. */
static void text(FILE *out, const char *string)
{
    bool began = false;
    for (const char *c = string; *c != 0; c++) {
        if (strncmp(c, "\n\n", 2) == 0) {
            fprintf(out, "\n.PP\n");
            began = false;
            c++;
        } else if (isspace((unsigned char)*c)) {
            while (isspace((unsigned char)c[1]) && c[1] != '\n')
                c++;
            fputc(' ', out);
        } else {
            if (!began && (*c == '.' || *c == '\''))
                fprintf(out, "\\&");
            began = true;
            if (*c == '\\')
                fprintf(out, "\\e");
            else if (*c == '-')
                fprintf(out, "\\-");
            else if (*c == '\'')
                fprintf(out, "\\(aq");
            else if (*c == '`')
                fprintf(out, "\\(ga");
            else if (*c == '^' || *c == '~')
                fprintf(out, *c == '^' ? "\\(ha" : "\\(ti");
            else
                fputc(*c, out);
        }
    }
}

static void paragraph(FILE *out, const char *string)
{
    text(out, string);
    fprintf(out, "\n");
}

static void option_entry(const struct option *option, FILE *out)
{
    char flag[OPTION_NAME_SIZE], environment[OPTION_NAME_SIZE], given[OPTION_NAME_SIZE];
    option_flag(option, flag);
    option_environment(option, environment);
    fprintf(out, ".TP\n\\fB");
    text(out, flag);
    fprintf(out, "\\fR");
    if (*option_value(option)) {
        fprintf(out, " \\fI");
        text(out, option_value(option));
        fprintf(out, "\\fR");
    }
    fprintf(out, "\n");
    if (option_is_on(option))
        fprintf(out, "do not ");
    text(out, option->help);
    fprintf(out, ".\n");
    if (option->type != OPTION_FLAG && option_default(option, given)) {
        fprintf(out, "Default: ");
        text(out, given);
        fprintf(out, ".\n");
    }
    fprintf(out, "Environment: %s%s.\n", environment, option_is_on(option) ? "=false" : "");
}

static void entries(const struct options *options, FILE *out)
{
    fprintf(out, ".PP\n\\fB");
    text(out, options->usage);
    fprintf(out, "\\fR\n.PP\n");
    paragraph(out, options->summary);
    for (size_t i = 0; i < options->count; i++)
        option_entry(&options->items[i], out);
}

static void heading(FILE *out, const char *title)
{
    fprintf(out, ".SH %s\n", title);
}

static void begin(FILE *out, const char *title, const char *name, const char *job)
{
    fprintf(out, ".\\\" Printed by `regla help --man`; not written by hand.\n");
    fprintf(out, ".TH %s 1 \"\" \"regla %s\" \"User Commands\"\n", title, REGLA_VERSION);
    heading(out, "NAME");
    fprintf(out, "%s \\- %s\n", name, job);
    heading(out, "SYNOPSIS");
}

static void plot_page(FILE *out)
{
    begin(out, "REGLA-PLOT", "regla\\-plot", "draw the plots of a study of regla");
    fprintf(out, "\\fBregla\\-plot\\fR \\fIDIR\\fR...\n");
    heading(out, "DESCRIPTION");
    paragraph(out, plot_options.summary);
    fprintf(out, ".PP\n");
    paragraph(out, "`regla study` runs this program where it lies beside regla. It is a program of "
                   "its own so that regla needs no drawing library.");
    heading(out, "OPTIONS");
    fprintf(out, ".TP\n\\fB\\-\\-help\\fR\nPrint the usage.\n.TP\n\\fB\\-\\-version\\fR\nPrint the "
                 "version.\n");
    heading(out, "EXIT STATUS");
    paragraph(out, "0: done. 1: a study could not be read or a plot not written. 2: wrong usage.");
    heading(out, "SEE ALSO");
    fprintf(out, "\\fBregla\\fR(1)\n");
}

static void commands_of(FILE *out)
{
    heading(out, "COMMANDS");
    for (int i = 0; i < num_commands; i++) {
        fprintf(out, ".TP\n\\fB%s\\fR\n", commands[i].name);
        text(out, commands[i].summary);
        fprintf(out, ".\n");
    }
    fprintf(out, ".TP\n\\fBhelp\\fR [\\fICOMMAND\\fR]\n");
    paragraph(out, "list the commands, or the options of one. `regla help --man` prints this page, "
                   "`regla help --completion bash` what completes commands in bash.");
    for (int i = 0; i < num_commands; i++) {
        fprintf(out, ".SS regla %s\n", commands[i].name);
        entries(commands[i].options, out);
    }
}

static const struct {
    const char *title, *body;
} CLOSING[] = {
    {"ENVIRONMENT",
     "Each option is an environment variable too, which its entry names: REGLA_PORT=9000 does what "
     "--port 9000 does. The option wins. A flag takes true or false."},
    {"VALUES",
     "A number of bytes may end in K, M, G or T (also Ki, KiB, ...): powers of 1024. A number of "
     "seconds may end in ms, s, m or h. `--port 9000` and `--port=9000` are the same."},
    {"SIGNALS",
     "SIGTERM or SIGINT: regla serve takes no more requests, finishes those that run, writes its "
     "states to --state-dir, and ends, all within --drain-timeout: with status 0, or 1 if a "
     "session could not be saved. A second one ends it at once. A SIGINT that was ignored when it "
     "started, as by `regla serve &` in a script, stays ignored."},
    {"EXIT STATUS", "0: done. 1: it failed, and standard error says why. 2: wrong usage."},
};

static void examples(FILE *out)
{
    static const char *const LINES[] = {
        "regla serve --model /srv/models/regla-books-7.7m",
        ("curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
         "    -d '{\"prompt\": \"It was a dark night, and\", \"max_tokens\": 48}'"),
        "regla generate /srv/models/regla-books-7.7m --prompt 'Once upon a time'",
        "regla bench --preset regla-160m --weights f32,q8",
        "regla compare /srv/models/regla-books-7.7m f32/f32 q8 text.txt",
    };
    heading(out, "EXAMPLES");
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        fprintf(out, ".PP\n.nf\n.RS\n");
        for (const char *line = LINES[i]; line != NULL;) {
            char part[256];
            size_t length = strcspn(line, "\n");
            snprintf(part, sizeof part, "%.*s", (int)length, line);
            paragraph(out, part);
            line = line[length] ? line + length + 1 : NULL;
        }
        fprintf(out, ".RE\n.fi\n");
    }
}

static void main_page(FILE *out)
{
    begin(out, "REGLA", "regla", "serve and run language models with linear or softmax attention");
    fprintf(out, "\\fBregla\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n.br\n\\fBregla help\\fR "
                 "[\\fICOMMAND\\fR]\n.br\n\\fBregla \\-\\-version\\fR\n");
    heading(out, "DESCRIPTION");
    paragraph(out, "regla serves language models whose attention is linear, softmax or both, over "
                   "HTTP, by the completions API of OpenAI. Other commands continue a text, score "
                   "one, and measure models and machines. A request gets the same bits whatever "
                   "runs beside it.\n\nA MODEL is a directory with config.json, tokenizer.json and "
                   "*.safetensors, or a GGUF file. A preset is a configuration without weights, "
                   "which are drawn at "
                   "random: `regla info --presets` lists them.");
    commands_of(out);
    for (size_t i = 0; i < sizeof CLOSING / sizeof *CLOSING; i++) {
        heading(out, CLOSING[i].title);
        paragraph(out, CLOSING[i].body);
    }
    examples(out);
    heading(out, "SEE ALSO");
    fprintf(out, "\\fBregla\\-plot\\fR(1), \\fBcurl\\fR(1), \\fBsystemctl\\fR(1)\n");
}

bool manual_print(FILE *out, const char *program)
{
    if (strcmp(program, "regla") == 0)
        main_page(out);
    else if (strcmp(program, "regla-plot") == 0)
        plot_page(out);
    else
        return false;
    return true;
}
