/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/grammar/index_table.h"

#include <stdlib.h>

/* Most tables are small. */
enum { FIRST_SLOTS = 256, TIMES = 4 };

static int grow(struct index_table *table, size_t count, index_table_hash *hash_of, const void *of,
                struct error *err)
{
    size_t mask = table->slots ? (table->mask + 1) * TIMES - 1 : FIRST_SLOTS - 1;
    uint32_t *slots = calloc(mask + 1, sizeof *slots);
    if (!slots)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a table of %zu items", count);
    for (uint32_t i = 0; i < count; i++) {
        size_t at = hash_of(of, i) & mask;
        while (slots[at])
            at = (at + 1) & mask;
        slots[at] = i + 1;
    }
    free(table->slots);
    *table = (struct index_table){slots, mask};
    return 0;
}

uint32_t *index_table_find(struct index_table *table, size_t count, uint64_t hash, const void *key,
                           index_table_hash *hash_of, index_table_is *is, const void *of,
                           struct error *err)
{
    if ((!table->slots || 2 * count >= table->mask) && grow(table, count, hash_of, of, err))
        return NULL;
    size_t at = hash & table->mask;
    while (table->slots[at] && !is(of, table->slots[at] - 1, key))
        at = (at + 1) & table->mask;
    return &table->slots[at];
}

void index_table_clear(struct index_table *table)
{
    free(table->slots);
    *table = (struct index_table){0};
}
