/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers between bounds, and multiples: digits, each of which leads to a state that knows what may
 * follow. They are written without an exponent, so that the digits say all. */
#include "lib/grammar/json_rules.h"
#include "lib/grammar/schema_compiler.h"
#include "lib/grammar/schema_decimal.h"
#include "lib/text/buffer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    MOST_LIMITS = 4 * SCHEMA_MOST_PARTS,
    MOST_SPOTS = 1 << 15, /* states of digits, of one number */
    SPOT_WORK = 64,
    MOST_MODULUS = 1 << 30,
    MOST_DIGITS = 19, /* of 64 bits */
    REAL_DIGITS = 15, /* numbers of so many digits are doubles that no other is */
};

struct limit {
    struct schema_decimal value;
    bool is_least, exclusive;
};

/* How far a text has come. While is_low, its digits are those of the lowest number of its length;
 * while is_high, of the highest. */
struct spot {
    uint8_t whole, fraction; /* digits that are still to come before the point, and may behind it */
    uint8_t stage;           /* of enum stage */
    uint8_t length;          /* of the integer part, while the bounds matter; else 0 */
    bool is_low, is_high, negative;
    uint32_t left; /* of the number until here, by what matters of the modulus */
};

enum stage { BEFORE_POINT, AT_POINT, BEHIND_POINT };

struct numbers {
    struct schema_compiler *compiler;
    struct limit limits[MOST_LIMITS]; /* [num_limits] */
    size_t num_limits;
    bool real;
    uint64_t modulus;                  /* a number times 10^places is a multiple of it */
    int places;                        /* -1: there is no multiple */
    uint64_t matters[MOST_DIGITS + 1]; /* of the modulus, before so many digits */
    uint64_t low, high; /* of the length that is begun, with all its digits behind the point */
    uint32_t to;
    struct spot *spots; /* [num_spots], with `states` */
    uint32_t *states;
    size_t num_spots, spots_capacity, states_capacity;
    struct index_table table;
    const struct schema_place *place;
};

static uint64_t power_of_10(int power)
{
    uint64_t value = 1;
    while (power-- > 0)
        value *= 10;
    return value;
}

/* --- Spots --- */

static uint64_t hash_spot(const struct spot *spot)
{
    uint8_t key[12] = {spot->whole,  spot->fraction, spot->stage,   spot->length,
                       spot->is_low, spot->is_high,  spot->negative};
    memcpy(key + 8, &spot->left, sizeof spot->left);
    return XXH3_64bits(key, sizeof key);
}

static uint64_t hash_of_spot(const void *of, uint32_t item)
{
    return hash_spot((const struct spot *)of + item);
}

static bool is_spot(const void *of, uint32_t item, const void *key)
{
    const struct spot *a = (const struct spot *)of + item, *b = key;
    return a->whole == b->whole && a->fraction == b->fraction && a->stage == b->stage &&
           a->length == b->length && a->is_low == b->is_low && a->is_high == b->is_high &&
           a->negative == b->negative && a->left == b->left;
}

/* The state of a spot. */
static uint32_t state_of(struct numbers *numbers, struct spot spot)
{
    struct builder *builder = numbers->compiler->builder;
    struct error *err = builder->err;
    if (!spot.is_low && !spot.is_high)
        spot.length = spot.negative = 0; /* bounds matter no more: shared by all lengths */
    uint32_t *slot = index_table_find(&numbers->table, numbers->num_spots, hash_spot(&spot), &spot,
                                      hash_of_spot, is_spot, numbers->spots, err);
    if (!slot)
        return 0;
    if (*slot)
        return numbers->states[*slot - 1];
    if (numbers->num_spots == MOST_SPOTS) {
        schema_refuse(&numbers->compiler->document, numbers->place, "multipleOf", ERROR_UNSUPPORTED,
                      "expected a number whose remainders take at most %d states, got one that "
                      "takes more",
                      MOST_SPOTS);
        return 0;
    }
    if (array_grow((void **)&numbers->spots, &numbers->spots_capacity, numbers->num_spots + 1,
                   sizeof *numbers->spots, err) ||
        array_grow((void **)&numbers->states, &numbers->states_capacity, numbers->num_spots + 1,
                   sizeof *numbers->states, err) ||
        schema_work(&numbers->compiler->document, numbers->place, SPOT_WORK))
        return 0;
    numbers->spots[numbers->num_spots] = spot;
    numbers->states[numbers->num_spots] = builder_state(builder);
    *slot = (uint32_t)++numbers->num_spots;
    return numbers->states[numbers->num_spots - 1];
}

