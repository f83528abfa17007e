/* SPDX-License-Identifier: Apache-2.0 */
/* Prints sessions for `regla sessions`: as lines, or as JSON. */
#ifndef CLI_SESSIONS_PRINT_H
#define CLI_SESSIONS_PRINT_H

#include "server/states/shelf.h"

/* begin, add for each, end: what was listed, and how many sessions cannot be told. */
struct sessions_print {
    bool json;
    int64_t count, tokens, damaged;
};

void sessions_print_begin(struct sessions_print *print);
void sessions_print_add(struct sessions_print *print, const struct shelf_session *session);
void sessions_print_end(struct sessions_print *print, int64_t damaged);

/* All of one, with its tokens. */
void sessions_print_one(const struct shelf_session *session, bool json);
/* "2026-11-27 22:54:08" of seconds since 1970, in UTC. */
enum { SESSIONS_PRINT_TIME = 32 };
const char *sessions_print_time(double seconds, char text[SESSIONS_PRINT_TIME]);

#endif
