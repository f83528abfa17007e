/* SPDX-License-Identifier: Apache-2.0 */
/* regla generate: a prompt to standard output, token by token. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "engine/base/clock.h"
#include "engine/base/fields.h"
#include "engine/base/file.h"
#include "engine/grammar/grammar_text.h"
#include "engine/model/model.h"
#include "engine/ops/sampler.h"
#include "engine/text/detokenize.h"
#include "server/schedule/stop.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

struct generate_options {
    struct command_model_options model;
    const char *prompt;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p;
    double presence_penalty, frequency_penalty, repetition_penalty;
    struct option_list stop, choice;
    const char *json_schema, *regex;
    bool echo, ignore_eos, quiet;
};

#define AT(field) offsetof(struct generate_options, field)

static const struct option items[] = {
    {"prompt", OPTION_TEXT, AT(prompt), "TEXT", NULL, 0, 0, NULL,
     "what to continue; without it, standard input (less one newline at its end)"},
    {"max-tokens", OPTION_INTEGER, AT(max_tokens), "tokens", "256", 1, 1e9, NULL,
     "most tokens to generate"},
    {"temperature", OPTION_NUMBER, AT(temperature), "NUMBER", "0.8", 0, 2, NULL,
     "how freely to draw; 0: always the likeliest token"},
    {"top-p", OPTION_NUMBER, AT(top_p), "NUMBER", "0.95", 1e-6, 1, NULL,
     "draw from the likeliest tokens that have this probability together"},
    {"top-k", OPTION_INTEGER, AT(top_k), "tokens", "0", -1, 1e9, NULL,
     "draw from so many of the likeliest tokens; 0: from all"},
    {"min-p", OPTION_NUMBER, AT(min_p), "NUMBER", "0", 0, 1, NULL,
     "draw no token that is less likely than this share of the likeliest"},
    {"presence-penalty", OPTION_NUMBER, AT(presence_penalty), "NUMBER", "0", -2, 2, NULL,
     "subtracted from the logit of every token generated before"},
    {"frequency-penalty", OPTION_NUMBER, AT(frequency_penalty), "NUMBER", "0", -2, 2, NULL,
     "the same, for each time it was generated"},
    {"repetition-penalty", OPTION_NUMBER, AT(repetition_penalty), "NUMBER", "1", 1e-6, 1e6, NULL,
     "divides the logits of tokens seen before, in the prompt too; 1: off"},
    {"seed", OPTION_INTEGER, AT(seed), "SEED", "-1", -1, 9e15, NULL,
     "equal seeds draw equal tokens; -1: a new one, which is printed at the end"},
    {"stop", OPTION_LIST, AT(stop), "TEXT", NULL, 0, 0, NULL,
     "end before this text (may be given more than once)"},
    {"json-schema", OPTION_TEXT, AT(json_schema), "FILE", NULL, 0, 0, NULL,
     "the text is JSON that this JSON Schema admits"},
    {"regex", OPTION_TEXT, AT(regex), "REGEX", NULL, 0, 0, NULL,
     "the text matches this regular expression"},
    {"choice", OPTION_LIST, AT(choice), "TEXT", NULL, 0, 0, NULL,
     "the text is this, or another one that is given so"},
    {"ignore-eos", OPTION_FLAG, AT(ignore_eos), NULL, "false", 0, 0, NULL,
     "go on after the model's end of text"},
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
struct generation {
    const struct generate_options *options;
    struct command_model model;
    struct token_list prompt;
    struct state *state;
    struct sampler *sampler;
    struct draw draw; /* the next token */
    struct detokenizer *detokenizer;
    struct grammar_vocabulary *vocabulary;
    struct grammar *grammar;
    struct grammar_text *form; /* what constrains the text; NULL: nothing */
    struct stop_set *stops;    /* NULL: none */
    struct stop_scan scan;
    char number[16]; /* a token of a preset */
    char *held;      /* [held_length]: may be the beginning of a stop string */
    size_t held_length, held_capacity;
    int64_t seed;
    int64_t limit, generated; /* tokens */
    const char *reason;
};

static int write_out(const char *text, size_t length, struct error *err)
{
    if (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0)
        return error_set(err, ERROR_IO, "standard output: cannot write: %s", strerror(errno));
    return 0;
}

/* Prints what has become final; returns 1 when a stop string ends in the text so far. */
static int emit(struct generation *g, const char *text, size_t length, struct error *err)
{
    if (!g->stops)
        return write_out(text, length, err);
    if (g->held_length + length > g->held_capacity) {
        size_t capacity = 2 * (g->held_length + length);
        char *grown = realloc(g->held, capacity);
        if (!grown)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        g->held = grown;
        g->held_capacity = capacity;
    }
    struct stop_match match;
    bool stopped = stop_scan_push(g->stops, &g->scan, text, length, &match) != 0;
    if (length > 0)
        memcpy(g->held + g->held_length, text, length);
    size_t final = stopped ? g->held_length + match.end - match.length
                           : g->held_length + length - stop_scan_held(g->stops, &g->scan);
    g->held_length += length;
    if (write_out(g->held, final, err) != 0)
        return -1;
    g->held_length -= final;
    memmove(g->held, g->held + final, g->held_length);
    return stopped;
}

