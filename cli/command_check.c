/* SPDX-License-Identifier: Apache-2.0 */
/* regla check: checkpoints with an expected.json against the engine. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "cli/expected.h"
#include "engine/device.h"
#include "engine/model/model.h"
#include "engine/ops/logits.h"
#include "engine/ops/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEP_TOKENS = 512,
    COMPANIONS = 7,
    COMPANION_SPAN = 5, /* most tokens of a companion in a step */
    MAX_CHUNK = STEP_TOKENS - COMPANIONS * COMPANION_SPAN - ENGINE_MOST_KEPT,
    MAX_DIRECTORIES = 4096,
};

struct check_options {
    struct command_model_options model;
    const char *instruction_set;
    int64_t chunk, company;
    bool reproducibility, bits_only;
};

static const struct option items[] = {
    {"reproducibility", OPTION_FLAG, offsetof(struct check_options, reproducibility), NULL, "false",
     0, 0, NULL,
     "also run each case in chunks of 1, 3 and 7, and of as many tokens as a\n      convolution "
     "keeps, beside 7 other texts, on 1, 2 and 3 threads, and with wrong\n      tokens behind the "
     "right ones, which are taken back; and demand the same bits"},
    {"bits-only", OPTION_FLAG, offsetof(struct check_options, bits_only), NULL, "false", 0, 0, NULL,
     "only the same bits in all those runs, whatever expected.json says: for formats\n      that "
     "round numbers (--weights, --kv, --activations) more than its tolerance allows"},
    {"chunk", OPTION_INTEGER, offsetof(struct check_options, chunk), "tokens", "0", 0, MAX_CHUNK,
     NULL, "feed the prompt in pieces of so many tokens; 0: as large as a step takes"},
    {"company", OPTION_INTEGER, offsetof(struct check_options, company), "texts", "0", 0,
     COMPANIONS, NULL, "other texts that share the steps"},
    {"instruction-set", OPTION_TEXT, offsetof(struct check_options, instruction_set), "name", NULL,
     0, 0, NULL,
     "of the CPU: amx, avx512vnni, avx512, avx2, generic, or amx_emulated, which\n      computes "
     "what amx does without it; none given: the best there is"},
    COMMAND_MODEL_OPTIONS(struct check_options, "f32"),
};

const struct options command_check_options = {
    .usage = "regla check MODEL... [options]",
    .summary =
        "Compares each checkpoint, a directory or a GGUF file, with the log-probabilities and "
        "the\ngreedy continuation in the expected.json beside it, to the tolerance given there.",
    .items = items,
    .count = sizeof items / sizeof *items,
    .operands = OPERANDS_FILES,
};

/* How a case is run. Whatever it is, the logits must be the same bits. */
struct manner {
    int threads, chunk, company;
    int drafts; /* wrong tokens behind each step's own, over which the text goes back */
};

/* What a run gave. */
struct transcript {
    float *logits;   /* [num_rows, vocab_size]: after each prompt token, then each drawn one */
    int32_t *greedy; /* [num_greedy] */
    size_t num_rows;
};

/* A text that runs beside the one that is checked: it begins anew whenever its room is used up. */
struct companion {
    struct state *state;
    int32_t tokens[COMPANION_SPAN];
    int64_t room;
};

/* What the checked text takes in a step. */
struct chunk {
    int32_t tokens[MAX_CHUNK + ENGINE_MOST_KEPT];
    int drafts;
};

struct run {
    struct engine *engine;
    const struct expected *expected;
    struct manner manner;
    struct companion companions[COMPANIONS];
    struct chunk chunk;
    struct state *state;
    int64_t steps;
    struct transcript *out;
};

