/* SPDX-License-Identifier: Apache-2.0 */
#include "server/store/store_backends.h"

#include "server/store/store_directory.h"
#include "server/store/store_redis.h"

#include <stdio.h>

/* The last one takes what no other does. */
static const struct store_backend *const backends[] = {&store_redis, &store_directory};

const struct store_backend *store_backends_find(const char *location)
{
    size_t last = sizeof backends / sizeof *backends - 1, i = 0;
    while (i < last && !backends[i]->takes(location))
        i++;
    return backends[i];
}

static void begin(const struct store_sessions *sessions, struct store_place *place,
                  struct store_op *op)
{
    switch (op->what) {
    case STORE_TAKE:
        sessions->take(place, (struct store_take *)op);
        break;
    case STORE_LOOK:
        sessions->look(place, (struct store_look *)op);
        break;
    case STORE_GIVE:
        sessions->give(place, (struct store_give *)op);
        break;
    case STORE_LIST:
        sessions->list(place, (struct store_list *)op);
        break;
    case STORE_RESERVE:
        sessions->reserve(place, (struct store_reserve *)op);
        break;
    case STORE_COMMIT:
        sessions->commit(place, (struct store_commit *)op);
        break;
    case STORE_DELETE:
        sessions->remove(place, (struct store_delete *)op);
        break;
    case STORE_USE:
        sessions->use(place, (struct store_use *)op);
        break;
    case STORE_CLAIM:
        sessions->claim(place, (struct store_claim *)op);
        break;
    case STORE_KEEP:
        sessions->keep(place, (struct store_keep *)op);
        break;
    default:
        sessions->drop(place, (struct store_drop *)op);
        break;
    }
}

struct store_op *store_backend_run(const struct store_backend *backend, struct store_place *place,
                                   struct store_op *first)
{
    for (struct store_op *op = first, *next; op != NULL; op = next) {
        next = op->next;
        error_clear(&op->error);
        op->refusal = STORE_ACCEPTED;
        begin(backend->sessions, place, op);
    }
    return backend->sessions->end(place);
}

bool store_location_is_path(const char *location)
{
    return store_backends_find(location)->takes == NULL;
}

bool store_location_has_tls(const char *location)
{
    const struct store_backend *backend = store_backends_find(location);
    return backend->has_tls != NULL && backend->has_tls(location);
}

void store_location_name(const char *location, char *name, size_t size)
{
    const struct store_backend *backend = store_backends_find(location);
    if (backend->name != NULL)
        backend->name(location, name, size);
    else
        snprintf(name, size, "%s", location);
}
