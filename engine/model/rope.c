/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define OF(type) (1U << (type))

static const char *const type_names[] = {"default", "linear",       "llama3",
                                         "yarn",    "proportional", "longrope"};

static const char of_original[] = "original_max_position_embeddings";
/* Of longrope: for models of longer texts than the original ones, and for others. */
static const char *const of_divisors[] = {"long_factor", "short_factor"};

/* Keys of a number, and the types that read them. */
static const struct {
    const char *key;
    size_t offset;
    unsigned types, required;
    double min, max;
} numbers[] = {
    {"factor", offsetof(struct rope, factor),
     OF(ROPE_LINEAR) | OF(ROPE_LLAMA3) | OF(ROPE_YARN) | OF(ROPE_PROPORTIONAL) | OF(ROPE_LONGROPE),
     OF(ROPE_LINEAR) | OF(ROPE_LLAMA3) | OF(ROPE_YARN), 1e-6, 1e9},
    {"low_freq_factor", offsetof(struct rope, low_freq_factor), OF(ROPE_LLAMA3), OF(ROPE_LLAMA3),
     1e-6, 1e9},
    {"high_freq_factor", offsetof(struct rope, high_freq_factor), OF(ROPE_LLAMA3), OF(ROPE_LLAMA3),
     1e-6, 1e9},
    {"attention_factor", offsetof(struct rope, attention_factor), OF(ROPE_YARN) | OF(ROPE_LONGROPE),
     0, 1e-6, 1e6},
    {"beta_fast", offsetof(struct rope, beta_fast), OF(ROPE_YARN), 0, 0, 1e9},
    {"beta_slow", offsetof(struct rope, beta_slow), OF(ROPE_YARN), 0, 0, 1e9},
    {"mscale", offsetof(struct rope, mscale), OF(ROPE_YARN), 0, 0, 1e6},
    {"mscale_all_dim", offsetof(struct rope, mscale_all_dim), OF(ROPE_YARN), 0, 0, 1e6},
};

static bool has_original(enum rope_type type)
{
    return type == ROPE_LLAMA3 || type == ROPE_YARN || type == ROPE_LONGROPE;
}

/* Whether a rope of the type reads the key. */
static bool reads(enum rope_type type, const char *key)
{
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (strcmp(numbers[i].key, key) == 0)
            return (numbers[i].types & OF(type)) != 0;
    if (strcmp(key, of_original) == 0)
        return has_original(type);
    if (strcmp(key, "truncate") == 0)
        return type == ROPE_YARN;
    if (strcmp(key, of_divisors[0]) == 0 || strcmp(key, of_divisors[1]) == 0)
        return type == ROPE_LONGROPE;
    return strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0;
}

/* longrope: it and default are the types, as struct rope_keys says; else it is none. */
static int parse_type(struct rope *rope, const struct fields *own, bool longrope, struct error *err)
{
    const char *name = type_names[0];
    const char *key = json_object_get(own->object, "rope_type") ? "rope_type" : "type";
    if (fields_string(own, key, FIELD_NOT_NULL, &name, err) != 0)
        return -1;
    if (longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0))
        name = type_names[ROPE_LONGROPE];
    for (size_t i = 0; i < COUNT(type_names); i++)
        if (strcmp(type_names[i], name) == 0 &&
            (i == ROPE_DEFAULT || longrope == (i == ROPE_LONGROPE))) {
            rope->type = (enum rope_type)i;
            return 0;
        }
    return error_set(err, ERROR_UNSUPPORTED,
                     "%s.%s: expected default%s, got \"%.40s\" (not supported)", own->place, key,
                     longrope ? " or longrope" : ", linear, llama3, yarn or proportional", name);
}

static const char *number_text(const json_t *value, char text[32])
{
    if (!json_is_number(value))
        return fields_kind(value);
    snprintf(text, 32, "%g", json_number_value(value));
    return text;
}

/* Both lists of divisors are there. The model's longest text chooses the one, not each text: keys
 * that a text has kept would be void once it is longer than the original length. */
