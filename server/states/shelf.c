/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/shelf.h"

#include "server/states/shelf_place.h"
#include "server/store/store_backends.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int shelf_open(struct shelf **out, const char *location, const struct store_tls *tls, int replicas,
               enum shelf_use use, const unsigned char *secret, struct error *err)
{
    struct shelf *shelf = calloc(1, sizeof *shelf);
    if (shelf != NULL) {
        shelf->kind = store_location_is_path(location) ? &shelf_directory : &shelf_store;
        shelf->location = strdup(location);
        shelf->tls = *tls;
        shelf->replicas = replicas;
    }
    if (shelf == NULL || shelf->location == NULL) {
        shelf_close(shelf);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a place of sessions");
    }
    if (shelf->kind->open(shelf, use, secret, err) != 0) {
        shelf_close(shelf);
        return -1;
    }
    *out = shelf;
    return 0;
}

/* Before it is opened: the lock would only say that some process has it. */
static bool is_directory_of(const struct shelf *shelf, const char *location)
{
    struct stat here, there;
    return shelf->kind == &shelf_directory && store_location_is_path(location) &&
           stat(shelf->location, &here) == 0 && stat(location, &there) == 0 &&
           here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

int shelf_open_other(struct shelf **out, const char *location, struct shelf *from,
                     struct error *err)
{
    static const char SAME[] = "%s and %s are the same place";
    struct shelf *to;
    bool same = false;
    if (is_directory_of(from, location))
        return error_set(err, ERROR_INVALID, SAME, from->name, location);
    if (shelf_open(&to, location, &from->tls, from->replicas, SHELF_MAKE, from->secret, err) != 0)
        return -1;
    int result = 0;
    if (from->kind == &shelf_store && to->kind == &shelf_store)
        result = shelf_store_is(from, to, &same, err);
    if (same)
        result = error_set(err, ERROR_INVALID, SAME, from->name, to->name);
    if (result != 0)
        shelf_close(to);
    else
        *out = to;
    return result;
}

void shelf_close(struct shelf *shelf)
{
    if (shelf == NULL)
        return;
    if (shelf->place != NULL)
        shelf->kind->close(shelf);
    free(shelf->location);
    free(shelf->name);
    free(shelf);
}

const char *shelf_name(const struct shelf *shelf)
{
    return shelf->name;
}

const unsigned char *shelf_secret(const struct shelf *shelf)
{
    return shelf->secret;
}

int shelf_each(struct shelf *shelf, bool whole, shelf_each_function *each, void *context,
               int64_t *damaged, struct error *err)
{
    *damaged = 0;
    return shelf->kind->each(shelf, whole, each, context, damaged, err);
}

int shelf_put(struct shelf *shelf, const struct shelf_session *session, bool replace,
              enum shelf_outcome *outcome, struct error *err)
{
    return shelf->kind->put(shelf, session, replace, outcome, err);
}

int shelf_remove(struct shelf *shelf, const struct shelf_session *sessions, size_t count,
                 enum shelf_outcome *outcomes, struct error *err)
{
    return shelf->kind->remove(shelf, sessions, count, outcomes, err);
}

int shelf_repair(struct shelf *shelf, struct store_repair *repair, struct error *err)
{
    *repair = (struct store_repair){0};
    return shelf->kind->repair(shelf, repair, err);
}
