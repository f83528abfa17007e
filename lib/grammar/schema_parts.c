/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_parts.h"

#include "lib/grammar/schema_keywords.h"
#include "lib/grammar/schema_reference.h"

#include <stdlib.h>
#include <string.h>

/* The schemas on the way from the first, by $ref and allOf. */
struct way {
    const struct way *before;
    const json_t *schema;
    size_t length;
};

static int add(const struct schema_document *document, struct schema_parts *parts,
               const json_t *schema, const struct schema_place *place, const struct way *before)
{
    struct way way = {before, schema, before ? before->length + 1 : 1};
    if (!place)
        return -1; /* no memory, which the error says */
    if (json_is_true(schema))
        return 0;
    if (json_is_false(schema)) {
        parts->never = true;
        return 0;
    }
    bool circular = false;
    for (const struct way *at = before; at; at = at->before)
        circular |= at->schema == schema;
    size_t same = 0;
    while (same < parts->count && parts->items[same].schema != schema)
        same++;
    if (circular || (same < parts->count && parts->items[same].chosen))
        return schema_refuse(document, place, NULL, ERROR_INVALID,
                             "expected a schema, got one that is defined by itself");
    if (same < parts->count)
        return 0;
    if (parts->count == SCHEMA_MOST_PARTS || way.length > SCHEMA_MOST_DEPTH)
        return schema_refuse(document, place, NULL, ERROR_UNSUPPORTED,
                             "expected at most %d schemas for one value, got more",
                             SCHEMA_MOST_PARTS);
    bool asks;
    if (schema_keywords_check(document, schema, place, &asks))
        return -1;
    if (asks)
        parts->items[parts->count++] = (struct schema_part){.schema = schema, .place = place};
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    const json_t *target = NULL;
    if (ref && (schema_reference_find(document, schema, place, &target) ||
                add(document, parts, target, schema_place_key(document, place, "$ref"), &way)))
        return -1;
    if (!all)
        return 0;
    const struct schema_place *list = schema_place_key(document, place, "allOf");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (add(document, parts, json_array_get(all, i), schema_place_index(document, list, i),
                &way))
            return -1;
    return 0;
}

int schema_parts_add(const struct schema_document *document, struct schema_parts *parts,
                     const json_t *schema, const struct schema_place *place)
{
    return add(document, parts, schema, place, NULL);
}

int schema_parts_add_member(const struct schema_document *document, struct schema_parts *parts,
                            const struct schema_part *part, const char *key)
{
    const json_t *schema = json_object_get(part->schema, key);
    return schema ? add(document, parts, schema, schema_place_key(document, part->place, key), NULL)
                  : 0;
}

static int by_schema(const void *a, const void *b)
{
    const struct schema_part *x = a, *y = b;
    return x->schema != y->schema ? (x->schema > y->schema) - (x->schema < y->schema)
                                  : x->chosen - y->chosen;
}

void schema_parts_sort(struct schema_parts *parts)
{
    if (parts->count == 0)
        return;
    qsort(parts->items, parts->count, sizeof *parts->items, by_schema);
}