static int parse_divisors(struct rope *rope, const struct fields *own, int64_t longest,
                          struct error *err)
{
    const json_t *both[2], *list;
    for (int i = 0; i < 2; i++) {
        if (fields_list(own, of_divisors[i], FIELD_REQUIRED, &list, err) != 0)
            return -1;
        for (size_t j = 0; j < json_array_size(list); j++) {
            const json_t *value = json_array_get(list, j);
            const double number = json_number_value(value);
            if (!json_is_number(value) || !(number >= 1e-6 && number <= 1e9))
                return error_set(err, ERROR_INVALID,
                                 "%s.%s[%zu]: expected a number in [1e-06, 1e+09], got %s",
                                 own->place, of_divisors[i], j, number_text(value, (char[32]){""}));
        }
        if (i == 1 && json_array_size(list) != json_array_size(both[0]))
            return error_set(err, ERROR_INVALID, "%s.%s: expected %zu numbers, as in %s, got %zu",
                             own->place, of_divisors[1], json_array_size(both[0]), of_divisors[0],
                             json_array_size(list));
        both[i] = list;
    }
    rope->divisors = both[longest > rope->original ? 0 : 1];
    return 0;
}

static double longrope_attention(double factor, int64_t original)
{
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log((double)original));
}

/* What the lengths say of longrope. */
static int finish_longrope(struct rope *rope, const struct fields *own, const struct fields *root,
                           int64_t longest, struct error *err)
{
    const double factor =
        fields_has(own, "factor") ? rope->factor : (double)longest / (double)rope->original;
    if (rope->attention_factor == 0 && factor > 1 && rope->original < 2)
        return error_set(err, ERROR_INVALID, "%s: %s: expected 2 or more with longrope, got %lld",
                         root->place, of_original, (long long)rope->original);
    if (rope->attention_factor == 0)
        rope->attention_factor = longrope_attention(factor, rope->original);
    return parse_divisors(rope, own, longest, err);
}

/* original_max_position_embeddings. `outside`: where else it may stand, and counts more; or NULL.
 * usual: as struct rope_keys has it, or 0. */
static int parse_original(struct rope *rope, const struct fields *own, int64_t longest,
                          const struct fields *outside, int64_t usual, struct error *err)
{
    const bool is_outside = outside && (usual > 0 || json_object_get(outside->object, of_original));
    rope->original = usual > 0 ? usual : longest;
    return fields_int(is_outside ? outside : own, of_original,
                      rope->original > 0 ? FIELD_NOT_NULL : FIELD_REQUIRED, 1, INT32_MAX,
                      &rope->original, err);
}

/* transformers takes null for yarn's factor: longest / original is used. */
static bool is_null_factor(const struct rope *rope, const struct fields *own, int64_t longest)
{
    return rope->type == ROPE_YARN && longest > 0 &&
           json_is_null(json_object_get(own->object, "factor"));
}

static int parse_numbers(struct rope *rope, const struct fields *own, int64_t longest,
                         struct error *err)
{
    const bool null_factor = is_null_factor(rope, own, longest);
    for (size_t i = 0; i < COUNT(numbers); i++) {
        double *value = (double *)((char *)rope + numbers[i].offset);
        const enum field_need need = (numbers[i].required & OF(rope->type)) != 0 && !null_factor
                                         ? FIELD_REQUIRED
                                         : FIELD_OPTIONAL;
        if ((numbers[i].types & OF(rope->type)) != 0 &&
            fields_double(own, numbers[i].key, need, numbers[i].min, numbers[i].max, value, err) !=
                0)
            return -1;
    }
    return 0;
}

/* longest: the model's max_position_embeddings; 0: it gives none. `outside`, usual: as in
 * parse_original. */