/* Whether the digits that may follow can make a multiple of it. */
static bool can_end(const struct numbers *numbers, const struct spot *spot)
{
    unsigned __int128 scale = power_of_10(spot->whole + spot->fraction);
    uint64_t left = (uint64_t)(spot->left * scale % numbers->modulus);
    return left == 0 || numbers->modulus - left < scale;
}

/* The digit of a number of the begun length that comes before `rest` others. */
static unsigned digit_of(uint64_t number, int rest)
{
    return (unsigned)(number / power_of_10(rest) % 10);
}

/* The digits from a spot on. */
static void add_digits(struct numbers *numbers, const struct spot *spot, uint32_t state)
{
    struct builder *builder = numbers->compiler->builder;
    int rest = spot->whole + spot->fraction - 1;
    unsigned low = spot->is_low ? digit_of(numbers->low, rest) : 0;
    unsigned high = spot->is_high ? digit_of(numbers->high, rest) : 9;
    uint32_t run = 0; /* where the digits [from, digit) lead */
    unsigned from = low;
    for (unsigned digit = low; digit <= high && !builder_failed(builder); digit++) {
        struct spot next = *spot;
        next.is_low = spot->is_low && digit == low;
        next.is_high = spot->is_high && digit == high;
        next.left = (uint32_t)(((uint64_t)spot->left * 10 + digit) % numbers->matters[rest]);
        if (spot->stage == BEFORE_POINT)
            next.whole--;
        else
            next.fraction--;
        next.stage = spot->stage == BEFORE_POINT ? BEFORE_POINT : BEHIND_POINT;
        uint32_t to = can_end(numbers, &next) ? state_of(numbers, next) : 0;
        if (to != run && run)
            builder_range(builder, state, run, '0' + from, '0' + digit - 1, 0);
        from = to != run ? digit : from;
        run = to;
    }
    if (run)
        builder_range(builder, state, run, '0' + from, '0' + high, 0);
}

/* Whether a number may end here: what it lacks are zeros. */
static bool may_end(const struct numbers *numbers, const struct spot *spot)
{
    uint64_t scale = power_of_10(spot->fraction);
    return spot->whole == 0 && spot->stage != AT_POINT &&
           (unsigned __int128)spot->left * scale % numbers->modulus == 0 &&
           (!spot->is_low || numbers->low % scale == 0);
}

static void add_spot(struct numbers *numbers, struct spot spot, uint32_t state)
{
    struct builder *builder = numbers->compiler->builder;
    if (may_end(numbers, &spot))
        builder_jump(builder, state, numbers->to);
    if (spot.whole > 0 || (spot.stage != BEFORE_POINT && spot.fraction > 0)) {
        add_digits(numbers, &spot, state);
    } else if (spot.stage == BEFORE_POINT && spot.fraction > 0) {
        spot.stage = AT_POINT;
        uint32_t point = state_of(numbers, spot);
        if (point)
            builder_byte(builder, state, point, '.');
    }
}

/* --- Bounds --- */

static void leave_none(uint64_t *low, uint64_t *high)
{
    *low = 1;
    *high = 0;
}

/* What a limit that is 0, or one of the other sign, leaves of magnitudes. */
static void apply_far(const struct limit *limit, bool negative, uint64_t *low, uint64_t *high)
{
    bool is_zero = limit->value.digits == 0;
    if (limit->is_least != negative) {
        if (is_zero && limit->exclusive && *low == 0)
            *low = 1;
    } else if (is_zero && !negative && !limit->exclusive) {
        *high = 0;
    } else {
        leave_none(low, high);
    }
}

/* What a limit leaves of magnitudes, in units of 10^-places. */
static void apply(const struct limit *limit, bool negative, int places, uint64_t *low,
                  uint64_t *high)
{
    if (limit->value.digits == 0 || limit->value.negative != negative) {
        apply_far(limit, negative, low, high);
        return;
    }
    bool whole;
    uint64_t bound = schema_decimal_scale(limit->value, places, &whole);
    if (limit->is_least == negative) {
        uint64_t most = bound - (whole && limit->exclusive);
        *high = most < *high ? most : *high;
    } else if (bound == UINT64_MAX) {
        leave_none(low, high);
    } else {
        uint64_t least = bound + (!whole || limit->exclusive);
        *low = least > *low ? least : *low;
    }
}

