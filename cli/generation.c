/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/generation.h"

#include "cli/command_model.h"
#include "engine/model/model.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

int generation_write(const char *text, size_t length, struct error *err)
{
    if (fwrite(text, 1, length, stdout) != length || fflush(stdout) != 0)
        return error_set(err, ERROR_IO, "standard output: cannot write: %s", strerror(errno));
    return 0;
}

/* Prints what has become final; returns 1 when a stop string ends in the text so far. */
static int emit(struct generation *g, const char *text, size_t length, struct error *err)
{
    if (!g->stops)
        return generation_write(text, length, err);
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
    if (generation_write(g->held, final, err) != 0)
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
    if (!g->numbers)
        return detokenizer_push(g->detokenizer, id, text, length, err);
    *length = (size_t)snprintf(g->number, sizeof g->number, "%s%" PRId32,
                               g->generated > 1 || g->behind ? " " : "", id);
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

int generation_run(struct generation *g, struct state *state, struct error *err)
{
    const struct model *model = engine_model(g->engine);
    const char *text;
    size_t length;
    bool whole = g->form && grammar_text_over(g->form); /* without a token */
    g->reason = whole                               ? "its form"
                : g->limit < g->options->max_tokens ? "the model's last position"
                                                    : "max-tokens";
    while (!whole && g->generated < g->limit) {
        int32_t id = g->draw.id;
        if (g->interrupted && *g->interrupted) {
            g->reason = "the interrupt";
            break;
        }
        g->generated++;
        if (!g->options->ignore_eos && is_eos(model, id)) {
            g->reason = "end of text";
            break;
        }
        if (token_list_push(&g->taken, id, err) != 0 || text_of(g, id, &text, &length, err) != 0)
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
        if (g->generated < g->limit && command_feed(g->engine, state, &id, 1, &g->draw, err) != 0)
            return -1;
    }
    if (detokenizer_finish(g->detokenizer, &text, &length, err) != 0)
        return -1;
    int stopped = emit(g, text, length, err);
    if (stopped > 0)
        g->reason = "stop string";
    return stopped == 0  ? generation_write(g->held ? g->held : "", g->held_length, err)
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

static int read_author(struct generation *g, struct error *err)
{
    struct warnings warnings = {0};
    const bool wanted = strcmp(g->options->generation_config, "auto") == 0;
    if (author_sampling_open(&g->author, wanted ? g->path : NULL, &warnings, err) != 0)
        return -1;
    command_warn(&warnings, g->path);
    return 0;
}

int generation_open(struct generation *g, struct error *err)
{
    g->seed = g->options->seed;
    if (g->seed < 0) {
        uint32_t random;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return error_set(err, ERROR_IO, "cannot get a random seed: %s", strerror(errno));
        g->seed = random;
    }
    return read_author(g, err) == 0 ? make_stops(g, err) : -1;
}

static void clear_text(struct generation *g)
{
    sampler_free(g->sampler);
    detokenizer_free(g->detokenizer);
    token_list_clear(&g->taken);
    g->sampler = NULL;
    g->detokenizer = NULL;
    g->scan = (struct stop_scan){0};
    g->held_length = 0;
    g->generated = 0;
}

int64_t generation_limit(const struct generation *g, size_t count)
{
    int64_t prompt = (int64_t)count, positions = engine_info(g->engine)->max_positions;
    int64_t limit = g->options->max_tokens;
    /* The last token drawn needs no position. */
    return positions > 0 && prompt <= positions && limit > positions - prompt + 1
               ? positions - prompt + 1
               : limit;
}

/* Where neither the flags nor the model's author say anything. */
static double own_number(enum sampling_number number)
{
    return number == SAMPLING_temperature ? 0.8
           : number == SAMPLING_top_p     ? 0.95
                                          : sampling_rows[number].usual;
}

/* As given, else as the model's author says. Where he says anything, the others are usual. */
static double number_of(const struct generation *g, enum sampling_number number)
{
    const union generation_number given = g->options->numbers[number];
    if (sampling_rows[number].whole && given.whole != INT64_MIN)
        return (double)given.whole;
    if (!sampling_rows[number].whole && !isnan(given.real))
        return given.real;
    return author_sampling_says(&g->author) ? author_sampling_value(&g->author, number)
                                            : own_number(number);
}

static struct sampling sampling_of(const struct generation *g, int32_t choice)
{
    struct sampling sampling = {.seed = g->seed, .choice = choice, .masked = g->form != NULL};
    for (int i = 0; i < SAMPLING_COUNT; i++)
        sampling_set(&sampling, (enum sampling_number)i, number_of(g, (enum sampling_number)i));
    return sampling;
}

int generation_begin(struct generation *g, const int32_t *prompt, size_t count, int32_t choice,
                     struct error *err)
{
    const struct sampling sampling = sampling_of(g, choice);
    clear_text(g);
    if (sampler_create(&g->sampler, &sampling, engine_info(g->engine)->vocab_size, prompt, count,
                       err) != 0 ||
        detokenizer_create(&g->detokenizer, g->tokenizer, true, err) != 0 ||
        detokenizer_prime(g->detokenizer, prompt, count, err) != 0)
        return -1;
    g->draw.sampler = g->sampler;
    g->draw.mask = NULL;
    g->limit = generation_limit(g, count);
    if (!g->form || grammar_text_over(g->form))
        return 0;
    g->draw.mask = grammar_text_mask(g->form, err);
    return g->draw.mask ? 0 : -1;
}

void generation_clear(struct generation *g)
{
    clear_text(g);
    stop_set_free(g->stops);
    free(g->held);
}
