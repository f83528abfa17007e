/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/state_task.h"

#include "engine/state_file.h"
#include "server/endpoints/replay.h"
#include "server/schedule/scheduler.h"

#include <stdlib.h>
#include <string.h>

static void task_destroy(struct ticket *ticket)
{
    struct state_task *task = (struct state_task *)ticket;
    strbuf_clear(&task->body);
    strbuf_clear(&task->reply);
    free(task->views);
    free(task->tokens);
    free(task->image);
    admission_body(&task->service->admission, -task->reserved);
    ticket_clear(&task->ticket);
    free(task);
}

struct state_task *state_task_create(struct service *service, enum state_task_kind kind, int key)
{
    struct state_task *task = calloc(1, sizeof *task);
    if (!task)
        return NULL;
    ticket_init(&task->ticket, task_destroy);
    task->service = service;
    task->kind = kind;
    task->owner = service_owner(service, key);
    task->status = kind == STATE_TASK_DELETE                              ? 204
                   : kind == STATE_TASK_FORK || kind == STATE_TASK_IMPORT ? 201
                                                                          : 200;
    return task;
}

static struct state_task *task_of(struct work *work)
{
    return (struct state_task *)((char *)work - offsetof(struct state_task, work));
}

static int reserve(struct state_task *task, size_t bytes)
{
    if (bytes < INT64_MAX / 4 && admission_body(&task->service->admission, (int64_t)bytes)) {
        task->reserved += (int64_t)bytes;
        return 0;
    }
    return api_error_set(&task->error, API_OUT_OF_MEMORY, NULL,
                         "the state takes %zu bytes, more than --max-body-memory has left", bytes);
}

static int out_of_memory(struct state_task *task)
{
    return api_error_set(&task->error, API_OUT_OF_MEMORY, NULL, "out of memory for this request");
}

/* Workers: the reply. */

static void encode_list(struct state_task *task)
{
    session_list_begin(&task->reply);
    for (size_t i = 0; i < task->num_views; i++) {
        struct session_card card = session_card(&task->views[i]);
        session_list_add(&task->reply, &card, i == 0);
    }
    session_list_end(&task->reply);
}

static int append(void *context, const void *bytes, size_t size, struct error *err)
{
    struct strbuf *out = context;
    strbuf_append(out, bytes, size);
    return out->failed ? error_set(err, ERROR_NO_MEMORY, "out of memory for the file") : 0;
}

/* Without its state the file is as good, and who reads it computes it again. */
static void await_image(struct state_task *task)
{
    if (state_save_wait(&task->saving, NULL) == 0)
        return;
    free(task->image);
    task->image = NULL;
    task->image_position = 0;
}

static void encode_file(struct state_task *task)
{
    const struct engine *engine = task->service->engine;
    struct state_file_source source = {.position = task->image_position,
                                       .num_tokens = task->num_tokens,
                                       .tokens = task->tokens,
                                       .image = task->image};
    struct error err = ERROR_INIT;
    if (reserve(task, state_file_bytes(engine, &source)) == 0 &&
        state_file_write(engine, &source, append, &task->reply, &err))
        api_error_from_engine(&task->error, &err, NULL);
    free(task->image);
    task->image = NULL;
}

static struct state_card state_card(const struct state_task *task)
{
    const struct state_report *report = &task->report;
    const struct state_tree_report *tree = &report->tree;
    const struct engine_memory *memory = &report->memory;
    int64_t total = (int64_t)engine_info(task->service->engine)->state_memory_bytes;
    int64_t reserved = (int64_t)(memory->recurrent_reserved_bytes + memory->kv_reserved_bytes);
    int64_t cached = (int64_t)(memory->recurrent_cached_bytes + memory->kv_cached_bytes);
    struct state_card card = {
        .spaces = tree->spaces,
        .nodes = tree->nodes,
        .checkpoints = tree->checkpoints,
        .tokens = tree->tokens,
        .interval_tokens = report->interval_tokens,
        .recurrent_bytes = tree->recurrent_bytes,
        .kv_bytes = tree->kv_bytes,
        .logits_bytes = tree->logits_bytes,
        .device_total_bytes = total,
        .device_used_bytes = reserved - cached,
        .device_cached_bytes = cached,
        .device_free_bytes = total - reserved,
        .running_recurrent_bytes =
            (int64_t)(memory->recurrent_bytes - memory->recurrent_cached_bytes),
        .running_kv_bytes = (int64_t)(memory->kv_bytes - memory->kv_cached_bytes),
        .evictions = tree->evictions,
        .dropped = tree->dropped,
        .has_store = report->has_store,
        .store_bytes = report->store.bytes,
        .store_budget_bytes = report->store.budget_bytes,
        .store_sessions = report->store.session_files,
        .store_checkpoints = report->store.checkpoint_files,
        .store_failures = report->store.failures,
        .store_full = report->store.full};
    for (int i = 0; i < 4; i++) {
        card.tiers[i].name = tier_name((enum tier)i);
        card.tiers[i].sessions = report->sessions[i];
        card.tiers[i].checkpoints = tree->tiers[i].checkpoints;
        card.tiers[i].bytes = tree->tiers[i].bytes;
        card.tiers[i].budget_bytes = tree->tiers[i].budget_bytes;
    }
    return card;
}

