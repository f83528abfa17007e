/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/session_rows.h"

#include "server/log.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PART_TOKENS = DATABASE_PART_BYTES / 4 };
/* The number of the first part with turns; those with tokens stand before. */
static const int64_t TURNS = (int64_t)1 << 40;

/* The row's number: 61 bits of a hash of its name, always of as many bytes in the database. */
int64_t session_rows_number(const char *name)
{
    uint64_t hash = XXH3_64bits(name, strlen(name));
    return (int64_t)((hash >> 4) | (uint64_t)1 << 60);
}

int session_rows_has(struct store_database *database, const char *name, bool *has,
                     struct error *err)
{
    int64_t found;
    sqlite3_stmt *find = store_database_statement(database, DATABASE_FIND_SESSION);
    sqlite3_bind_int64(find, 1, session_rows_number(name));
    int result =
        store_database_find(database, DATABASE_FIND_SESSION, "look for a session", &found, err);
    *has = found != 0;
    return result;
}

static int64_t parts_of(int64_t count)
{
    return count <= SESSION_ROW_TOKENS
               ? 0
               : (count - SESSION_ROW_TOKENS + PART_TOKENS - 1) / PART_TOKENS;
}

/* Of the bytes of turns. */
static int64_t turn_parts_of(int64_t bytes)
{
    return bytes / DATABASE_PART_BYTES + (bytes % DATABASE_PART_BYTES != 0);
}

int64_t session_rows_bytes(const struct store_commit *commit)
{
    int64_t rows = parts_of(commit->count) - parts_of(commit->from) + commit->fresh +
                   turn_parts_of(commit->turns_length) - turn_parts_of(commit->turns_from);
    return rows > 0 ? rows * DATABASE_PAGE_BYTES : 0;
}

int64_t session_rows_log_bytes(int64_t turns_length)
{
    /* the last part of the turns, too */
    return STORE_LOG_BYTES + (turns_length > 0 ? DATABASE_PAGE_BYTES : 0);
}

static uint64_t add(uint64_t sum, const void *bytes, size_t size)
{
    return XXH3_64bits_withSeed(bytes, size, sum);
}

static int64_t row_sum(const char *name, const char *meta, size_t meta_length, int64_t count,
                       const void *tokens, size_t bytes)
{
    uint64_t little = htole64((uint64_t)count), sum = add(0, name, strlen(name));
    sum = add(sum, meta, meta_length);
    sum = add(sum, &little, sizeof little);
    return (int64_t)add(sum, tokens, bytes);
}

static int64_t part_sum(int64_t of, int64_t number, const void *content)
{
    return (int64_t)add((uint64_t)of + (uint64_t)number, content, DATABASE_PART_BYTES);
}

/* ---- writing ---- */

/* Tokens as they lie in the database. */
static void store_tokens(uint32_t *out, const int32_t *tokens, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = htole32((uint32_t)tokens[i]);
}

static int put_row(struct store_database *database, const struct session_row *row, int64_t at,
                   struct error *err)
{
    uint32_t first[SESSION_ROW_TOKENS];
    int64_t own = row->count < SESSION_ROW_TOKENS ? row->count : SESSION_ROW_TOKENS;
    size_t bytes = (size_t)own * sizeof *first, name_length = strlen(row->name);
    sqlite3_stmt *put = store_database_statement(database, DATABASE_PUT_SESSION);
    if (row->meta_length > SESSION_ROW_META)
        return error_set(err, ERROR_INTERNAL, "a session's META has %zu bytes, at most %d fit",
                         row->meta_length, SESSION_ROW_META);
    store_tokens(first, row->tokens, own);
    sqlite3_bind_int64(put, 1, at);
    sqlite3_bind_blob(put, 2, row->model, SESSION_ROW_MODEL, SQLITE_STATIC);
    sqlite3_bind_text(put, 3, row->name, (int)name_length, SQLITE_STATIC);
    sqlite3_bind_text(put, 4, row->meta, (int)row->meta_length, SQLITE_STATIC);
    sqlite3_bind_int64(put, 5, row->count);
    sqlite3_bind_int64(put, 6, row->touched_ns);
    sqlite3_bind_int64(put, 7,
                       row_sum(row->name, row->meta, row->meta_length, row->count, first, bytes));
    sqlite3_bind_blob(put, 8, own > 0 ? (const void *)first : "", (int)bytes, SQLITE_STATIC);
    sqlite3_bind_int64(
        put, 9,
        (int64_t)(DATABASE_ROW_BYTES - SESSION_ROW_MODEL - name_length - row->meta_length - bytes));
    if (store_database_run(database, DATABASE_PUT_SESSION, "write a session", err) != 0)
        return -1;
    return sqlite3_changes(database->handle) == 1
               ? 0
               : error_set(err, ERROR_INTERNAL, "two sessions' names have the same hash");
}