static bool is_eos(const struct model *model, int32_t id)
{
    for (size_t i = 0; i < model->eos.count; i++)
        if (model->eos.ids[i] == id)
            return true;
    return false;
}

/* The text that became final with a token; of a preset its number. */
static int text_of(struct generation *g, int32_t id, const char **text, size_t *length,
                   struct error *err)
{
    if (!g->options->model.preset)
        return detokenizer_push(g->detokenizer, id, text, length, err);
    *length = (size_t)snprintf(g->number, sizeof g->number, "%s%" PRId32,
                               g->generated > 1 || g->options->echo ? " " : "", id);
    *text = g->number;
    return 0;
}

/* Takes a token into the text's form. 1: nothing more may come. */
static int take_form(struct generation *g, int32_t id, struct error *err)
{
    if (!g->form)
        return 0;
    if (grammar_text_take(g->form, id, err) != 0)
        return -1;
    if (grammar_text_over(g->form))
        return 1;
    g->draw.mask = grammar_text_mask(g->form, err);
    return g->draw.mask ? 0 : -1;
}

/* Goes on from the first token, which is drawn, until something ends it; g->reason says what. */
static int go_on(struct generation *g, struct error *err)
{
    const struct model *model = engine_model(g->model.engine);
    const char *text;
    size_t length;
    g->reason = g->limit < g->options->max_tokens ? "the model's last position" : "max-tokens";
    while (g->generated < g->limit) {
        int32_t id = g->draw.id;
        g->generated++;
        if (!g->options->ignore_eos && is_eos(model, id)) {
            g->reason = "end of text";
            break;
        }
        if (text_of(g, id, &text, &length, err) != 0)
            return -1;
        int stopped = emit(g, text, length, err);
        if (stopped < 0)
            return -1;
        if (stopped > 0) {
            g->reason = "stop string";
            return 0;
        }
        int over = take_form(g, id, err);
        if (over < 0)
            return -1;
        if (over > 0) {
            g->reason = "its form";
            break;
        }
        if (g->generated < g->limit &&
            command_feed(g->model.engine, g->state, &id, 1, &g->draw, err) != 0)
            return -1;
    }
    if (detokenizer_finish(g->detokenizer, &text, &length, err) != 0)
        return -1;
    int stopped = emit(g, text, length, err);
    if (stopped > 0)
        g->reason = "stop string";
    return stopped == 0  ? write_out(g->held ? g->held : "", g->held_length, err)
           : stopped < 0 ? -1
                         : 0;
}

static int make_stops(struct generation *g, struct error *err)
{
    size_t count = g->options->stop.count;
    if (count == 0)
        return 0;
    struct stop_string *strings = calloc(count, sizeof *strings);
    if (!strings)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++) {
        strings[i].text = g->options->stop.items[i];
        strings[i].length = strlen(strings[i].text);
        if (strings[i].length == 0)
            result = error_set(err, ERROR_INVALID, "--stop: expected a text, got an empty one");
    }
    if (result == 0)
        result = stop_set_create(&g->stops, strings, count, err);
    free(strings);
    return result;
}

