/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sessions_shelf.h"

#include "cli/sessions_print.h"
#include "server/states/shelf_move.h"
#include "server/store/store_backends.h"
#include "server/store/store_copy.h"

#include <string.h>
#include <sys/stat.h>

static struct shelf_filter filter_of(const struct sessions_call *call, const char *id)
{
    return (struct shelf_filter){id, call->options->owner, call->options->fingerprint};
}

static int open_place(struct shelf **shelf, const struct sessions_call *call, enum shelf_use use,
                      struct error *err)
{
    const struct sessions_options *options = call->options;
    return shelf_open(shelf, call->location, &options->store_tls, (int)options->store_replicas, use,
                      NULL, err);
}

/* ---- list ---- */

struct listing {
    struct shelf_filter filter;
    struct sessions_print print;
};

static int list_one(void *context, const struct shelf_session *session, struct error *err)
{
    struct listing *listing = context;
    (void)err;
    if (shelf_session_matches(&listing->filter, session))
        sessions_print_add(&listing->print, session);
    return 0;
}

int sessions_shelf_list(const struct sessions_call *call, struct error *err)
{
    struct listing listing = {filter_of(call, NULL), {.json = call->options->json}};
    struct shelf *shelf;
    int64_t damaged = 0;
    if (open_place(&shelf, call, SHELF_READ, err) != 0)
        return -1;
    sessions_print_begin(&listing.print);
    int result = shelf_each(shelf, false, list_one, &listing, &damaged, err);
    if (result == 0)
        sessions_print_end(&listing.print, damaged);
    shelf_close(shelf);
    return result;
}

/* ---- one of a name ---- */

struct finding {
    struct shelf_filter filter;
    struct shelf_list found;
};

static int find_one(void *context, const struct shelf_session *session, struct error *err)
{
    struct finding *finding = context;
    return shelf_session_matches(&finding->filter, session)
               ? shelf_list_add(&finding->found, session, err)
               : 0;
}

/* The only session of the name. */
static int find(struct shelf *shelf, const struct sessions_call *call, struct shelf_list *found,
                struct error *err)
{
    struct finding finding = {.filter = filter_of(call, call->words[0])};
    int64_t damaged = 0;
    int result = shelf_each(shelf, true, find_one, &finding, &damaged, err);
    *found = finding.found;
    if (result != 0 || found->count == 1)
        return result;
    return found->count == 0
               ? error_set(err, ERROR_INVALID, "%s has no session \"%s\"%s", shelf_name(shelf),
                           call->words[0],
                           call->options->owner || call->options->fingerprint
                               ? " of such an --owner or --fingerprint"
                               : "")
               : error_set(err, ERROR_INVALID,
                           "%s has %zu sessions \"%s\", of other owners or models: --owner and "
                           "--fingerprint say which",
                           shelf_name(shelf), found->count, call->words[0]);
}

int sessions_shelf_show(const struct sessions_call *call, struct error *err)
{
    struct shelf_list found = {0};
    struct shelf *shelf;
    if (open_place(&shelf, call, SHELF_READ, err) != 0)
        return -1;
    int result = find(shelf, call, &found, err);
    if (result == 0)
        sessions_print_one(&found.items[0], call->options->json);
    shelf_list_clear(&found);
    shelf_close(shelf);
    return result;
}

static int remove_found(struct shelf *shelf, const struct shelf_list *found, struct error *err)
{
    enum shelf_outcome outcome = SHELF_DONE;
    const char *id = found->items[0].meta.id;
    if (shelf_remove(shelf, found->items, 1, &outcome, err) != 0)
        return -1;
    if (outcome == SHELF_DONE)
        return 0;
    return error_set(err, ERROR_INVALID, "the session \"%s\" %s", id,
                     outcome == SHELF_BUSY ? "is busy: a server works on it"
                                           : "has changed meanwhile: it stays");
}

int sessions_shelf_delete(const struct sessions_call *call, struct error *err)
{
    struct shelf_list found = {0};
    struct shelf *shelf;
    if (open_place(&shelf, call, SHELF_CHANGE, err) != 0)
        return -1;
    int result = find(shelf, call, &found, err);
    if (result == 0)
        result = remove_found(shelf, &found, err);
    if (result == 0)
        printf("%s was removed from %s\n", found.items[0].meta.id, shelf_name(shelf));
    shelf_list_clear(&found);
    shelf_close(shelf);
    return result;
}

