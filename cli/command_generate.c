/* SPDX-License-Identifier: Apache-2.0 */
/* regla generate: a prompt to standard output, token by token. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "cli/generation.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"
#include "lib/base/fields.h"
#include "lib/base/file.h"
#include "lib/grammar/grammar_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct generate_options {
    struct command_model_options model;
    const char *prompt;
    struct generation_options generation;
    struct option_list choice;
    const char *json_schema, *regex;
    bool echo, quiet;
};

#define AT(field) offsetof(struct generate_options, field)

static const struct option items[] = {
    {"prompt", OPTION_TEXT, AT(prompt), "TEXT", NULL, 0, 0, NULL,
     "what to continue; without it, standard input (less one newline at its end)"},
    GENERATION_OPTIONS(struct generate_options, "256"),
    {"json-schema", OPTION_TEXT, AT(json_schema), "FILE", NULL, 0, 0, NULL,
     "the text is JSON that this JSON Schema admits"},
    {"regex", OPTION_TEXT, AT(regex), "REGEX", NULL, 0, 0, NULL,
     "the text matches this regular expression"},
    {"choice", OPTION_LIST, AT(choice), "TEXT", NULL, 0, 0, NULL,
     "the text is this, or another one that is given so"},
    {"echo", OPTION_FLAG, AT(echo), NULL, "false", 0, 0, NULL, "print the prompt first"},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "false", 0, 0, NULL,
     "print no figures to standard error at the end"},
    COMMAND_PRESET_OPTION(struct generate_options),
    COMMAND_MODEL_OPTIONS(struct generate_options, "auto"),
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
    struct grammar_vocabulary *vocabulary;
    struct grammar *grammar;
    struct grammar_text *form; /* what constrains the text; NULL: nothing */
};

static json_t *list_of(const struct option_list *list)
{
    json_t *strings = json_array();
    for (size_t i = 0; i < list->count; i++)
        if (json_array_append_new(strings, json_string(list->items[i]))) {
            json_decref(strings);
            return NULL;
        }
    return strings;
}

/* What --json-schema, --regex or --choice asks for; *spec NULL: nothing. */
static int read_form(const struct generate_options *options, enum grammar_kind *kind, json_t **spec,
                     struct error *err)
{
    enum { MOST_BYTES = 8 << 20 };
    char *bytes;
    size_t size;
    *spec = NULL;
    *kind = GRAMMAR_REGEX;
    if (options->regex && !(*spec = json_string(options->regex)))
        return error_set(err, ERROR_INVALID, "--regex: expected UTF-8");
    if (options->choice.count > 0) {
        *kind = GRAMMAR_CHOICE;
        *spec = list_of(&options->choice);
        if (json_array_size(*spec) < options->choice.count)
            return error_set(err, ERROR_INVALID, "--choice: expected UTF-8");
    }
    if (!options->json_schema)
        return 0;
    *kind = GRAMMAR_JSON_SCHEMA;
    if (file_read(options->json_schema, MOST_BYTES, &bytes, &size, err) != 0)
        return -1;
    int result = fields_parse(spec, options->json_schema, bytes, size, err);
    free(bytes);
    return result;
}

static int make_form(struct continuation *c, struct error *err)
{
    const struct model *model = engine_model(c->model.engine);
    enum grammar_kind kind;
    json_t *spec;
    if (read_form(c->options, &kind, &spec, err) != 0) {
        json_decref(spec);
        return -1;
    }
    if (!spec)
        return 0;
    const int32_t vocab_size = engine_info(c->model.engine)->vocab_size;
    const size_t num_eos = c->options->generation.ignore_eos ? 0 : model->eos.count;
    const struct grammar_ends ends = {model->eos.ids, num_eos, num_eos};
    int result = grammar_vocabulary_create(&c->vocabulary, c->model.tokenizer, vocab_size, err);
    if (result == 0 && grammar_compile(&c->grammar, kind, spec, c->vocabulary, err) != 0)
        result = error_prefix(err, "%s",
                              kind == GRAMMAR_REGEX    ? "--regex"
                              : kind == GRAMMAR_CHOICE ? "--choice"
                                                       : c->options->json_schema);
    if (result == 0)
        result = grammar_text_open(&c->form, c->grammar, vocab_size, &ends, err);
    json_decref(spec);
    return result;
}

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

static int prepare(struct continuation *c, const char *directory, struct error *err)
{
    struct generation *generation = &c->generation;
    *generation = (struct generation){.options = &c->options->generation,
                                      .path = directory,
                                      .engine = c->model.engine,
                                      .tokenizer = c->model.tokenizer,
                                      .numbers = c->options->model.preset != NULL,
                                      .behind = c->options->echo};
    if (make_form(c, err) != 0)
        return -1;
    generation->form = c->form;
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
    grammar_text_close(c->form);
    grammar_release(c->grammar);
    grammar_vocabulary_free(c->vocabulary);
    token_list_clear(&c->prompt);
    command_model_close(&c->model);
}

static int misused(const char *name, const char *why)
{
    fprintf(stderr, "regla generate: --%s: %s\n", name, why);
    return 2;
}

/* 0, or the exit status when the arguments do not fit together. */
static int given(const char *directory, const struct generate_options *options)
{
    int status =
        command_model_given("generate", directory, &options->model, command_generate_options.usage);
    if (status != 0)
        return status;
    const struct {
        const char *name;
        bool given;
    } of_text[] = {
        {"stop", options->generation.stop.count > 0},
        {"json-schema", options->json_schema != NULL},
        {"regex", options->regex != NULL},
        {"choice", options->choice.count > 0},
    };
    const char *form = NULL;
    for (size_t i = 0; i < sizeof of_text / sizeof *of_text; i++) {
        if (!of_text[i].given)
            continue;
        if (options->model.preset)
            return misused(of_text[i].name,
                           "a preset has no tokenizer, so its text has no strings");
        if (form)
            return misused(of_text[i].name,
                           "a text has one form, and there is another option for it");
        form = i > 0 ? of_text[i].name : NULL;
    }
    return 0;
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
             prepare(&c, directory, &err) != 0 || generate(&c, &err) != 0))
            status = command_failed(argv[0], &err);
    }
    clear(&c);
    options_clear(&command_generate_options, &options);
    return status;
}