/* content: [DATABASE_PART_BYTES] */
static int put_part(struct store_database *database, int64_t at, int64_t number,
                    const void *content, struct error *err)
{
    sqlite3_stmt *put = store_database_statement(database, DATABASE_PUT_PART);
    sqlite3_bind_int64(put, 1, at);
    sqlite3_bind_int64(put, 2, number);
    sqlite3_bind_int64(put, 3, part_sum(at, number, content));
    sqlite3_bind_blob(put, 4, content, DATABASE_PART_BYTES, SQLITE_STATIC);
    return store_database_run(database, DATABASE_PUT_PART, "write a session", err);
}

/* Those with numbers in [first, end). */
static int drop_parts(struct store_database *database, int64_t at, int64_t first, int64_t end,
                      struct error *err)
{
    sqlite3_stmt *drop = store_database_statement(database, DATABASE_DROP_PARTS);
    sqlite3_bind_int64(drop, 1, at);
    sqlite3_bind_int64(drop, 2, first);
    sqlite3_bind_int64(drop, 3, end);
    return store_database_run(database, DATABASE_DROP_PARTS, "remove a session", err);
}

static int put_tokens(struct store_database *database, const struct session_row *row, int64_t at,
                      int64_t from, struct error *err)
{
    int64_t parts = parts_of(row->count);
    int64_t number = from < SESSION_ROW_TOKENS ? 0 : (from - SESSION_ROW_TOKENS) / PART_TOKENS;
    for (; number < parts; number++) {
        uint32_t content[PART_TOKENS] = {0};
        int64_t first = SESSION_ROW_TOKENS + number * PART_TOKENS, own = row->count - first;
        store_tokens(content, row->tokens + first, own < PART_TOKENS ? own : PART_TOKENS);
        if (put_part(database, at, number, content, err) != 0)
            return -1;
    }
    return drop_parts(database, at, parts, TURNS, err);
}

static int put_turns(struct store_database *database, const struct session_row *row, int64_t at,
                     int64_t from, struct error *err)
{
    int64_t parts = turn_parts_of(row->turns_length);
    for (int64_t number = from / DATABASE_PART_BYTES; number < parts; number++) {
        char content[DATABASE_PART_BYTES] = {0};
        int64_t first = number * DATABASE_PART_BYTES, own = row->turns_length - first;
        memcpy(content, row->turns + first,
               (size_t)(own < DATABASE_PART_BYTES ? own : DATABASE_PART_BYTES));
        if (put_part(database, at, TURNS + number, content, err) != 0)
            return -1;
    }
    return drop_parts(database, at, TURNS + parts, INT64_MAX, err);
}

int session_rows_put(struct store_database *database, const struct session_row *row, int64_t from,
                     int64_t turns_from, struct error *err)
{
    int64_t at = session_rows_number(row->name);
    return put_row(database, row, at, err) != 0 || put_tokens(database, row, at, from, err) != 0 ||
                   put_turns(database, row, at, turns_from, err) != 0
               ? -1
               : 0;
}

int session_rows_drop(struct store_database *database, const char *name, bool *was,
                      struct error *err)
{
    int64_t at = session_rows_number(name);
    sqlite3_bind_int64(store_database_statement(database, DATABASE_DROP_SESSION), 1, at);
    if (store_database_run(database, DATABASE_DROP_SESSION, "remove a session", err) != 0)
        return -1;
    *was = sqlite3_changes(database->handle) > 0;
    return 0;
}

int session_rows_touch(struct store_database *database, const char *name, int64_t touched_ns,
                       struct error *err)
{
    sqlite3_stmt *touch = store_database_statement(database, DATABASE_TOUCH_SESSION);
    sqlite3_bind_int64(touch, 1, session_rows_number(name));
    sqlite3_bind_int64(touch, 2, touched_ns);
    return store_database_run(database, DATABASE_TOUCH_SESSION, "note a session's use", err);
}

/* ---- reading ---- */

enum reading { READ_WHOLE, READ_DAMAGED, READ_FAILED };

static void take_tokens(int32_t *out, const void *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t little;
        memcpy(&little, (const char *)bytes + 4 * i, sizeof little);
        out[i] = (int32_t)le32toh(little);
    }
}

/* Takes one more part of the turns. */
static enum reading take_turns(struct session_row *row, const void *content, struct error *err)
{
    char *turns = realloc(row->turns, (size_t)row->turns_length + DATABASE_PART_BYTES);
    if (turns == NULL) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the turns of a session");
        return READ_FAILED;
    }
    memcpy(turns + row->turns_length, content, DATABASE_PART_BYTES);
    row->turns = turns;
    row->turns_length += DATABASE_PART_BYTES;
    return READ_WHOLE;
}

/* Takes the part that the statement stands on, which ought to have this number. */
static enum reading take_part(struct session_row *row, sqlite3_stmt *load, int64_t at,
                              int64_t number, struct error *err)
{
    const void *content = sqlite3_column_blob(load, 2);
    if (content == NULL || sqlite3_column_bytes(load, 2) != DATABASE_PART_BYTES ||
        sqlite3_column_int64(load, 0) != number ||
        sqlite3_column_int64(load, 1) != part_sum(at, number, content))
        return READ_DAMAGED;
    if (number >= TURNS)
        return take_turns(row, content, err);
    int64_t first = SESSION_ROW_TOKENS + number * PART_TOKENS, own = row->count - first;
    take_tokens(row->tokens + first, content, own < PART_TOKENS ? own : PART_TOKENS);
    return READ_WHOLE;
}

