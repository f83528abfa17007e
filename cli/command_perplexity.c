/* SPDX-License-Identifier: Apache-2.0 */
/* regla perplexity: how well a model predicts texts.
 *
 * Every document is one text: the model's BOS (when it has one, and the tokenizer's template did
 * not put it there already), then its tokens, each predicted from all before it. Several documents
 * share a step.
 *
 * A document that is longer than a window is scored in several. Each begins where the last ended.
 * With --stride S each begins S inputs after the last began, and scores only what no window before
 * it has scored: every prediction then has at least window - S inputs before it, or the whole
 * document. That is the sliding window of Hugging Face's guide on perplexity, whose
 * max_length is one more than our window, since it counts the last target too. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "cli/documents.h"
#include "engine/base/clock.h"
#include "engine/cost.h"
#include "engine/model/model.h"
#include "engine/ops/sampler.h"
#include "engine/text/unicode.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    STEP_TOKENS = 512,
    MAX_ACTIVE = 64,   /* documents read ahead to fill a step */
    FIRST_BUCKET = 64, /* by position: below 64, 64..127, 128..255, ... */
    NUM_BUCKETS = 20,
};

struct perplexity_options {
    struct command_model_options model;
    int64_t context, stride;
    const char *format;
    bool json, by_position, by_document, quiet;
};

#define AT(field) offsetof(struct perplexity_options, field)

static const struct option items[] = {
    {"context", OPTION_INTEGER, AT(context), "tokens", "0", 0, 1e12, NULL,
     "score in windows of so many tokens, each without what came before;\n      0: every document "
     "whole or, where memory is short, in the largest windows that fit"},
    {"stride", OPTION_INTEGER, AT(stride), "tokens", "0", 0, 1e12, NULL,
     "begin each window so many tokens after the last, and score only what is new in it: the rest\n"
     "      is context; 0: windows do not overlap"},
    DOCUMENTS_FORMAT_OPTION(AT(format)),
    {"json", OPTION_FLAG, AT(json), NULL, "false", 0, 0, NULL, "print one JSON object"},
    {"by-position", OPTION_FLAG, AT(by_position), NULL, "false", 0, 0, NULL,
     "print the loss by the number of tokens before the predicted one too"},
    {"by-document", OPTION_FLAG, AT(by_document), NULL, "false", 0, 0, NULL,
     "print each document's tokens and nll too, in the order of FILE"},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "false", 0, 0, NULL,
     "print no progress to standard error"},
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
    int64_t documents, tokens, words, bytes;
    double nll; /* nats */
    struct bucket buckets[NUM_BUCKETS];
    struct bucket *of_document; /* [documents], with --by-document; owned */
    int64_t capacity;
};

/* A document being scored: ids[next] is fed next, and predicts ids[next + 1]. A window feeds ids
 * [window_start, window_end), and scores the predictions of those from `scored` on. */
struct document {
    struct token_list ids;
    size_t next, scored, window_start, window_end;
    struct state *state; /* NULL: its window has not begun */
    int64_t number;      /* from 0, in the file's order */
    double nll;
};