static int add_companion(struct run *run, int i, struct span *span, struct error *err)
{
    const struct engine_info *info = engine_info(run->engine);
    struct companion *companion = &run->companions[i];
    const struct expected *expected = run->expected;
    int count = 1 + (int)((run->steps + i) % COMPANION_SPAN);
    if (companion->state && state_position(companion->state) + count > companion->room) {
        state_free(companion->state);
        companion->state = NULL;
    }
    if (!companion->state) {
        companion->room = 24 + 5 * i;
        if (info->max_positions > 0 && companion->room > info->max_positions)
            companion->room = info->max_positions;
        if (count > companion->room)
            count = (int)companion->room;
        if (state_create(&companion->state, run->engine, companion->room, err) != 0)
            return -1;
    }
    for (int j = 0; j < count; j++) {
        size_t from = (size_t)(run->steps * 7 + i * 3 + j) % expected->num_prompt;
        companion->tokens[j] = (expected->prompt[from] + i + 1) % info->vocab_size;
    }
    *span = (struct span){.state = companion->state,
                          .tokens = companion->tokens,
                          .num_tokens = count,
                          .num_logits = i % 2,
                          .num_kept = run->manner.drafts > 0 ? i % count : 0};
    return 0;
}

/* The tokens, and drafts behind them of which none is right. More is kept than will be taken back.
 */
static void add_own(struct run *run, const int32_t *tokens, int count, struct span *span)
{
    struct chunk *chunk = &run->chunk;
    const int32_t vocab_size = engine_info(run->engine)->vocab_size;
    const int64_t room = state_reserved(run->state) - state_position(run->state) - count;
    memcpy(chunk->tokens, tokens, (size_t)count * sizeof *tokens);
    chunk->drafts = room < run->manner.drafts ? (int)room : run->manner.drafts;
    for (int i = 0; i < chunk->drafts; i++)
        chunk->tokens[count + i] = (tokens[i % count] + 1 + i) % vocab_size;
    int kept = chunk->drafts + count - 1;
    kept = kept < ENGINE_MOST_KEPT ? kept : ENGINE_MOST_KEPT;
    *span = (struct span){.state = run->state,
                          .tokens = chunk->tokens,
                          .num_tokens = count + chunk->drafts,
                          .num_logits = count + chunk->drafts,
                          .num_kept = chunk->drafts > 0 ? kept : 0};
}

/* All texts that have kept tokens go back, companions over one. */
static int go_back(struct run *run, const struct span *spans, int num_spans, struct error *err)
{
    for (int i = 0; i < num_spans; i++) {
        const int drafts = spans[i].state == run->state ? run->chunk.drafts : 1;
        if (spans[i].num_kept > 0 && engine_go_back(run->engine, spans[i].state, drafts, err) != 0)
            return -1;
    }
    return 0;
}

/* One step of the checked text, in the middle of its company; keeps the logits of every token. */
static int advance(struct run *run, const int32_t *tokens, int count, struct error *err)
{
    struct span spans[COMPANIONS + 1];
    int num_spans = 0, own = run->manner.company / 2;
    size_t vocab_size = (size_t)engine_info(run->engine)->vocab_size;
    for (int i = 0; i <= run->manner.company; i++) {
        struct span *span = &spans[num_spans++];
        if (i == own)
            add_own(run, tokens, count, span);
        else if (add_companion(run, i < own ? i : i - 1, span, err) != 0)
            return -1;
    }
    if (engine_step(run->engine, spans, num_spans, err) != 0)
        return -1;
    memcpy(run->out->logits + run->out->num_rows * vocab_size, spans[own].logits,
           (size_t)count * vocab_size * sizeof(float));
    run->out->num_rows += (size_t)count;
    run->steps++;
    return go_back(run, spans, num_spans, err);
}

