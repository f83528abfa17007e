/* SPDX-License-Identifier: Apache-2.0 */
/* JSON Schemas as rules. grammar.md says which keywords there are, and what they mean here. */
#ifndef LIB_GRAMMAR_SCHEMA_H
#define LIB_GRAMMAR_SCHEMA_H

#include "lib/grammar/builder.h"
#include "lib/grammar/trie.h"

#include <jansson.h>

/* Adds the rules to a builder that has those of json_rules.h. *root is the rule of a whole text.
 * The spec is borrowed for the call. */
int schema_compile(struct builder *builder, const json_t *spec, uint32_t *root);

/* How a call is written. Its arguments are a JSON object in a larger one, or behind a name; keys
 * and values with commas between, as Python has them; or keys and values in tags, as in XML. */
enum schema_call_syntax {
    SCHEMA_CALL_JSON,
    SCHEMA_CALL_PYTHON,
    SCHEMA_CALL_XML,
    SCHEMA_CALL_NAMED
};

struct schema_call {
    enum schema_call_syntax syntax;
    const json_t *words; /* what stands around keys and values: reply.h */
    const json_t *types; /* of keys whose values are text: by key, a list of the types that it is
                            read as; a key that is not there is a string */
    const struct trie *trie; /* of the vocabulary */
};

/* A text of the words; "": it is not there. */
const char *schema_call_word(const json_t *words, const char *key);

/* The same for arguments, which are an object in any case. In Python and XML only keys come that
 * the schema names and that can be written so. Make the builder `tame` for these. `call` is
 * borrowed for the call. */
int schema_compile_call(struct builder *builder, const json_t *spec, const struct schema_call *call,
                        uint32_t *root);
/* Whether a name can be written in calls. */
bool schema_call_name(enum schema_call_syntax syntax, const char *name, size_t length);

#endif
