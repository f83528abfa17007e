/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a JSON document field by field; every error names the place in the document.
 *
 * `struct fields` is an object of the document and its place ("config.json: mixers.a"). When an
 * optional key is absent or null, a reader leaves *value unchanged: set the default first. When a
 * required key is, or a value is wrong, it fails with place, expected and got. */
#ifndef LIB_BASE_FIELDS_H
#define LIB_BASE_FIELDS_H

#include "lib/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fields {
    const json_t *object; /* borrowed */
    char place[192];      /* of the object, for messages */
};

enum field_need { FIELD_OPTIONAL, FIELD_REQUIRED, FIELD_NOT_NULL /* may be absent */ };

/* Parses text ([length] bytes) into *document, which the caller json_decrefs. Repeated keys, bytes
 * that are not UTF-8, and trailing text are errors. `file` is the place in messages. */
int fields_parse(json_t **document, const char *file, const char *text, size_t length,
                 struct error *err);

/* The document's outermost value, which must be an object. Borrows the document. */
int fields_root(struct fields *fields, const json_t *document, const char *file, struct error *err);

bool fields_has(const struct fields *fields, const char *key); /* present, and not null */

/* Refuses keys that are not among known [count]. */
int fields_only(const struct fields *fields, const char *const *known, size_t count,
                struct error *err);

/* member->object is NULL when the key is absent. */
int fields_object(const struct fields *fields, const char *key, enum field_need need,
                  struct fields *member, struct error *err);
int fields_bool(const struct fields *fields, const char *key, enum field_need need, bool *value,
                struct error *err);
int fields_int(const struct fields *fields, const char *key, enum field_need need, int64_t min,
               int64_t max, int64_t *value, struct error *err);
/* Accepts integers too. */
int fields_double(const struct fields *fields, const char *key, enum field_need need, double min,
                  double max, double *value, struct error *err);
/* *value is borrowed from the document. */
int fields_string(const struct fields *fields, const char *key, enum field_need need,
                  const char **value, struct error *err);
/* *value, borrowed, is an array of the document; NULL when the key is absent. */
int fields_list(const struct fields *fields, const char *key, enum field_need need,
                const json_t **value, struct error *err);
/* A string that is one of names [count]; *value is its index. A NULL name cannot be chosen. */
int fields_choice(const struct fields *fields, const char *key, enum field_need need,
                  const char *const *names, int count, int *value, struct error *err);

/* Whether the value is absent, null or one of those in `nothing`, parted by spaces: numbers, true,
 * false, strings without spaces and escapes, {}, [] and lists of one of these. Numbers are compared
 * as such: 1 is 1.0. */
bool fields_ask_nothing(const json_t *value, const char *nothing);

/* Sets the error "place: unknown <what> "<got>" (known: a, b)". Returns -1. */
int fields_unknown(const char *place, const char *what, const char *got, const char *const *known,
                   size_t count, struct error *err);

/* The kind of a value, for messages: "a string", "null"; "nothing" for NULL. */
const char *fields_kind(const json_t *value);

#endif