static int parse_scaling(struct rope *rope, const struct fields *own, int64_t longest,
                         const struct fields *outside, int64_t usual, struct error *err)
{
    rope->factor = 1;
    rope->beta_fast = rope->beta_slow = 0;
    rope->truncate = true;
    if (parse_type(rope, own, usual > 0, err) != 0 || parse_numbers(rope, own, longest, err) != 0)
        return -1;
    if (rope->type == ROPE_YARN &&
        fields_bool(own, "truncate", FIELD_NOT_NULL, &rope->truncate, err) != 0)
        return -1;
    if (has_original(rope->type) && parse_original(rope, own, longest, outside, usual, err) != 0)
        return -1;
    if (rope->type == ROPE_LONGROPE)
        return finish_longrope(rope, own, outside, longest, err);
    if (rope->type == ROPE_LLAMA3 && rope->high_freq_factor <= rope->low_freq_factor)
        return error_set(err, ERROR_INVALID,
                         "%s.high_freq_factor: expected more than low_freq_factor (%g), got %g",
                         own->place, rope->low_freq_factor, rope->high_freq_factor);
    if (is_null_factor(rope, own, longest))
        rope->factor = (double)longest / (double)rope->original;
    if (rope->beta_fast == 0)
        rope->beta_fast = 32;
    if (rope->beta_slow == 0)
        rope->beta_slow = 1;
    return 0;
}

int rope_parse_scaling(struct rope *rope, const struct fields *own, struct error *err)
{
    const char *known[COUNT(numbers) + 3];
    size_t count = 0;
    if (parse_type(rope, own, false, err) != 0)
        return -1;
    known[count++] = "rope_type";
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (reads(rope->type, numbers[i].key))
            known[count++] = numbers[i].key;
    if (reads(rope->type, of_original))
        known[count++] = of_original;
    if (reads(rope->type, "truncate"))
        known[count++] = "truncate";
    if (fields_only(own, known, count, err) != 0)
        return -1;
    return parse_scaling(rope, own, 0, NULL, 0, err);
}

/* Keys without effect, as transformers warns of them too. Parameters for each kind of layer are not
 * for the classes that have one table. */
static int check_keys(const struct rope *rope, const struct rope_keys *keys,
                      const struct fields *own, struct warnings *warnings, struct error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)own->object, key, value)
    {
        if (keys->original > 0 && strcmp(key, of_original) == 0 && has_original(rope->type) &&
            json_integer_value(value) != rope->original)
            warnings_add(warnings, "%s.%s: without effect, since %lld holds, which stands outside",
                         own->place, key, (long long)rope->original);
        if (reads(rope->type, key) || strcmp(key, "rope_theta") == 0 ||
            strcmp(key, "partial_rotary_factor") == 0 ||
            (keys->mrope && strncmp(key, "mrope_", 6) == 0))
            continue;
        if (json_is_object(value))
            return error_set(err, ERROR_UNSUPPORTED,
                             "%s.%.60s: expected the same for all layers, got an object (not "
                             "supported)",
                             own->place, key);
        warnings_add(warnings, "%s.%.60s: without effect, since the type is %s", own->place, key,
                     type_names[rope->type]);
    }
    return 0;
}

/* transformers turns whole heads where a class does not say otherwise. */
static int check_part(struct rope *rope, const struct rope_keys *keys, const struct fields *own,
                      struct warnings *warnings, struct error *err)
{
    if (keys->partial || rope->type == ROPE_PROPORTIONAL || rope->part == 1)
        return 0;
    if (rope->type != ROPE_DEFAULT)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: partial_rotary_factor: expected 1 with the type %s, got %g (not "
                         "supported)",
                         own->place, type_names[rope->type], rope->part);
    warnings_add(warnings,
                 "%s: partial_rotary_factor: without effect in this family, as in transformers: 1 "
                 "is used",
                 own->place);
    rope->part = 1;
    return 0;
}

