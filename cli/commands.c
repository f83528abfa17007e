/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/command.h"

#define COMMAND(name, summary)                                     \
    {                                                              \
#name, command_##name, summary, &command_##name##_options, \
    }

const struct command commands[] = {
    COMMAND(serve, "serve a model over HTTP (the OpenAI completions API)"),
    COMMAND(sessions, "look after sessions: list, export, move, back up, repair"),
    COMMAND(generate, "continue a prompt on the terminal"),
    COMMAND(chat, "chat with a model on the terminal"),
    COMMAND(perplexity, "score a file of text"),
    COMMAND(compare, "compare two formats of a model: what they do to its words, and how fast"),
    COMMAND(quantize, "write a model in four bits, rounded by what a text does in it"),
    COMMAND(tokenize, "texts to token ids and back"),
    COMMAND(info, "say what a model is and what it costs"),
    COMMAND(check, "compare a checkpoint with its expected.json"),
    COMMAND(bench, "measure how fast a model is, and against what the machine can do"),
    COMMAND(study, "time and memory against the length of texts, with plots"),
};
const int num_commands = sizeof commands / sizeof *commands;
