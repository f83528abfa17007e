/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/session_op.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
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

void store_batch_add(struct store_batch *batch, struct store_op *op)
{
    op->next = NULL;
    if (batch->first == NULL)
        batch->last = &batch->first;
    *batch->last = op;
    batch->last = &op->next;
}

struct store_op *store_batch_take(struct store_batch *batch)
{
    struct store_op *first = batch->first;
    batch->first = NULL;
    return first;
}

bool store_random_name(char name[STORE_NAME_SIZE])
{
    unsigned char random[(STORE_NAME_SIZE - 1) / 2];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return false;
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(name + 2 * i, 3, "%02x", random[i]);
    return true;
}

bool store_claim_holds(const struct store_claim *claim)
{
    const struct store_op *op = &claim->request.op;
    return claim->found == NULL && (op->error.code == ERROR_NONE || op->refusal == STORE_AWAY);
}