struct scorer {
    const struct perplexity_options *options;
    struct command_model model;
    struct documents documents;
    struct document active[MAX_ACTIVE];
    int num_active;
    bool windowed; /* the note about windows is printed */
    struct totals totals;
    double start, last_progress;
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

/* Room for the figures of the document that was counted last. */
static int grow_documents(struct totals *totals, struct error *err)
{
    if (totals->documents > totals->capacity) {
        int64_t capacity = totals->capacity > 0 ? 2 * totals->capacity : 64;
        struct bucket *grown =
            realloc(totals->of_document, (size_t)capacity * sizeof *totals->of_document);
        if (!grown)
            return error_set(err, ERROR_NO_MEMORY, "out of memory for figures of documents");
        totals->of_document = grown;
        totals->capacity = capacity;
    }
    totals->of_document[totals->documents - 1] = (struct bucket){0};
    return 0;
}

/* Reads documents until as many are active as a step can use. */
static int refill(struct scorer *s, struct error *err)
{
    while (s->num_active < MAX_ACTIVE) {
        char *text;
        size_t length;
        int got = documents_next(&s->documents, &text, &length, err);
        if (got <= 0)
            return got;
        struct document *document = &s->active[s->num_active];
        *document = (struct document){.number = s->totals.documents};
        int result = command_encode_document(&s->model, text, length, &document->ids, err);
        if (result == 0) /* then it is UTF-8 */
            s->totals.words += count_words(text, length);
        s->totals.bytes += (int64_t)length;
        s->totals.documents++;
        if (result == 0 && s->options->by_document)
            result = grow_documents(&s->totals, err);
        free(text);
        if (result == 0 && document->ids.count >= 2) {
            s->num_active++;
            continue;
        }
        token_list_clear(&document->ids);
        if (result != 0)
            return error_prefix(err, "%s: document %" PRId64, s->documents.name,
                                s->totals.documents);
    }
    return 0;
}

/* The longest window that the options, the model and the memory allow for `tokens` inputs. */
static int64_t window_size(struct scorer *s, int64_t tokens)
{
    const struct engine_info *info = engine_info(s->model.engine);
    int64_t most = tokens;
    if (s->options->context > 0 && s->options->context < most)
        most = s->options->context;
    if (info->max_positions > 0 && info->max_positions < most)
        most = info->max_positions;
    int64_t fits = cost_longest_text(s->model.engine, 0);
    if (fits == 0 || fits > most)
        fits = most;
    bool possible = engine_state_bytes(s->model.engine, fits) <= info->state_memory_bytes;
    if (possible && fits < tokens && fits != s->options->context && !s->windowed) {
        s->windowed = true;
        fprintf(stderr,
                "note: a document of %" PRId64 " tokens is scored in windows of %" PRId64
                ", since %s\n",
                tokens, fits,
                fits < most ? "--state-memory or the device holds no longer text"
                            : "the model has no more positions");
    }
    return fits;
}

static int refuse_stride(int64_t stride, int64_t window, struct error *err)
{
    return error_set(err, ERROR_INVALID,
                     "--stride: expected at most a window's %" PRId64 " tokens, got %" PRId64,
                     window, stride);
}

/* Begins the document's next window. Returns 1, or 0 when memory must wait for other documents. */
static int begin_window(struct scorer *s, struct document *document, bool others, struct error *err)
{
    struct error full = ERROR_INIT;
    int64_t stride = s->options->stride;
    int64_t left = (int64_t)(document->ids.count - 1 - document->next);
    int64_t size = window_size(s, left);
    if (stride > size && size < left)
        return refuse_stride(stride, size, err);
    if (state_create(&document->state, s->model.engine, size, &full) != 0) {
        if (full.code == ERROR_NO_MEMORY && others)
            return 0;
        *err = full;
        return -1;
    }
    document->window_start = document->next;
    document->window_end = document->next + (size_t)size;
    return 1;
}

/* Fills a step with the next tokens of documents, the oldest first. Returns how many spans; owner
 * [MAX_ACTIVE] says whose. */
static int plan(struct scorer *s, struct span *spans, int *owner, struct error *err)
{
    const struct engine_info *info = engine_info(s->model.engine);
    int room = info->max_step_tokens < info->max_step_logits ? info->max_step_tokens
                                                             : info->max_step_logits;
    int num_spans = 0;
    for (int i = 0; i < s->num_active && room > 0; i++) {
        struct document *document = &s->active[i];
        if (!document->state) {
            int begun = begin_window(s, document, num_spans > 0, err);
            if (begun < 0)
                return -1;
            if (begun == 0)
                break;
        }
        size_t left = document->window_end - document->next;
        int count = left < (size_t)room ? (int)left : room;
        size_t end = document->next + (size_t)count;
        size_t scored = document->next > document->scored ? document->next : document->scored;
        spans[num_spans] = (struct span){.state = document->state,
                                         .tokens = document->ids.ids + document->next,
                                         .num_tokens = count,
                                         .num_logits = end > scored ? (int)(end - scored) : 0};
        owner[num_spans++] = i;
        room -= count;
    }
    return num_spans;
}

static int bucket_of(size_t before)
{
    int bucket = 0;
    while (bucket < NUM_BUCKETS - 1 && before >= (size_t)FIRST_BUCKET << bucket)
        bucket++;
    return bucket;
}

/* Takes the log-probabilities of a span that was stepped; frees the state at a window's end. */
static int take(struct scorer *s, struct document *document, const struct span *span,
                struct error *err)
{
    int32_t vocab_size = engine_info(s->model.engine)->vocab_size;
    document->next += (size_t)(span->num_tokens - span->num_logits);
    for (int i = 0; i < span->num_logits; i++) {
        int32_t target = document->ids.ids[document->next + 1];
        double nll =
            -(double)logprob_of(span->logits + (size_t)i * (size_t)vocab_size, vocab_size, target);
        if (isnan(nll))
            return error_set(err, ERROR_INTERNAL, "the model's logits are not numbers at token %zu",
                             document->next + 1);
        document->nll += nll;
        document->next++;
        struct bucket *bucket =
            &s->totals.buckets[bucket_of(document->next - document->window_start)];
        bucket->tokens++;
        bucket->nll += nll;
    }
    s->totals.tokens += span->num_logits;
    if (document->next == document->window_end) {
        state_free(document->state);
        document->state = NULL;
        document->scored = document->next;
        if (s->options->stride > 0 && document->next + 1 < document->ids.count)
            document->next = document->window_start + (size_t)s->options->stride;
    }
    return 0;
}

static void drop_finished(struct scorer *s)
{
    int kept = 0;
    for (int i = 0; i < s->num_active; i++) {
        struct document *document = &s->active[i];
        if (document->next + 1 < document->ids.count) {
            s->active[kept++] = *document;
            continue;
        }
        s->totals.nll += document->nll;
        if (s->options->by_document)
            s->totals.of_document[document->number] =
                (struct bucket){.tokens = (int64_t)document->ids.count - 1, .nll = document->nll};
        token_list_clear(&document->ids);
    }
    s->num_active = kept;
}

/* A line every two seconds, over the one before on a terminal. */
static void progress(struct scorer *s, bool last)
{
    double now = clock_seconds(), nll = s->totals.nll;
    bool terminal = isatty(STDERR_FILENO);
    if (s->options->quiet || (!last && now - s->last_progress < (terminal ? 0.5 : 10)))
        return;
    s->last_progress = now;
    for (int i = 0; i < s->num_active; i++)
        nll += s->active[i].nll;
    int64_t tokens = s->totals.tokens;
    fprintf(stderr,
            "%s%" PRId64 " documents read, %" PRId64 " tokens scored, %.0f a second, "
            "%.4f nats a token%s",
            terminal ? "\r" : "", s->totals.documents, tokens,
            (double)tokens / (now - s->start + 1e-9), tokens > 0 ? nll / (double)tokens : 0,
            terminal && !last ? " " : "\n");
}

static int score(struct scorer *s, struct error *err)
{
    s->start = s->last_progress = clock_seconds();
    for (;;) {
        struct span spans[MAX_ACTIVE];
        int owner[MAX_ACTIVE];
        if (refill(s, err) != 0)
            return -1;
        if (s->num_active == 0)
            break;
        int num_spans = plan(s, spans, owner, err);
        if (num_spans < 0 || engine_step(s->model.engine, spans, num_spans, err) != 0)
            return -1;
        for (int i = 0; i < num_spans; i++)
            if (take(s, &s->active[owner[i]], &spans[i], err) != 0)
                return -1;
        drop_finished(s);
        progress(s, false);
    }
    if (s->totals.tokens == 0)
        return error_set(err, ERROR_INVALID, "%s: expected text to score, got none",
                         s->documents.name);
    progress(s, true);
    return 0;
}

/* exp() of a mean over the units; infinite or undefined means print as JSON null. */
static double perplexity(double nll, int64_t units)
{
    return units > 0 ? exp(nll / (double)units) : NAN;
}

static double bits_per_byte(const struct totals *totals)
{
    return totals->nll / M_LN2 / (double)totals->bytes;
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
    printf("documents      %" PRId64 "\n", t->documents);
    printf("tokens         %" PRId64 "\n", t->tokens);
    printf("words          %" PRId64 "\n", t->words);
    printf("bytes          %" PRId64 "\n", t->bytes);
    printf("nll            %.4f\n", t->nll);
    printf("ppl_token      %.4f\n", perplexity(t->nll, t->tokens));
    printf("ppl_word       %.4f\n", perplexity(t->nll, t->words));
    printf("bits_per_byte  %.4f\n", bits_per_byte(t));
    if (s->options->by_position)
        print_positions(t);
    for (int64_t i = 0; s->options->by_document && i < t->documents; i++)
        printf("%sdocument %-10" PRId64 " %10" PRId64 " tokens %14.4f nll\n", i == 0 ? "\n" : "",
               i + 1, t->of_document[i].tokens, t->of_document[i].nll);
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
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

static json_t *documents_json(const struct totals *totals)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < totals->documents; i++)
        json_array_append_new(list, json_pack("{sI sf}", "tokens",
                                              (json_int_t)totals->of_document[i].tokens, "nll",
                                              totals->of_document[i].nll));
    return list;
}

