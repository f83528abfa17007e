/* SPDX-License-Identifier: Apache-2.0 */
/* regla generate: a prompt to standard output, token by token. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "cli/generation.h"
#include "engine/base/clock.h"
#include "engine/model/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct generate_options {
    struct command_model_options model;
    const char *prompt;
    struct generation_options generation;
    bool echo, quiet;
};

#define AT(field) offsetof(struct generate_options, field)

static const struct option items[] = {
    {"prompt", OPTION_TEXT, AT(prompt), "TEXT", NULL, 0, 0, NULL,
     "what to continue; without it, standard input (less one newline at its end)"},
    GENERATION_OPTIONS(struct generate_options, "256"),
    {"echo", OPTION_FLAG, AT(echo), NULL, "false", 0, 0, NULL, "print the prompt first"},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "false", 0, 0, NULL,
     "print no figures to standard error at the end"},
    COMMAND_PRESET_OPTION(struct generate_options),
    COMMAND_MODEL_OPTIONS(struct generate_options),
};

const struct options command_generate_options = {
    .usage = "regla generate MODEL|--preset NAME [--prompt TEXT] [options]",
    .summary =
        "Continues a text with MODEL, a directory or a GGUF file. A preset has no tokenizer: "
        "its prompt\nand its text are token ids.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

/* One continuation under way. */
struct continuation {
    const struct generate_options *options;
    struct command_model model;
    struct token_list prompt;
    struct state *state;
    struct generation generation;
};

static int encode(struct continuation *c, const char *prompt, size_t length, struct error *err)
{
    if (!c->options->model.preset)
        return tokenizer_encode(c->model.tokenizer, prompt, length, true, &c->prompt, err);
    if (command_parse_ids(prompt, length, &c->prompt, err) != 0)
        return error_prefix(err, "the prompt (a preset has no tokenizer)");
    const int32_t vocab_size = engine_info(c->model.engine)->vocab_size;
    for (size_t i = 0; i < c->prompt.count; i++)
        if (c->prompt.ids[i] >= vocab_size)
            return error_set(err, ERROR_INVALID, "the prompt: expected token ids under %d, got %d",
                             vocab_size, c->prompt.ids[i]);
    return 0;
}

/* The prompt's tokens, and the prompt itself when it is to be printed. An empty one begins with
 * the model's BOS. */
static int take_prompt(struct continuation *c, struct error *err)
{
    const struct model *model = engine_model(c->model.engine);
    const char *prompt = c->options->prompt;
    size_t length = prompt ? strlen(prompt) : 0;
    char *input = NULL;
    if (!prompt) {
        if (isatty(STDIN_FILENO))
            fprintf(stderr, "reading the prompt from the terminal, to end of file (Ctrl-D)\n");
        if (command_read_stdin(&input, &length, err) != 0)
            return -1;
        prompt = input;
        length -= length > 0 && prompt[length - 1] == '\n';
    }
    int result = encode(c, prompt, length, err);
    if (result == 0 && c->prompt.count == 0 && model->bos_token_id >= 0)
        result = token_list_push(&c->prompt, model->bos_token_id, err);
    else if (result == 0 && c->prompt.count == 0)
        result = error_set(err, ERROR_INVALID,
                           "the prompt is empty, and the model has no token that begins a text");
    if (result == 0 && c->options->echo)
        result = generation_write(prompt, length, err);
    free(input);
    return result;
}

static int prepare(struct continuation *c, struct error *err)
{
    struct generation *generation = &c->generation;
    *generation = (struct generation){.options = &c->options->generation,
                                      .engine = c->model.engine,
                                      .tokenizer = c->model.tokenizer,
                                      .numbers = c->options->model.preset != NULL,
                                      .behind = c->options->echo};
    if (generation_open(generation, err) != 0 || take_prompt(c, err) != 0 ||
        generation_begin(generation, c->prompt.ids, c->prompt.count, 0, err) != 0)
        return -1;
    /* The last token drawn needs no position. */
    return state_create(&c->state, c->model.engine,
                        (int64_t)c->prompt.count + generation->limit - 1, err);
}

static int generate(struct continuation *c, struct error *err)
{
    struct generation *generation = &c->generation;
    double start = clock_seconds();
    if (command_feed(c->model.engine, c->state, c->prompt.ids, c->prompt.count, &generation->draw,
                     err) != 0)
        return -1;
    double prefilled = clock_seconds();
    if (generation_run(generation, c->state, err) != 0)
        return -1;
    double seconds = clock_seconds() - prefilled;
    if (generation->generated > 0 && generation_write("\n", 1, err) != 0)
        return -1;
    if (!c->options->quiet)
        fprintf(stderr,
                "%zu prompt tokens in %.2f s, %" PRId64 " tokens in %.2f s (%.1f a second), "
                "ended by %s, seed %" PRId64 "\n",
                c->prompt.count, prefilled - start, generation->generated, seconds,
                seconds > 0 ? (double)generation->generated / seconds : 0, generation->reason,
                generation->seed);
    return 0;
}

static void clear(struct continuation *c)
{
    state_free(c->state);
    generation_clear(&c->generation);
    token_list_clear(&c->prompt);
    command_model_close(&c->model);
}

/* 0, or the exit status when the arguments do not fit together. */
static int given(const char *directory, const struct generate_options *options)
{
    int status =
        command_model_given("generate", directory, &options->model, command_generate_options.usage);
    if (status != 0 || !options->model.preset || options->generation.stop.count == 0)
        return status;
    fprintf(stderr,
            "regla generate: --stop: a preset has no tokenizer, so its text has no strings\n");
    return 2;
}

int command_generate(int argc, char **argv)
{
    struct generate_options options = {0};
    struct continuation c = {.options = &options};
    const char *directory = NULL;
    struct option_arguments arguments = {.items = &directory, .capacity = 1};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_generate_options, &options, argc, argv, &arguments, &status) ==
        0) {
        status = given(directory, &options);
        if (status == 0 &&
            (command_model_open(&c.model, directory, &options.model, 0, false, &err) != 0 ||
             prepare(&c, &err) != 0 || generate(&c, &err) != 0))
            status = command_failed(argv[0], &err);
    }
    clear(&c);
    options_clear(&command_generate_options, &options);
    return status;
}
