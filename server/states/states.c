/* SPDX-License-Identifier: Apache-2.0 */
#include "server/states/states.h"

#include "lib/base/clock.h"
#include "server/states/session_quota.h"
#include "server/states/sessions.h"
#include "server/states/shared_prefixes.h"

struct opening {
    struct service *service;
    const struct states_options *options;
    int result;
    struct error *err;
    size_t left_out; /* sessions, for which there is no memory */
    int64_t left_out_tokens;
};

static void session_found(struct opening *opening, const struct store_found *file)
{
    struct sessions *sessions = opening->service->sessions;
    if (opening->left_out == 0 && session_quota_make_fit(sessions, 1, file->count)) {
        sessions_found(sessions, file);
    } else {
        opening->left_out++;
        opening->left_out_tokens += file->count;
    }
}

/* The tree and the sessions, over the store that is there by now. */
static void open_memory(struct opening *opening)
{
    struct service *service = opening->service;
    const struct states_options *options = opening->options;
    struct state_tree_options growing = {.reuse = options->reuse,
                                         .host_budget_bytes = options->host_bytes,
                                         .interval_tokens = options->interval_tokens,
                                         .store = options->local_states ? NULL : service->store,
                                         .soon_bytes = options->soon_bytes,
                                         .files_bytes = options->files_bytes,
                                         .texts_bytes = options->texts_bytes};
    if (opening->result || service->sessions)
        return;
    opening->result = state_tree_create(&service->tree, service->engine, &growing, opening->err);
    if (opening->result)
        return;
    struct sessions_options keeping = {.engine = service->engine,
                                       .tree = service->tree,
                                       .store = service->store,
                                       .ttl_s = options->session_ttl_s,
                                       .response_ttl_s = options->response_ttl_s,
                                       .memory_only = options->memory_durability,
                                       .quota_bytes = options->session_quota_bytes,
                                       .texts_bytes = options->texts_bytes};
    opening->result = sessions_create(&service->sessions, &keeping, opening->err);
}

/* Comes while the store is being opened. */
static void on_found(void *context, const struct store_found *file)
{
    struct opening *opening = context;
    open_memory(opening);
    if (opening->result)
        return;
    if (file->kind == STORE_SESSION)
        session_found(opening, file);
    else if (opening->left_out == 0) /* else the start fails, and files stay */
        state_tree_found(opening->service->tree, file);
}

static void on_reply(void *context, const struct store_reply *reply)
{
    const struct states_options *options = ((struct opening *)context)->options;
    options->reply(options->reply_context, reply);
}

int states_open(struct service *service, const struct states_options *options, struct error *err)
{
    struct opening opening = {.service = service, .options = options, .err = err};
    struct store_options storing = {.location = options->location,
                                    .tls = options->tls,
                                    .lease_s = options->lease_s,
                                    .replicas = options->store_replicas,
                                    .quota_bytes = options->session_quota_bytes,
                                    .ttl_s = options->session_ttl_s,
                                    .response_ttl_s = options->response_ttl_s,
                                    .budget_bytes = options->disk_bytes,
                                    .keeps_files = options->keeps_files,
                                    .database_bytes = options->database_bytes,
                                    .wake = options->wake,
                                    .wake_context = options->wake_context,
                                    .waits = options->waits,
                                    .waits_context = options->waits_context,
                                    .found = on_found,
                                    .reply = options->reply ? on_reply : NULL,
                                    .found_context = &opening};
    if (options->location && store_open(&service->store, service->engine, &storing, err))
        return error_prefix(err, options->option);
    open_memory(&opening);
    if (opening.result)
        return -1;
    if (options->share_prefixes && shared_prefixes_create(&service->prefixes, service->engine,
                                                          service->tree, service->store, err))
        return -1;
    if (opening.left_out > 0)
        return session_quota_too_many(service->sessions, opening.left_out, opening.left_out_tokens,
                                      err);
    state_tree_disk_room(service->tree, 0); /* --disk-state may be less than it was */
    return 0;
}

void states_close(struct service *service, double seconds)
{
    double deadline = clock_seconds() + seconds;
    if (service->sessions) {
        sessions_save_all(service->sessions, deadline);
        atomic_store(service->unsaved, sessions_unsaved(service->sessions));
    }
    if (service->tree)
        state_tree_save_all(service->tree, deadline);
    shared_prefixes_free(service->prefixes);
    sessions_free(service->sessions);
    state_tree_free(service->tree);
    store_close(service->store);
}