/* From there on, 64 bits cannot say what a bound is. */
static uint64_t end_of(bool negative)
{
    return (UINT64_C(1) << 63) - !negative;
}

/* The numbers of one sign whose integer part has `whole` digits. True: there are some. */
static bool add_length(struct numbers *numbers, bool negative, int whole, int fraction,
                       uint32_t from)
{
    struct builder *builder = numbers->compiler->builder;
    uint64_t low = whole > 1 ? power_of_10(whole + fraction - 1) : negative;
    uint64_t high = power_of_10(whole + fraction) - 1;
    if (whole == MOST_DIGITS && high > end_of(negative))
        high = end_of(negative);
    for (size_t i = 0; i < numbers->num_limits; i++)
        apply(&numbers->limits[i], negative, fraction, &low, &high);
    if (low > high)
        return false;
    numbers->low = low;
    numbers->high = high;
    struct spot spot = {.whole = (uint8_t)whole,
                        .fraction = (uint8_t)fraction,
                        .length = (uint8_t)whole,
                        .is_low = true,
                        .is_high = true,
                        .negative = negative};
    size_t at = numbers->num_spots;
    uint32_t start = state_of(numbers, spot);
    if (!builder_failed(builder))
        builder_jump(builder, from, start);
    for (; at < numbers->num_spots && !builder_failed(builder); at++)
        add_spot(numbers, numbers->spots[at], numbers->states[at]);
    return true;
}

/* So many digits may an integer have: more than others where a bound has more. */
static int most_digits(const struct numbers *numbers, bool negative)
{
    const int usual = numbers->real ? REAL_DIGITS : JSON_MOST_DIGITS;
    uint64_t low = 0, high = UINT64_MAX;
    for (size_t i = 0; i < numbers->num_limits; i++)
        apply(&numbers->limits[i], negative, 0, &low, &high);
    return high < end_of(negative) || low > power_of_10(usual) - 1 ? MOST_DIGITS : usual;
}

/* The numbers of one sign. True: there are some. */
static bool add_sign(struct numbers *numbers, bool negative, uint32_t from)
{
    bool any = false;
    int most = most_digits(numbers, negative);
    if (numbers->places > 0)
        most = REAL_DIGITS - numbers->places;
    for (int whole = 1; whole <= most; whole++) {
        int fraction = numbers->places >= 0                   ? numbers->places
                       : numbers->real && whole < REAL_DIGITS ? REAL_DIGITS - whole
                                                              : 0;
        any = add_length(numbers, negative, whole, fraction, from) || any;
    }
    return any;
}

/* --- Keywords --- */

static void read_limits(struct numbers *numbers, const struct schema_part *part)
{
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum",
                                       "exclusiveMaximum"};
    for (int k = 0; k < 4; k++) {
        const json_t *value;
        if (!schema_has(part, keys[k], &value) || !json_is_number(value))
            continue;
        struct limit limit = {schema_decimal_read(value), k < 2, k % 2 == 1};
        if (k % 2 == 0) /* as OpenAPI 3.0 has it */
            limit.exclusive = json_is_true(json_object_get(part->schema, keys[k + 1]));
        numbers->limits[numbers->num_limits++] = limit;
    }
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b > 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Makes the modulus one that has the parts' multiples, times 10^places, as divisors. False: it is
 * too large. */
static bool join_multiples(struct numbers *numbers, const struct schema_parts *parts)
{
    const json_t *value;
    bool whole;
    for (size_t i = 0; i < parts->count; i++) {
        if (!schema_has(&parts->items[i], "multipleOf", &value))
            continue;
        struct schema_decimal multiple = schema_decimal_read(value);
        numbers->place = parts->items[i].place;
        numbers->places = numbers->places < 0 ? 0 : numbers->places;
        if (-multiple.exponent > numbers->places)
            numbers->places = -multiple.exponent;
    }
    for (size_t i = 0; i < parts->count; i++) {
        if (!schema_has(&parts->items[i], "multipleOf", &value))
            continue;
        uint64_t multiple =
            schema_decimal_scale(schema_decimal_read(value), numbers->places, &whole);
        uint64_t factor = multiple / common_divisor(multiple, numbers->modulus);
        if (multiple > MOST_MODULUS || numbers->modulus > MOST_MODULUS / factor)
            return false;
        numbers->modulus *= factor;
    }
    return true;
}

