/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions as trees. */
#ifndef LIB_GRAMMAR_REGEX_TREE_H
#define LIB_GRAMMAR_REGEX_TREE_H

#include "lib/grammar/charset.h"

enum {
    REGEX_MOST_BYTES = 1 << 14,
    REGEX_MOST_DEPTH = 100,
    REGEX_MOST_REPEAT = 1 << 14,
    REGEX_MOST_AHEAD = 32
};

enum regex_kind {
    REGEX_SEQUENCE, /* of its children */
    REGEX_CHOICE,   /* one of its children */
    REGEX_REPEAT,   /* its only child, `least` to `most` times; most < 0: no limit */
    REGEX_SET,      /* one character */
    REGEX_START,    /* ^ */
    REGEX_END,      /* $ */
    REGEX_AHEAD,    /* what follows begins with its only child */
    REGEX_NOT_AHEAD,
};

struct regex_node {
    enum regex_kind kind;
    int least, most;
    size_t set;                             /* index in the tree's sets */
    size_t offset;                          /* in bytes, for messages */
    struct regex_node *child, *last, *next; /* children as a list */
};

/* Zero-initialise; regex_tree_clear frees it. */
struct regex_tree {
    struct regex_node *root;
    struct regex_node *nodes[24]; /* blocks of doubling size, so that nodes stay where they are */
    size_t num_nodes;
    struct charset *sets; /* [num_sets] */
    size_t num_sets, sets_capacity;
};

int regex_tree_parse(struct regex_tree *tree, const char *text, size_t length, struct error *err);
/* NULL: no memory. */
struct regex_node *regex_tree_node(struct regex_tree *tree, enum regex_kind kind, size_t offset,
                                   struct error *err);
void regex_tree_append(struct regex_node *parent, struct regex_node *child);
void regex_tree_clear(struct regex_tree *tree);

#endif
