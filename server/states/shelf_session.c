/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/shelf_session.h"

#include "server/store/session_op.h"

#include <stdlib.h>
#include <string.h>

uint64_t shelf_session_sum(const struct shelf_session *session)
{
    return store_rows_sum("", 0, session->tokens, session->count, session->turns,
                          session->meta.turns);
}

static bool begins(const char *text, const char *with)
{
    return with == NULL || strncmp(text, with, strlen(with)) == 0;
}

bool shelf_session_matches(const struct shelf_filter *filter, const struct shelf_session *session)
{
    return (filter->id == NULL || strcmp(session->meta.id, filter->id) == 0) &&
           begins(session->meta.owner, filter->owner) && begins(session->model, filter->model);
}

int shelf_list_add(struct shelf_list *list, const struct shelf_session *session, struct error *err)
{
    const size_t bytes =
        session->tokens != NULL ? (size_t)session->count * sizeof *session->tokens : 0;
    int32_t *tokens = malloc(bytes + 1);
    char *damage = session->damage != NULL ? strdup(session->damage) : NULL;
    if (list->count == list->capacity) {
        size_t capacity = 2 * list->capacity + 64;
        void *items = realloc(list->items, capacity * sizeof *list->items);
        if (items != NULL) {
            list->items = items;
            list->capacity = capacity;
        }
    }
    if (tokens == NULL || (session->damage != NULL && damage == NULL) ||
        list->count == list->capacity) {
        free(tokens);
        free(damage);
        return error_set(err, ERROR_NO_MEMORY, "no memory for sessions");
    }
    if (bytes > 0)
        memcpy(tokens, session->tokens, bytes);
    struct shelf_session *item = &list->items[list->count++];
    *item = *session;
    item->tokens = tokens;
    item->damage = damage;
    item->turns = NULL;
    return 0;
}

void shelf_list_clear(struct shelf_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free((void *)list->items[i].tokens);
        free((void *)list->items[i].damage);
    }
    free(list->items);
    *list = (struct shelf_list){0};
}