static void encode(struct state_task *task)
{
    if (task->kind == STATE_TASK_LIST) {
        encode_list(task);
    } else if (task->kind == STATE_TASK_EXPORT) {
        encode_file(task);
    } else if (task->kind == STATE_TASK_REPORT) {
        struct state_card card = state_card(task);
        state_encode(&task->reply, &card);
    } else if (task->kind != STATE_TASK_DELETE) {
        struct session_card card = session_card(&task->view);
        session_encode(&task->reply, &card);
    }
    if (task->reply.failed)
        out_of_memory(task); /* the first error stays */
}

static void run_encode(struct work *work)
{
    struct state_task *task = task_of(work);
    struct replay *replay = task->service->replay;
    await_image(task);
    if (task->error.code == API_OK)
        encode(task);
    if (task->replay && task->error.code == API_OK)
        replay_keep(replay, task->replay, task->status, false, task->reply.data,
                    task->reply.length);
    else if (task->replay)
        replay_keep_error(replay, task->replay, &task->error);
    ticket_lock(&task->ticket);
    task->ticket.done = true;
    ticket_wake(&task->ticket);
    ticket_unlock(&task->ticket);
    ticket_release(&task->ticket);
}

/* The engine thread. */

static void finish(struct state_task *task)
{
    scheduler_publish(
        task->service->scheduler); /* /metrics shows what it freed before it is told */
    task->work.run = run_encode;
    worker_submit(task->service->workers, &task->work);
}

static void add_view(void *context, const struct session *session)
{
    struct state_task *task = context;
    if (task->num_views == task->views_capacity) {
        size_t capacity = 2 * task->views_capacity + 64;
        struct session_view *views = realloc(task->views, capacity * sizeof *views);
        if (!views) {
            out_of_memory(task);
            return;
        }
        task->views = views;
        task->views_capacity = capacity;
    }
    session_view(task->service->sessions, session, &task->views[task->num_views++]);
}

static void view_of(struct state_task *task, const char *id)
{
    const struct session *session =
        sessions_find(task->service->sessions, task->owner, id, &task->error);
    if (session)
        session_view(task->service->sessions, session, &task->view);
}

static void on_changed(void *context, const struct error *err)
{
    struct state_task *task = context;
    if (err)
        api_error_set(&task->error, API_INTERNAL, NULL, "the session \"%s\" stays: %s", task->id,
                      err->message);
    else if (task->kind != STATE_TASK_DELETE)
        view_of(task, task->kind == STATE_TASK_FORK ? task->target : task->id);
    finish(task);
}

/* The session's tokens, and the deepest state on their way. False: a file is being read; later. */
static bool export(struct state_task *task)
{
    struct service *service = task->service;
    struct error err = ERROR_INIT;
    struct state_match match;
    const struct session *session;
    if (sessions_peek(service->sessions, task->owner, task->id, -1, &session, &task->error))
        return true;
    if (!session) {
        sessions_find(service->sessions, task->owner, task->id, &task->error);
        return true;
    }
    const int32_t *tokens = session_tokens(session, &task->num_tokens);
    size_t bytes = (size_t)task->num_tokens * sizeof *tokens;
    free(task->tokens);
    task->tokens = malloc(bytes + 1);
    if (!task->tokens) {
        out_of_memory(task);
        return true;
    }
    if (bytes)
        memcpy(task->tokens, tokens, bytes);
    if (task->num_tokens == 0)
        return true;
    session_match(service->sessions, session, &match);
    if (!match.checkpoint)
        return true;
    size_t image_bytes = state_image_bytes(service->engine, match.position);
    if (reserve(task, image_bytes))
        return true;
    task->image = malloc(image_bytes);
    int result = task->image
                     ? state_tree_image(service->tree, &match, task->image, &task->saving, &err)
                     : -1;
    if (result == 0) {
        task->image_position = match.position;
        return true;
    }
    free(task->image);
    task->image = NULL;
    admission_body(&service->admission, -(int64_t)image_bytes);
    task->reserved -= (int64_t)image_bytes;
    return result < 0;
}

