/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session.h"

#include "api/sessions.h"
#include "engine/engine.h"
#include "lib/base/clock.h"
#include "server/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct session_clock session_clock(const struct sessions *sessions)
{
    struct session_clock now;
    if (sessions->options.read_clock)
        sessions->options.read_clock(&now);
    else
        now = (struct session_clock){.running_s = (double)clock_nanos(CLOCK_BOOTTIME) * 1e-9,
                                     .wall_s = (double)clock_nanos(CLOCK_REALTIME) * 1e-9};
    return now;
}

/* The table. */

size_t session_place(const struct sessions *sessions, const char *owner, const char *id,
                     bool *found)
{
    size_t low = 0, high = sessions->count;
    *found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct session_meta *meta = &sessions->list[middle]->meta;
        int order = strcmp(meta->owner, owner);
        if (order == 0)
            order = strcmp(meta->id, id);
        if (order == 0) {
            *found = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool session_is_response(const char *id)
{
    return response_id_valid(id, strlen(id));
}

double session_ttl(const struct sessions *sessions, const char *id)
{
    return session_is_response(id) ? sessions->options.response_ttl_s : sessions->options.ttl_s;
}

struct session *session_lookup(const struct sessions *sessions, const char *owner, const char *id)
{
    bool found;
    size_t at = session_place(sessions, owner, id, &found);
    return found ? sessions->list[at] : NULL;
}

static void release(struct session *session)
{
    if (session->held)
        state_tree_release(session->sessions->options.tree, session->space, session->tokens,
                           session->count);
    session->held = false;
}

void session_set_leaves(struct session *session, bool leaves)
{
    if (session->leaves == leaves)
        return;
    session->leaves = leaves;
    session->sessions->left_tokens += leaves ? session->count : -session->count;
    session->sessions->left_turns += leaves ? session->turns_length : -session->turns_length;
}

void session_claims_free(struct session_claim *first)
{
    for (struct session_claim *next; first; first = next) {
        next = first->next;
        free(first);
    }
}

static void session_free(struct session *session)
{
    session_set_unsaved(session, false);
    session_set_leaves(session, false);
    session->sessions->tokens -= session->count;
    session->sessions->turns -= session->turns_length;
    release(session);
    state_tree_space_release(session->sessions->options.tree, session->space);
    session_claims_free(session->claims);
    free(session->tokens);
    free(session->turns);
    free(session);
}

bool session_is_copy(const struct session *session)
{
    return session->lease.version > 0 || session->lease.fence > 0;
}

struct session *session_enter(struct sessions *sessions, const char *owner, const char *id,
                              const char *salt)
{
    bool found;
    size_t at = session_place(sessions, owner, id, &found);
    if (sessions->count == sessions->capacity) {
        size_t capacity = 2 * sessions->capacity + 16;
        struct session **list = realloc(sessions->list, capacity * sizeof(*list));
        if (!list)
            return NULL;
        sessions->list = list;
        sessions->capacity = capacity;
    }
    struct session *session = calloc(1, sizeof *session);
    if (session) {
        session->sessions = sessions;
        session->space = state_tree_space(sessions->options.tree, owner, salt, strlen(salt));
    }
    if (!session || !session->space || !store_random_name(session->name)) {
        if (session)
            session_free(session);
        return NULL;
    }
    snprintf(session->meta.owner, sizeof session->meta.owner, "%s", owner);
    snprintf(session->meta.id, sizeof session->meta.id, "%s", id);
    snprintf(session->meta.space, sizeof session->meta.space, "%s", salt);
    session_use(session);
    session->meta.created = session->meta.used;
    session->fresh = true;
    memmove(sessions->list + at + 1, sessions->list + at,
            (sessions->count - at) * sizeof *sessions->list);
    sessions->list[at] = session;
    sessions->count++;
    return session;
}

void session_promise(struct session *session, int64_t tokens, int64_t turns)
{
    session->sessions->growth -= session->growth;
    session->promised = tokens;
    session->more_turns = turns;
    session->growth = tokens > session->count ? tokens - session->count : 0;
    session->growth += turns / SESSION_TOKEN_BYTES;
    session->sessions->growth += session->growth;
}

int64_t session_state_bytes(const struct sessions *sessions, int64_t tokens)
{
    return tokens ? (int64_t)engine_state_bytes(sessions->options.engine, tokens) : 0;
}

void session_leave(struct session *session)
{
    struct sessions *sessions = session->sessions;
    bool found;
    session_promise(session, 0, 0);
    size_t at = session_place(sessions, session->meta.owner, session->meta.id, &found);
    sessions->count--;
    memmove(sessions->list + at, sessions->list + at + 1,
            (sessions->count - at) * sizeof *sessions->list);
    session_free(session);
}

void session_forget(struct session *session)
{
    release(session);
    state_tree_forget(session->sessions->options.tree, session->space, session->tokens,
                      session->count);
    session_leave(session);
}

/* Changes of one. */

int32_t *session_set_tokens(struct session *session, int32_t *tokens, int64_t count)
{
    struct state_tree *tree = session->sessions->options.tree;
    /* The old ones go after the new ones are held: what both share stays. Without memory to hold
     * them the session only loses its precedence. */
    struct error lacking = ERROR_INIT;
    bool held = count && state_tree_hold(tree, session->space, tokens, count, &lacking) == 0;
    release(session);
    int32_t *before = tokens != session->tokens ? session->tokens : NULL;
    session->tokens = tokens;
    session->sessions->tokens += count - session->count;
    session->count = count;
    session->held = held;
    return before;
}

void session_set_turns(struct session *session, char *turns, int64_t length)
{
    if (turns != session->turns)
        free(session->turns);
    session->turns = turns;
    session->sessions->turns += length - session->turns_length;
    session->turns_length = length;
}

/* Without memory to shrink it stays as large as it is. */
static void *shrunk(void *block, size_t bytes)
{
    void *smaller = bytes ? realloc(block, bytes) : NULL;
    if (bytes)
        return smaller ? smaller : block;
    free(block);
    return NULL;
}

void session_shrink(struct session *session)
{
    session->tokens = shrunk(session->tokens, (size_t)session->count * sizeof *session->tokens);
    session->turns = shrunk(session->turns, (size_t)session->turns_length);
}

void session_use(struct session *session)
{
    const struct session_clock now = session_clock(session->sessions);
    session->meta.used = now.wall_s;
    session->since = now.running_s;
    session->found = false;
}

void session_set_unsaved(struct session *session, bool unsaved)
{
    session->sessions->unsaved += unsaved;
    session->sessions->unsaved -= session->unsaved;
    session->unsaved = unsaved;
}
