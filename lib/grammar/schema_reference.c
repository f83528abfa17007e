/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/schema_reference.h"

#include "lib/grammar/schema_keywords.h"
#include "lib/grammar/schema_pointer.h"

#include <string.h>

enum { MOST_URI = 512, WALK_WORK = 16 };

/* The URI of a resource: up to its fragment. */
struct uri {
    char text[MOST_URI];
};

/* A reference as a URI, seen from `base`. What is longer than we allow becomes empty. */
static void join(struct uri *out, const char *base, const char *reference)
{
    size_t length = strcspn(reference, "#"), kept = 0;
    size_t scheme = strcspn(reference, ":/#?");
    const char *authority = strstr(base, "://");
    if (length == 0) {
        kept = strlen(base);
    } else if (reference[scheme] != ':' && reference[0] == '/') {
        kept = authority ? (size_t)(authority - base) + 3 : 0;
        kept += strcspn(base + kept, "/");
    } else if (reference[scheme] != ':') {
        const char *slash = strrchr(base, '/');
        bool in_path = slash && (!authority || slash > authority + 2);
        kept = in_path ? (size_t)(slash - base) + 1 : 0;
    }
    out->text[0] = '\0';
    if (kept + length >= sizeof out->text)
        return;
    memcpy(out->text, base, kept);
    memcpy(out->text + kept, reference, length);
    out->text[kept + length] = '\0';
}

/* A walk through all schemas of a document. Each has the URI of the resource that it is in. */
struct walk {
    const struct schema_document *document;
    const struct schema_place *place; /* of the $ref, for messages */
    const json_t *schema;             /* look for the resource of this one, or */
    const char *uri, *anchor;         /* for this resource, or (unless NULL) an anchor in it */
    const json_t *found;              /* the schema, or the resource's own */
    struct uri found_uri;
    bool nested; /* a resource in another was seen */
};

static int visit(struct walk *walk, const json_t *schema, const json_t *resource,
                 const struct uri *base, int depth);

/* The schemas that a keyword has. */
static int visit_keyword(struct walk *walk, enum schema_keyword_kind kind, const json_t *value,
                         const json_t *resource, const struct uri *base, int depth)
{
    const char *key;
    json_t *member;
    if (kind == KEYWORD_SCHEMA)
        return visit(walk, value, resource, base, depth);
    if (kind == KEYWORD_SCHEMAS || kind == KEYWORD_ALL)
        for (size_t i = 0; i < json_array_size(value); i++)
            if (visit(walk, json_array_get(value, i), resource, base, depth))
                return -1;
    if (kind == KEYWORD_SCHEMA_MAP || kind == KEYWORD_DEFINITIONS)
        json_object_foreach((json_t *)value, key,
                            member) if (visit(walk, member, resource, base, depth)) return -1;
    return 0;
}

static int visit(struct walk *walk, const json_t *schema, const json_t *resource,
                 const struct uri *base, int depth)
{
    if (!json_is_object(schema) || walk->found || depth >= SCHEMA_MOST_DEPTH)
        return 0;
    if (schema_work(walk->document, walk->place, WALK_WORK * (1 + json_object_size(schema))))
        return -1;
    struct uri own = *base;
    const char *id = json_string_value(json_object_get(schema, "$id"));
    const char *anchor = json_string_value(json_object_get(schema, "$anchor"));
    if (id && id[0] != '#') {
        join(&own, base->text, id);
        resource = schema;
        walk->nested |= depth > 0;
    }
    bool is = walk->schema ? schema == walk->schema
              : walk->anchor
                  ? anchor && strcmp(anchor, walk->anchor) == 0 && strcmp(own.text, walk->uri) == 0
                  : walk->uri && resource == schema && strcmp(own.text, walk->uri) == 0;
    if (is) {
        walk->found = walk->schema ? resource : schema;
        walk->found_uri = own;
        return 0;
    }
    const char *key;
    json_t *value;
    enum schema_keyword_kind kind;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (schema_keywords_find(key, &kind) &&
            visit_keyword(walk, kind, value, resource, &own, depth + 1))
            return -1;
    }
    return 0;
}

static int look(struct walk *walk)
{
    static const struct uri none = {""};
    const json_t *root = walk->document->root;
    return visit(walk, root, root, &none, 0);
}

/* The resource that a schema is in. Mostly there is but one, which is found out once. */
static int find_resource(struct walk *walk)
{
    struct schema_resources *resources = walk->document->resources;
    const json_t *schema = walk->schema;
    walk->found = NULL;
    walk->schema = NULL;
    walk->uri = NULL; /* nothing is looked for */
    if (!resources->known && look(walk))
        return -1;
    resources->nested |= walk->nested;
    resources->known = true;
    walk->schema = schema;
    if (resources->nested && look(walk))
        return -1;
    if (!walk->found) {
        const char *id = json_string_value(json_object_get(walk->document->root, "$id"));
        join(&walk->found_uri, "", id ? id : "");
        walk->found = walk->document->root;
    }
    return 0;
}

/* What a fragment, "#..." or NULL, leads to in a resource. */
static int find_fragment(struct walk *walk, const json_t *resource, const char *fragment,
                         const json_t **value)
{
    *value = resource;
    if (fragment && fragment[1] == '/') {
        *value = schema_pointer(resource, fragment);
        if (!*value) /* as those write it who know no resources */
            *value = schema_pointer(walk->document->root, fragment);
    } else if (fragment && fragment[1]) {
        walk->anchor = fragment + 1;
        walk->found = NULL;
        if (look(walk))
            return -1;
        *value = walk->found;
    }
    return 0;
}

int schema_reference_find(const struct schema_document *document, const json_t *schema,
                          const struct schema_place *place, const json_t **target)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    struct walk walk = {.document = document, .place = place, .schema = schema};
    struct uri uri;
    if (find_resource(&walk))
        return -1;
    const json_t *resource = walk.found, *value;
    join(&uri, walk.found_uri.text, ref);
    walk.schema = NULL;
    walk.uri = uri.text;
    if (ref[0] != '#') {
        walk.found = NULL;
        if (look(&walk))
            return -1;
        resource = walk.found;
    }
    if (!resource)
        return schema_refuse(document, place, "$ref", ERROR_UNSUPPORTED,
                             "expected what leads into this schema, by \"#...\" or an $id that it "
                             "has, got \"%.100s\"",
                             ref);
    if (find_fragment(&walk, resource, strchr(ref, '#'), &value))
        return -1;
    if (!json_is_object(value) && !json_is_boolean(value))
        return schema_refuse(document, place, "$ref", ERROR_INVALID,
                             "expected what leads to a schema, got \"%.100s\"", ref);
    *target = value;
    return 0;
}
