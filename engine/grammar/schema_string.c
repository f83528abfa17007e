/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/dfa_emit.h"
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema_compiler.h"
#include "engine/grammar/schema_format.h"

/* What two keywords both accept: *all becomes that. Takes over `more`. */
static int intersect(struct dfa *all, struct dfa *more, bool *any, struct error *err)
{
    if (!*any) {
        *all = *more;
        *any = true;
        return 0;
    }
    struct dfa both;
    int failed = dfa_combine(&both, all, more, false, err);
    dfa_clear(more);
    if (failed)
        return -1;
    dfa_clear(all);
    *all = both;
    return 0;
}

/* All patterns and formats. *any: there is one. */
static int read_patterns(struct schema_compiler *compiler, const struct schema_parts *parts,
                         struct dfa *all, bool *any)
{
    struct error *err = compiler->document.err;
    for (size_t i = 0; i < parts->count; i++) {
        const struct schema_part *part = &parts->items[i];
        const json_t *value;
        struct dfa more;
        if (schema_has(part, "pattern", &value) &&
            (schema_pattern(&compiler->document, part->place, "pattern", json_string_value(value),
                            &more) ||
             intersect(all, &more, any, err)))
            return -1;
        if (schema_has(part, "format", &value) &&
            (schema_format(&compiler->document, part->place, json_string_value(value), &more) ||
             intersect(all, &more, any, err)))
            return -1;
    }
    return 0;
}

void schema_string(struct schema_compiler *compiler, const struct schema_parts *parts,
                   uint32_t from, uint32_t to)
{
    struct builder *builder = compiler->builder;
    int64_t least = schema_counts(parts, "minLength", false);
    int64_t most = schema_counts(parts, "maxLength", true);
    struct dfa all = {0}, lengths;
    bool any = false;
    least = least < 0 ? 0 : least;
    int failed = read_patterns(compiler, parts, &all, &any);
    if (!failed && any && (least > 0 || most >= 0))
        failed = dfa_lengths(&lengths, least, most, builder->err) ||
                 intersect(&all, &lengths, &any, builder->err);
    if (!failed && any) {
        uint32_t inside = builder_state(builder), end = builder_state(builder);
        builder_byte(builder, from, inside, '"');
        dfa_emit(builder, inside, end, &all, DFA_JSON);
        builder_byte(builder, end, to, '"');
    } else if (!failed && (most < 0 || most >= least)) {
        builder_call(builder, from, to, RULE_STRING, (int32_t)least,
                     most < 0 ? AUTOMATON_NO_LIMIT : (int32_t)most);
    }
    if (any)
        dfa_clear(&all);
}