static int go(struct run *run, struct error *err)
{
    const struct expected *expected = run->expected;
    int32_t vocab_size = engine_info(run->engine)->vocab_size;
    size_t chunk = run->manner.chunk > 0 ? (size_t)run->manner.chunk : MAX_CHUNK;
    int64_t tokens = (int64_t)(expected->num_prompt + expected->num_greedy);
    const int64_t limit = engine_info(run->engine)->max_positions;
    int64_t most = tokens - 1 + run->manner.drafts;
    if (limit > 0 && most > limit)
        most = limit > tokens - 1 ? limit : tokens - 1;
    if (state_create(&run->state, run->engine, most, err) != 0)
        return -1;
    for (size_t at = 0; at < expected->num_prompt; at += chunk) {
        size_t left = expected->num_prompt - at;
        if (advance(run, expected->prompt + at, (int)(left < chunk ? left : chunk), err) != 0)
            return -1;
    }
    for (size_t i = 0; i < expected->num_greedy; i++) {
        const float *last = run->out->logits + (run->out->num_rows - 1) * (size_t)vocab_size;
        run->out->greedy[i] = logits_best(last, vocab_size);
        if (i + 1 < expected->num_greedy && advance(run, &run->out->greedy[i], 1, err) != 0)
            return -1;
    }
    return 0;
}

static void transcript_clear(struct transcript *transcript)
{
    free(transcript->logits);
    free(transcript->greedy);
    *transcript = (struct transcript){0};
}

/* Runs the case in one manner; the caller clears *out. */
static int transcribe(struct transcript *out, struct engine *engine,
                      const struct expected *expected, struct manner manner, struct error *err)
{
    size_t rows = expected->num_prompt + expected->num_greedy - 1;
    *out = (struct transcript){0};
    out->logits = calloc(rows * (size_t)engine_info(engine)->vocab_size, sizeof(float));
    out->greedy = calloc(expected->num_greedy, sizeof *out->greedy);
    if (!out->logits || !out->greedy)
        return error_set(err, ERROR_NO_MEMORY, "out of memory for %zu rows of logits", rows);
    struct run run = {.engine = engine, .expected = expected, .manner = manner, .out = out};
    int result = go(&run, err);
    state_free(run.state);
    for (int i = 0; i < COMPANIONS; i++)
        state_free(run.companions[i].state);
    return result;
}

struct verdict {
    double max_error; /* of a log-probability */
    size_t greedy_checked;
    char problem[256]; /* empty: it passed */
};

static void compare(struct verdict *verdict, double tolerance, const char *what, size_t i,
                    double expected, double got)
{
    double difference = fabs(expected - got);
    if (!(difference <= verdict->max_error))
        verdict->max_error = isnan(difference) ? INFINITY : difference;
    if (!(difference <= tolerance) && !verdict->problem[0])
        snprintf(verdict->problem, sizeof verdict->problem, "%s[%zu]: expected %.6f, got %.6f",
                 what, i, expected, got);
}

/* From the first margin under 1e-3 on, another continuation is no mistake. */
static void compare_greedy(struct verdict *verdict, const struct expected *expected,
                           const struct transcript *got)
{
    for (size_t i = 0; i < expected->num_greedy && expected->greedy_margin[i] >= 1e-3f; i++) {
        verdict->greedy_checked++;
        if (got->greedy[i] == expected->greedy[i])
            continue;
        if (!verdict->problem[0])
            snprintf(verdict->problem, sizeof verdict->problem, "greedy[%zu]: expected %d, got %d",
                     i, expected->greedy[i], got->greedy[i]);
        return;
    }
}

static void judge(struct verdict *verdict, const struct expected *expected,
                  const struct transcript *got, int32_t vocab_size)
{
    *verdict = (struct verdict){0};
    for (size_t i = 0; i < expected->num_prompt; i++) {
        const float *logits = got->logits + i * (size_t)vocab_size;
        const struct token_logprob *want = &expected->top[i * EXPECTED_TOP];
        struct token_logprob top[EXPECTED_TOP];
        logprobs_top(logits, vocab_size, want[0].id, EXPECTED_TOP, top);
        for (size_t j = 0; j < EXPECTED_TOP; j++) {
            compare(verdict, expected->tolerance, "top5", i, (double)want[j].logprob,
                    (double)logprob_of(logits, vocab_size, want[j].id));
            compare(verdict, expected->tolerance, "top5", i, (double)want[j].logprob,
                    (double)top[j].logprob);
        }
        if (i + 1 < expected->num_prompt)
            compare(verdict, expected->tolerance, "prompt_logprobs", i,
                    (double)expected->prompt_logprobs[i],
                    (double)logprob_of(logits, vocab_size, expected->prompt[i + 1]));
    }
    compare_greedy(verdict, expected, got);
}

