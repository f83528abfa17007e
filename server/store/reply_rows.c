/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/reply_rows.h"

#include "server/log.h"
#include "server/store/session_rows.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char WRITE[] = "write a reply", REMOVE[] = "remove a reply";

/* The row's number. Bit 61 tells its parts from those of sessions (session_rows.c). */
static int64_t key_of(const char *name, size_t name_length)
{
    uint64_t hash = XXH3_64bits(name, name_length);
    return (int64_t)((hash >> 4) | (uint64_t)1 << 61);
}

int64_t reply_rows_bytes(const struct store_reply *reply)
{
    int64_t parts = (int64_t)((reply->length + DATABASE_PART_BYTES - 1) / DATABASE_PART_BYTES);
    return parts * DATABASE_PAGE_BYTES + (int64_t)reply->name_length + 256;
}

static int put_part(struct store_database *database, int64_t at, int64_t number,
                    const struct store_reply *reply, struct error *err)
{
    char content[DATABASE_PART_BYTES] = {0};
    size_t first = (size_t)number * DATABASE_PART_BYTES, own = reply->length - first;
    sqlite3_stmt *put = store_database_statement(database, DATABASE_PUT_PART);
    memcpy(content, reply->data + first, own < sizeof content ? own : sizeof content);
    sqlite3_bind_int64(put, 1, at);
    sqlite3_bind_int64(put, 2, number);
    sqlite3_bind_int64(put, 3, 0);
    sqlite3_bind_blob(put, 4, content, sizeof content, SQLITE_STATIC);
    return store_database_run(database, DATABASE_PUT_PART, WRITE, err);
}

int reply_rows_put(struct store_database *database, const struct store_reply *reply,
                   const char *session, struct error *err)
{
    int64_t at = key_of(reply->name, reply->name_length), dropped;
    sqlite3_stmt *put = store_database_statement(database, DATABASE_PUT_REPLY);
    sqlite3_bind_int64(put, 1, at);
    sqlite3_bind_blob(put, 2, reply->name, (int)reply->name_length, SQLITE_STATIC);
    sqlite3_bind_blob(put, 3, reply->body, STORE_BODY_BYTES, SQLITE_STATIC);
    sqlite3_bind_text(put, 4, session, -1, SQLITE_STATIC);
    sqlite3_bind_int(put, 5, reply->status);
    sqlite3_bind_text(put, 6, reply->error, -1, SQLITE_STATIC);
    sqlite3_bind_int(put, 7, reply->stream);
    sqlite3_bind_int64(put, 8, reply->expires_ns);
    sqlite3_bind_int64(put, 9, (int64_t)reply->length);
    sqlite3_bind_int64(put, 10,
                       (int64_t)XXH3_64bits(reply->length > 0 ? reply->data : "", reply->length));
    sqlite3_bind_int64(put, 11, session_rows_number(session));
    if (store_database_run(database, DATABASE_PUT_REPLY, WRITE, err) != 0)
        return -1;
    if (sqlite3_changes(database->handle) == 0) /* its session has been deleted */
        return 0;
    if (store_database_drop_parts(database, at, INT64_MAX, &dropped, err) != 0)
        return -1;
    for (size_t at_byte = 0; at_byte < reply->length; at_byte += DATABASE_PART_BYTES)
        if (put_part(database, at, (int64_t)(at_byte / DATABASE_PART_BYTES), reply, err) != 0)
            return -1;
    return 0;
}

int reply_rows_claim(struct store_database *database, const struct store_reply *claim,
                     const char *session, struct error *err)
{
    sqlite3_stmt *statement = store_database_statement(database, DATABASE_CLAIM_REPLY);
    sqlite3_bind_int64(statement, 1, key_of(claim->name, claim->name_length));
    sqlite3_bind_text(statement, 2, session, -1, SQLITE_STATIC);
    sqlite3_bind_blob(statement, 3, claim->name, (int)claim->name_length, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, claim->expires_ns);
    if (store_database_run(database, DATABASE_CLAIM_REPLY, WRITE, err) != 0)
        return -1;
    return sqlite3_changes(database->handle) > 0 ? 0
                                                 : reply_rows_put(database, claim, session, err);
}

static int drop(struct store_database *database, int64_t at, struct error *err)
{
    int64_t dropped;
    sqlite3_bind_int64(store_database_statement(database, DATABASE_DROP_REPLY), 1, at);
    return store_database_run(database, DATABASE_DROP_REPLY, REMOVE, err) != 0
               ? -1
               : store_database_drop_parts(database, at, INT64_MAX, &dropped, err);
}

int reply_rows_drop(struct store_database *database, const char *name, size_t name_length,
                    struct error *err)
{
    return drop(database, key_of(name, name_length), err);
}

/* One that nobody may repeat any more. */
static int expired(struct store_database *database, int64_t now_ns, int64_t *at, struct error *err)
{
    sqlite3_bind_int64(store_database_statement(database, DATABASE_EXPIRED_REPLIES), 1, now_ns);
    return store_database_find(database, DATABASE_EXPIRED_REPLIES, "look for old replies", at, err);
}

