/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema_compiler.h"

/* What item `index` must satisfy. */
static int item_parts(struct schema_compiler *compiler, const struct schema_parts *parts,
                      size_t index, struct schema_parts *item)
{
    const struct schema_document *document = &compiler->document;
    *item = (struct schema_parts){0};
    for (size_t i = 0; i < parts->count; i++) {
        const struct schema_part *part = &parts->items[i];
        const json_t *prefix = json_object_get(part->schema, "prefixItems");
        if (index >= json_array_size(prefix)) {
            if (schema_parts_add_member(document, item, part, "items"))
                return -1;
            continue;
        }
        const struct schema_place *place = schema_place_key(document, part->place, "prefixItems");
        if (schema_parts_add(document, item, json_array_get(prefix, index),
                             schema_place_index(document, place, index)))
            return -1;
    }
    return 0;
}

/* A comma, with what may stand behind it. */
static void add_comma(struct builder *builder, uint32_t from, uint32_t to)
{
    uint32_t comma = builder_state(builder);
    builder_byte(builder, from, comma, ',');
    json_rules_space(builder, comma, to);
}

/* A rule of an item and more of them, which it counts. */
static uint32_t add_list(struct builder *builder, uint32_t item)
{
    uint32_t list = builder_rule(builder), next = builder_state(builder);
    uint32_t done = builder_state(builder), comma = builder_state(builder);
    if (builder_failed(builder))
        return 0;
    struct builder_rule rule = builder->rules[list];
    json_rules_call(builder, rule.start, done, item);
    builder_range(builder, done, comma, ',', ',', EDGE_COUNTS);
    json_rules_space(builder, comma, next);
    json_rules_call(builder, next, done, item);
    builder_jump(builder, done, rule.final);
    return list;
}

struct limits {
    int64_t least, most; /* most < 0: none */
};

/* Items from `index` on, which have one schema. `at` is where the first of them begins. */
static void add_rest(struct schema_compiler *compiler, const struct schema_parts *item,
                     size_t index, struct limits limits, uint32_t at, uint32_t close)
{
    struct builder *builder = compiler->builder;
    int64_t behind = (int64_t)index + 1; /* what the first of them makes it */
    if (item->never || (limits.most >= 0 && limits.most < behind))
        return;
    int64_t least = limits.least > behind ? limits.least - behind : 0;
    uint32_t list = add_list(builder, schema_rule(compiler, item));
    builder_call(builder, at, close, list, (int32_t)least,
                 limits.most < 0 ? AUTOMATON_NO_LIMIT : (int32_t)(limits.most - behind));
}

void schema_array(struct schema_compiler *compiler, const struct schema_parts *parts, uint32_t from,
                  uint32_t to)
{
    static const char *const keys[] = {"items", "prefixItems", "minItems", "maxItems"};
    struct builder *builder = compiler->builder;
    if (!schema_has_any(parts, keys, sizeof keys / sizeof *keys)) {
        json_rules_call(builder, from, to, json_rules_id(builder, RULE_ARRAY));
        return;
    }
    struct limits limits = {schema_counts(parts, "minItems", false),
                            schema_counts(parts, "maxItems", true)};
    if (limits.most >= 0 && limits.least > limits.most)
        return;
    struct schema_parts item;
    size_t prefix = 0;
    for (size_t i = 0; i < parts->count; i++) {
        size_t count = json_array_size(json_object_get(parts->items[i].schema, "prefixItems"));
        prefix = count > prefix ? count : prefix;
    }
    uint32_t open = builder_state(builder), at = builder_state(builder);
    uint32_t done = builder_state(builder), close = builder_state(builder);
    builder_byte(builder, from, open, '[');
    json_rules_space(builder, open, at);
    builder_byte(builder, close, to, ']');
    json_rules_space(builder, done, close);
    if (limits.least <= 0)
        builder_jump(builder, at, close);
    for (size_t i = 0; i < prefix && !builder_failed(builder); i++) {
        uint32_t behind = builder_state(builder), next = builder_state(builder);
        if (limits.most >= 0 && (int64_t)i >= limits.most)
            return;
        if (item_parts(compiler, parts, i, &item) || item.never)
            return;
        json_rules_call(builder, at, behind, schema_rule(compiler, &item));
        if ((int64_t)i + 1 >= limits.least)
            builder_jump(builder, behind, done);
        add_comma(builder, behind, next);
        at = next;
    }
    if (!item_parts(compiler, parts, prefix, &item))
        add_rest(compiler, &item, prefix, limits, at, done);
}
