/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps apart texts that may not share states. A space is an owner (an API key) with a cache_salt.
 * Each space has its own tree of tokens, and nothing looks into another's. */
#ifndef SERVER_STATES_SPACES_H
#define SERVER_STATES_SPACES_H

#include "server/states/token_tree.h"

#include <stddef.h>

struct space {
    char *owner;
    char *salt; /* [salt_length] */
    size_t salt_length;
    int64_t references;
    struct token_tree tokens; /* values: struct checkpoint (checkpoint.h) */
};

/* Zero-initialise. */
struct spaces {
    struct space **list; /* [count], by owner and salt */
    size_t count, capacity;
    struct token_totals totals; /* of all their trees */
};

/* The space of an owner and a salt, with a reference that spaces_release gives back. NULL: no
 * memory. */
struct space *spaces_take(struct spaces *spaces, const char *owner, const char *salt,
                          size_t salt_length);
/* Frees the space if it is empty and nobody else has a reference. NULL is allowed. */
void spaces_release(struct spaces *spaces, struct space *space);
/* A node of the space has lost its value or its holds: frees the node if it has become useless, and
 * then the space if that has. */
void spaces_trim(struct spaces *spaces, struct space *space, struct token_node *node);
/* Frees all spaces, whoever has references to them. */
void spaces_clear(struct spaces *spaces);

#endif
