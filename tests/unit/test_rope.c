/* SPDX-License-Identifier: Apache-2.0 */
/* Frequencies of rotary embeddings against those of transformers, which computes them in f32. */
#include "engine/model/rope.h"
#include "tests/unit/rope_cases.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { HEAD = 16 };

static const struct rope_keys llama = {.base = "rope_theta",
                                       .part = "partial_rotary_factor",
                                       .usual_base = 10000,
                                       .usual_part = 1,
                                       .longest = 2048};
static const struct rope_keys neox = {.base = "rotary_emb_base",
                                      .part = "rotary_pct",
                                      .usual_base = 10000,
                                      .usual_part = 0.25,
                                      .longest = 2048,
                                      .partial = true};

static int make(const char *text, const struct rope_keys *keys, struct arena *arena,
                struct warnings *warnings, struct position *position, struct error *err)
{
    json_t *document;
    struct fields root;
    struct rope rope;
    cr_assert(fields_parse(&document, "config.json", text, strlen(text), err) == 0, "%s", text);
    cr_assert(fields_root(&root, document, "config.json", err) == 0);
    int result = rope_parse(&rope, &root, keys, warnings, err);
    if (result == 0)
        result = rope_position(&rope, HEAD, "config.json", arena, position, err);
    json_decref(document);
    return result;
}

static double frequency(const struct position *position, int i)
{
    return position->frequencies ? position->frequencies[i]
                                 : pow(position->base, -2.0 * i / position->rotary_dims);
}

Test(rope, as_transformers)
{
    for (size_t i = 0; i < sizeof rope_cases / sizeof *rope_cases; i++) {
        struct arena arena = {0};
        struct warnings warnings = {0};
        struct position position = {0};
        struct error err = ERROR_INIT;
        const struct rope_case *c = &rope_cases[i];
        cr_assert(make(c->config, c->neox ? &neox : &llama, &arena, &warnings, &position, &err) ==
                      0,
                  "%s: %s", c->config, err.message);
        const double factor = position.factor > 0 ? (double)position.factor : 1;
        cr_expect(fabs(factor - c->factor) < 1e-6, "%s: factor %g, expected %g", c->config, factor,
                  c->factor);
        cr_assert_eq(position.rotary_dims, c->dims, "%s", c->config);
        for (int j = 0; j < c->dims / 2; j++) {
            const double got = frequency(&position, j), expected = c->frequencies[j];
            cr_expect(fabs(got - expected) <= 2e-6 * expected, "%s: %d: %g, expected %g", c->config,
                      j, got, expected);
        }
        arena_clear(&arena);
    }
}

Test(rope, refused)
{
    static const struct {
        const char *config, *message;
    } damaged[] = {
        {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
         "config.json: rope_scaling.type: expected default, linear, llama3, yarn or proportional, "
         "got \"dynamic\" (not supported)"},
        {"{\"rope_parameters\": {\"rope_type\": \"longrope\"}}",
         "config.json: rope_parameters.rope_type: expected default, linear, llama3, yarn or "
         "proportional, got \"longrope\" (not supported)"},
        {"{\"rope_parameters\": {\"rope_type\": null}}",
         "config.json: rope_parameters.rope_type: expected a string, got null"},
        {"{\"rope_parameters\": {\"rope_type\": \"linear\"}}",
         "config.json: rope_parameters.factor: expected a number in [1e-06, 1e+09], got nothing"},
        {"{\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 0}}",
         "config.json: rope_parameters.factor: expected a number in [1e-06, 1e+09], got 0"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\"}}",
         "config.json: rope_parameters.factor: expected a number in [1e-06, 1e+09], got nothing"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, \"rope_theta\": 1}}",
         "config.json: rope_theta: expected more than 1 with yarn"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, \"truncate\": null}}",
         "config.json: rope_parameters.truncate: expected true or false, got null"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, "
         "\"original_max_position_embeddings\": 0}}",
         "config.json: rope_parameters.original_max_position_embeddings: expected an integer in "
         "[1, 2147483647], got 0"},
        {"{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 4}}",
         "config.json: rope_parameters.high_freq_factor: expected more than low_freq_factor (4), "
         "got 4"},
        {"{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": "
         "1}}",
         "config.json: rope_parameters.high_freq_factor: expected a number in [1e-06, 1e+09], got "
         "nothing"},
        {"{\"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"linear\", \"factor\": "
         "2}}",
         "config.json: rope_scaling: partial_rotary_factor: expected 1 with the type linear, got "
         "0.5 (not supported)"},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}}}",
         "config.json: rope_parameters.full_attention: expected the same for all layers, got an "
         "object (not supported)"},
        {"{\"rope_theta\": null}",
         "config.json: rope_theta: expected a number in [1, 1e+12], got null"},
        {"{\"rope_scaling\": \"yarn\"}",
         "config.json: rope_scaling: expected an object, got \"yarn\""},
    };
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        struct arena arena = {0};
        struct warnings warnings = {0};
        struct position position = {0};
        struct error err = ERROR_INIT;
        cr_expect(make(damaged[i].config, &llama, &arena, &warnings, &position, &err) == -1, "%s",
                  damaged[i].config);
        cr_expect_str_eq(err.message, damaged[i].message);
        arena_clear(&arena);
    }
}

Test(rope, keys_without_effect)
{
    static const char config[] = "{\"partial_rotary_factor\": 0.5, \"rope_parameters\": "
                                 "{\"rope_type\": \"default\", \"factor\": 8}}";
    struct arena arena = {0};
    struct warnings warnings = {0};
    struct position position = {0};
    struct error err = ERROR_INIT;
    cr_assert(make(config, &llama, &arena, &warnings, &position, &err) == 0, "%s", err.message);
    cr_expect_str_eq(warnings_at(&warnings, 0), "config.json: rope_parameters.factor: without "
                                                "effect, since the type is default");
    cr_expect_str_eq(warnings_at(&warnings, 1),
                     "config.json: rope_parameters: partial_rotary_factor: without effect in this "
                     "family, as in transformers: 1 is used");
    arena_clear(&arena);
}
