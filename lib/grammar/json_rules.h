/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of JSON, which every grammar begins with: their states have the same numbers in each,
 * so that a vocabulary knows once for all what tokens they allow. */
#ifndef LIB_GRAMMAR_JSON_RULES_H
#define LIB_GRAMMAR_JSON_RULES_H

#include "lib/grammar/builder.h"

enum json_rule {
    RULE_STRING, /* with its quotes; counts characters */
    RULE_DIGITS, /* counts them */
    RULE_INDENT, /* spaces; counts them */
    RULE_INTEGER,
    RULE_NUMBER,
    RULE_VALUE,
    RULE_OBJECT,
    RULE_ARRAY,
    /* The same where no string has a < but as an escape: a marker may follow, as in calls. */
    RULE_TAME_STRING,
    RULE_TAME_VALUE,
    RULE_TAME_OBJECT,
    RULE_TAME_ARRAY,
    RULE_COUNT
};

enum {
    JSON_MOST_DIGITS = 18,  /* of an integer, or before or behind the point */
    JSON_MOST_EXPONENT = 2, /* digits */
    JSON_MOST_INDENT = 32,  /* spaces behind a line break */
};

/* Adds all rules to an empty builder. */
void json_rules_add(struct builder *builder);

/* The rule, or the tame one in its place. */
uint32_t json_rules_id(const struct builder *builder, enum json_rule rule);

/* What stands between two parts of JSON: nothing, a space, or a line break and spaces. */
void json_rules_space(struct builder *builder, uint32_t from, uint32_t to);
/* The colon behind a key, perhaps with a space. */
void json_rules_colon(struct builder *builder, uint32_t from, uint32_t to);
/* A call of a rule that counts nothing. */
void json_rules_call(struct builder *builder, uint32_t from, uint32_t to, uint32_t rule);

#endif
