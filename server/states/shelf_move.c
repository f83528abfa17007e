/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/shelf_move.h"

#include "server/store/store_root.h"

#include <stdlib.h>
#include <string.h>

struct moving {
    struct shelf_move *move;
    struct shelf_list done;
};

/* The owner as the other place names it. */
static bool name_owner(const struct shelf_move *move, char owner[STORE_OWNER_SIZE])
{
    const unsigned char *here = shelf_secret(move->from), *there = shelf_secret(move->to);
    if (memcmp(here, there, SIPHASH_BYTES) == 0)
        return true;
    for (size_t i = 0; i < (move->num_keys > 0 ? move->num_keys : 1); i++) {
        const char *key = move->num_keys > 0 ? move->keys[i] : "";
        char tag[STORE_OWNER_SIZE];
        store_root_owner_tag(here, key, tag);
        if (strcmp(tag, owner) == 0) {
            store_root_owner_tag(there, key, owner);
            return true;
        }
    }
    return false;
}

static int move_one(void *context, const struct shelf_session *session, struct error *err)
{
    struct moving *moving = context;
    struct shelf_move *move = moving->move;
    struct shelf_session putting = *session;
    enum shelf_outcome outcome = SHELF_OTHER;
    if (!shelf_session_matches(&move->filter, session))
        return 0;
    if (session->damage != NULL) {
        move->damaged++;
        return 0;
    }
    if (!name_owner(move, putting.meta.owner)) {
        move->unknown++;
        return 0;
    }
    if (shelf_put(move->to, &putting, move->replaces, &outcome, err) != 0)
        return error_prefix(err, "%s", shelf_name(move->to));
    *(outcome == SHELF_DONE      ? &move->put
      : outcome == SHELF_SAME    ? &move->same
      : outcome == SHELF_BUSY    ? &move->busy
      : outcome == SHELF_DAMAGED ? &move->damaged
                                 : &move->other) += 1;
    return move->removes && (outcome == SHELF_DONE || outcome == SHELF_SAME)
               ? shelf_list_add(&moving->done, session, err)
               : 0;
}

/* One that a server has changed meanwhile stays. */
static int remove_done(struct moving *moving, struct error *err)
{
    struct shelf_move *move = moving->move;
    enum shelf_outcome *outcomes = calloc(moving->done.count + 1, sizeof *outcomes);
    if (outcomes == NULL)
        return error_set(err, ERROR_NO_MEMORY, "no memory for sessions");
    int result = shelf_remove(move->from, moving->done.items, moving->done.count, outcomes, err);
    for (size_t i = 0; result == 0 && i < moving->done.count; i++)
        move->busy += outcomes[i] != SHELF_DONE;
    free(outcomes);
    return result;
}

int shelf_move(struct shelf_move *move, struct error *err)
{
    struct moving moving = {.move = move};
    int64_t damaged = 0;
    int result = shelf_each(move->from, true, move_one, &moving, &damaged, err);
    move->damaged += damaged;
    if (result == 0 && moving.done.count > 0)
        result = remove_done(&moving, err);
    shelf_list_clear(&moving.done);
    return result;
}