bool reply_rows_has_expired(struct store_database *database, int64_t now_ns)
{
    int64_t at = 0;
    struct error ignored = ERROR_INIT; /* a commit will meet it, too */
    return expired(database, now_ns, &at, &ignored) == 0 && at != 0;
}

int reply_rows_expire(struct store_database *database, int64_t now_ns, struct error *err)
{
    int64_t at;
    int result;
    while ((result = expired(database, now_ns, &at, err)) == 0 && at != 0)
        if (drop(database, at, err) != 0)
            return -1;
    return result;
}

int reply_rows_hush(struct store_database *database, const char *session, struct error *err)
{
    sqlite3_bind_text(store_database_statement(database, DATABASE_HUSH_REPLIES), 1, session, -1,
                      SQLITE_STATIC);
    return store_database_run(database, DATABASE_HUSH_REPLIES, REMOVE, err);
}

/* One whose parts may still be there. *at: its row; 0: there is none. */
static int hushed(struct store_database *database, int64_t *at, struct error *err)
{
    return store_database_find(database, DATABASE_HUSHED_REPLY, "look for removed replies", at,
                               err);
}

/* Its parts are gone. */
static int empty(struct store_database *database, int64_t at, struct error *err)
{
    sqlite3_bind_int64(store_database_statement(database, DATABASE_EMPTY_REPLY), 1, at);
    return store_database_run(database, DATABASE_EMPTY_REPLY, REMOVE, err);
}

int reply_rows_drop_hushed(struct store_database *database,
                           int (*drop_parts)(void *context, int64_t of, struct error *err),
                           void *context, struct error *err)
{
    int64_t at;
    int result;
    while ((result = hushed(database, &at, err)) == 0 && at != 0)
        if (drop_parts(context, at, err) != 0 || empty(database, at, err) != 0)
            return -1;
    return result;
}

/* The bytes of a reply, malloc'd; NULL: they are not all there. */
static char *load_data(struct store_database *database, int64_t at, size_t length, int64_t sum)
{
    sqlite3_stmt *load = store_database_statement(database, DATABASE_LOAD_PARTS);
    char *data = malloc(length + 1);
    size_t have = 0;
    sqlite3_bind_int64(load, 1, at);
    while (data != NULL && have < length && sqlite3_step(load) == SQLITE_ROW) {
        const void *content = sqlite3_column_blob(load, 2);
        size_t own = length - have < DATABASE_PART_BYTES ? length - have : DATABASE_PART_BYTES;
        if (content == NULL || sqlite3_column_bytes(load, 2) != DATABASE_PART_BYTES)
            break;
        memcpy(data + have, content, own);
        have += own;
    }
    sqlite3_reset(load);
    if (data != NULL && have == length && (int64_t)XXH3_64bits(data, length) == sum)
        return data;
    free(data);
    return NULL;
}

static void load_row(struct store_database *database, sqlite3_stmt *load, int64_t most,
                     void (*each)(void *context, const struct store_reply *reply), void *context)
{
    int64_t length = sqlite3_column_int64(load, 8);
    const void *body = sqlite3_column_blob(load, 2);
    const char *error = (const char *)sqlite3_column_text(load, 5);
    const char *session = (const char *)sqlite3_column_text(load, 3);
    struct store_reply reply = {.name = sqlite3_column_blob(load, 1),
                                .name_length = (size_t)sqlite3_column_bytes(load, 1),
                                .status = sqlite3_column_int(load, 4),
                                .error = error != NULL ? error : "",
                                .session = session != NULL ? session : "",
                                .stream = sqlite3_column_int(load, 6) != 0,
                                .expires_ns = sqlite3_column_int64(load, 7),
                                .length = (size_t)length};
    if (reply.name == NULL || body == NULL || sqlite3_column_bytes(load, 2) != STORE_BODY_BYTES)
        return;
    memcpy(reply.body, body, STORE_BODY_BYTES);
    char *data = reply.status != 0 && length >= 0 && length <= most
                     ? load_data(database, sqlite3_column_int64(load, 0), (size_t)length,
                                 sqlite3_column_int64(load, 9))
                     : NULL;
    if (data == NULL) { /* what it tells of has been done all the same */
        if (reply.status != 0)
            log_message(LOG_LEVEL_ERROR, "%s: the reply in row %lld is damaged", database->path,
                        (long long)sqlite3_column_int64(load, 0));
        reply.status = 0;
        reply.error = "";
        reply.length = 0;
    }
    reply.data = data;
    each(context, &reply);
    free(data);
}

int reply_rows_load(struct store_database *database,
                    void (*each)(void *context, const struct store_reply *reply), void *context,
                    struct error *err)
{
    sqlite3_stmt *load = store_database_statement(database, DATABASE_LOAD_REPLIES);
    const int64_t most = store_database_bytes(database);
    int code;
    while ((code = sqlite3_step(load)) == SQLITE_ROW)
        load_row(database, load, most, each, context);
    int result = code == SQLITE_DONE ? 0 : store_database_cannot(database, "read its replies", err);
    sqlite3_reset(load);
    return result;
}
