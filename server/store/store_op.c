/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_op.h"

#include <stdlib.h>
#include <xxhash.h>

void store_rows_free(struct store_row *rows, size_t count)
{
    for (size_t i = 0; rows != NULL && i < count; i++) {
        free(rows[i].meta);
        free(rows[i].tokens);
        free(rows[i].turns);
    }
    free(rows);
}

uint64_t store_rows_sum(const char *meta, size_t meta_length, const int32_t *tokens, int64_t count,
                        const char *turns, int64_t turns_length)
{
    uint64_t sum = XXH3_64bits(meta_length > 0 ? meta : "", meta_length);
    sum = XXH3_64bits_withSeed(count > 0 ? (const void *)tokens : "",
                               (size_t)count * sizeof *tokens, sum);
    return XXH3_64bits_withSeed(turns_length > 0 ? turns : "", (size_t)turns_length, sum);
}
