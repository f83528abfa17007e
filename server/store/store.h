/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps sessions, replies and checkpoints for the engine thread, which must not wait for a disk: it
 * queues operations, a thread of the store runs them, and store_poll tells how they ended. What is
 * asked of sessions and replies while a commit is under way shares the next one. The place that
 * keeps all that is a table of functions: store_backend.h.
 *
 * All functions are for the engine thread. But any thread may begin an operation on a reply, whose
 * `done` is called by the engine thread. */
#ifndef SERVER_STORE_STORE_H
#define SERVER_STORE_STORE_H

#include "server/store/blob_op.h"
#include "server/store/session_op.h"

struct engine;
struct store;

/* Opens the place that options->location names, and scans it. An error names it. *out is set before
 * the first call of options->found, which may begin operations; they run after the scan. On an
 * error the caller closes *out if it is not NULL. */
int store_open(struct store **out, struct engine *engine, const struct store_options *options,
               struct error *err);
/* Finishes every operation that was begun, without calling `done`. NULL is allowed. */
void store_close(struct store *store);

/* Who a session belongs to, as the store names the owner: a keyed hash, in hex, of the API key ("":
 * none).
 * Without the store's secret nobody can test a guessed key against it. */
void store_owner_tag(const struct store *store, const char *api_key, char tag[STORE_OWNER_SIZE]);
/* Whether a file of a checkpoint is found by the name that store_checkpoint_name gives it, and by
 * that alone. Else the next start finds it, whatever its name. */
bool store_finds_by_name(const struct store *store);
/* The name of a checkpoint by what its file is to say: all servers give it the same. tokens:
 * [count]. */
void store_checkpoint_name(const struct store *store, const char *meta, size_t meta_length,
                           const int32_t *tokens, int64_t count, char name[STORE_NAME_SIZE]);
/* The same of the first counts[i] tokens each; the counts fall. -1: no memory. */
int store_checkpoint_names(const struct store *store, const char *meta, size_t meta_length,
                           const int32_t *tokens, const int64_t *counts, size_t num_names,
                           char (*names)[STORE_NAME_SIZE]);

/* Operations on one name run in the order in which they were begun. Otherwise what a request may
 * wait for (reads, and everything of sessions and replies) goes before the writing of checkpoints.
 * A session or reply is on the disk, or gone from it, when its `done` is called without an error.
 * With one it is as it was before; but if the server dies before it has written it again, it may
 * be either. */

/* Questions that only others make necessary. False: nobody else uses the place, so what the caller
 * knows is all that there is; the operation is not begun, and `done` not called. */
bool store_take(struct store *store, struct store_take *take);
bool store_look(struct store *store, struct store_look *look);
bool store_give(struct store *store, struct store_give *give);
bool store_list(struct store *store, struct store_list *list);
bool store_reserve(struct store *store, struct store_reserve *reserve);
bool store_claim(struct store *store, struct store_claim *claim);

/* Over the budget or on a full disk: the error is ERROR_NO_MEMORY, nothing is written, and the
 * report says full. */
void store_commit(struct store *store, struct store_commit *commit);
void store_delete(struct store *store, struct store_delete *deletion);
/* False: the place notes uses by itself. */
bool store_use(struct store *store, struct store_use *use);
/* False: the place is shared, and the request was not claimed there. */
bool store_keep(struct store *store, struct store_keep *keep);
bool store_drop(struct store *store, struct store_drop *drop);

/* Without room: ERROR_NO_MEMORY. While a file replaces an older one, both count. */
void store_put(struct store *store, struct store_put *put);
/* A file that is not what the operation says is removed. */
void store_get(struct store *store, struct store_get *get);
void store_find(struct store *store, struct store_find *find);
void store_remove(struct store *store, struct store_remove *removal);
void store_touch(struct store *store, struct store_touch *touch);

/* Tries whether the disk takes commits; the report will say so. */
void store_probe(struct store *store);
/* Calls `done` of every operation that has ended. Whether others are still under way. */
bool store_poll(struct store *store);
/* Waits until all operations have ended, and calls `done` of each. */
void store_finish(struct store *store);

void store_report(const struct store *store, struct store_report *report);
/* Bytes that a checkpoint's write would take, so that the caller can decide what to remove first;
 * store_rows_bytes says it of a session. */
int64_t store_file_bytes(const struct store *store, int64_t position, int64_t count, bool state,
                         bool logits, size_t meta_length);

#endif
