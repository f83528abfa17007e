/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/scoring.h"

#include "engine/cost.h"
#include "engine/ops/sampler.h"
#include "lib/base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The tokens of a document, of which no more than options->tokens allow are scored. */
static int take_document(struct scoring *s, struct scoring_document *document, const char *text,
                         size_t length, struct error *err)
{
    if (command_encode_document(&s->models[0], text, length, &document->ids, err) != 0 ||
        (s->read && s->read(s->context, text, length, err) != 0))
        return -1;
    if (document->ids.count < 2)
        return 0;
    int64_t left = s->options->tokens - s->tokens_read;
    if (s->options->tokens > 0 && (int64_t)document->ids.count - 1 > left)
        document->ids.count = (size_t)left + 1;
    s->tokens_read += (int64_t)document->ids.count - 1;
    return 0;
}

/* Reads documents until as many are active as a step can use. */
static int refill(struct scoring *s, struct error *err)
{
    while (s->num_active < SCORING_MOST_ACTIVE &&
           (s->options->tokens == 0 || s->tokens_read < s->options->tokens)) {
        char *text;
        size_t length;
        int got = documents_next(&s->documents, &text, &length, err);
        if (got <= 0)
            return got;
        struct scoring_document *document = &s->active[s->num_active];
        *document = (struct scoring_document){.number = s->num_documents++};
        int result = take_document(s, document, text, length, err);
        free(text);
        if (result == 0 && document->ids.count >= 2) {
            s->num_active++;
            continue;
        }
        token_list_clear(&document->ids);
        if (result != 0)
            return error_prefix(err, "%s: document %" PRId64, s->documents.name, s->num_documents);
    }
    return 0;
}

/* Makes *most the longest window of at most so many inputs that a model's memory allows. Whether
 * it has room for that. */
static bool limit_window(const struct engine *engine, int64_t *most)
{
    const struct engine_info *info = engine_info(engine);
    if (info->max_positions > 0 && info->max_positions < *most)
        *most = info->max_positions;
    int64_t fits = cost_longest_text(engine, 0);
    if (fits > 0 && fits < *most)
        *most = fits;
    return engine_state_bytes(engine, *most) <= info->state_memory_bytes;
}

/* The longest window that the options, the model and the memory allow for `tokens` inputs. */
static int64_t window_size(struct scoring *s, int64_t tokens)
{
    const int64_t positions = engine_info(s->models[0].engine)->max_positions;
    int64_t size = tokens;
    bool possible = true;
    if (s->options->context > 0 && s->options->context < size)
        size = s->options->context;
    for (int m = 0; m < s->num_models; m++)
        possible = limit_window(s->models[m].engine, &size) && possible;
    if (possible && size < tokens && size != s->options->context && !s->windowed) {
        s->windowed = true;
        fprintf(stderr,
                "note: a document of %" PRId64 " tokens is scored in windows of %" PRId64
                ", since %s\n",
                tokens, size,
                size != positions ? "--state-memory or the device holds no longer text"
                                  : "the model has no more positions");
    }
    return size;
}

static int refuse_stride(int64_t stride, int64_t window, struct error *err)
{
    return error_set(err, ERROR_INVALID,
                     "--stride: expected at most a window's %" PRId64 " tokens, got %" PRId64,
                     window, stride);
}

static void free_states(struct scoring_document *document)
{
    for (int m = 0; m < SCORING_MOST_MODELS; m++) {
        state_free(document->states[m]);
        document->states[m] = NULL;
    }
}

/* Begins the document's next window. Returns 1, or 0 when memory must wait for other documents. */
static int begin_window(struct scoring *s, struct scoring_document *document, bool others,
                        struct error *err)
{
    struct error full = ERROR_INIT;
    int64_t stride = s->options->stride;
    int64_t left = (int64_t)(document->ids.count - 1 - document->next);
    int64_t size = window_size(s, left);
    if (stride > size && size < left)
        return refuse_stride(stride, size, err);
    for (int m = 0; m < s->num_models; m++) {
        if (state_create(&document->states[m], s->models[m].engine, size, &full) == 0)
            continue;
        free_states(document);
        if (full.code == ERROR_NO_MEMORY && others)
            return 0;
        *err = full;
        return -1;
    }
    document->window_start = document->next;
    document->window_end = document->next + (size_t)size;
    return 1;
}

/* Tokens of a step. */
static int step_room(const struct scoring *s)
{
    int room = SCORING_STEP_TOKENS;
    for (int m = 0; m < s->num_models; m++) {
        const struct engine_info *info = engine_info(s->models[m].engine);
        room = info->max_step_tokens < room ? info->max_step_tokens : room;
        room = info->max_step_logits < room ? info->max_step_logits : room;
    }
    return room;
}

/* The spans of a step, and whose they are. */
struct scoring_step {
    struct span spans[SCORING_MOST_MODELS][SCORING_MOST_ACTIVE]; /* [num_models][count] */
    struct scoring_document *owners[SCORING_MOST_ACTIVE];
    int count;
};

