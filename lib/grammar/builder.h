/* SPDX-License-Identifier: Apache-2.0 */
/* Makes an automaton, state by state.
 *
 * The first failure stays in *err; after it the functions below do nothing, so that callers check
 * once, at the end. What is not possible with the vocabulary's bytes is left out. */
#ifndef LIB_GRAMMAR_BUILDER_H
#define LIB_GRAMMAR_BUILDER_H

#include "lib/grammar/automaton.h"
#include "lib/grammar/work.h"

enum { BUILDER_MOST_STATES = 1 << 19, BUILDER_MOST_ARCS = 1 << 21, BUILDER_MOST_RULES = 1 << 16 };

enum builder_arc_kind { ARC_RANGE, ARC_CALL, ARC_JUMP, ARC_NONE };

struct builder_arc {
    uint32_t from, to;
    uint32_t rule;
    int32_t low, high;
    uint8_t kind, first, last, flags;
};

struct builder_rule {
    uint32_t start, final;
};

/* Set alphabet and err, zero the rest; builder_clear frees it. */
struct builder {
    const bool *alphabet; /* [256], borrowed: bytes that some token consists of */
    struct error *err;
    bool tame;            /* JSON has < as an escape only (json_rules.h) */
    uint32_t most_depth;  /* of its calls; 0: AUTOMATON_MOST_DEPTH */
    unsigned annotations; /* of schemas that were compiled into it: a set (grammar.h) */
    struct work work;     /* of all that is compiled into it */
    struct builder_arc *arcs;
    size_t num_arcs, arcs_capacity;
    uint32_t num_states;
    struct builder_rule *rules;
    size_t num_rules, rules_capacity;
};

bool builder_failed(const struct builder *builder);

uint32_t builder_state(struct builder *builder);
/* A new rule without edges; builder->rules[id] has its states. */
uint32_t builder_rule(struct builder *builder);

void builder_add(struct builder *builder, struct builder_arc arc);
void builder_range(struct builder *builder, uint32_t from, uint32_t to, unsigned first,
                   unsigned last, unsigned flags);
void builder_byte(struct builder *builder, uint32_t from, uint32_t to, unsigned char byte);
void builder_jump(struct builder *builder, uint32_t from, uint32_t to);
/* low, high: 0 and AUTOMATON_NO_LIMIT for a rule that counts nothing. */
void builder_call(struct builder *builder, uint32_t from, uint32_t to, uint32_t rule, int32_t low,
                  int32_t high);
/* text: [length] bytes. builder_text makes the states between. */
void builder_text(struct builder *builder, uint32_t from, uint32_t to, const char *text,
                  size_t length);

struct builder_word {
    const char *bytes; /* [length] */
    size_t length;
    uint32_t to; /* the state behind it */
};
/* One of the words [count], which it sorts. Their common beginnings share states. */
void builder_words(struct builder *builder, uint32_t from, struct builder_word *words,
                   size_t count);

void builder_clear(struct builder *builder);

#endif
