/* SPDX-License-Identifier: Apache-2.0 */
/* A database that is corrupt: what can be read of it goes into a new one, and it is set aside. */
#ifndef SERVER_STORE_STORE_SALVAGE_H
#define SERVER_STORE_STORE_SALVAGE_H

#include "server/store/store_accounts.h"
#include "server/store/store_database.h"
#include "server/store/store_root.h"

/* *database becomes the new one; it is closed on an error, and its file is then as it was. `why`
 * the old one cannot be used. */
int store_salvage_run(struct store_database *database, const struct store_root *root,
                      struct store_accounts *accounts, const char *why, struct error *err);

/* What was set aside takes of the budget. *aside: its bytes, as the accounts have them. */
void store_salvage_account(const struct store_root *root, struct store_accounts *accounts,
                           int64_t *aside);

#endif
