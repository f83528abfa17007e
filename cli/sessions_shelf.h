/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of `regla sessions` on a place itself: without a server, and without the model. */
#ifndef CLI_SESSIONS_SHELF_H
#define CLI_SESSIONS_SHELF_H

#include "cli/sessions.h"

int sessions_shelf_list(const struct sessions_call *call, struct error *err);
int sessions_shelf_show(const struct sessions_call *call, struct error *err);
int sessions_shelf_copy(const struct sessions_call *call, struct error *err);
int sessions_shelf_move(const struct sessions_call *call, struct error *err);
int sessions_shelf_backup(const struct sessions_call *call, struct error *err);
int sessions_shelf_delete(const struct sessions_call *call, struct error *err);
int sessions_shelf_repair(const struct sessions_call *call, struct error *err);

#endif
