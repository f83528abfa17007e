/* SPDX-License-Identifier: Apache-2.0 */
#include "server/registry.h"

#include <string.h>

void registry_init(struct registry *registry)
{
    *registry = (struct registry){0};
    pthread_mutex_init(&registry->lock, NULL);
}

void registry_destroy(struct registry *registry)
{
    pthread_mutex_destroy(&registry->lock);
}

void registry_add(struct registry *registry, struct registry_entry *entry)
{
    pthread_mutex_lock(&registry->lock);
    entry->next = registry->first;
    entry->link = &registry->first;
    if (entry->next)
        entry->next->link = &entry->next;
    registry->first = entry;
    registry->count++;
    pthread_mutex_unlock(&registry->lock);
}

void registry_remove(struct registry *registry, struct registry_entry *entry)
{
    pthread_mutex_lock(&registry->lock);
    if (entry->link) {
        *entry->link = entry->next;
        if (entry->next)
            entry->next->link = entry->link;
        entry->link = NULL;
        registry->count--;
    }
    pthread_mutex_unlock(&registry->lock);
}

size_t registry_cancel(struct registry *registry, const char *id, int owner, size_t *cancelled)
{
    size_t found = 0;
    *cancelled = 0;
    pthread_mutex_lock(&registry->lock);
    for (struct registry_entry *entry = registry->first; entry; entry = entry->next)
        if (entry->owner == owner &&
            (strcmp(entry->id, id) == 0 || strcmp(entry->request_id, id) == 0)) {
            found++;
            *cancelled += ticket_cancel(entry->ticket, CANCEL_ASKED);
        }
    pthread_mutex_unlock(&registry->lock);
    return found;
}

void registry_cancel_all(struct registry *registry, enum cancel_reason reason)
{
    pthread_mutex_lock(&registry->lock);
    for (struct registry_entry *entry = registry->first; entry; entry = entry->next)
        ticket_cancel(entry->ticket, reason);
    pthread_mutex_unlock(&registry->lock);
}

struct ticket *registry_find(struct registry *registry, const char *id, int owner)
{
    struct ticket *found = NULL;
    pthread_mutex_lock(&registry->lock);
    for (struct registry_entry *entry = registry->first; entry && !found; entry = entry->next)
        if (entry->owner == owner && strcmp(entry->id, id) == 0 && ticket_hold_alive(entry->ticket))
            found = entry->ticket;
    pthread_mutex_unlock(&registry->lock);
    return found;
}

size_t registry_count(struct registry *registry)
{
    pthread_mutex_lock(&registry->lock);
    size_t count = registry->count;
    pthread_mutex_unlock(&registry->lock);
    return count;
}
