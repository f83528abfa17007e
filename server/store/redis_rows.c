/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/redis_rows.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* After "row". */
enum { VERSION = 1, META, COUNT, TURNS_LENGTH, STATE, SUM, TOKENS, TURNS, ELEMENTS };

enum { MOST_META = 64 * 1024, MOST_TOKENS = 64 << 20 };

static const redisReply *element(const redisReply *reply, size_t at)
{
    return reply->type == REDIS_REPLY_ARRAY && at < reply->elements &&
                   reply->element[at]->type == REDIS_REPLY_STRING
               ? reply->element[at]
               : NULL;
}

bool redis_rows_is(const redisReply *reply, size_t at, const char *text)
{
    const redisReply *string = element(reply, at);
    return string != NULL && string->len == strlen(text) &&
           memcmp(string->str, text, string->len) == 0;
}

bool redis_rows_are_strings(const redisReply *reply)
{
    bool sound = reply->type == REDIS_REPLY_ARRAY;
    for (size_t i = 0; sound && i < reply->elements; i++)
        sound = reply->element[i]->type == REDIS_REPLY_STRING;
    return sound;
}

int redis_rows_number(const redisReply *reply, size_t at, int64_t *number)
{
    const int64_t most = (int64_t)1 << 53;
    const redisReply *string = element(reply, at);
    if (string == NULL || string->len == 0)
        return -1;
    *number = 0;
    for (size_t i = 0; i < string->len; i++) {
        char c = string->str[i];
        if (c < '0' || c > '9' || *number > most / 10)
            return -1;
        *number = 10 * *number + (c - '0');
    }
    return *number <= most ? 0 : -1;
}

int redis_rows_strange(const redisReply *reply, struct error *err)
{
    static const char *const TYPES[] = {"",         "a string", "an array", "a number",
                                        "no value", "a status", "an error"};
    const char *type = reply->type >= 1 && reply->type <= 6 ? TYPES[reply->type] : "another type";
    return error_set(err, ERROR_INVALID,
                     "the store's reply is none of a session: expected an array of strings, got %s "
                     "of %zu elements",
                     type, reply->type == REDIS_REPLY_ARRAY ? reply->elements : 0);
}

/* ---- one ---- */

static char *copy_of(const redisReply *string)
{
    char *copy = malloc(string->len + 1);
    if (copy == NULL)
        return NULL;
    memcpy(copy, string->str, string->len);
    copy[string->len] = 0;
    return copy;
}

/* The parts have the lengths that the row says, and its checksum. */
static int check(const redisReply *const parts[], const struct store_row *row, int32_t vocab_size,
                 struct error *err)
{
    const size_t count = (size_t)row->count, turns = (size_t)row->turns_length;
    char sum[17];
    if (parts[TOKENS]->len != count * sizeof *row->tokens || parts[TURNS]->len != turns)
        return error_set(err, ERROR_INVALID,
                         "the store's session is damaged: expected %zu bytes of tokens and %zu of "
                         "turns, got %zu and %zu",
                         count * sizeof *row->tokens, turns, parts[TOKENS]->len, parts[TURNS]->len);
    snprintf(sum, sizeof sum, "%016" PRIx64,
             store_rows_sum(row->meta, row->meta_length, row->tokens, row->count, row->turns,
                            row->turns_length));
    if (parts[SUM]->len != strlen(sum) || memcmp(parts[SUM]->str, sum, strlen(sum)) != 0)
        return error_set(err, ERROR_INVALID,
                         "the store's session is damaged: expected checksum %s, got \"%.40s\"", sum,
                         parts[SUM]->str);
    for (int64_t i = 0; i < row->count; i++)
        if (row->tokens[i] < 0 || row->tokens[i] >= vocab_size)
            return error_set(err, ERROR_INVALID,
                             "the store's session is damaged: token %lld is %d, of a vocabulary "
                             "of %d",
                             (long long)i, row->tokens[i], vocab_size);
    return 0;
}

static int fill(struct store_row *row, const redisReply *const parts[], struct error *err)
{
    row->meta = copy_of(parts[META]);
    row->meta_length = parts[META]->len;
    row->tokens = malloc(parts[TOKENS]->len + 1);
    row->turns = copy_of(parts[TURNS]);
    if (row->meta == NULL || row->tokens == NULL || row->turns == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a session of the store");
    memcpy(row->tokens, parts[TOKENS]->str, parts[TOKENS]->len);
    return 0;
}

int redis_rows_take(struct store_look *look, const redisReply *reply, size_t at, int32_t vocab_size)
{
    const redisReply *parts[ELEMENTS];
    struct error *err = &look->session.op.error;
    struct store_row row = {0};
    int64_t version;
    for (size_t i = 0; i < ELEMENTS; i++)
        if ((parts[i] = element(reply, at + i)) == NULL)
            return redis_rows_strange(reply, err);
    if (!redis_rows_is(reply, at, "row") || redis_rows_number(reply, at + VERSION, &version) != 0 ||
        redis_rows_number(reply, at + COUNT, &row.count) != 0 ||
        redis_rows_number(reply, at + TURNS_LENGTH, &row.turns_length) != 0 ||
        redis_rows_number(reply, at + STATE, &row.state) != 0 || row.state > row.count ||
        parts[META]->len > MOST_META)
        return error_set(err, ERROR_INVALID,
                         "the store's session is damaged: its numbers are none");
    look->row = calloc(1, sizeof *look->row);
    if (look->row == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a session of the store");
    int result = fill(&row, parts, err) != 0 || check(parts, &row, vocab_size, err) != 0 ? -1 : 0;
    *look->row = row;
    if (result == 0)
        look->session.lease.version = version;
    return result;
}

/* ---- in a list ---- */

int redis_rows_card(struct store_row *row, const redisReply *reply)
{
    const redisReply *meta = element(reply, 0);
    int64_t used;
    *row = (struct store_row){0};
    if (meta == NULL || meta->len > MOST_META || redis_rows_number(reply, 1, &row->count) != 0 ||
        row->count > MOST_TOKENS)
        return 0;
    row->meta = copy_of(meta);
    row->meta_length = meta->len;
    if (redis_rows_number(reply, 2, &used) == 0)
        row->used = (double)used * 1e-3;
    return row->meta != NULL ? 1 : -1;
}