int rope_parse_parameters(struct rope *rope, const struct fields *own, const struct fields *root,
                          const struct rope_keys *keys, struct warnings *warnings,
                          struct error *err)
{
    const bool has_base = own->object && json_object_get(own->object, "rope_theta");
    const bool has_part = own->object && json_object_get(own->object, "partial_rotary_factor");
    int64_t longest = keys->longest;
    *rope = (struct rope){.base = keys->usual_base, .part = keys->usual_part};
    if (fields_int(root, "max_position_embeddings", FIELD_NOT_NULL, 1, INT32_MAX, &longest, err) !=
            0 ||
        (own->object && parse_scaling(rope, own, longest, keys->by_kind ? NULL : root,
                                      keys->original, err) != 0) ||
        ((has_base || keys->base) &&
         fields_double(has_base ? own : root, has_base ? "rope_theta" : keys->base, FIELD_NOT_NULL,
                       1, 1e12, &rope->base, err) != 0) ||
        fields_double(has_part ? own : root, has_part ? "partial_rotary_factor" : keys->part,
                      FIELD_NOT_NULL, 0, 1, &rope->part, err) != 0 ||
        (own->object && check_keys(rope, keys, own, warnings, err) != 0))
        return -1;
    return check_part(rope, keys, own->object ? own : root, warnings, err);
}

int rope_parse(struct rope *rope, const struct fields *root, const struct rope_keys *keys,
               struct warnings *warnings, struct error *err)
{
    struct fields own;
    if (fields_object(root, "rope_scaling", FIELD_OPTIONAL, &own, err) != 0)
        return -1;
    if ((!own.object || json_object_size(own.object) == 0) &&
        fields_object(root, "rope_parameters", FIELD_OPTIONAL, &own, err) != 0)
        return -1;
    return rope_parse_parameters(rope, &own, root, keys, warnings, err);
}

static const char *const kind_names[2] = {"full_attention", "sliding_attention"};

/* The objects of both kinds, or NULL; *truncate, which transformers reads beside them. */
static int find_kinds(struct fields own[2], bool *truncate, const struct fields *root,
                      struct warnings *warnings, struct error *err)
{
    struct fields parameters, scaling;
    if (fields_object(root, "rope_parameters", FIELD_OPTIONAL, &parameters, err) != 0 ||
        fields_object(root, "rope_scaling", FIELD_OPTIONAL, &scaling, err) != 0)
        return -1;
    const bool scaled = scaling.object && json_object_size(scaling.object) > 0;
    own[0] = scaling;
    own[1] = (struct fields){.object = NULL};
    if (!parameters.object) {
        own[0].object = scaled ? scaling.object : NULL;
        return 0;
    }
    if (scaled)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: expected nothing beside rope_parameters (not supported)",
                         scaling.place);
    for (int i = 0; i < 2; i++)
        if (fields_object(&parameters, kind_names[i], FIELD_OPTIONAL, &own[i], err) != 0)
            return -1;
    if (fields_bool(&parameters, "truncate", FIELD_NOT_NULL, truncate, err) != 0)
        return -1;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)parameters.object, key, value)
    {
        if (strcmp(key, kind_names[0]) != 0 && strcmp(key, kind_names[1]) != 0 &&
            strcmp(key, "truncate") != 0)
            warnings_add(warnings, "%s.%.60s: without effect, since each kind of layer has its own",
                         parameters.place, key);
    }
    return 0;
}

int rope_parse_kinds(struct rope ropes[2], const struct fields *root,
                     const struct rope_keys keys[2], struct warnings *warnings, struct error *err)
{
    struct fields own[2];
    bool truncate = true;
    if (find_kinds(own, &truncate, root, warnings, err) != 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        if (rope_parse_parameters(&ropes[i], &own[i], root, &keys[i], warnings, err) != 0)
            return -1;
        if (ropes[i].type == ROPE_YARN && fields_has(&own[i], "truncate"))
            warnings_add(warnings,
                         "%s.truncate: without effect, as transformers reads it beside the kinds "
                         "of layers",
                         own[i].place);
        ropes[i].truncate = truncate;
    }
    return 0;
}

/* Frequencies between two wavelengths go over from themselves to 1 / factor of them. */
static double llama3_frequency(const struct rope *rope, double frequency)
{
    const double length = (double)rope->original, wavelength = 2 * M_PI / frequency;
    if (wavelength < length / rope->high_freq_factor)
        return frequency;
    if (wavelength > length / rope->low_freq_factor)
        return frequency / rope->factor;
    const double own = (length / wavelength - rope->low_freq_factor) /
                       (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - own) * frequency / rope->factor + own * frequency;
}

