/* SPDX-License-Identifier: Apache-2.0 */
/* regla quantize: makes of a checkpoint one in four bits, by what a text does in the model. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "cli/documents.h"
#include "engine/model/four_bits.h"
#include "engine/quantize/checkpoint.h"
#include "engine/quantize/quantizer.h"
#include "lib/base/clock.h"
#include "lib/base/size_text.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* Tokens of a step; and of text that is read to choose from. */
enum { STEP_TOKENS = 512, MOST_READ_TOKENS = 16 << 20 };

struct quantize_options {
    int64_t tokens, context, threads, memory;
    const char *format;
    bool beside, quiet;
};

#define AT(field) offsetof(struct quantize_options, field)

static const struct option items[] = {
    {"tokens", OPTION_INTEGER, AT(tokens), "tokens", "32768", 1, MOST_READ_TOKENS, NULL,
     "tokens that the model computes, in windows spread evenly over FILE, or over its first 16\n"
     "      million tokens"},
    {"context", OPTION_INTEGER, AT(context), "tokens", "512", 1, 1e6, NULL,
     "tokens of a window, each computed as a text of its own; at most the positions that\n"
     "      the model has"},
    DOCUMENTS_FORMAT_OPTION(AT(format)),
    {"memory", OPTION_BYTES, AT(memory), "bytes", "4G", 0, 1e15, NULL,
     "for sums over the inputs of matrices; where all need more, the model computes the text\n"
     "      several times. To round one needs three times its sums beside that"},
    {"beside", OPTION_FLAG, AT(beside), NULL, "false", 0, 0, NULL,
     "in place of OUT, write the file regla.q4 into MODEL: its matrices in four bits, which\n"
     "      --weights q4 takes from there"},
    {"threads", OPTION_INTEGER, AT(threads), "threads", "0", 0, 1024, NULL,
     "compute threads; 0: as many as this process may use"},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "false", 0, 0, NULL,
     "print no progress to standard error"},
};

