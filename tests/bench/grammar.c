/* SPDX-License-Identifier: Apache-2.0 */
/* Writes random texts that grammars allow, for tests/scripts/check_grammar.py, and times masks.
 *
 *   grammar_driver TOKENIZER            reads a case a line, writes an answer a line
 *   grammar_driver TOKENIZER SCHEMA     prints microseconds for a schema in a file: to compile it,
 *                                       and for a mask and a token, the first time and the second
 *
 * A case is {"kind", "spec", "seed", "texts", "tokens", "every"}: so many texts of at most so many
 * tokens; each token is drawn among those of the mask, and ends are likelier the longer a text is.
 * Every so many masks one is compared with what the automaton says of each token by itself. The
 * answer is {"texts": [...], "cut": N, "masks": N} or {"error"}. */
#include "lib/grammar/grammar.h"
#include "lib/grammar/compiled.h"
#include "lib/grammar/readings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct driver {
    struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    int32_t vocab_size;
    uint64_t random;
    int32_t *allowed; /* [vocab_size] */
    long long masks;  /* compared */
};

static uint32_t draw(struct driver *driver, uint32_t below)
{
    driver->random = driver->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((driver->random >> 33) % below);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void fail(const char *what, const struct error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    exit(1);
}

/* Aborts unless the mask has exactly the tokens whose bytes the automaton can read behind `ids`. */
static void compare(struct driver *driver, const struct grammar *grammar, const int32_t *ids,
                    size_t count, const uint32_t *mask)
{
    struct readings readings;
    struct error err = ERROR_INIT;
    const struct trie *trie = &driver->vocabulary->trie;
    struct reading start = {grammar->automaton.starts[grammar->root], 0, AUTOMATON_NO_LIMIT,
                            FRAME_BOTTOM};
    if (readings_init(&readings, &grammar->automaton, &err))
        fail("compare", &err);
    readings_begin(&readings);
    readings_enter(&readings, start, &err);
    size_t from = 0, to = readings.count;
    for (size_t i = 0; i < count; i++)
        for (uint32_t b = 0; b < trie->tokens[ids[i]].length; b++) {
            readings.work = 0;
            readings_step(&readings, from, to, (unsigned char)trie->tokens[ids[i]].bytes[b], &err);
            from = to;
            to = readings.count;
        }
    size_t frames = readings.num_frames;
    for (int32_t id = 0; id < driver->vocab_size; id++) {
        const struct trie_token *token = &trie->tokens[id];
        size_t at = from, end = to;
        bool reads = token->length > 0;
        for (uint32_t b = 0; b < token->length && reads; b++) {
            readings.ended = false;
            readings.work = 0;
            readings_step(&readings, at, end, (unsigned char)token->bytes[b], &err);
            at = end;
            end = readings.count;
            reads = end > at || (readings.ended && b + 1 == token->length);
        }
        readings.count = to;
        readings_cut_frames(&readings, frames);
        if (reads != (mask[id / 32] >> id % 32 & 1)) {
            fprintf(stderr, "token %d: the mask says %d, the automaton %d\n", id, !reads, reads);
            exit(1);
        }
    }
    if (err.code != ERROR_NONE)
        fail("compare", &err);
    readings_clear(&readings);
    driver->masks++;
}

/* A token of the mask, or -1 for an end. */
static int32_t choose(struct driver *driver, const struct grammar_matcher *matcher,
                      const uint32_t *mask, size_t count)
{
    int32_t num = 0;
    for (int32_t id = 0; id < driver->vocab_size; id++)
        if (mask[id / 32] >> id % 32 & 1)
            driver->allowed[num++] = id;
    bool may_end = grammar_matcher_may_end(matcher);
    if (num == 0 || (may_end && draw(driver, 100) < 30 + count)) {
        if (!may_end) {
            fprintf(stderr, "a text without an end and without a token to go on with\n");
            exit(1);
        }
        return -1;
    }
    /* Of some, one that closes something, or the shortest: else no text would end soon. */
    int32_t best = driver->allowed[draw(driver, (uint32_t)num)];
    int tries = count < 10 ? (int)draw(driver, 3) : count < 60 ? 20 : 400;
    for (int i = 0; i < tries; i++) {
        int32_t id = driver->allowed[draw(driver, (uint32_t)num)];
        const struct trie_token *a = &driver->vocabulary->trie.tokens[id];
        const struct trie_token *b = &driver->vocabulary->trie.tokens[best];
        bool closes_a = strchr("\"]}", a->bytes[0]) != NULL;
        bool closes_b = strchr("\"]}", b->bytes[0]) != NULL;
        if (closes_a > closes_b || (closes_a == closes_b && a->length < b->length))
            best = id;
    }
    return best;
}

/* One text. NULL: it was cut. */
static json_t *write_text(struct driver *driver, struct grammar *grammar, size_t most, int every)
{
    struct error err = ERROR_INIT;
    struct grammar_matcher *matcher;
    int32_t *ids = malloc((most + 1) * sizeof *ids);
    char *text;
    size_t count = 0, length, used = 0;
    if (!ids || grammar_matcher_create(&matcher, grammar, &err))
        fail("matcher", &err);
    for (bool ended = false; !ended && count < most;) {
        const uint32_t *mask = grammar_matcher_mask(matcher, &err);
        if (!mask)
            fail("mask", &err);
        if (every > 0 && (count < 2 || draw(driver, (uint32_t)every) == 0))
            compare(driver, grammar, ids, count, mask);
        int32_t id = choose(driver, matcher, mask, count);
        ended = id < 0;
        if (!ended && grammar_matcher_accept(matcher, id, &err))
            fail("accept", &err);
        if (!ended)
            ids[count++] = id;
    }
    bool whole = grammar_matcher_may_end(matcher);
    grammar_matcher_free(matcher);
    for (size_t i = 0; i < count; i++)
        used += driver->vocabulary->trie.tokens[ids[i]].length;
    text = malloc(used + 1);
    length = 0;
    for (size_t i = 0; i < count; i++) {
        const struct trie_token *token = &driver->vocabulary->trie.tokens[ids[i]];
        memcpy(text + length, token->bytes, token->length);
        length += token->length;
    }
    json_t *made = whole ? json_stringn(text, length) : NULL;
    if (whole && !made) {
        fprintf(stderr, "a text that is not UTF-8: ");
        for (size_t i = 0; i < length; i++)
            fprintf(stderr, "%02x", (unsigned char)text[i]);
        fprintf(stderr, "\n");
        exit(1);
    }
    free(text);
    free(ids);
    return made;
}

static enum grammar_kind kind_of(const char *name)
{
    static const char *const names[] = {"json", "json_schema", "regex", "choice", "gbnf"};
    for (int i = 0; i < 5; i++)
        if (strcmp(names[i], name) == 0)
            return (enum grammar_kind)i;
    exit(2);
}

static json_t *answer(struct driver *driver, const json_t *given)
{
    struct error err = ERROR_INIT;
    struct grammar *grammar;
    enum grammar_kind kind = kind_of(json_string_value(json_object_get(given, "kind")));
    double start = now_us();
    if (grammar_compile(&grammar, kind, json_object_get(given, "spec"), driver->vocabulary, &err))
        return json_pack("{s:s, s:i}", "error", err.message, "code", (int)err.code);
    double compiled = now_us() - start;
    json_t *texts = json_array();
    int cut = 0, num = (int)json_integer_value(json_object_get(given, "texts"));
    driver->random = (uint64_t)json_integer_value(json_object_get(given, "seed"));
    driver->masks = 0;
    for (int i = 0; i < num; i++) {
        json_t *text = write_text(driver, grammar,
                                  (size_t)json_integer_value(json_object_get(given, "tokens")),
                                  (int)json_integer_value(json_object_get(given, "every")));
        cut += !text;
        if (text)
            json_array_append_new(texts, text);
    }
    grammar_release(grammar);
    return json_pack("{s:o, s:i, s:I, s:f}", "texts", texts, "cut", cut, "masks",
                     (json_int_t)driver->masks, "us", compiled);
}

static void answer_all(struct driver *driver)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, stdin)) > 0) {
        json_t *given = json_loadb(line, (size_t)length, JSON_DECODE_ANY, NULL);
        json_t *made = given ? answer(driver, given) : json_pack("{s:s}", "error", "not JSON");
        json_dumpf(made, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(made);
        json_decref(given);
    }
    free(line);
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Writes texts and prints what a mask and a token take. */
static void time_texts(struct driver *driver, struct grammar *grammar, const char *name)
{
    enum { TEXTS = 8, MOST = 400 };
    static double times[TEXTS * MOST];
    struct error err = ERROR_INIT;
    size_t num = 0;
    double sum = 0;
    driver->random = 7;
    for (int i = 0; i < TEXTS; i++) {
        struct grammar_matcher *matcher;
        if (grammar_matcher_create(&matcher, grammar, &err))
            fail("matcher", &err);
        for (size_t count = 0; count < MOST; count++) {
            double start = now_us();
            const uint32_t *mask = grammar_matcher_mask(matcher, &err);
            double spent = now_us() - start;
            if (!mask)
                fail("mask", &err);
            int32_t id = choose(driver, matcher, mask, count);
            if (id < 0)
                break;
            start = now_us();
            if (grammar_matcher_accept(matcher, id, &err))
                fail("accept", &err);
            times[num++] = spent + now_us() - start;
            sum += times[num - 1];
        }
        grammar_matcher_free(matcher);
    }
    qsort(times, num, sizeof *times, rising);
    printf("%-6s %zu tokens: mean %.2f us, median %.2f, 99 %% %.2f, most %.2f\n", name, num,
           sum / (double)num, times[num / 2], times[num * 99 / 100], times[num - 1]);
}

static void time_schema(struct driver *driver, const char *path)
{
    struct error err = ERROR_INIT;
    struct grammar *grammar;
    struct grammar_matcher *matcher;
    json_t *schema = json_load_file(path, 0, NULL);
    double start = now_us();
    if (grammar_compile(&grammar, GRAMMAR_JSON_SCHEMA, schema, driver->vocabulary, &err) ||
        grammar_matcher_create(&matcher, grammar, &err))
        fail(path, &err);
    double compiled = now_us();
    if (!grammar_matcher_mask(matcher, &err))
        fail(path, &err);
    printf("compile %.0f us, first mask %.0f us; %zu bytes\n", compiled - start,
           now_us() - compiled, grammar_bytes(grammar));
    grammar_matcher_free(matcher);
    time_texts(driver, grammar, "new");
    time_texts(driver, grammar, "seen");
    grammar_release(grammar);
    json_decref(schema);
}

int main(int argc, char **argv)
{
    struct error err = ERROR_INIT;
    struct driver driver = {0};
    if (argc < 2)
        return 2;
    if (tokenizer_open(&driver.tokenizer, argv[1], &err))
        fail("tokenizer", &err);
    driver.vocab_size = tokenizer_size(driver.tokenizer);
    double start = now_us();
    if (grammar_vocabulary_create(&driver.vocabulary, driver.tokenizer, driver.vocab_size, &err))
        fail("vocabulary", &err);
    fprintf(stderr, "%d tokens, vocabulary in %.0f ms, %.1f MB\n", driver.vocab_size,
            (now_us() - start) * 1e-3, (double)grammar_vocabulary_bytes(driver.vocabulary) * 1e-6);
    driver.allowed = malloc(((size_t)driver.vocab_size + 1) * sizeof *driver.allowed);
    if (argc > 2)
        time_schema(&driver, argv[2]);
    else
        answer_all(&driver);
    free(driver.allowed);
    grammar_vocabulary_free(driver.vocabulary);
    tokenizer_free(driver.tokenizer);
    return 0;
}
