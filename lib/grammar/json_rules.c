/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/json_rules.h"

uint32_t json_rules_id(const struct builder *builder, enum json_rule rule)
{
    if (!builder->tame)
        return rule;
    switch (rule) {
    case RULE_STRING:
        return RULE_TAME_STRING;
    case RULE_VALUE:
        return RULE_TAME_VALUE;
    case RULE_OBJECT:
        return RULE_TAME_OBJECT;
    case RULE_ARRAY:
        return RULE_TAME_ARRAY;
    default:
        return rule;
    }
}

void json_rules_call(struct builder *builder, uint32_t from, uint32_t to, uint32_t rule)
{
    builder_call(builder, from, to, rule, 0, AUTOMATON_NO_LIMIT);
}

void json_rules_space(struct builder *builder, uint32_t from, uint32_t to)
{
    uint32_t line = builder_state(builder);
    builder_jump(builder, from, to);
    builder_byte(builder, from, to, ' ');
    builder_byte(builder, from, line, '\n');
    builder_call(builder, line, to, RULE_INDENT, 0, JSON_MOST_INDENT);
}

void json_rules_colon(struct builder *builder, uint32_t from, uint32_t to)
{
    uint32_t colon = builder_state(builder);
    builder_byte(builder, from, colon, ':');
    builder_byte(builder, colon, to, ' ');
    builder_jump(builder, colon, to);
}

static void add_hex(struct builder *builder, uint32_t from, uint32_t to)
{
    builder_range(builder, from, to, '0', '9', 0);
    builder_range(builder, from, to, 'A', 'F', 0);
    builder_range(builder, from, to, 'a', 'f', 0);
}

/* Hex digits [count]. */
static void add_hexes(struct builder *builder, uint32_t from, uint32_t to, int count)
{
    for (; count > 1; count--) {
        uint32_t next = builder_state(builder);
        add_hex(builder, from, next);
        from = next;
    }
    add_hex(builder, from, to);
}

/* What follows \u: a character but for U+0000, or two surrogates that make one. */
static void add_unicode_escape(struct builder *builder, uint32_t from, uint32_t to)
{
    uint32_t any = builder_state(builder), surrogate = builder_state(builder);
    builder_range(builder, from, any, '1', '9', 0);
    builder_range(builder, from, any, 'A', 'C', 0);
    builder_range(builder, from, any, 'E', 'F', 0);
    builder_range(builder, from, any, 'a', 'c', 0);
    builder_range(builder, from, any, 'e', 'f', 0);
    add_hexes(builder, any, to, 3);

    uint32_t zeros = from;
    for (int rest = 3; rest >= 0; rest--) { /* the first digit that is not 0 comes before `rest` */
        if (rest < 3) {
            uint32_t more = rest > 0 ? builder_state(builder) : to;
            builder_range(builder, zeros, more, '1', '9', 0);
            builder_range(builder, zeros, more, 'A', 'F', 0);
            builder_range(builder, zeros, more, 'a', 'f', 0);
            if (rest > 0)
                add_hexes(builder, more, to, rest);
        }
        if (rest > 0) {
            uint32_t next = builder_state(builder);
            builder_byte(builder, zeros, next, '0');
            zeros = next;
        }
    }

    builder_byte(builder, from, surrogate, 'D');
    builder_byte(builder, from, surrogate, 'd');
    uint32_t low[6];
    for (int i = 0; i < 6; i++)
        low[i] = builder_state(builder);
    builder_range(builder, surrogate, low[0], '0', '7', 0); /* D000 to D7FF are characters */
    add_hexes(builder, low[0], to, 2);
    builder_range(builder, surrogate, low[1], '8', '9', 0);
    builder_range(builder, surrogate, low[1], 'A', 'B', 0);
    builder_range(builder, surrogate, low[1], 'a', 'b', 0);
    add_hexes(builder, low[1], low[2], 2);
    builder_text(builder, low[2], low[3], "\\u", 2);
    builder_byte(builder, low[3], low[4], 'D');
    builder_byte(builder, low[3], low[4], 'd');
    builder_range(builder, low[4], low[5], 'C', 'F', 0);
    builder_range(builder, low[4], low[5], 'c', 'f', 0);
    add_hexes(builder, low[5], to, 2);
}

/* Characters of more than one byte. A character is counted at its first byte, since none may begin
 * that cannot be counted. */
