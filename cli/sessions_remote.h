/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of `regla sessions` that a server carries out: one that runs (--url), or one of our own on
 * a place (sessions_server.h). */
#ifndef CLI_SESSIONS_REMOTE_H
#define CLI_SESSIONS_REMOTE_H

#include "cli/sessions.h"

int sessions_remote_list(const struct sessions_call *call, struct error *err);
int sessions_remote_show(const struct sessions_call *call, struct error *err);
int sessions_remote_delete(const struct sessions_call *call, struct error *err);
int sessions_remote_export(const struct sessions_call *call, struct error *err);
int sessions_remote_import(const struct sessions_call *call, struct error *err);

#endif