static enum reading load_parts(struct store_database *database, struct session_row *row, int64_t at,
                               struct error *err)
{
    sqlite3_stmt *load = store_database_statement(database, DATABASE_LOAD_PARTS);
    int64_t parts = parts_of(row->count), number = 0;
    enum reading result = READ_WHOLE;
    int code = SQLITE_ROW;
    sqlite3_bind_int64(load, 1, at);
    while (result == READ_WHOLE && (code = sqlite3_step(load)) == SQLITE_ROW) {
        result = take_part(row, load, at, number < parts ? number : TURNS + number - parts, err);
        number++;
    }
    if (result == READ_WHOLE && number < parts)
        result = READ_DAMAGED;
    if (code != SQLITE_ROW && code != SQLITE_DONE) {
        store_database_cannot(database, "read a session", err);
        result = READ_FAILED;
    }
    sqlite3_reset(load);
    return result;
}

/* Text or blob of a column, [*size]; never NULL. */
static const char *column(sqlite3_stmt *statement, int number, size_t *size)
{
    const void *bytes = sqlite3_column_blob(statement, number);
    *size = bytes != NULL ? (size_t)sqlite3_column_bytes(statement, number) : 0;
    return bytes != NULL ? bytes : "";
}

static void clear(struct session_row *row)
{
    free(row->tokens);
    free(row->turns);
    row->tokens = NULL;
    row->turns = NULL;
}

/* Takes the row that the statement stands on. Its tokens and turns are malloc'd, unless it is
 * damaged. most: tokens that there may be in the database. */
static enum reading take_row(struct store_database *database, sqlite3_stmt *load, int64_t most,
                             struct session_row *row, struct error *err)
{
    size_t model_size, name_size, meta_size, own_size;
    int64_t at = sqlite3_column_int64(load, 0);
    const char *model = column(load, 1, &model_size), *name = column(load, 2, &name_size);
    const char *meta = column(load, 3, &meta_size), *own = column(load, 7, &own_size);
    *row = (struct session_row){.meta_length = meta_size,
                                .at = at,
                                .count = sqlite3_column_int64(load, 4),
                                .touched_ns = sqlite3_column_int64(load, 5)};
    int64_t first = row->count < SESSION_ROW_TOKENS ? row->count : SESSION_ROW_TOKENS;
    if (model_size != SESSION_ROW_MODEL || name_size >= sizeof row->name ||
        memchr(name, 0, name_size) != NULL || meta_size > SESSION_ROW_META || row->count < 0 ||
        row->count > most || own_size != (size_t)first * 4)
        return READ_DAMAGED;
    memcpy(row->model, model, model_size);
    memcpy(row->name, name, name_size);
    memcpy(row->meta, meta, meta_size);
    if (at != session_rows_number(row->name) ||
        sqlite3_column_int64(load, 6) !=
            row_sum(row->name, row->meta, meta_size, row->count, own, own_size))
        return READ_DAMAGED;
    row->tokens = malloc((size_t)row->count * sizeof *row->tokens + 1);
    if (row->tokens == NULL) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the tokens of a session");
        return READ_FAILED;
    }
    take_tokens(row->tokens, own, first);
    enum reading result = load_parts(database, row, at, err);
    if (result != READ_WHOLE)
        clear(row);
    return result;
}

int session_rows_load(struct store_database *database, const unsigned char *model,
                      int (*each)(void *context, struct session_row *row, struct error *err),
                      void *context, int64_t *damaged, struct error *err)
{
    sqlite3_stmt *load = store_database_statement(database, DATABASE_LOAD_SESSIONS);
    struct session_row row;
    int result = 0, code = SQLITE_DONE;
    const int64_t most = store_database_bytes(database) / 4;
    if (model != NULL)
        sqlite3_bind_blob(load, 1, model, SESSION_ROW_MODEL, SQLITE_STATIC);
    while (result == 0 && (code = sqlite3_step(load)) == SQLITE_ROW) {
        enum reading reading = take_row(database, load, most, &row, err);
        if (reading == READ_WHOLE) {
            result = each(context, &row, err);
            clear(&row);
        } else if (reading == READ_DAMAGED) {
            *damaged += 1;
            log_message(LOG_LEVEL_ERROR, "%s: the session in row %lld is damaged: it is left alone",
                        database->path, (long long)sqlite3_column_int64(load, 0));
        } else {
            result = -1;
        }
    }
    if (result == 0 && code != SQLITE_DONE)
        result = store_database_cannot(database, "read its sessions", err);
    sqlite3_reset(load);
    sqlite3_clear_bindings(load);
    return result;
}