static void add_long_characters(struct builder *builder, uint32_t from, uint32_t to)
{
    static const struct {
        uint8_t first, last; /* lead bytes */
        uint8_t low, high;   /* of the byte behind */
        uint8_t rest;        /* bytes behind that */
    } forms[] = {
        {0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
        {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
        {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2},
    };
    uint32_t rest[3] = {to, builder_state(builder), builder_state(builder)};
    for (int i = 1; i < 3; i++)
        builder_range(builder, rest[i], rest[i - 1], 0x80, 0xBF, 0);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        uint32_t lead = builder_state(builder);
        builder_range(builder, from, lead, forms[i].first, forms[i].last, EDGE_COUNTS);
        builder_range(builder, lead, rest[forms[i].rest], forms[i].low, forms[i].high, 0);
    }
}

static void add_string(struct builder *builder, struct builder_rule rule)
{
    uint32_t inside = builder_state(builder), escape = builder_state(builder);
    uint32_t unicode = builder_state(builder);
    builder_byte(builder, rule.start, inside, '"');
    builder_range(builder, inside, rule.final, '"', '"', EDGE_ENDS);
    builder_range(builder, inside, inside, 0x20, 0x21, EDGE_COUNTS);
    builder_range(builder, inside, inside, 0x23, builder->tame ? '<' - 1 : 0x5B, EDGE_COUNTS);
    if (builder->tame)
        builder_range(builder, inside, inside, '<' + 1, 0x5B, EDGE_COUNTS);
    builder_range(builder, inside, inside, 0x5D, 0x7F, EDGE_COUNTS);
    add_long_characters(builder, inside, inside);
    builder_range(builder, inside, escape, '\\', '\\', EDGE_COUNTS);
    for (const char *c = "\"\\/bfnrt"; *c; c++)
        builder_byte(builder, escape, inside, (unsigned char)*c);
    builder_byte(builder, escape, unicode, 'u');
    add_unicode_escape(builder, unicode, inside);
}

/* -? (0 | [1-9] digits), without -0 unless `fraction`, which is what a number may have behind. */
static void add_number(struct builder *builder, struct builder_rule rule, bool fraction)
{
    uint32_t minus = builder_state(builder), more = builder_state(builder);
    uint32_t whole = fraction ? builder_state(builder) : rule.final;
    builder_byte(builder, rule.start, minus, '-');
    builder_byte(builder, rule.start, whole, '0');
    builder_range(builder, rule.start, more, '1', '9', 0);
    builder_range(builder, minus, more, '1', '9', 0);
    builder_call(builder, more, whole, RULE_DIGITS, 0, JSON_MOST_DIGITS - 1);
    if (!fraction)
        return;
    uint32_t point = builder_state(builder), e = builder_state(builder);
    uint32_t sign = builder_state(builder), parted = builder_state(builder);
    builder_byte(builder, minus, whole, '0');
    builder_byte(builder, whole, point, '.');
    builder_call(builder, point, parted, RULE_DIGITS, 1, JSON_MOST_DIGITS);
    builder_jump(builder, whole, parted);
    builder_byte(builder, parted, e, 'e');
    builder_byte(builder, parted, e, 'E');
    builder_byte(builder, e, sign, '-');
    builder_byte(builder, e, sign, '+');
    builder_jump(builder, e, sign);
    builder_call(builder, sign, rule.final, RULE_DIGITS, 1, JSON_MOST_EXPONENT);
    builder_jump(builder, parted, rule.final);
}

static void add_value(struct builder *builder, struct builder_rule rule)
{
    builder_text(builder, rule.start, rule.final, "true", 4);
    builder_text(builder, rule.start, rule.final, "false", 5);
    builder_text(builder, rule.start, rule.final, "null", 4);
    json_rules_call(builder, rule.start, rule.final, json_rules_id(builder, RULE_STRING));
    json_rules_call(builder, rule.start, rule.final, RULE_NUMBER);
    json_rules_call(builder, rule.start, rule.final, json_rules_id(builder, RULE_OBJECT));
    json_rules_call(builder, rule.start, rule.final, json_rules_id(builder, RULE_ARRAY));
}

/* Members or items of any kind, parted by commas, or none. */
static void add_container(struct builder *builder, struct builder_rule rule, const char *brackets,
                          bool keys)
{
    uint32_t open = builder_state(builder), first = builder_state(builder);
    uint32_t item = builder_state(builder), done = builder_state(builder);
    uint32_t comma = builder_state(builder), close = builder_state(builder);
    const uint32_t next = item;
    builder_byte(builder, rule.start, open, (unsigned char)brackets[0]);
    json_rules_space(builder, open, first);
    builder_byte(builder, first, rule.final, (unsigned char)brackets[1]);
    builder_jump(builder, first, item);
    if (keys) {
        uint32_t key = builder_state(builder), value = builder_state(builder);
        json_rules_call(builder, item, key, json_rules_id(builder, RULE_STRING));
        json_rules_colon(builder, key, value);
        item = value;
    }
    json_rules_call(builder, item, done, json_rules_id(builder, RULE_VALUE));
    builder_byte(builder, done, comma, ',');
    json_rules_space(builder, comma, next);
    json_rules_space(builder, done, close);
    builder_byte(builder, close, rule.final, (unsigned char)brackets[1]);
}

void json_rules_add(struct builder *builder)
{
    for (int i = 0; i < RULE_COUNT; i++)
        builder_rule(builder);
    if (builder_failed(builder))
        return;
    struct builder_rule rules[RULE_COUNT];
    for (int i = 0; i < RULE_COUNT; i++)
        rules[i] = builder->rules[i];
    const int counted[] = {RULE_DIGITS, RULE_INDENT};
    for (int i = 0; i < 2; i++) {
        struct builder_rule rule = rules[counted[i]];
        unsigned first = i == 0 ? '0' : ' ', last = i == 0 ? '9' : ' ';
        builder_range(builder, rule.start, rule.start, first, last, EDGE_COUNTS);
        builder_jump(builder, rule.start, rule.final);
    }
    add_number(builder, rules[RULE_INTEGER], false);
    add_number(builder, rules[RULE_NUMBER], true);
    const bool tame = builder->tame;
    for (int i = 0; i < 2; i++) {
        builder->tame = i == 1;
        add_string(builder, rules[json_rules_id(builder, RULE_STRING)]);
        add_value(builder, rules[json_rules_id(builder, RULE_VALUE)]);
        add_container(builder, rules[json_rules_id(builder, RULE_OBJECT)], "{}", true);
        add_container(builder, rules[json_rules_id(builder, RULE_ARRAY)], "[]", false);
    }
    builder->tame = tame;
}
