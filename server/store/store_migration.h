/* SPDX-License-Identifier: Apache-2.0 */
/* Takes over the sessions that regla 0.2 and before kept in a file each, DIR/<model>/sessions: into
 * the database, once. A file that is not whole is set aside there (.rejected). */
#ifndef SERVER_STORE_STORE_MIGRATION_H
#define SERVER_STORE_STORE_MIGRATION_H

#include "server/store/store_rows.h"

struct engine;

/* model: the model's open folder. On an error what was not taken over is still in its files. */
int store_migration_run(struct store_rows *rows, int model, const struct engine *engine,
                        struct error *err);

#endif
