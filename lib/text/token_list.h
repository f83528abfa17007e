/* SPDX-License-Identifier: Apache-2.0 */
/* A growable array of token ids, such as those of a text. */
#ifndef LIB_TEXT_TOKEN_LIST_H
#define LIB_TEXT_TOKEN_LIST_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; the owner frees it with token_list_clear. */
struct token_list {
    int32_t *ids; /* [count] */
    size_t count;
    size_t capacity;
};

int token_list_push(struct token_list *list, int32_t id, struct error *err);
void token_list_clear(struct token_list *list);

/* Whether `id` is one of ids [count]. */
static inline bool token_list_contains(const int32_t *ids, size_t count, int32_t id)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

#endif