static json_t *list_of(const struct option_list *list)
{
    json_t *strings = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(strings, json_string(list->items[i]));
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

static int make_form(struct generation *g, struct error *err)
{
    const struct model *model = engine_model(g->model.engine);
    enum grammar_kind kind;
    json_t *spec;
    if (read_form(g->options, &kind, &spec, err) != 0) {
        json_decref(spec);
        return -1;
    }
    if (!spec)
        return 0;
    const int32_t vocab_size = engine_info(g->model.engine)->vocab_size;
    const size_t num_eos = g->options->ignore_eos ? 0 : model->eos.count;
    const struct grammar_ends ends = {model->eos.ids, num_eos, num_eos};
    int result = grammar_vocabulary_create(&g->vocabulary, g->model.tokenizer, vocab_size, err);
    if (result == 0 && grammar_compile(&g->grammar, kind, spec, g->vocabulary, err) != 0)
        result = error_prefix(err, "%s",
                              kind == GRAMMAR_REGEX    ? "--regex"
                              : kind == GRAMMAR_CHOICE ? "--choice"
                                                       : g->options->json_schema);
    if (result == 0)
        result = grammar_text_open(&g->form, g->grammar, vocab_size, &ends, err);
    json_decref(spec);
    if (result == 0)
        g->draw.mask = grammar_text_mask(g->form, err);
    return result == 0 && g->draw.mask ? 0 : -1;
}

static int encode(struct generation *g, const char *prompt, size_t length, struct error *err)
{
    if (!g->options->model.preset)
        return tokenizer_encode(g->model.tokenizer, prompt, length, true, &g->prompt, err);
    if (command_parse_ids(prompt, length, &g->prompt, err) != 0)
        return error_prefix(err, "the prompt (a preset has no tokenizer)");
    const int32_t vocab_size = engine_info(g->model.engine)->vocab_size;
    for (size_t i = 0; i < g->prompt.count; i++)
        if (g->prompt.ids[i] >= vocab_size)
            return error_set(err, ERROR_INVALID, "the prompt: expected token ids under %d, got %d",
                             vocab_size, g->prompt.ids[i]);
    return 0;
}

/* The prompt's tokens, and the prompt itself when it is to be printed. An empty one begins with
 * the model's BOS. */
static int take_prompt(struct generation *g, struct error *err)
{
    const struct model *model = engine_model(g->model.engine);
    const char *prompt = g->options->prompt;
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
    int result = encode(g, prompt, length, err);
    if (result == 0 && g->prompt.count == 0 && model->bos_token_id >= 0)
        result = token_list_push(&g->prompt, model->bos_token_id, err);
    else if (result == 0 && g->prompt.count == 0)
        result = error_set(err, ERROR_INVALID,
                           "the prompt is empty, and the model has no token that begins a text");
    if (result == 0 && g->options->echo)
        result = write_out(prompt, length, err);
    free(input);
    return result;
}

/* A state for the prompt and all that may follow; the last token drawn needs no position. */
static int make_room(struct generation *g, struct error *err)
{
    int64_t prompt = (int64_t)g->prompt.count;
    int64_t positions = engine_info(g->model.engine)->max_positions;
    g->limit = g->options->max_tokens;
    if (positions > 0 && prompt <= positions && g->limit > positions - prompt + 1)
        g->limit = positions - prompt + 1;
    return state_create(&g->state, g->model.engine, prompt + g->limit - 1, err);
}

static int prepare(struct generation *g, struct error *err)
{
    const struct generate_options *options = g->options;
    g->seed = options->seed;
    if (g->seed < 0) {
        uint32_t random;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return error_set(err, ERROR_IO, "cannot get a random seed: %s", strerror(errno));
        g->seed = random;
    }
    struct sampling sampling = {.temperature = (float)options->temperature,
                                .top_p = (float)options->top_p,
                                .min_p = (float)options->min_p,
                                .top_k = (int32_t)options->top_k,
                                .presence_penalty = (float)options->presence_penalty,
                                .frequency_penalty = (float)options->frequency_penalty,
                                .repetition_penalty = (float)options->repetition_penalty,
                                .seed = g->seed};
    if (make_form(g, err) != 0)
        return -1;
    sampling.masked = g->form != NULL;
    if (make_stops(g, err) != 0 || take_prompt(g, err) != 0 ||
        sampler_create(&g->sampler, &sampling, engine_info(g->model.engine)->vocab_size,
                       g->prompt.ids, g->prompt.count, err) != 0 ||
        detokenizer_create(&g->detokenizer, g->model.tokenizer, true, err) != 0 ||
        detokenizer_prime(g->detokenizer, g->prompt.ids, g->prompt.count, err) != 0)
        return -1;
    g->draw.sampler = g->sampler;
    return make_room(g, err);
}

static int generate(struct generation *g, struct error *err)
{
    double start = clock_seconds();
    if (command_feed(g->model.engine, g->state, g->prompt.ids, g->prompt.count, &g->draw, err) != 0)
        return -1;
    double prefilled = clock_seconds();
    if (go_on(g, err) != 0)
        return -1;
    double seconds = clock_seconds() - prefilled;
    if (g->generated > 0 && write_out("\n", 1, err) != 0)
        return -1;
    if (!g->options->quiet)
        fprintf(stderr,
                "%zu prompt tokens in %.2f s, %" PRId64 " tokens in %.2f s (%.1f a second), "
                "ended by %s, seed %" PRId64 "\n",
                g->prompt.count, prefilled - start, g->generated, seconds,
                seconds > 0 ? (double)g->generated / seconds : 0, g->reason, g->seed);
    return 0;
}

static void clear(struct generation *g)
{
    state_free(g->state);
    sampler_free(g->sampler);
    detokenizer_free(g->detokenizer);
    stop_set_free(g->stops);
    grammar_text_close(g->form);
    grammar_release(g->grammar);
    grammar_vocabulary_free(g->vocabulary);
    token_list_clear(&g->prompt);
    free(g->held);
    command_model_close(&g->model);
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
        {"stop", options->stop.count > 0},
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
    struct generation g = {.options = &options};
    const char *directory = NULL;
    struct option_arguments arguments = {.items = &directory, .capacity = 1};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_generate_options, &options, argc, argv, &arguments, &status) ==
        0) {
        status = given(directory, &options);
        if (status == 0 &&
            (command_model_open(&g.model, directory, &options.model, 0, false, &err) != 0 ||
             prepare(&g, &err) != 0 || generate(&g, &err) != 0))
            status = command_failed(argv[0], &err);
    }
    clear(&g);
    options_clear(&command_generate_options, &options);
    return status;
}
