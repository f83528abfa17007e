/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the completion requests that are being answered. So one can be cancelled by its id, and a
 * drain can cancel all. */
#ifndef SERVER_REGISTRY_H
#define SERVER_REGISTRY_H

#include "server/ticket.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct registry_entry {
    struct registry_entry *next, **link; /* the registry's; link NULL: not in it */
    struct ticket *ticket;
    const char *id, *request_id; /* borrowed: both name the request */
    int owner;                   /* index of the API key */
};

struct registry {
    pthread_mutex_t lock;
    struct registry_entry *first;
    size_t count;
};

void registry_init(struct registry *registry);
void registry_destroy(struct registry *registry);
void registry_add(struct registry *registry, struct registry_entry *entry);
void registry_remove(struct registry *registry, struct registry_entry *entry);

/* Cancels the owner's requests with this id or request id. Returns how many there are; *cancelled:
 * how many of these were not done yet. */
size_t registry_cancel(struct registry *registry, const char *id, int owner, size_t *cancelled);
void registry_cancel_all(struct registry *registry, enum cancel_reason reason);
/* The ticket of the owner's request with this id, held for the caller; NULL: there is none. */
struct ticket *registry_find(struct registry *registry, const char *id, int owner);
size_t registry_count(struct registry *registry);

#endif