const struct options command_quantize_options = {
    .usage = "regla quantize MODEL FILE OUT|--beside [options]",
    .summary =
        "Writes the folder OUT: the checkpoint of the folder MODEL with its matrices in "
        "four bits, 5 with\ntheir scales, rounded so that what they make of a text changes "
        "least. FILE has such a text (plain,\nJSONL with \"text\", or - for standard input), "
        "best of the kind that the model is for. Serve OUT\nwith --weights q4, which puts "
        "the head in six bits too; `regla perplexity` says what was lost.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

struct run {
    const struct quantize_options *options;
    struct quantizer *quantizer;
    struct command_model model;
    struct documents documents;
    struct token_list ids; /* of all windows */
    size_t *ends;          /* [num_windows] of each in ids */
    size_t num_windows, ends_capacity;
    int64_t context;        /* tokens of a window */
    int64_t passes, tokens; /* of each pass */
    double last_progress;
    bool line_open; /* progress stands on a terminal's line */
};

static int open_all(struct run *r, const char *directory, struct error *err)
{
    const struct quantizer_options quantizer = {.threads = (int)r->options->threads,
                                                .memory_bytes = (size_t)r->options->memory,
                                                .max_step_tokens = STEP_TOKENS};
    if (quantizer_open(&r->quantizer, &quantizer, err) != 0)
        return -1;
    const struct command_model_options model = {.device = "cpu",
                                                .threads = r->options->threads,
                                                .weights = "auto",
                                                .kv = "auto",
                                                .activations = "f32",
                                                .products = "own",
                                                .observer = quantizer_observer(r->quantizer)};
    if (command_model_open(&r->model, directory, &model, STEP_TOKENS, false, err) != 0)
        return -1;
    const int64_t positions = engine_info(r->model.engine)->max_positions;
    r->context = r->options->context;
    if (positions > 0 && r->context > positions)
        r->context = positions;
    return quantizer_start(r->quantizer, engine_model(r->model.engine), err);
}

static int end_window(struct run *r, struct error *err)
{
    if (r->num_windows == r->ends_capacity) {
        const size_t capacity = r->ends_capacity > 0 ? 2 * r->ends_capacity : 64;
        size_t *grown = reallocarray(r->ends, capacity, sizeof *grown);
        if (grown == NULL)
            return error_set(err, ERROR_NO_MEMORY, "no memory for a list of windows");
        r->ends = grown;
        r->ends_capacity = capacity;
    }
    r->ends[r->num_windows++] = r->ids.count;
    return 0;
}

/* Cuts a document into windows, each of which begins as a text does. */
static int add_document(struct run *r, const char *text, size_t length, struct error *err)
{
    const int32_t bos = engine_model(r->model.engine)->bos_token_id;
    struct token_list whole = {0};
    int result = length > 0 ? command_encode_document(&r->model, text, length, &whole, err) : 0;
    for (size_t i = 0, used = 0;
         result == 0 && i < whole.count && (used > 0 || r->ids.count < MOST_READ_TOKENS); i++) {
        if (used == 0 && bos >= 0 && whole.ids[i] != bos && r->context > 1) {
            result = token_list_push(&r->ids, bos, err);
            used++;
        }
        if (result == 0)
            result = token_list_push(&r->ids, whole.ids[i], err);
        if (result == 0 && (++used == (size_t)r->context || i + 1 == whole.count)) {
            result = end_window(r, err);
            used = 0;
        }
    }
    token_list_clear(&whole);
    return result;
}

static int read_documents(struct run *r, const char *path, struct error *err)
{
    char *text;
    size_t length;
    int got = 1;
    if (documents_open(&r->documents, path, r->options->format, err) != 0)
        return -1;
    for (int number = 1; r->ids.count < MOST_READ_TOKENS &&
                         (got = documents_next(&r->documents, &text, &length, err)) > 0;
         number++) {
        const int result = add_document(r, text, length, err);
        free(text);
        if (result != 0)
            return error_prefix(err, "%s: document %d", path, number);
    }
    if (got < 0)
        return -1;
    return r->num_windows > 0 ? 0
                              : error_set(err, ERROR_INVALID, "%s: expected text, got none", path);
}

/* The model computes a window, without logits. */
static int compute(struct run *r, const int32_t *ids, size_t count, struct error *err)
{
    struct state *state;
    if (state_create(&state, r->model.engine, (int64_t)count, err) != 0)
        return -1;
    int result = 0;
    for (size_t at = 0; result == 0 && at < count; at += STEP_TOKENS) {
        const size_t left = count - at;
        struct span span = {.state = state,
                            .tokens = ids + at,
                            .num_tokens = left < STEP_TOKENS ? (int)left : STEP_TOKENS};
        result = engine_step(r->model.engine, &span, 1, err);
    }
    state_free(state);
    return result;
}

static void progress(struct run *r, bool last, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A line every ten seconds, or on a terminal one that changes. */
static void progress(struct run *r, bool last, const char *format, ...)
{
    const bool terminal = isatty(STDERR_FILENO);
    const double now = clock_seconds();
    va_list args;
    if (r->options->quiet || (!last && now - r->last_progress < (terminal ? 0.2 : 10)))
        return;
    r->last_progress = now;
    va_start(args, format);
    fputs(terminal ? "\r\033[K" : "", stderr);
    vfprintf(stderr, format, args);
    fputs(terminal ? "" : "\n", stderr);
    va_end(args);
    r->line_open = terminal;
}

static void end_progress(struct run *r)
{
    if (r->line_open)
        fputc('\n', stderr);
    r->line_open = false;
}

/* All windows, or so many as have the wanted tokens, spread evenly. */
static int compute_text(struct run *r, struct error *err)
{
    const int64_t total = (int64_t)r->ids.count, most = r->options->tokens;
    const int64_t wanted = most < total ? most : total;
    r->tokens = 0;
    for (size_t i = 0; i < r->num_windows; i++) {
        const size_t first = i == 0 ? 0 : r->ends[i - 1], count = r->ends[i] - first;
        if ((double)r->tokens * (double)total > (double)first * (double)wanted)
            continue;
        if (compute(r, r->ids.ids + first, count, err) != 0 ||
            quantizer_status(r->quantizer, err) != 0)
            return -1;
        r->tokens += (int64_t)count;
        progress(r, false, "pass %" PRId64 ": %" PRId64 " of %" PRId64 " tokens are computed",
                 r->passes, r->tokens, wanted);
    }
    return 0;
}

static int round_all(struct run *r, struct error *err)
{
    struct quantizer_report report;
    bool any = true;
    while (any) {
        if (quantizer_round(r->quantizer, &any, err) != 0)
            return -1;
        quantizer_report(r->quantizer, &report);
        progress(r, !any && report.rounded == report.matrices, "%d of %d matrices are rounded",
                 report.rounded, report.matrices);
    }
    return 0;
}

static int passes(struct run *r, struct error *err)
{
    bool any;
    for (;;) {
        if (quantizer_next(r->quantizer, &any, err) != 0)
            return -1;
        if (!any)
            return 0;
        r->passes++;
        if (compute_text(r, err) != 0 || round_all(r, err) != 0)
            return -1;
    }
}

/* Matrices that were left alone, by the reason. */
static void print_kept(const struct run *r)
{
    const char *name, *why, *same;
    for (int i = 0; (name = quantizer_kept(r->quantizer, i, &why)) != NULL; i++) {
        int count = 0;
        bool told = false;
        for (int j = 0; quantizer_kept(r->quantizer, j, &same) != NULL; j++) {
            told = told || (j < i && same == why);
            count += same == why;
        }
        if (!told && count == 1)
            printf("kept      %s: %s\n", name, why);
        else if (!told)
            printf("kept      %s and %d more: %s\n", name, count - 1, why);
    }
}

static void print_report(const struct run *r, const char *const given[3], double seconds)
{
    struct quantizer_report report;
    quantizer_report(r->quantizer, &report);
    char after[SIZE_TEXT], before[SIZE_TEXT];
    printf("matrices  %d in four bits, %.2f bits a number: %s in place of %s\n", report.rounded,
           8.0 * (double)report.bytes_after / (double)report.rounded_numbers,
           size_text((double)report.bytes_after, after),
           size_text((double)report.bytes_before, before));
    print_kept(r);
    printf("text      %" PRId64 " tokens in %.0f s", r->tokens, seconds);
    if (r->passes > 1)
        printf(", computed %" PRId64 " times", r->passes);
    if (given[2] != NULL)
        printf("\nwritten   %s\n", given[2]);
    else
        printf("\nwritten   %s/" FOUR_BITS_FILE "\n", given[0]);
    if (r->tokens < report.most_inputs)
        fprintf(stderr,
                "regla: warning: %" PRId64 " tokens are few for matrices of %" PRId64
                " inputs: more text would tell more\n",
                r->tokens, report.most_inputs);
}

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    stopped = number;
}

/* Without these, a signal would leave half a folder. out NULL: beside the model. */
static int write_checkpoint(const struct run *r, const char *out, struct error *err)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGXFSZ};
    enum { COUNT = sizeof numbers / sizeof *numbers };
    const struct sigaction action = {.sa_handler = on_signal};
    struct sigaction before[COUNT];
    for (int i = 0; i < COUNT; i++)
        if (sigaction(numbers[i], NULL, &before[i]) == 0 && before[i].sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    const int result =
        quantizer_write(r->quantizer, out, engine_fingerprint(r->model.engine), &stopped, err);
    for (int i = 0; i < COUNT; i++)
        sigaction(numbers[i], &before[i], NULL);
    if (stopped != 0 && stopped != SIGXFSZ)
        raise((int)stopped);
    return result;
}

