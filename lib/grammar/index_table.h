/* SPDX-License-Identifier: Apache-2.0 */
/* Finds items of a growing array by what they are: their numbers, by a hash of each. */
#ifndef LIB_GRAMMAR_INDEX_TABLE_H
#define LIB_GRAMMAR_INDEX_TABLE_H

#include "lib/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; index_table_clear frees. */
struct index_table {
    uint32_t *slots; /* [mask + 1]: the number of an item + 1; 0: empty */
    size_t mask;
};

/* Of the items that `of` has: the hash of one, and whether it is what `key` says. */
typedef uint64_t index_table_hash(const void *of, uint32_t item);
typedef bool index_table_is(const void *of, uint32_t item, const void *key);

/* The slot of the item that `key` is, with its number + 1; or the empty one for it, in which the
 * caller puts `count` + 1 if it adds the item. count: items that there are. hash: the key's. NULL:
 * no memory. Valid until the next call. */
uint32_t *index_table_find(struct index_table *table, size_t count, uint64_t hash, const void *key,
                           index_table_hash *hash_of, index_table_is *is, const void *of,
                           struct error *err);
void index_table_clear(struct index_table *table);

#endif
