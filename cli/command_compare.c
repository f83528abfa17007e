/* SPDX-License-Identifier: Apache-2.0 */
/* regla compare: what another format of weights, activations or KV does to a model's words, and
 * what it gives in speed. */
#include "cli/command.h"

#include "cli/compare.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct compare_options, field)

static const struct option items[] = {
    {"tokens", OPTION_INTEGER, AT(scoring.tokens), "tokens", "4096", 0, 1e12, NULL,
     "predict so many tokens of TEXT at most; 0: all"},
    SCORING_OPTIONS(struct compare_options),
    {"questions", OPTION_TEXT, AT(questions), "PATH", NULL, 0, 0, NULL,
     "ask these instead of the built-in questions: JSONL with \"question\" and \"accepted\", the "
     "words\n      of which any one makes an answer right"},
    {"chat-template", OPTION_TEXT, AT(chat_template), "PATH", NULL, 0, 0, NULL,
     "the chat template for questions, in Jinja, instead of the model's own"},
    {"pp", OPTION_INTEGER, AT(pp), "tokens", "512", 0, 1e7, NULL,
     "measure the speed of reading a prompt of so many tokens; 0: do not"},
    {"tg", OPTION_INTEGER, AT(tg), "tokens", "64", 0, 1e7, NULL,
     "measure the speed of generating so many tokens; 0: do not"},
    {"repeat", OPTION_INTEGER, AT(repeat), "runs", "3", 1, 1000, NULL,
     "of each of these, in turns, after one to warm up; the median counts"},
    {"json", OPTION_FLAG, AT(json), NULL, "false", 0, 0, NULL,
     "print one JSON object, which has all answers"},
    COMMAND_MACHINE_OPTIONS(struct compare_options),
};

const struct options command_compare_options = {
    .usage = "regla compare MODEL A B [TEXT] [questions] [options]",
    .summary =
        "Compares two formats of MODEL, a directory or a GGUF file, both in memory at once. A and "
        "B are\nWEIGHTS/ACTIVATIONS/KV, such as f32/f32/f32 and q8/8bit/f16; a part that is empty "
        "or left out\nis auto: q8, /f32, auto/16bit.\n\nOf TEXT, a file as `regla perplexity` "
        "takes it: the Kullback-Leibler divergence of B's next\ntoken from A's, in nats (mean, "
        "99th hundredth, worst), how often both find the same token\nlikeliest, and the "
        "perplexity of both. With `questions`: how many of a hundred short questions\neach "
        "answers right, each asked in a chat of its own by the model's template, greedily, with "
        "at\nmost 24 tokens; mere rounding moves 4 or 5 answers either way. Of both the speed: "
        "what `regla\nbench` calls pp and tg.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

/* One of the two: its engine, and of A the tokenizer, too. */
static int open_model(struct comparison *c, int which, struct error *err)
{
    struct bench_case *formats = &c->formats[which];
    struct command_model_options options = c->options->model;
    options.weights = weight_format_name(formats->weights);
    options.activations = activation_format_name(formats->activations);
    options.kv = kv_format_name(formats->kv);
    /* as bench shares memory among its engines */
    options.sharing = COMPARED - which + 1;
    options.state_memory /= COMPARED;
    options.device_memory /= COMPARED;
    struct command_model *model = &c->models[which];
    int result;
    if (which == 0) {
        result = command_model_open(model, c->directory, &options, SCORING_STEP_TOKENS, true, err);
    } else {
        struct engine_options engine = command_engine_options(&options);
        engine.max_step_tokens = engine.max_step_logits = SCORING_STEP_TOKENS;
        result = engine_open(&model->engine, c->directory, &engine, err);
    }
    if (result != 0) {
        char name[BENCH_FORMATS_SIZE];
        bench_formats_name(formats, name);
        return error_prefix(err, "%c, %s", 'A' + which, name);
    }
    const struct engine_info *info = engine_info(model->engine);
    formats->weights = info->weights;
    formats->activations = info->activations;
    formats->kv = info->kv;
    return 0;
}

/* Files first, since models take time to load. */
static int open_all(struct comparison *c, struct error *err)
{
    if ((c->text && compare_open_text(c, err) != 0) ||
        (c->has_questions && questions_open(&c->questions, c->options->questions, err) != 0))
        return -1;
    for (int i = 0; i < COMPARED; i++)
        if (open_model(c, i, err) != 0)
            return -1;
    return c->has_questions ? compare_open_template(c, err) : 0;
}

static void clear(struct comparison *c)
{
    scoring_clear(&c->scoring);
    divergences_clear(&c->divergences);
    for (int i = 0; i < COMPARED; i++) {
        for (size_t j = 0; c->answers[i] && j < questions_count(&c->questions); j++)
            free(c->answers[i][j].text);
        free(c->answers[i]);
        command_model_close(&c->models[i]);
    }
    questions_clear(&c->questions);
    chat_template_clear(&c->template);
}

static int measure_speed(struct comparison *c, struct error *err)
{
    const struct compare_options *options = c->options;
    struct engine *const engines[COMPARED] = {c->models[0].engine, c->models[1].engine};
    const int64_t positions = engine_info(engines[0])->max_positions;
    c->pp = (int)(positions > 0 && options->pp > positions ? positions : options->pp);
    c->tg = (int)(positions > 0 && options->tg > positions ? positions : options->tg);
    if (bench_pair_run(c->paces, engines, c->pp, c->tg, (int)options->repeat, err) != 0)
        return error_prefix(err, "tokens per second (--pp, --tg)");
    return 0;
}

static int compare(struct comparison *c, struct error *err)
{
    if (open_all(c, err) != 0 || (c->text && compare_text(c, err) != 0) ||
        (c->has_questions && compare_questions(c, err) != 0) || measure_speed(c, err) != 0)
        return -1;
    if (c->options->json)
        return compare_print_json(c, err);
    compare_print_table(c);
    return 0;
}

/* Reads MODEL A B [TEXT] [questions]. */
static int take_operands(struct comparison *c, const struct option_arguments *given,
                         struct error *err)
{
    if (given->count < 3)
        return error_set(err, ERROR_INVALID, "expected MODEL A B, got %d of them; usage: %s",
                         given->count, command_compare_options.usage);
    c->directory = given->items[0];
    c->has_questions = c->options->questions != NULL;
    for (int i = 0; i < COMPARED; i++)
        if (bench_formats_read(&c->formats[i], given->items[1 + i], err) != 0)
            return error_prefix(err, "%c", 'A' + i);
    for (int i = 3; i < given->count; i++) {
        if (strcmp(given->items[i], "questions") == 0)
            c->has_questions = true;
        else if (!c->text)
            c->text = given->items[i];
        else
            return error_set(err, ERROR_INVALID, "expected one TEXT, got %s and %s", c->text,
                             given->items[i]);
    }
    if (c->text || c->has_questions)
        return 0;
    return error_set(err, ERROR_INVALID, "expected TEXT or questions, got neither; usage: %s",
                     command_compare_options.usage);
}

int command_compare(int argc, char **argv)
{
    struct compare_options options = {0};
    static struct comparison c;
    c.options = &options;
    const char *given[5] = {NULL};
    struct option_arguments arguments = {.items = given, .capacity = 5};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_compare_options, &options, argc, argv, &arguments, &status) == 0) {
        if (take_operands(&c, &arguments, &err) != 0)
            status = command_misused(argv[0], &err);
        else if (compare(&c, &err) != 0)
            status = command_failed(argv[0], &err);
    }
    clear(&c);
    options_clear(&command_compare_options, &options);
    return status;
}
