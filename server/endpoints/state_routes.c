/* SPDX-License-Identifier: Apache-2.0 */
#include "server/endpoints/state_routes.h"

#include "engine/state_file.h"
#include "server/endpoints/session_task.h"
#include "server/store/store.h"

#include <stdlib.h>
#include <string.h>

/* A session as a file: exported, or imported. */
struct session_file {
    struct session_task base;
    int32_t *tokens; /* [num_tokens] */
    int64_t num_tokens, image_position;
    void *image;              /* [state_image_bytes(image_position)]; NULL: no state */
    struct state_save saving; /* of the image, when that is exported */
    struct session_view view; /* of an imported session */
};

static void destroy_file(struct session_task *base)
{
    struct session_file *task = (struct session_file *)base;
    free(task->tokens);
    free(task->image);
}

/* GET /v1/sessions/ID/state. */

/* Copies the session's tokens, and begins to copy the deepest state on their way. */
static enum session_step perform_export(struct session_task *base)
{
    struct session_file *task = (struct session_file *)base;
    struct service *service = task->base.task.service;
    struct error err = ERROR_INIT;
    struct state_match match;
    const struct session *session;
    if (sessions_peek(service->sessions, task->base.owner, task->base.id, -1, &session,
                      &task->base.task.error))
        return SESSION_STEP_ENDED;
    if (!session) {
        sessions_find(service->sessions, task->base.owner, task->base.id, &task->base.task.error);
        return SESSION_STEP_ENDED;
    }
    const int32_t *tokens = session_tokens(session, &task->num_tokens);
    size_t bytes = (size_t)task->num_tokens * sizeof *tokens;
    free(task->tokens);
    task->tokens = malloc(bytes + 1);
    if (!task->tokens) {
        session_task_out_of_memory(&task->base);
        return SESSION_STEP_ENDED;
    }
    if (bytes)
        memcpy(task->tokens, tokens, bytes);
    if (task->num_tokens == 0)
        return SESSION_STEP_ENDED;
    session_match(service->sessions, session, &match);
    if (!match.checkpoint)
        return SESSION_STEP_ENDED;
    size_t image_bytes = state_image_bytes(service->engine, match.position);
    if (session_task_reserve(&task->base, image_bytes))
        return SESSION_STEP_ENDED;
    task->image = malloc(image_bytes);
    int result = task->image
                     ? state_tree_image(service->tree, &match, task->image, &task->saving, &err)
                     : -1;
    if (result == 0) {
        task->image_position = match.position;
        return SESSION_STEP_ENDED;
    }
    free(task->image);
    task->image = NULL;
    admission_body(&service->admission, -(int64_t)image_bytes);
    task->base.task.reserved -= (int64_t)image_bytes;
    return result < 0 ? SESSION_STEP_ENDED : SESSION_STEP_AGAIN;
}

static int append(void *context, const void *bytes, size_t size, struct error *err)
{
    struct strbuf *out = context;
    strbuf_append(out, bytes, size);
    return out->failed ? error_set(err, ERROR_NO_MEMORY, "out of memory for the file") : 0;
}

/* Waits for the copy. If it failed the file has no state, and whoever reads the file computes
 * it. */
static void await_image(struct session_file *task)
{
    if (state_save_wait(&task->saving, NULL) == 0)
        return;
    free(task->image);
    task->image = NULL;
    task->image_position = 0;
}

static void encode_export(struct session_task *base)
{
    struct session_file *task = (struct session_file *)base;
    const struct engine *engine = task->base.task.service->engine;
    await_image(task);
    struct state_file_source source = {.position = task->image_position,
                                       .num_tokens = task->num_tokens,
                                       .tokens = task->tokens,
                                       .image = task->image};
    struct error err = ERROR_INIT;
    if (session_task_reserve(&task->base, state_file_bytes(engine, &source)) == 0 &&
        state_file_write(engine, &source, append, &task->base.task.reply, &err))
        api_error_from_engine(&task->base.task.error, &err, NULL);
    free(task->image);
    task->image = NULL;
}

static const struct session_task_kind EXPORT = {.size = sizeof(struct session_file),
                                                .status = 200,
                                                .content_type = "application/octet-stream",
                                                .names_session = true,
                                                .need = SESSION_USES,
                                                .perform = perform_export,
                                                .encode = encode_export,
                                                .destroy = destroy_file};

void state_routes_export(struct http_request *request)
{
    session_task_handle(request, &EXPORT);
}

/* PUT /v1/sessions/ID/state. */

static int read_import(struct session_task *base, struct http_request *request,
                       struct api_error *err)
{
    (void)err;
    http_take_body(request, &base->task.body, &base->task.reserved);
    return 0;
}

/* As of a completion. */
static int check_length(struct session_file *task, int64_t tokens)
{
    const struct service *service = task->base.task.service;
    int64_t most = service->limits.max_model_len, memory = service->memory_limit_tokens;
    const char *limit = "the model";
    if (memory > 0 && (most == 0 || memory < most)) {
        most = memory;
        limit = "the memory for states";
    }
    if (most == 0 || tokens <= most)
        return 0;
    return api_error_set(&task->base.task.error, API_CONTEXT_LENGTH, NULL,
                         "the file holds %lld tokens, but %s allows at most %lld",
                         (long long)tokens, limit, (long long)most);
}