/* ---- copies ---- */

static int told(const struct shelf_move *move, struct error *err)
{
    if (move->other + move->busy + move->damaged + move->unknown == 0)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%lld stay: %lld are there already with other tokens (--replace), %lld are "
                     "busy or have changed, %lld are damaged, %lld belong to none of the keys "
                     "(--api-key-file)",
                     (long long)(move->other + move->busy + move->damaged + move->unknown),
                     (long long)move->other, (long long)move->busy, (long long)move->damaged,
                     (long long)move->unknown);
}

/* removes: from where they were. */
static int transfer(const struct sessions_call *call, const char *to, bool removes,
                    struct error *err)
{
    struct shelf_move move = {.filter = filter_of(call, NULL),
                              .removes = removes,
                              .replaces = call->options->replace,
                              .keys = call->keys.items,
                              .num_keys = call->keys.count};
    if (open_place(&move.from, call, removes ? SHELF_CHANGE : SHELF_READ, err) != 0)
        return -1;
    int result = shelf_open_other(&move.to, to, move.from, err);
    if (result == 0)
        result = shelf_move(&move, err);
    if (result == 0 && call->options->json)
        printf("{\"written\":%lld,\"already_there\":%lld,\"left\":{\"other\":%lld,\"busy\":%lld,"
               "\"damaged\":%lld,\"of_no_key\":%lld}}\n",
               (long long)move.put, (long long)move.same, (long long)move.other,
               (long long)move.busy, (long long)move.damaged, (long long)move.unknown);
    else if (result == 0)
        printf("%lld sessions were %s from %s to %s; %lld were there already\n",
               (long long)move.put, removes ? "moved" : "copied", shelf_name(move.from),
               shelf_name(move.to), (long long)move.same);
    if (result == 0)
        result = told(&move, err);
    shelf_close(move.to);
    shelf_close(move.from);
    return result;
}

int sessions_shelf_copy(const struct sessions_call *call, struct error *err)
{
    return transfer(call, call->options->to, false, err);
}

int sessions_shelf_move(const struct sessions_call *call, struct error *err)
{
    return transfer(call, call->options->to, true, err);
}

/* Of a directory all is from one moment. Of a store each session is. */
int sessions_shelf_backup(const struct sessions_call *call, struct error *err)
{
    const char *copy = call->words[0];
    struct stat status;
    if (!store_location_is_path(copy))
        return error_set(err, ERROR_INVALID, "%s: expected a new directory", copy);
    if (!store_location_is_path(call->location)) {
        if (stat(copy, &status) == 0)
            return error_set(err, ERROR_INVALID, "%s: expected a new directory, it is there", copy);
        return transfer(call, copy, false, err);
    }
    if (store_copy(call->location, copy, err) != 0)
        return -1;
    printf("%s is a copy of the sessions of %s\n", copy, call->location);
    return 0;
}

/* ---- repair ---- */

int sessions_shelf_repair(const struct sessions_call *call, struct error *err)
{
    struct store_repair repair;
    struct shelf *shelf;
    if (open_place(&shelf, call, SHELF_REPAIR, err) != 0)
        return -1;
    int result = shelf_repair(shelf, &repair, err);
    if (result == 0 && call->options->json)
        printf("{\"whole\":%lld,\"set_aside\":%lld,\"leftovers\":%lld,\"names\":%lld,"
               "\"busy\":%lld}\n",
               (long long)repair.whole, (long long)repair.damaged, (long long)repair.leftovers,
               (long long)repair.names, (long long)repair.busy);
    else if (result == 0 && !store_location_is_path(call->location))
        printf("%lld sessions are whole, %lld were damaged and are set aside "
               "(regla:rejected:...)\n%lld rows without a session were removed, %lld names in "
               "lists mended, %lld sessions are busy and were left alone\n",
               (long long)repair.whole, (long long)repair.damaged, (long long)repair.leftovers,
               (long long)repair.names, (long long)repair.busy);
    else if (result == 0)
        printf("%lld sessions are whole, %lld are damaged\n", (long long)repair.whole,
               (long long)repair.damaged);
    shelf_close(shelf);
    return result;
}
