/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/json_rules.h"
#include "lib/grammar/schema_compiler.h"
#include "lib/grammar/schema_finite.h"
#include "lib/grammar/schema_value.h"

#include <string.h>

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

/* --- Items that differ --- */

enum { ANY_ORDER = 8 }; /* of so many values, as sets of them; more come in the schema's order */

/* A list of values that are all different. */
struct unique {
    struct schema_compiler *compiler;
    json_t *values;
    size_t count; /* of values */
    struct limits limits;
    uint32_t rules[SCHEMA_MOST_FINITE]; /* of each value */
    uint32_t done;                      /* where a list may end */
};

static int add_value_rules(struct unique *unique)
{
    struct builder *builder = unique->compiler->builder;
    for (size_t i = 0; i < unique->count; i++) {
        struct text_buffer text = {0};
        unique->rules[i] = builder_rule(builder);
        if (schema_value_text(json_array_get(unique->values, i), builder->tame, &text,
                              builder->err) == 0 &&
            !builder_failed(builder)) {
            struct builder_rule rule = builder->rules[unique->rules[i]];
            builder_text(builder, rule.start, rule.final, text.data, text.length);
        }
        text_buffer_clear(&text);
        if (builder_failed(builder))
            return -1;
    }
    return 0;
}

/* States by the set of values that came. */
static void add_any_order(struct unique *unique, uint32_t at)
{
    struct builder *builder = unique->compiler->builder;
    uint32_t next[1 << ANY_ORDER], done[1 << ANY_ORDER];
    const size_t sets = (size_t)1 << unique->count;
    for (size_t set = 0; set < sets; set++) {
        next[set] = set == 0 ? at : builder_state(builder);
        done[set] = builder_state(builder);
    }
    for (size_t set = 0; set < sets && !builder_failed(builder); set++) {
        int64_t size = __builtin_popcountll(set);
        if (size > 0 && size >= unique->limits.least)
            builder_jump(builder, done[set], unique->done);
        if (size >= unique->limits.most)
            continue;
        if (size > 0)
            add_comma(builder, done[set], next[set]);
        for (size_t i = 0; i < unique->count; i++)
            if (!(set >> i & 1))
                json_rules_call(builder, next[set], done[set | (size_t)1 << i], unique->rules[i]);
    }
}

/* States by how many came. A value may be passed over; behind it only later ones come. */
static void add_in_order(struct unique *unique, uint32_t at)
{
    struct builder *builder = unique->compiler->builder;
    uint32_t next[SCHEMA_MOST_FINITE + 1] = {at}, later[SCHEMA_MOST_FINITE + 1] = {0};
    const size_t most = (size_t)unique->limits.most;
    for (size_t i = 0; i < unique->count && !builder_failed(builder); i++) {
        for (size_t came = 0; came <= i + 1 && came <= most; came++)
            later[came] = builder_state(builder);
        for (size_t came = 0; came <= i && came <= most; came++) {
            builder_jump(builder, next[came], later[came]);
            if (came == most)
                continue;
            uint32_t done = builder_state(builder);
            json_rules_call(builder, next[came], done, unique->rules[i]);
            if ((int64_t)came + 1 >= unique->limits.least)
                builder_jump(builder, done, unique->done);
            add_comma(builder, done, later[came + 1]);
        }
        memcpy(next, later, sizeof next);
    }
}

/* The items from the first on. `at` is where it begins. */
static int add_unique(struct unique *unique, const struct schema_parts *parts,
                      const struct schema_part *asking, uint32_t at)
{
    const struct schema_document *document = &unique->compiler->document;
    static const char *const prefix[] = {"prefixItems"};
    struct schema_parts item;
    bool finite = false;
    if (!schema_has_any(parts, prefix, 1) &&
        (item_parts(unique->compiler, parts, 0, &item) ||
         schema_finite(document, &item, unique->values, &finite)))
        return -1;
    if (!finite)
        return schema_refuse(document, asking->place, "uniqueItems", ERROR_UNSUPPORTED,
                             "expected \"items\" of at most %d values (as of an enum), got what "
                             "may be more: no grammar knows whether free values differ",
                             SCHEMA_MOST_FINITE);
    unique->count = json_array_size(unique->values);
    if (unique->limits.most < 0 || unique->limits.most > (int64_t)unique->count)
        unique->limits.most = (int64_t)unique->count;
    if (add_value_rules(unique))
        return -1;
    if (unique->count <= ANY_ORDER)
        add_any_order(unique, at);
    else
        add_in_order(unique, at);
    return 0;
}

static void add_all_unique(struct schema_compiler *compiler, const struct schema_parts *parts,
                           const struct schema_part *asking, struct limits limits, uint32_t at,
                           uint32_t done)
{
    struct unique unique = {
        .compiler = compiler, .values = json_array(), .limits = limits, .done = done};
    if (unique.values)
        add_unique(&unique, parts, asking, at);
    else
        error_set(compiler->document.err, ERROR_NO_MEMORY, "no memory for a schema");
    json_decref(unique.values);
}

/* The part that wants its items to differ. NULL: none does, or no list has two. */
static const struct schema_part *unique_part(const struct schema_parts *parts, int64_t most)
{
    for (size_t i = 0; i < parts->count && (most < 0 || most > 1); i++)
        if (json_is_true(json_object_get(parts->items[i].schema, "uniqueItems")))
            return &parts->items[i];
    return NULL;
}

void schema_array(struct schema_compiler *compiler, const struct schema_parts *parts, uint32_t from,
                  uint32_t to)
{
    static const char *const keys[] = {"items", "prefixItems", "minItems", "maxItems"};
    struct builder *builder = compiler->builder;
    if (!schema_has_any(parts, keys, sizeof keys / sizeof *keys) && !unique_part(parts, -1)) {
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
    const struct schema_part *asking = unique_part(parts, limits.most);
    if (asking) {
        add_all_unique(compiler, parts, asking, limits, at, done);
        return;
    }
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
