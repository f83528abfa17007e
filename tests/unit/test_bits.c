/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of results are those that were recorded for their numbers (engine/bits.h): logits and
 * state after the same tokens, of each golden case, and of some in all formats. A change of bits
 * that nobody meant, or without another number, fails here. How to record: tests/golden/README.md.
 * On Arm golden/processors_agree_on_bits has the bits. */
#include "engine/bits.h"
#include "engine/engine.h"
#include "tests/unit/golden_cases.h"
#include "tests/unit/sanitized.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdint.h>
#include <unistd.h>

#if !defined(__aarch64__)

#define RECORD GOLDEN_DIRECTORY "bits.txt"
#define RECORDING "REGLA_RECORD_BITS"
#define HOW RECORDING "=1 build/dev/unit_tests --filter 'bits/*'"

enum { TOKENS = 75 /* beyond a tile and a page */, LAST = 5 /* one a step */, LINES = 2000 };

/* ---- the record ---- */

struct line {
    char what[120]; /* case, instruction set, weights, KV, activations */
    uint64_t hash;
    int number; /* engine_bits */
};

struct record {
    size_t count;
    struct line lines[LINES];
};

static void read_record(struct record *record)
{
    FILE *file = fopen(RECORD, "r");
    char text[256];
    record->count = 0;
    if (!file)
        return;
    while (fgets(text, sizeof text, file)) {
        struct line *line = &record->lines[record->count];
        if (text[0] == '#')
            continue;
        cr_assert(record->count < LINES);
        cr_assert(
            sscanf(text, "%" SCNx64 " %d %119[^\n]", &line->hash, &line->number, line->what) == 3,
            "%s: expected a hash, a number and what has them, got %s", RECORD, text);
        record->count++;
    }
    fclose(file);
}

static const struct line *find(const struct record *record, const char *what)
{
    for (size_t i = 0; i < record->count; i++)
        if (strcmp(record->lines[i].what, what) == 0)
            return &record->lines[i];
    return NULL;
}

/* ---- what is computed ---- */

struct kind {
    enum weight_format weights;
    enum kv_format kv;
    enum activation_format activations;
};

static const struct kind as_it_is = {WEIGHTS_AUTO, KV_AUTO, ACTIVATIONS_F32};
/* amx has the bits of its emulation; avx512vnni and it differ from avx512 in formats alone. */
static const struct {
    const char *name;
    bool all_cases;
} sets[] = {{"generic", true},
            {"avx2", true},
            {"avx512", true},
            {"avx512vnni", false},
            {"amx_emulated", false}};
/* Formats know little of the rest, so these stand for all: each kind of state is among them. */
static const char *const format_cases[] = {"delta_qwen3_5_text", "dense_llama", "falcon_h1",
                                           "hybrid_regla"};
static const struct kind kinds[] = {
    {WEIGHTS_F32, KV_F32, ACTIVATIONS_F32},    {WEIGHTS_BF16, KV_BF16, ACTIVATIONS_F32},
    {WEIGHTS_BF16, KV_F16, ACTIVATIONS_16BIT}, {WEIGHTS_F16, KV_F16, ACTIVATIONS_F32},
    {WEIGHTS_F16, KV_BF16, ACTIVATIONS_16BIT}, {WEIGHTS_Q8, KV_F16, ACTIVATIONS_F32},
    {WEIGHTS_Q8, KV_BF16, ACTIVATIONS_16BIT},  {WEIGHTS_Q8, KV_F16, ACTIVATIONS_8BIT},
    {WEIGHTS_Q6, KV_F16, ACTIVATIONS_F32},     {WEIGHTS_Q6, KV_F16, ACTIVATIONS_16BIT},
    {WEIGHTS_Q6, KV_BF16, ACTIVATIONS_8BIT},   {WEIGHTS_Q4, KV_F16, ACTIVATIONS_F32},
    {WEIGHTS_Q4, KV_F16, ACTIVATIONS_16BIT},   {WEIGHTS_Q4, KV_F16, ACTIVATIONS_8BIT}};

/* FNV-1a. */
static void add(uint64_t *hash, const void *bytes, size_t count)
{
    for (const unsigned char *at = bytes; count-- > 0; at++)
        *hash = (*hash ^ *at) * 0x100000001b3;
}

/* Of a step's logits. */
static void run(struct engine *engine, struct state *state, const int32_t *tokens, int count,
                uint64_t *hash)
{
    struct error err = ERROR_INIT;
    struct span span = {.state = state, .tokens = tokens, .num_tokens = count, .num_logits = count};
    cr_assert(engine_step(engine, &span, 1, &err) == 0, "%s", err.message);
    add(hash, span.logits, (size_t)count * (size_t)engine_info(engine)->vocab_size * sizeof(float));
}

static uint64_t hash_of(struct engine *engine)
{
    const struct engine_info *info = engine_info(engine);
    const bool limited = info->max_positions > 0 && info->max_positions < TOKENS;
    const int length = limited ? (int)info->max_positions : TOKENS;
    const size_t bytes = state_image_bytes(engine, length);
    int32_t tokens[TOKENS];
    uint64_t hash = 0xcbf29ce484222325;
    struct error err = ERROR_INIT;
    struct state *state;
    void *image = malloc(bytes);
    for (int i = 0; i < length; i++)
        tokens[i] = golden_token(0, i, info->vocab_size);
    cr_assert(state_create(&state, engine, length, &err) == 0, "%s", err.message);
    run(engine, state, tokens, length - LAST, &hash);
    for (int i = length - LAST; i < length; i++)
        run(engine, state, tokens + i, 1, &hash);
    cr_assert(image && state_save(state, image, &err) == 0, "%s", err.message);
    add(&hash, image, bytes);
    free(image);
    state_free(state);
    return hash;
}