static void prepare_import(struct session_task *base)
{
    struct session_file *task = (struct session_file *)base;
    const struct engine *engine = task->base.task.service->engine;
    struct state_file file;
    struct error err = ERROR_INIT;
    const char *body =
        task->base.task.body.data ? task->base.task.body.data : ""; /* none was sent */
    if (state_file_parse(&file, body, task->base.task.body.length, &err) ||
        state_file_check(&file, engine, &err)) {
        api_error_set(&task->base.task.error, API_STATE_FILE, NULL, "%s", err.message);
        return;
    }
    if (check_length(task, file.num_tokens))
        return;
    size_t token_bytes = (size_t)file.num_tokens * sizeof *task->tokens;
    size_t image_bytes = file.position ? state_image_bytes(engine, file.position) : 0;
    if (session_task_reserve(&task->base, token_bytes + image_bytes))
        return;
    task->tokens = malloc(token_bytes + 1);
    task->image = file.position ? malloc(image_bytes) : NULL;
    if (!task->tokens || (file.position && !task->image)) {
        session_task_out_of_memory(&task->base);
        return;
    }
    task->num_tokens = file.num_tokens;
    task->image_position = file.position;
    state_file_tokens(&file, task->tokens);
    if (file.position)
        state_file_image(&file, engine, task->image);
}

static void on_imported(void *context, const struct api_error *err)
{
    struct session_file *task = context;
    struct session_task *base = &task->base;
    if (err)
        base->task.error = *err;
    const struct session *session =
        sessions_find(base->task.service->sessions, base->owner, base->id, &base->task.error);
    if (session)
        session_view(base->task.service->sessions, session, &task->view);
    session_task_finish(base);
}

static enum session_step perform_import(struct session_task *base)
{
    struct session_file *task = (struct session_file *)base;
    void *image = task->image;
    task->image = NULL;
    return sessions_import(base->task.service->sessions, base->owner, base->id, task->tokens,
                           task->num_tokens, image, task->image_position, on_imported, task,
                           &base->task.error)
               ? SESSION_STEP_ENDED
               : SESSION_STEP_LATER;
}

static void encode_import(struct session_task *base)
{
    struct session_card card = session_card(&((struct session_file *)base)->view);
    session_encode(&base->task.reply, &card, NULL);
}

static const struct session_task_kind IMPORT = {.size = sizeof(struct session_file),
                                                .status = 201,
                                                .content_type = "application/json",
                                                .names_session = true,
                                                .need = SESSION_CHANGES,
                                                .read = read_import,
                                                .prepare = prepare_import,
                                                .perform = perform_import,
                                                .encode = encode_import,
                                                .destroy = destroy_file};

void state_routes_import(struct http_request *request)
{
    session_task_handle(request, &IMPORT);
}

/* GET /v1/state. */

struct state_report {
    struct session_task base;
    struct state_tree_report tree;
    struct store_report store; /* if has_store */
    bool has_store;
    struct engine_memory memory;
    int64_t interval_tokens;
    int64_t sessions[NUM_TIERS]; /* of all owners */
};

static enum session_step perform_report(struct session_task *base)
{
    struct service *service = base->task.service;
    struct state_report *report = (struct state_report *)base;
    state_tree_report(service->tree, &report->tree);
    report->interval_tokens = state_tree_interval(service->tree);
    engine_memory(service->engine, &report->memory);
    sessions_count(service->sessions, report->sessions);
    report->has_store = service->store != NULL;
    if (service->store)
        store_report(service->store, &report->store);
    return SESSION_STEP_ENDED;
}

static struct state_card state_card(const struct state_report *report)
{
    const struct state_tree_report *tree = &report->tree;
    const struct engine_memory *memory = &report->memory;
    int64_t total = (int64_t)engine_info(report->base.task.service->engine)->state_memory_bytes;
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
        .store_sessions = report->store.sessions,
        .store_checkpoints = report->store.checkpoint_files,
        .store_failures = report->store.failures,
        .store_full = report->store.full};
    for (int i = 0; i < NUM_TIERS; i++) {
        card.tiers[i].name = tier_name((enum tier)i);
        card.tiers[i].sessions = report->sessions[i];
        card.tiers[i].checkpoints = tree->tiers[i].checkpoints;
        card.tiers[i].bytes = tree->tiers[i].bytes;
        card.tiers[i].budget_bytes = tree->tiers[i].budget_bytes;
    }
    return card;
}

static void encode_report(struct session_task *base)
{
    struct state_card card = state_card((struct state_report *)base);
    state_encode(&base->task.reply, &card);
}

static const struct session_task_kind REPORT = {.size = sizeof(struct state_report),
                                                .status = 200,
                                                .content_type = "application/json",
                                                .perform = perform_report,
                                                .encode = encode_report};

void state_routes_report(struct http_request *request)
{
    session_task_handle(request, &REPORT);
}