/* Equal bits say little when they are not numbers. */
static void check_numbers(struct verdict *verdict, const struct transcript *got, int32_t vocab_size)
{
    for (size_t i = 0; i < got->num_rows * (size_t)vocab_size && !verdict->problem[0]; i++)
        if (!isfinite(got->logits[i]))
            snprintf(verdict->problem, sizeof verdict->problem,
                     "logits[%zu]: expected numbers, got %f", i / (size_t)vocab_size,
                     (double)got->logits[i]);
}

/* One checkpoint under check. */
struct check_case {
    const char *directory;
    const struct check_options *options;
    struct engine *engine;
    int threads; /* of the engine */
    struct expected expected;
    struct transcript first; /* what every other run must equal */
    struct verdict verdict;
    int runs;
};

static int open_engine(struct check_case *c, int threads, struct error *err)
{
    if (c->engine && c->threads == threads)
        return 0;
    if (c->engine)
        engine_close(c->engine);
    c->engine = NULL;
    c->threads = threads;
    struct engine_options options = command_engine_options(&c->options->model);
    options.threads = threads;
    options.instruction_set = c->options->instruction_set;
    options.max_step_tokens = options.max_step_logits = STEP_TOKENS;
    options.max_step_kept = (COMPANIONS + 1) * ENGINE_MOST_KEPT;
    return engine_open(&c->engine, c->directory, &options, err);
}

/* Another run, whose bits must be those of the first. */
static int repeat(struct check_case *c, struct manner manner, struct error *err)
{
    struct transcript again = {0};
    int result = open_engine(c, manner.threads, err);
    if (result == 0)
        result = transcribe(&again, c->engine, &c->expected, manner, err);
    size_t row = result == 0 ? (size_t)engine_info(c->engine)->vocab_size * sizeof(float) : 0;
    for (size_t i = 0; result == 0 && i < again.num_rows && !c->verdict.problem[0]; i++)
        if (memcmp((char *)again.logits + i * row, (char *)c->first.logits + i * row, row) != 0)
            snprintf(c->verdict.problem, sizeof c->verdict.problem,
                     "other bits after token %zu with chunk %d, company %d, threads %d, %d drafts "
                     "taken back",
                     i, manner.chunk, manner.company, manner.threads, manner.drafts);
    transcript_clear(&again);
    c->runs++;
    return result;
}

/* The tokens that the model's widest convolution keeps. */
static int convolution_rows(const struct model *model)
{
    const struct branch *branch;
    int rows = 0;
    for (int i = 0; i < model->num_layers; i++)
        for (int b = 0; (branch = layer_branch(&model->layers[i], b)) != NULL; b++)
            for (const struct mixer *m = branch->mixer; m != NULL; m = m->second)
                rows = m->conv.width - 1 > rows ? m->conv.width - 1 : rows;
    return rows;
}

static int reproduce(struct check_case *c, struct error *err)
{
    const int chunks[] = {0, 1, 3, 7, convolution_rows(engine_model(c->engine))};
    const int count = chunks[4] == 0 || chunks[4] == 1 || chunks[4] == 3 || chunks[4] == 7 ? 4 : 5;
    bool on_threads = strcmp(engine_info(c->engine)->device, "cpu") == 0;
    for (int threads = 1; threads <= (on_threads ? 3 : 1); threads++)
        for (int i = 0; i < count; i++)
            for (int company = 0; company <= COMPANIONS; company += COMPANIONS)
                if (repeat(c, (struct manner){threads, chunks[i], company, 0}, err) != 0)
                    return -1;
    for (int company = 0; company <= COMPANIONS; company += COMPANIONS)
        if (repeat(c, (struct manner){on_threads ? 2 : 1, 1, company, ENGINE_MOST_KEPT}, err) !=
                0 ||
            repeat(c, (struct manner){on_threads ? 3 : 1, 7, company, 3}, err) != 0)
            return -1;
    return 0;
}

