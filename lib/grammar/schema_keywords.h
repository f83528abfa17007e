/* SPDX-License-Identifier: Apache-2.0 */
/* The keywords of schemas: which there are, what their values must be, and where schemas stand in a
 * schema. */
#ifndef LIB_GRAMMAR_SCHEMA_KEYWORDS_H
#define LIB_GRAMMAR_SCHEMA_KEYWORDS_H

#include "lib/grammar/schema_document.h"

enum schema_keyword_kind {
    KEYWORD_ANY,
    KEYWORD_SCHEMA,
    KEYWORD_SCHEMAS,    /* a list of at least one */
    KEYWORD_SCHEMA_MAP, /* an object of schemas */
    KEYWORD_TEXT,
    KEYWORD_REFERENCE,   /* a string; taken apart in schema_parts.c, as ALL is */
    KEYWORD_ALL,         /* as SCHEMAS */
    KEYWORD_DEFINITIONS, /* as SCHEMA_MAP; asks for nothing, as NOTE and ANNOTATION do */
    KEYWORD_NAME,        /* a string, what references call it */
    KEYWORD_NOTE,        /* anything */
    KEYWORD_ANNOTATION,  /* the same, and counted (grammar.h) */
    KEYWORD_TEXTS,       /* a list of strings */
    KEYWORD_COUNT,       /* an integer from 0 on */
    KEYWORD_NUMBER,
    KEYWORD_POSITIVE, /* a number above 0 */
    KEYWORD_LIMIT,    /* a number, or as of OpenAPI 3.0 whether the other limit is exclusive */
    KEYWORD_LIST,     /* of anything, at least one */
    KEYWORD_TYPES,    /* a string or a list of strings */
    KEYWORD_BOOLEAN,
};

/* False: there is no such keyword. */
bool schema_keywords_find(const char *name, enum schema_keyword_kind *kind);

/* Refuses keywords that we do not know, and values of known ones that are of the wrong kind. *asks:
 * the schema asks for more than what $ref and allOf lead to. */
int schema_keywords_check(const struct schema_document *document, const json_t *schema,
                          const struct schema_place *place, bool *asks);

#endif
