/* SPDX-License-Identifier: Apache-2.0 */
/* regla perplexity: how well a model predicts texts (scoring.h). */
#include "cli/command.h"

#include "cli/scoring.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"
#include "lib/text/unicode.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

enum {
    FIRST_BUCKET = 64, /* by position: below 64, 64..127, 128..255, ... */
    NUM_BUCKETS = 20,
};

struct perplexity_options {
    struct command_model_options model;
    struct scoring_options scoring;
    bool json, by_position, by_document;
};

#define AT(field) offsetof(struct perplexity_options, field)

static const struct option items[] = {
    SCORING_OPTIONS(struct perplexity_options),
    {"json", OPTION_FLAG, AT(json), NULL, "false", 0, 0, NULL, "print one JSON object"},
    {"by-position", OPTION_FLAG, AT(by_position), NULL, "false", 0, 0, NULL,
     "print the loss by the number of tokens before the predicted one too"},
    {"by-document", OPTION_FLAG, AT(by_document), NULL, "false", 0, 0, NULL,
     "print each document's tokens and nll too, in the order of FILE"},
    COMMAND_MODEL_OPTIONS(struct perplexity_options, "f32"),
};

const struct options command_perplexity_options = {
    .usage = "regla perplexity MODEL FILE [options]",
    .summary = "Scores the documents of FILE (plain text, JSONL with \"text\", or - for standard "
               "input).\nEach begins with the model's BOS, if it has one, which is not scored "
               "itself. Prints tokens,\nwords, bytes, nll (nats), ppl_token, ppl_word, "
               "bits_per_byte.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

struct bucket {
    int64_t tokens;
    double nll;
};

struct totals {
    int64_t words, bytes;
    struct bucket buckets[NUM_BUCKETS];
    struct bucket *of_document; /* [num_documents], with --by-document; owned */
    size_t capacity;
};

struct scorer {
    const struct perplexity_options *options;
    struct command_model model;
    struct scoring scoring;
    struct totals totals;
};

/* Words of valid UTF-8: what Unicode's white space parts. */
static int64_t count_words(const char *text, size_t length)
{
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bool space = (unicode_class(utf8_decode(text + i, &bytes)) & UNICODE_SPACE) != 0;
        words += !space && !inside;
        inside = !space;
    }
    return words;
}

static int read_document(void *context, const char *text, size_t length, struct error *err)
{
    struct scorer *s = context;
    struct totals *totals = &s->totals;
    totals->words += count_words(text, length);
    totals->bytes += (int64_t)length;
    if (!s->options->by_document)
        return 0;
    size_t documents = (size_t)s->scoring.num_documents;
    if (array_grow((void **)&totals->of_document, &totals->capacity, documents,
                   sizeof *totals->of_document, err) != 0)
        return -1;
    totals->of_document[documents - 1] = (struct bucket){0};
    return 0;
}

static int bucket_of(size_t before)
{
    int bucket = 0;
    while (bucket < NUM_BUCKETS - 1 && before >= (size_t)FIRST_BUCKET << bucket)
        bucket++;
    return bucket;
}

static void add(struct bucket *bucket, double nll)
{
    bucket->tokens++;
    bucket->nll += nll;
}

static int predicted(void *context, const struct prediction *prediction, struct error *err)
{
    struct scorer *s = context;
    (void)err;
    add(&s->totals.buckets[bucket_of(prediction->before)], prediction->nll[0]);
    if (s->options->by_document)
        add(&s->totals.of_document[prediction->document], prediction->nll[0]);
    return 0;
}

static double bits_per_byte(const struct scorer *s)
{
    return s->scoring.nll[0] / M_LN2 / (double)s->totals.bytes;
}

static void bucket_range(int i, char text[32])
{
    int64_t low = i == 0 ? 1 : (int64_t)FIRST_BUCKET << (i - 1);
    if (i == NUM_BUCKETS - 1)
        snprintf(text, 32, "%" PRId64 "-", low);
    else
        snprintf(text, 32, "%" PRId64 "-%" PRId64, low, ((int64_t)FIRST_BUCKET << i) - 1);
}

static void print_positions(const struct totals *t)
{
    printf("\ntokens before         tokens     nll per token\n");
    for (int i = 0; i < NUM_BUCKETS; i++) {
        char range[32];
        bucket_range(i, range);
        if (t->buckets[i].tokens > 0)
            printf("%-17s %10" PRId64 " %17.4f\n", range, t->buckets[i].tokens,
                   t->buckets[i].nll / (double)t->buckets[i].tokens);
    }
}

