/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: what the database of sessions in a directory of states says. */
#ifndef TESTS_UNIT_SESSION_DATABASE_H
#define TESTS_UNIT_SESSION_DATABASE_H

#include <criterion/criterion.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>

/* What a query of one number gives. */
static inline int64_t session_database_number(const char *directory, const char *query)
{
    char path[512];
    sqlite3 *handle;
    sqlite3_stmt *statement;
    snprintf(path, sizeof path, "%s/sessions.db", directory);
    cr_assert(sqlite3_open(path, &handle) == SQLITE_OK);
    cr_assert(sqlite3_busy_timeout(handle, 10000) == SQLITE_OK);
    cr_assert(sqlite3_prepare_v2(handle, query, -1, &statement, NULL) == SQLITE_OK);
    cr_assert(sqlite3_step(statement) == SQLITE_ROW);
    int64_t number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(handle);
    return number;
}

#endif