/* False: this machine does not compute so. */
static bool compute(const char *name, const char *set, const struct kind *kind, struct line *out)
{
    char path[512];
    struct error err = ERROR_INIT;
    struct engine *engine;
    const struct engine_options options = {.threads = 2,
                                           .instruction_set = set,
                                           .weights = kind->weights,
                                           .kv = kind->kv,
                                           .activations = kind->activations,
                                           .state_memory_bytes = (size_t)4 << 20,
                                           .max_step_tokens = 128,
                                           .max_step_logits = 128};
    snprintf(path, sizeof path, GOLDEN_DIRECTORY "%s", name);
    if (engine_open(&engine, path, &options, &err) != 0) {
        cr_assert(err.code == ERROR_UNSUPPORTED, "%s on %s: %s", name, set, err.message);
        return false;
    }
    const struct engine_info *info = engine_info(engine);
    snprintf(out->what, sizeof out->what, "%.60s %s %s %s %s", name, set,
             weight_format_name(info->weights), kv_format_name(info->kv),
             activation_format_name(info->activations));
    out->hash = hash_of(engine);
    out->number = engine_bits(info->weights, info->activations);
    engine_close(engine);
    return true;
}

static void add_line(struct record *record, const char *name, const char *set,
                     const struct kind *kind)
{
    cr_assert(record->count < LINES);
    if (compute(name, set, kind, &record->lines[record->count]))
        record->count++;
}

/* What this machine computes. Under a sanitizer a part: it has nothing to find here. */
static void compute_all(struct record *out)
{
    char path[512], name[256];
    out->count = 0;
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        if (!golden_has_set(sets[s].name))
            continue;
        for (int i = 0; sets[s].all_cases && golden_case(i, path, name); i += SANITIZED ? 16 : 1)
            add_line(out, name, sets[s].name, &as_it_is);
        for (size_t c = 0; !SANITIZED && c < sizeof format_cases / sizeof *format_cases; c++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
                add_line(out, format_cases[c], sets[s].name, &kinds[k]);
    }
}

/* ---- the tests ---- */

static struct record recorded, computed;

Test(bits, are_those_of_the_numbers)
{
    int others = 0;
    if (getenv(RECORDING))
        cr_skip_test("they are recorded");
    read_record(&recorded);
    compute_all(&computed);
    for (size_t i = 0; i < computed.count; i++) {
        const struct line *now = &computed.lines[i], *line = find(&recorded, now->what);
        cr_expect(line, "%s: no bits are recorded: record them with %s", now->what, HOW);
        if (line && (line->hash != now->hash || line->number != now->number) && others++ < 10)
            cr_expect(false, "%s: number %d, expected %d; the bits are %s", now->what, now->number,
                      line->number, line->hash == now->hash ? "those" : "others");
    }
    cr_expect(
        others == 0,
        "bits changed (%d of %zu): give their formats the next number (engine/bits.h), and no "
        "others, and record anew with %s",
        others, computed.count, HOW);
    cr_expect(computed.count > 4);
}

/* What another machine has recorded stays, but of cases that are gone. */
static void keep_others(const struct record *old, struct record *fresh)
{
    char path[512], name[256];
    for (int i = 0; golden_case(i, path, name); i++)
        for (size_t at = 0; at < old->count; at++) {
            const struct line *line = &old->lines[at];
            const size_t length = strlen(name);
            if (strncmp(line->what, name, length) == 0 && line->what[length] == ' ' &&
                !find(fresh, line->what)) {
                cr_assert(fresh->count < LINES);
                fresh->lines[fresh->count++] = *line;
            }
        }
}

static int by_what(const void *a, const void *b)
{
    return strcmp(((const struct line *)a)->what, ((const struct line *)b)->what);
}

static void write_record(struct record *record)
{
    FILE *file = fopen(RECORD, "w");
    cr_assert(file, "%s cannot be written", RECORD);
    qsort(record->lines, record->count, sizeof *record->lines, by_what);
    fprintf(
        file,
        "# Hashes of logits and state, by tests/unit/test_bits.c: number, case, instruction set, "
        "weights, KV, activations.\n");
    for (size_t i = 0; i < record->count; i++)
        fprintf(file, "%016" PRIx64 " %d %s\n", record->lines[i].hash, record->lines[i].number,
                record->lines[i].what);
    cr_assert(fclose(file) == 0);
}

/* Bits that differ are recorded under a higher number alone, and others keep theirs. */
Test(bits, are_recorded)
{
    if (!getenv(RECORDING))
        cr_skip_test("by hand: %s", HOW);
    cr_assert(!SANITIZED);
    read_record(&recorded);
    compute_all(&computed);
    for (size_t i = 0; i < computed.count; i++) {
        const struct line *now = &computed.lines[i], *line = find(&recorded, now->what);
        if (!line)
            continue;
        const bool same = line->hash == now->hash;
        cr_assert(same ? now->number == line->number : now->number > line->number,
                  "%s: the bits are %s: expected a number %s %d (engine/bits.h), got %d", now->what,
                  same ? "the same" : "others", same ? "of" : "above", line->number, now->number);
    }
    keep_others(&recorded, &computed);
    write_record(&computed);
}

#endif