static int quantize(struct run *r, const char *const given[3], struct error *err)
{
    const double start = clock_seconds();
    const char *out = given[2];
    if ((out != NULL ? checkpoint_check(out, given[0], err)
                     : checkpoint_check_beside(given[0], err)) != 0 ||
        open_all(r, given[0], err) != 0 || read_documents(r, given[1], err) != 0 ||
        passes(r, err) != 0 || write_checkpoint(r, out, err) != 0) {
        end_progress(r);
        return -1;
    }
    end_progress(r);
    print_report(r, given, clock_seconds() - start);
    return 0;
}

static void clear(struct run *r)
{
    command_model_close(&r->model);
    quantizer_close(r->quantizer);
    documents_close(&r->documents);
    token_list_clear(&r->ids);
    free(r->ends);
}

int command_quantize(int argc, char **argv)
{
    struct quantize_options options = {0};
    struct run r = {.options = &options};
    const char *given[3] = {NULL, NULL, NULL};
    struct option_arguments arguments = {.items = given, .capacity = 3};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&command_quantize_options, &options, argc, argv, &arguments, &status) ==
        0) {
        if (arguments.count != (options.beside ? 2 : 3)) {
            fprintf(stderr,
                    "regla quantize: expected a model's folder, a file of text and the folder to "
                    "write, or --beside in its place; usage: %s\n",
                    command_quantize_options.usage);
            status = 2;
        } else if (quantize(&r, given, &err) != 0) {
            status = command_failed(argv[0], &err);
        }
    }
    clear(&r);
    options_clear(&command_quantize_options, &options);
    return status;
}