static void report(struct state_task *task)
{
    struct service *service = task->service;
    struct state_report *report = &task->report;
    state_tree_report(service->tree, &report->tree);
    report->interval_tokens = state_tree_interval(service->tree);
    engine_memory(service->engine, &report->memory);
    sessions_count(service->sessions, report->sessions);
    report->has_store = service->store != NULL;
    if (service->store)
        store_report(service->store, &report->store);
}

/* What ends later; -1: it ends now, with the error. */
static int change(struct state_task *task)
{
    struct sessions *sessions = task->service->sessions;
    struct api_error *err = &task->error;
    void *image = task->image;
    switch (task->kind) {
    case STATE_TASK_DELETE:
        return sessions_remove(sessions, task->owner, task->id, on_changed, task, err);
    case STATE_TASK_FORK:
        return sessions_fork(sessions, task->owner, task->id, task->target, on_changed, task, err);
    case STATE_TASK_REWIND:
        return sessions_rewind(sessions, task->owner, task->id, task->position, on_changed, task,
                               err);
    default:
        task->image = NULL;
        return sessions_import(sessions, task->owner, task->id, task->tokens, task->num_tokens,
                               image, task->image_position, on_changed, task, err);
    }
}

static void run_on_engine(struct work *work)
{
    struct state_task *task = task_of(work);
    /* Nothing has been done yet for a client that is gone. */
    if (ticket_cancelled(&task->ticket)) {
        api_error_set(&task->error, API_CANCELLED, NULL, "the request was cancelled");
        finish(task);
        return;
    }
    switch (task->kind) {
    case STATE_TASK_LIST:
        sessions_each(task->service->sessions, task->owner, add_view, task);
        break;
    case STATE_TASK_GET:
        view_of(task, task->id);
        break;
    case STATE_TASK_REPORT:
        report(task);
        break;
    case STATE_TASK_EXPORT:
        if (!export(task)) {
            scheduler_park(task->service->scheduler, &task->work);
            return;
        }
        break;
    default:
        if (change(task) == 0)
            return;
    }
    finish(task);
}

/* Workers: an imported file. */

/* As of a completion. */
static int check_length(struct state_task *task, int64_t tokens)
{
    const struct service *service = task->service;
    int64_t most = service->limits.max_model_len, memory = service->memory_limit_tokens;
    const char *limit = "the model";
    if (memory > 0 && (most == 0 || memory < most)) {
        most = memory;
        limit = "the memory for states";
    }
    if (most == 0 || tokens <= most)
        return 0;
    return api_error_set(&task->error, API_CONTEXT_LENGTH, NULL,
                         "the file holds %lld tokens, but %s allows at most %lld",
                         (long long)tokens, limit, (long long)most);
}

static void take_apart(struct state_task *task)
{
    const struct engine *engine = task->service->engine;
    struct state_file file;
    struct error err = ERROR_INIT;
    const char *body = task->body.data ? task->body.data : ""; /* none was sent */
    if (state_file_parse(&file, body, task->body.length, &err) ||
        state_file_check(&file, engine, &err)) {
        api_error_set(&task->error, API_STATE_FILE, NULL, "%s", err.message);
        return;
    }
    if (check_length(task, file.num_tokens))
        return;
    size_t token_bytes = (size_t)file.num_tokens * sizeof *task->tokens;
    size_t image_bytes = file.position ? state_image_bytes(engine, file.position) : 0;
    if (reserve(task, token_bytes + image_bytes))
        return;
    task->tokens = malloc(token_bytes + 1);
    task->image = file.position ? malloc(image_bytes) : NULL;
    if (!task->tokens || (file.position && !task->image)) {
        out_of_memory(task);
        return;
    }
    task->num_tokens = file.num_tokens;
    task->image_position = file.position;
    state_file_tokens(&file, task->tokens);
    if (file.position)
        state_file_image(&file, engine, task->image);
}

static void run_import(struct work *work)
{
    struct state_task *task = task_of(work);
    take_apart(task);
    strbuf_clear(&task->body);
    if (task->error.code == API_OK) {
        task->work.run = run_on_engine;
        scheduler_post(task->service->scheduler, &task->work);
    } else {
        run_encode(&task->work);
    }
}

void state_task_start(struct state_task *task)
{
    ticket_hold(&task->ticket);
    if (task->kind == STATE_TASK_IMPORT) {
        task->work.run = run_import;
        worker_submit(task->service->workers, &task->work);
    } else {
        task->work.run = run_on_engine;
        scheduler_post(task->service->scheduler, &task->work);
    }
}
