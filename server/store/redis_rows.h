/* SPDX-License-Identifier: Apache-2.0 */
/* What replies of the store say about sessions. They are hostile: whatever does not fit is refused,
 * with what was expected and what came. */
#ifndef SERVER_STORE_REDIS_ROWS_H
#define SERVER_STORE_REDIS_ROWS_H

#include "server/store/redis_link.h"
#include "server/store/session_op.h"

/* Whether the element is that text. */
bool redis_rows_is(const redisReply *reply, size_t at, const char *text);
bool redis_rows_are_strings(const redisReply *reply);
/* -1: the element is no number from 0 to 2^53. */
int redis_rows_number(const redisReply *reply, size_t at, int64_t *number);
/* Sets the error of a reply that nobody expects. Returns -1. */
int redis_rows_strange(const redisReply *reply, struct error *err);

/* The row from element `at` on: "row" and what follows. Sets row and lease.version, or the error.
 */
int redis_rows_take(struct store_look *look, const redisReply *reply, size_t at,
                    int32_t vocab_size);
/* META, the count of tokens and the last use, elements 0 to 2, for a list. 1: it is there; 0: it is
 * none; -1: no memory. */
int redis_rows_card(struct store_row *row, const redisReply *reply);

#endif