/* Which pair of `dims` dimensions makes so many rotations in the original length. */
static double yarn_pair(const struct rope *rope, double rotations, int dims)
{
    return dims * log((double)rope->original / (rotations * 2 * M_PI)) / (2 * log(rope->base));
}

static double yarn_frequency(const struct rope *rope, double frequency, int pair, int dims)
{
    double low = yarn_pair(rope, rope->beta_fast, dims);
    double high = yarn_pair(rope, rope->beta_slow, dims);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, dims - 1);
    if (low == high)
        high += 0.001;
    const double ramp = fmin(fmax((pair - low) / (high - low), 0), 1);
    return frequency / rope->factor * ramp + frequency * (1 - ramp);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double attention_factor(const struct rope *rope)
{
    if (rope->type != ROPE_YARN && rope->type != ROPE_LONGROPE)
        return 0;
    if (rope->attention_factor > 0)
        return rope->attention_factor;
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return yarn_mscale(rope->factor, rope->mscale) /
               yarn_mscale(rope->factor, rope->mscale_all_dim);
    return yarn_mscale(rope->factor, 1);
}

/* Of a pair among `turned` dimensions. */
static double frequency_of(const struct rope *rope, int pair, int turned, int64_t size)
{
    if (rope->type == ROPE_PROPORTIONAL)
        return pair < (int)floor(rope->part * (double)size / 2)
                   ? pow(rope->base, -2.0 * pair / (double)size) / rope->factor
                   : 0;
    const double frequency = pow(rope->base, -2.0 * pair / turned);
    switch (rope->type) {
    case ROPE_LINEAR:
        return frequency / rope->factor;
    case ROPE_LLAMA3:
        return llama3_frequency(rope, frequency);
    case ROPE_YARN:
        return yarn_frequency(rope, frequency, pair, turned);
    case ROPE_LONGROPE: /* in f32, as transformers and GGUF files have them */
        return frequency /
               (double)(float)json_number_value(json_array_get(rope->divisors, (size_t)pair));
    default:
        return frequency;
    }
}

/* transformers takes int(size * part) dimensions, and where that is odd it turns one more by the
 * angles of so many. */
int rope_position(const struct rope *rope, int64_t size, const char *place, struct arena *arena,
                  struct position *position, struct error *err)
{
    const int turned =
        rope->type == ROPE_PROPORTIONAL ? (int)size : (int)((double)size * rope->part);
    const int dims = turned + turned % 2;
    const bool whole = rope->type == ROPE_YARN || rope->type == ROPE_LONGROPE;
    if (dims > size || (dims != turned && whole))
        return error_set(err, ERROR_INVALID,
                         "%s: expected an even number of rotary dimensions, as a head has only "
                         "%lld, got %d",
                         place, (long long)size, turned);
    if (rope->type == ROPE_YARN && rope->base <= 1)
        return error_set(err, ERROR_INVALID, "%s: rope_theta: expected more than 1 with yarn",
                         place);
    if (rope->type == ROPE_LONGROPE && json_array_size(rope->divisors) != (size_t)dims / 2)
        return error_set(err, ERROR_INVALID,
                         "%s: long_factor, short_factor: expected %d numbers, as %d dimensions of "
                         "a head turn, got %zu",
                         place, dims / 2, dims, json_array_size(rope->divisors));
    position->kind = POSITION_ROPE;
    position->base = rope->base;
    position->rotary_dims = dims;
    position->factor = (float)attention_factor(rope);
    if (rope->type == ROPE_DEFAULT && dims == turned)
        return 0;
    double *frequencies = arena_alloc(arena, (size_t)dims / 2, sizeof *frequencies, err);
    if (!frequencies)
        return -1;
    for (int i = 0; i < dims / 2; i++)
        frequencies[i] = frequency_of(rope, i, turned, size);
    position->frequencies = frequencies;
    return 0;
}