static int check(struct check_case *c, struct error *err)
{
    struct manner manner = {.threads = (int)c->options->model.threads,
                            .chunk = (int)c->options->chunk,
                            .company = (int)c->options->company};
    if (open_engine(c, manner.threads, err) != 0)
        return -1;
    command_model_warn(engine_model(c->engine));
    int32_t vocab_size = engine_info(c->engine)->vocab_size;
    const char *directory = engine_model(c->engine)->directory; /* of a GGUF file, its folder */
    if (expected_open(&c->expected, directory, vocab_size, err) != 0 ||
        transcribe(&c->first, c->engine, &c->expected, manner, err) != 0)
        return -1;
    if (engine_info(c->engine)->kv == KV_F32)
        c->expected.tolerance = c->expected.tolerance_f32;
    c->runs = 1;
    if (c->options->bits_only)
        check_numbers(&c->verdict, &c->first, vocab_size);
    else
        judge(&c->verdict, &c->expected, &c->first, vocab_size);
    if ((c->options->reproducibility || c->options->bits_only) && !c->verdict.problem[0])
        return reproduce(c, err);
    return 0;
}

/* Checks one directory and prints its line; returns whether it passed. */
static bool report(const char *directory, const struct check_options *options)
{
    struct check_case c = {.directory = directory, .options = options};
    struct error err = ERROR_INIT;
    int result = check(&c, &err);
    if (result != 0)
        printf("FAIL  %s: cannot be run\n", directory);
    else if (c.verdict.problem[0] && options->bits_only)
        printf("FAIL  %s: %s\n", directory, c.verdict.problem);
    else if (options->bits_only)
        printf("PASS  %s: the same bits in %d runs, weights %s, KV %s, activations %s\n", directory,
               c.runs, weight_format_name(engine_info(c.engine)->weights),
               kv_format_name(engine_info(c.engine)->kv),
               activation_format_name(engine_info(c.engine)->activations));
    else if (c.verdict.problem[0])
        printf("FAIL  %s: %s (largest error %.1e, tolerance %.0e)\n", directory, c.verdict.problem,
               c.verdict.max_error, c.expected.tolerance);
    else if (c.runs > 1)
        printf(
            "PASS  %s: largest error %.1e of %.0e, greedy %zu of %zu, the same bits in %d runs\n",
            directory, c.verdict.max_error, c.expected.tolerance, c.verdict.greedy_checked,
            c.expected.num_greedy, c.runs);
    else
        printf("PASS  %s: largest error %.1e of %.0e, greedy %zu of %zu\n", directory,
               c.verdict.max_error, c.expected.tolerance, c.verdict.greedy_checked,
               c.expected.num_greedy);
    if (result != 0)
        command_failed("check", &err);
    fflush(stdout);
    transcript_clear(&c.first);
    expected_clear(&c.expected);
    if (c.engine)
        engine_close(c.engine);
    return result == 0 && !c.verdict.problem[0];
}

/* The exit status. */
static int check_all(const char *const *directories, int count, const struct check_options *options)
{
    int passed = 0;
    for (int i = 0; i < count; i++)
        passed += report(directories[i], options);
    printf("check: %d passed, %d failed\n", passed, count - passed);
    return passed < count ? 1 : 0;
}

int command_check(int argc, char **argv)
{
    static const char *directories[MAX_DIRECTORIES];
    struct check_options options = {0};
    struct option_arguments arguments = {.items = directories, .capacity = MAX_DIRECTORIES};
    int status = 0;
    if (command_options(&command_check_options, &options, argc, argv, &arguments, &status) == 0) {
        if (arguments.count == 0) {
            fprintf(stderr, "regla check: expected checkpoints' directories; usage: %s\n",
                    command_check_options.usage);
            status = 2;
        }
        struct error err = ERROR_INIT;
        if (status == 0 && device_find(options.model.device, &err) != 0)
            status = command_failed("check", &err);
        if (status == 0)
            status = check_all(directories, arguments.count, &options);
    }
    options_clear(&command_check_options, &options);
    return status;
}
