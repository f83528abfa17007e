/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/session_shares.h"

#include <stdlib.h>
#include <string.h>

/* By age, then by name: of the same tokens the older session has them first. */
static int compare_age(const void *a, const void *b)
{
    const struct session *first = *(const struct session *const *)a;
    const struct session *second = *(const struct session *const *)b;
    if (first->meta.created != second->meta.created)
        return first->meta.created < second->meta.created ? -1 : 1;
    return strcmp(first->meta.id, second->meta.id);
}

static int compare_id(const void *id, const void *view)
{
    return strcmp(id, ((const struct session_view *)view)->id);
}

static struct session_view *view_of(struct session_view *views, size_t count, const char *id)
{
    return bsearch(id, views, count, sizeof *views, compare_id);
}

void session_shares_find(const struct session *const *sessions, struct session_view *views,
                         size_t count)
{
    const struct session **by_age = count > 0 ? malloc(count * sizeof *by_age) : NULL;
    if (!by_age)
        return; /* none, or no memory: as if they shared nothing */
    memcpy(by_age, sessions, count * sizeof *by_age);
    qsort(by_age, count, sizeof *by_age, compare_age);
    for (size_t i = 0; i < count; i++) {
        const struct session *session = by_age[i];
        int64_t position;
        const struct session *older =
            state_tree_mark(session->space, session->tokens, session->count, session, &position);
        struct session_view *view = view_of(views, count, session->meta.id);
        if (!older || !view)
            continue;
        memcpy(view->shared_with, older->meta.id, sizeof view->shared_with);
        view->shared_tokens = position;
    }
    for (size_t i = 0; i < count; i++)
        state_tree_unmark(by_age[i]->space, by_age[i]->tokens, by_age[i]->count);
    free(by_age);
}