static int print_json(const struct scorer *s, struct error *err)
{
    const struct totals *t = &s->totals;
    json_t *json = json_pack(
        "{ss ss sI sI sI sI sf so so sf sf}", "model", engine_model(s->model.engine)->name, "file",
        s->documents.name, "documents", (json_int_t)t->documents, "tokens", (json_int_t)t->tokens,
        "words", (json_int_t)t->words, "bytes", (json_int_t)t->bytes, "nll", t->nll, "ppl_token",
        number(perplexity(t->nll, t->tokens)), "ppl_word", number(perplexity(t->nll, t->words)),
        "bits_per_byte", bits_per_byte(t), "seconds", clock_seconds() - s->start);
    if (json && s->options->by_position)
        json_object_set_new(json, "by_position", positions_json(t));
    if (json && s->options->by_document)
        json_object_set_new(json, "by_document", documents_json(t));
    if (!json || json_dumpf(json, stdout, JSON_REAL_PRECISION(10)) != 0) {
        json_decref(json);
        return error_set(err, ERROR_INVALID, "cannot print these figures as JSON");
    }
    putchar('\n');
    json_decref(json);
    return 0;
}

static int open_all(struct scorer *s, const char *directory, const char *file, struct error *err)
{
    if (s->options->context > 0 && s->options->stride > s->options->context)
        return refuse_stride(s->options->stride, s->options->context, err);
    if (documents_open(&s->documents, file, s->options->format, err) != 0)
        return -1;
    return command_model_open(&s->model, directory, &s->options->model, STEP_TOKENS, true, err);
}

static void clear(struct scorer *s)
{
    for (int i = 0; i < s->num_active; i++) {
        state_free(s->active[i].state);
        token_list_clear(&s->active[i].ids);
    }
    free(s->totals.of_document);
    documents_close(&s->documents);
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
        } else if (open_all(&s, given[0], given[1], &err) != 0 || score(&s, &err) != 0 ||
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