static void print_text(const struct scorer *s)
{
    const struct totals *t = &s->totals;
    const struct scoring *scored = &s->scoring;
    const double nll = scored->nll[0];
    printf("documents      %" PRId64 "\n", scored->num_documents);
    printf("tokens         %" PRId64 "\n", scored->tokens);
    printf("words          %" PRId64 "\n", t->words);
    printf("bytes          %" PRId64 "\n", t->bytes);
    printf("nll            %.4f\n", nll);
    printf("ppl_token      %.4f\n", scoring_perplexity(nll, scored->tokens));
    printf("ppl_word       %.4f\n", scoring_perplexity(nll, t->words));
    printf("bits_per_byte  %.4f\n", bits_per_byte(s));
    if (s->options->by_position)
        print_positions(t);
    for (int64_t i = 0; s->options->by_document && i < scored->num_documents; i++)
        printf("%sdocument %-10" PRId64 " %10" PRId64 " tokens %14.4f nll\n", i == 0 ? "\n" : "",
               i + 1, t->of_document[i].tokens, t->of_document[i].nll);
}

static json_t *positions_json(const struct totals *totals)
{
    json_t *list = json_array();
    for (int i = 0; i < NUM_BUCKETS; i++) {
        const struct bucket *bucket = &totals->buckets[i];
        char range[32];
        bucket_range(i, range);
        if (bucket->tokens > 0)
            json_array_append_new(list, json_pack("{ss sI sf}", "tokens_before", range, "tokens",
                                                  (json_int_t)bucket->tokens, "nll_per_token",
                                                  bucket->nll / (double)bucket->tokens));
    }
    return list;
}

static json_t *documents_json(const struct bucket *documents, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{sI sf}", "tokens", (json_int_t)documents[i].tokens,
                                              "nll", documents[i].nll));
    return list;
}

static int print_json(const struct scorer *s, struct error *err)
{
    const struct totals *t = &s->totals;
    const struct scoring *scored = &s->scoring;
    const double nll = scored->nll[0];
    json_t *json = json_pack(
        "{ss ss sI sI sI sI sf so so sf sf}", "model", engine_model(s->model.engine)->name, "file",
        scored->documents.name, "documents", (json_int_t)scored->num_documents, "tokens",
        (json_int_t)scored->tokens, "words", (json_int_t)t->words, "bytes", (json_int_t)t->bytes,
        "nll", nll, "ppl_token", command_number(scoring_perplexity(nll, scored->tokens)),
        "ppl_word", command_number(scoring_perplexity(nll, t->words)), "bits_per_byte",
        bits_per_byte(s), "seconds", clock_seconds() - scored->start);
    if (json && s->options->by_position)
        json_object_set_new(json, "by_position", positions_json(t));
    if (json && s->options->by_document)
        json_object_set_new(json, "by_document",
                            documents_json(t->of_document, scored->num_documents));
    return command_print_json(json, JSON_REAL_PRECISION(10), err);
}

static int open_all(struct scorer *s, const char *directory, const char *file, struct error *err)
{
    s->scoring = (struct scoring){.options = &s->options->scoring,
                                  .models = &s->model,
                                  .num_models = 1,
                                  .context = s,
                                  .read = read_document,
                                  .predicted = predicted};
    if (scoring_open(&s->scoring, file, err) != 0)
        return -1;
    return command_model_open(&s->model, directory, &s->options->model, SCORING_STEP_TOKENS, true,
                              err);
}

static void clear(struct scorer *s)
{
    scoring_clear(&s->scoring);
    free(s->totals.of_document);
    command_model_close(&s->model);
}

int command_perplexity(int argc, char **argv)
{
    struct perplexity_options options = {0};
    static struct scorer s;
    s.options = &options;
    const char *given[2] = {NULL, NULL};
    struct option_arguments arguments = {.items = given, .capacity = 2};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_perplexity_options, &options, argc, argv, &arguments, &status) ==
        0) {
        if (arguments.count < 2) {
            fprintf(stderr,
                    "regla perplexity: expected a model's directory and a file; usage: %s\n",
                    command_perplexity_options.usage);
            status = 2;
        } else if (open_all(&s, given[0], given[1], &err) != 0 ||
                   scoring_run(&s.scoring, &err) != 0 ||
                   (options.json && print_json(&s, &err) != 0)) {
            status = command_failed(argv[0], &err);
        } else if (!options.json) {
            print_text(&s);
        }
    }
    clear(&s);
    options_clear(&command_perplexity_options, &options);
    return status;
}
