/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/completion.h"

#include "cli/command.h"
#include "engine/model/preset.h"

#include <string.h>

/* What the script does with each command: `flags` are its flags, `kind` says what the word behind
 * $prev is (nothing: a flag or an operand; none: a value that nobody can guess), `words` which
 * values it has, `operands` what is not a flag. */
static const char BEGIN[] =
    "# Completion of regla and regla-plot for bash; printed by `regla help --completion bash`.\n"
    "_regla()\n"
    "{\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
    "    local command=${COMP_WORDS[1]} flags= kind= words= operands= before=\n"
    "    COMPREPLY=()\n"
    "    # bash cuts --flag=value into three words.\n"
    "    if [[ $cur == '=' ]]; then\n"
    "        cur=\n"
    "    elif [[ $prev == '=' ]]; then\n"
    "        prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    fi\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        command= flags='--help --version' kind=words\n";

static const char END[] =
    "    [[ -n $kind ]] || case $cur in\n"
    "        -*) kind=words words=$flags ;;\n"
    "        *) kind=$operands ;;\n"
    "    esac\n"
    "    if [[ $kind == list ]]; then\n"
    "        # Several words, separated by commas: the last one is completed.\n"
    "        [[ $cur != *,* ]] || before=${cur%,*},\n"
    "        cur=${cur##*,} kind=words\n"
    "    fi\n"
    "    case $kind in\n"
    "    words) mapfile -t COMPREPLY < <(compgen -P \"$before\" -W \"$words\" -- \"$cur\") ;;\n"
    "    files | directories)\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        [[ $kind == files ]] && kind=-f || kind=-d\n"
    "        mapfile -t COMPREPLY < <(compgen $kind -- \"$cur\") ;;\n"
    "    esac\n"
    "}\n"
    "_regla_plot()\n"
    "{\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]}\n"
    "    if [[ $cur == -* ]]; then\n"
    "        mapfile -t COMPREPLY < <(compgen -W '--help --version' -- \"$cur\")\n"
    "    else\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        mapfile -t COMPREPLY < <(compgen -d -- \"$cur\")\n"
    "    fi\n"
    "}\n"
    "complete -F _regla regla\n"
    "complete -F _regla_plot regla-plot\n";

static void command_names(FILE *out)
{
    for (int i = 0; i < num_commands; i++)
        fprintf(out, "%s ", commands[i].name);
}

/* "auto|cpu|cuda[:N]" -> "auto cpu cuda" */
static void choices(const char *list, FILE *out)
{
    for (const char *at = list; *at != 0;) {
        size_t length = strcspn(at, "|");
        fprintf(out, "%s%.*s", at == list ? "" : " ", (int)strcspn(at, "|["), at);
        at += length + (at[length] != 0);
    }
}

static void presets_without(const char *ending, FILE *out)
{
    for (size_t i = 0; i < num_presets; i++) {
        const char *name = presets[i].name;
        size_t length = strlen(name), cut = strlen(ending);
        if (length > cut && strcmp(name + length - cut, ending) == 0)
            fprintf(out, " %.*s", (int)(length - cut), name);
    }
}

/* What the value of an option is: kind and words of the script. */
static void value(const struct option *option, FILE *out)
{
    const char *unit = option->unit ? option->unit : "";
    size_t length = strlen(unit);
    bool several = length > 4 && strcmp(unit + length - 4, ",...") == 0;
    fprintf(out, "        --%s) ", option->name);
    if (option->choices == NULL) {
        fprintf(out, "kind=%s",
                strcmp(unit, "DIR") == 0    ? "directories"
                : strcmp(unit, "PATH") == 0 ? "files"
                                            : "none");
    } else if (strcmp(option->choices, OPTION_SYSTEMS) == 0) {
        fprintf(out, "kind=list words='all");
        presets_without("-6l", out);
        fputc('\'', out);
    } else if (strcmp(option->choices, OPTION_PRESETS) == 0) {
        fprintf(out, "kind=words words='");
        presets_without("", out);
        fputc('\'', out);
    } else {
        fprintf(out, "kind=%s words='", several ? "list" : "words");
        choices(option->choices, out);
        fputc('\'', out);
    }
    fprintf(out, " ;;\n");
}

static void command_case(const struct command *command, FILE *out)
{
    static const char *const OPERANDS[] = {
        [OPERANDS_NONE] = "none",
        [OPERANDS_DIRECTORIES] = "directories",
        [OPERANDS_FILES] = "files",
    };
    const struct options *options = command->options;
    fprintf(out, "    %s)\n        flags='", command->name);
    for (size_t i = 0; i < options->count; i++) {
        char flag[OPTION_NAME_SIZE];
        option_flag(&options->items[i], flag);
        fprintf(out, "%s ", flag);
    }
    fprintf(out, "--help' operands=%s\n        case $prev in\n", OPERANDS[options->operands]);
    for (size_t i = 0; i < options->count; i++)
        if (options->items[i].type != OPTION_FLAG)
            value(&options->items[i], out);
    fprintf(out, "        esac ;;\n");
}

void completion_print(FILE *out)
{
    fputs(BEGIN, out);
    fprintf(out, "        words='");
    command_names(out);
    fprintf(out, "help'\n        [[ $cur != -* ]] || words=$flags\n    fi\n"
                 "    case $command in\n    help)\n        operands=none kind=words words='");
    command_names(out);
    fprintf(out, "--man --completion'\n"
                 "        [[ $prev != --man ]] || words='regla regla-plot'\n"
                 "        [[ $prev != --completion ]] || words=bash ;;\n");
    for (int i = 0; i < num_commands; i++)
        command_case(&commands[i], out);
    fprintf(out, "    esac\n");
    fputs(END, out);
}