static int read_multiples(struct numbers *numbers, const struct schema_parts *parts)
{
    static const uint64_t primes[] = {2, 5};
    if (!join_multiples(numbers, parts))
        return schema_refuse(
            &numbers->compiler->document, numbers->place, "multipleOf", ERROR_UNSUPPORTED,
            "expected what is at most %d times a power of 10, got more", MOST_MODULUS);
    /* An integer times 10^places is a multiple when the integer is one of what is left of the
     * modulus without so many factors of 10. */
    for (int i = 0; i < 2 && !numbers->real; i++)
        for (int k = 0; k < numbers->places && numbers->modulus % primes[i] == 0; k++)
            numbers->modulus /= primes[i];
    if (!numbers->real && numbers->places > 0)
        numbers->places = 0;
    for (; numbers->places > 0 && numbers->modulus % 10 == 0; numbers->places--)
        numbers->modulus /= 10;
    if (numbers->places >= REAL_DIGITS)
        return schema_refuse(&numbers->compiler->document, numbers->place, "multipleOf",
                             ERROR_UNSUPPORTED,
                             "expected at most %d digits behind the point, got "
                             "more",
                             REAL_DIGITS - 1);
    return 0;
}

/* Whether there are numbers between the bounds, if not such as we write. */
static bool leaves_some(const struct schema_parts *parts, const struct schema_part **part)
{
    double low = -HUGE_VAL, high = HUGE_VAL;
    const json_t *value;
    for (size_t i = 0; i < parts->count; i++) {
        static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum",
                                           "exclusiveMaximum"};
        for (int k = 0; k < 4; k++) {
            if (!schema_has(&parts->items[i], keys[k], &value) || !json_is_number(value))
                continue;
            *part = &parts->items[i];
            if (k < 2)
                low = fmax(low, json_number_value(value));
            else
                high = fmin(high, json_number_value(value));
        }
    }
    return low < high;
}

static void add_numbers(struct numbers *numbers, const struct schema_parts *parts, uint32_t from)
{
    struct builder *builder = numbers->compiler->builder;
    const struct schema_part *part = NULL;
    for (size_t i = 0; i < parts->count; i++)
        read_limits(numbers, &parts->items[i]);
    if (read_multiples(numbers, parts))
        return;
    if (numbers->num_limits == 0 && numbers->places < 0) {
        json_rules_call(builder, from, numbers->to, numbers->real ? RULE_NUMBER : RULE_INTEGER);
        return;
    }
    for (int rest = 0; rest <= MOST_DIGITS; rest++)
        numbers->matters[rest] =
            numbers->modulus / common_divisor(numbers->modulus, power_of_10(rest));
    uint32_t minus = builder_state(builder);
    builder_byte(builder, from, minus, '-');
    bool any = add_sign(numbers, false, from);
    any = add_sign(numbers, true, minus) || any;
    if (!any && numbers->real && !builder_failed(builder) && leaves_some(parts, &part))
        schema_refuse(&numbers->compiler->document, part->place, "minimum", ERROR_UNSUPPORTED,
                      "expected bounds that a number of at most %d digits meets, without an "
                      "exponent, got others",
                      REAL_DIGITS);
}

void schema_number(struct schema_compiler *compiler, const struct schema_parts *parts, bool real,
                   uint32_t from, uint32_t to)
{
    struct numbers *numbers = calloc(1, sizeof *numbers);
    if (!numbers) {
        error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
        return;
    }
    numbers->compiler = compiler;
    numbers->real = real;
    numbers->modulus = 1;
    numbers->places = -1;
    numbers->to = to;
    numbers->place = parts->count > 0 ? parts->items[0].place : NULL;
    add_numbers(numbers, parts, from);
    index_table_clear(&numbers->table);
    free(numbers->spots);
    free(numbers->states);
    free(numbers);
}