/* Fills a step with the next tokens of documents, the oldest first. */
static int plan(struct scoring *s, struct scoring_step *step, struct error *err)
{
    int room = step_room(s);
    step->count = 0;
    for (int i = 0; i < s->num_active && room > 0; i++) {
        struct scoring_document *document = &s->active[i];
        if (!document->states[0]) {
            int begun = begin_window(s, document, step->count > 0, err);
            if (begun < 0)
                return -1;
            if (begun == 0)
                break;
        }
        size_t left = document->window_end - document->next;
        int count = left < (size_t)room ? (int)left : room;
        size_t end = document->next + (size_t)count;
        size_t scored = document->next > document->scored ? document->next : document->scored;
        for (int m = 0; m < s->num_models; m++)
            step->spans[m][step->count] =
                (struct span){.state = document->states[m],
                              .tokens = document->ids.ids + document->next,
                              .num_tokens = count,
                              .num_logits = end > scored ? (int)(end - scored) : 0};
        step->owners[step->count++] = document;
        room -= count;
    }
    return 0;
}

/* Takes one prediction: that of number i of the span. */
static int predict(struct scoring *s, struct scoring_document *document,
                   const struct scoring_step *step, int span, int i, struct error *err)
{
    struct prediction prediction = {.document = document->number};
    int32_t vocab_size = engine_info(s->models[0].engine)->vocab_size;
    int32_t target = document->ids.ids[document->next + 1];
    for (int m = 0; m < s->num_models; m++) {
        const float *logits = step->spans[m][span].logits + (size_t)i * (size_t)vocab_size;
        prediction.logits[m] = logits;
        prediction.nll[m] = -(double)logprob_of(logits, vocab_size, target);
        if (isnan(prediction.nll[m]))
            return error_set(err, ERROR_INTERNAL, "the model's logits are not numbers at token %zu",
                             document->next + 1);
        document->nll[m] += prediction.nll[m];
    }
    document->next++;
    prediction.before = document->next - document->window_start;
    return s->predicted ? s->predicted(s->context, &prediction, err) : 0;
}

/* Takes the log-probabilities of a span that was stepped; frees the states at a window's end. */
static int take(struct scoring *s, const struct scoring_step *step, int span, struct error *err)
{
    struct scoring_document *document = step->owners[span];
    const struct span *first = &step->spans[0][span];
    document->next += (size_t)(first->num_tokens - first->num_logits);
    for (int i = 0; i < first->num_logits; i++)
        if (predict(s, document, step, span, i, err) != 0)
            return -1;
    s->tokens += first->num_logits;
    if (document->next == document->window_end) {
        free_states(document);
        document->scored = document->next;
        if (s->options->stride > 0 && document->next + 1 < document->ids.count)
            document->next = document->window_start + (size_t)s->options->stride;
    }
    return 0;
}

static void drop_finished(struct scoring *s)
{
    int kept = 0;
    for (int i = 0; i < s->num_active; i++) {
        struct scoring_document *document = &s->active[i];
        if (document->next + 1 < document->ids.count) {
            s->active[kept++] = *document;
            continue;
        }
        for (int m = 0; m < s->num_models; m++)
            s->nll[m] += document->nll[m];
        token_list_clear(&document->ids);
    }
    s->num_active = kept;
}

/* A line every ten seconds; on a terminal more often, over the one before. */
static void progress(struct scoring *s, bool last)
{
    double now = clock_seconds();
    bool terminal = isatty(STDERR_FILENO);
    if (s->options->quiet || (!last && now - s->last_progress < (terminal ? 0.5 : 10)))
        return;
    s->last_progress = now;
    fprintf(stderr, "%s%" PRId64 " documents read, %" PRId64 " tokens scored, %.0f a second, ",
            terminal ? "\r" : "", s->num_documents, s->tokens,
            (double)s->tokens / (now - s->start + 1e-9));
    for (int m = 0; m < s->num_models; m++) {
        double nll = s->nll[m];
        for (int i = 0; i < s->num_active; i++)
            nll += s->active[i].nll[m];
        fprintf(stderr, "%s%.4f", m > 0 ? " and " : "",
                s->tokens > 0 ? nll / (double)s->tokens : 0);
    }
    fprintf(stderr, " nats a token%s", terminal && !last ? " " : "\n");
}

int scoring_open(struct scoring *s, const char *path, struct error *err)
{
    if (s->options->context > 0 && s->options->stride > s->options->context)
        return refuse_stride(s->options->stride, s->options->context, err);
    return documents_open(&s->documents, path, s->options->format, err);
}

int scoring_run(struct scoring *s, struct error *err)
{
    s->start = s->last_progress = clock_seconds();
    for (;;) {
        struct scoring_step step = {.count = 0};
        if (refill(s, err) != 0)
            return -1;
        if (s->num_active == 0)
            break;
        if (plan(s, &step, err) != 0)
            return -1;
        for (int m = 0; m < s->num_models; m++)
            if (engine_step(s->models[m].engine, step.spans[m], step.count, err) != 0)
                return -1;
        for (int i = 0; i < step.count; i++)
            if (take(s, &step, i, err) != 0)
                return -1;
        drop_finished(s);
        progress(s, false);
    }
    if (s->tokens == 0)
        return error_set(err, ERROR_INVALID, "%s: expected text to score, got none",
                         s->documents.name);
    progress(s, true);
    return 0;
}

void scoring_clear(struct scoring *s)
{
    for (int i = 0; i < s->num_active; i++) {
        free_states(&s->active[i]);
        token_list_clear(&s->active[i].ids);
    }
    s->num_active = 0;
    documents_close(&s->documents);
}

double scoring_perplexity(double nll, int64_t units)
{
    return units > 0 ? exp(nll / (double)units) : NAN;
}
