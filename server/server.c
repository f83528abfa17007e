/* SPDX-License-Identifier: Apache-2.0 */
#include "server/server.h"

#include "api/request.h"
#include "engine/cost.h"
#include "engine/device.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"
#include "server/capacity.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/page.h"
#include "server/endpoints/replay.h"
#include "server/grammars.h"
#include "server/http/credentials.h"
#include "server/http/http.h"
#include "server/log.h"
#include "server/memory.h"
#include "server/own_tokens.h"
#include "server/schedule/drafts.h"
#include "server/schedule/pace.h"
#include "server/schedule/scheduler.h"
#include "server/server_memory.h"
#include "server/states/sessions.h"
#include "server/store/store.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How long a reply is kept for who repeats its request (api.md). */
enum { IDEMPOTENCY_SECONDS = 600 };
/* At the end, for states that are only in memory to be written to --state-dir, at most; and for the
 * whole end, at least. */
enum { SAVE_SECONDS = 10, LEAST_END_SECONDS = 2 };

struct server {
    struct service service;
    struct server_options options;
    struct credentials *credentials;
    struct origin_rules origins;
    struct names names; /* of the model */
    struct names hosts;
    struct model *model; /* until it is the engine's */
    struct http_server *http;
    struct server_memory memory;
    _Atomic size_t unsaved; /* where options.unsaved is NULL */
    double end_by; /* clock_seconds() when the process is to be gone; 0: no drain has begun */
};

/* A file of states has been read or written, or a request's ticket cancelled: the engine thread
 * looks around. While the model is being loaded it is not there, and will look by itself. */
static void wake_engine(void *context)
{
    struct service *service = context;
    if (service_phase(service) != SERVICE_LOADING)
        scheduler_poke(service->scheduler);
}

static bool reserve_work(void *context, int64_t bytes)
{
    return admission_work(context, bytes);
}

static bool work_possible(void *context, int64_t bytes)
{
    return admission_possible(context, bytes);
}

/* Creating. */

static struct server_memory_options memory_options(const struct server_options *options)
{
    return (struct server_memory_options){
        .http_threads = options->http_threads,
        .tokenizer_threads = options->tokenizer_threads,
        .max_connections = options->max_connections,
        .max_model_len = options->max_model_len,
        .store = options->states.location != NULL,
        .checkpoint_bytes = options->states.host_bytes,
        .body_bytes = options->limits.max_body_bytes,
        .reply_bytes = options->idempotency_bytes,
        .max_body_bytes = options->max_body_bytes,
        .max_state_bytes = options->max_state_bytes,
    };
}

static int open_page(struct server *server, struct error *err)
{
    const struct server_options *options = &server->options;
    struct names compare = {0};
    int result = names_add_lists(&compare, options->page_compare, options->num_page_compare, err);
    if (result == 0 && compare.count > 0 && !options->page)
        result =
            error_set(err, ERROR_INVALID, "--page-compare: --no-page leaves no page to compare on");
    if (result == 0 && options->page)
        result = page_open(&server->service.page, &compare, err);
    names_clear(&compare);
    return result;
}

int server_create(struct server **out, const struct server_options *options, struct error *err)
{
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct service *service = &server->service;
    server->options = *options;
    atomic_init(&service->phase, SERVICE_LOADING);
    service->unsaved = options->unsaved ? options->unsaved : &server->unsaved;
    service->vllm_names = options->vllm_names;
    service->reuses_prefixes = options->states.reuse;
    service->stall_timeout_s = options->stall_timeout_s;
    metrics_init(&service->metrics);
    registry_init(&service->registry);
    admission_init(&service->admission, &options->limits);
    pthread_mutex_init(&service->owners_lock, NULL);
    memory_tune_malloc();
    request_bound_memory(reserve_work, work_possible, &service->admission);
    server->memory.options = memory_options(options);
    server_memory_limit_bodies(&server->memory, service,
                               options->limits.max_body_bytes == MEMORY_AUTO
                                   ? memory_bodies()
                                   : options->limits.max_body_bytes);
    const struct credential_options credentials = {
        .api_keys = options->api_keys,
        .num_api_keys = options->num_api_keys,
        .api_key_file = options->api_key_file,
        .tls_certificate = options->tls_certificate,
        .tls_key = options->tls_key,
    };
    if (credentials_open(&server->credentials, &credentials, err) ||
        names_add_lists(&server->hosts, options->hosts, options->num_hosts, err) ||
        names_add_lists(&server->origins.origins, options->allowed_origins,
                        options->num_allowed_origins, err) ||
        names_add_lists(&server->origins.hosts, options->allowed_hosts, options->num_allowed_hosts,
                        err) ||
        names_add_lists(&server->names, options->served_model_names,
                        options->num_served_model_names, err) ||
        open_page(server, err)) {
        server_free(server);
        return -1;
    }
    *out = server;
    return 0;
}

struct service *server_service(struct server *server)
{
    return &server->service;
}

struct http_server *server_http(struct server *server)
{
    return server->http;
}

/* Listening. */

/* Names stand before patterns. Returns how many there are of these. */
static size_t sort_names(struct names *names)
{
    size_t count = 0;
    for (size_t i = 0; i < names->count; i++) {
        char *name = names->items[i];
        if (request_model_pattern(name))
            continue;
        memmove(names->items + count + 1, names->items + count, (i - count) * sizeof name);
        names->items[count++] = name;
    }
    return count;
}

/* The names to clients: with patterns alone also the model's own. */
static int take_names(struct server *server, const struct model *model, struct error *err)
{
    struct names *names = &server->names;
    bool given = server->options.num_served_model_names > 0;
    if (given && names->count == 0)
        return error_set(err, ERROR_INVALID,
                         "--served-model-name (REGLA_SERVED_MODEL_NAME): expected a name, got an "
                         "empty text");
    if (sort_names(names) == 0 && names_add(names, model->name, strlen(model->name), err))
        return -1;
    server->service.num_names = sort_names(names);
    server->service.models = (const char *const *)names->items;
    server->service.num_models = names->count;
    server->service.model = names->items[0];
    return 0;
}

/* What the service knows of its model. */
static int take_model(struct server *server, const struct model *model, struct error *err)
{
    struct service *service = &server->service;
    const struct server_options *options = &server->options;
    if (take_names(server, model, err))
        return -1;
    /* A template whose replies are in channels ends them by two tokens. */
    int32_t *eos = calloc(model->eos.count + 1 + 2 * 2, sizeof *eos);
    if (!eos)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (model->eos.count)
        memcpy(eos, model->eos.ids, model->eos.count * sizeof *eos);
    service->eos_ids = eos;
    service->num_eos = model->eos.count;
    for (int i = 0; i < 2; i++) {
        const struct chat_syntax *syntax = &service->syntax[i];
        for (size_t k = 0; k < syntax->num_end_tokens; k++)
            if (!token_list_contains(eos, service->num_eos, syntax->end_tokens[k]))
                eos[service->num_eos++] = syntax->end_tokens[k];
    }
    service->bos_token_id = model->bos_token_id;
    int64_t limit = options->max_model_len;
    if (model->position_embedding == POSITION_EMBEDDING_LEARNED &&
        (limit == 0 || limit > model->max_position_embeddings)) {
        if (limit)
            log_message(LOG_LEVEL_WARN,
                        "--max-model-len: the model has learned only %lld positions",
                        (long long)model->max_position_embeddings);
        limit = model->max_position_embeddings;
    }
    bool learned = limit && limit != options->max_model_len;
    service->limits = (struct completion_limits){
        .models = service->models,
        .num_models = service->num_models,
        .vocab_size = model->vocab_size,
        .max_model_len = limit,
        .default_max_tokens = options->default_max_tokens,
        .limited_by = learned ? "the model's learned positions" : "--max-model-len",
        .max_prompts = options->max_prompts,
        .allow_empty_prompt = model->bos_token_id >= 0,
        .token_ids_only = options->token_ids_only,
        .chat = options->token_ids_only ? NULL : &service->chat,
        .syntax = service->syntax,
        .reasoning = options->reasoning,
        .sampling = options->sampling,
        .content_tokens = options->content_tokens,
        .drafts = options->drafts};
    return 0;
}

/* Takes the template over, and finds out how it writes reasoning and tool calls. */
static void take_chat(struct service *service, const struct chat_template *chat)
{
    const struct jinja *templates[] = {chat->template, chat->with_tools};
    service->chat = *chat;
    for (int i = 0; i < 2; i++) {
        struct chat_syntax *syntax = &service->syntax[i];
        if (!templates[i])
            continue;
        chat_syntax_find(syntax, templates[i], &service->chat, service->tokenizer);
        log_message(
            LOG_LEVEL_INFO, "chat%s: reasoning in %s, tool calls: %s%s%s", i ? " with tools" : "",
            *syntax->reasoning.open ? syntax->reasoning.open : "no markers",
            chat_syntax_format(syntax), *syntax->calls.open ? " in " : "", syntax->calls.open);
    }
}

int server_listen(struct server *server, struct model *model, struct tokenizer *tokenizer,
                  const struct chat_template *chat, struct error *err)
{
    struct service *service = &server->service;
    const struct server_options *options = &server->options;
    struct http_options listening = {.hosts = &server->hosts,
                                     .port = options->port,
                                     .socket_mode = options->socket_mode,
                                     .threads = options->http_threads,
                                     .max_connections = options->max_connections,
                                     .request_timeout_s = options->request_timeout_s,
                                     .idle_timeout_s = options->idle_timeout_s,
                                     .credentials = server->credentials,
                                     .origins = server->origins,
                                     .routes = options->page ? &endpoints : &endpoints_without_page,
                                     .cancelled = wake_engine,
                                     .context = service};
    server->model = model;
    service->tokenizer = tokenizer;
    if (chat)
        take_chat(service, chat);
    if (take_model(server, model, err) ||
        worker_pool_create(&service->workers, "regla-tokenize", options->tokenizer_threads, err) ||
        worker_pool_create(&service->renderers, "regla-render", options->tokenizer_threads, err) ||
        http_start(&server->http, service, &listening, err))
        return -1;
    log_message(LOG_LEVEL_INFO, "listening on %s, loading the model", http_addresses(server->http));
    if (auth_count(credentials_auth(server->credentials)) == 0 && http_is_exposed(server->http))
        log_message(LOG_LEVEL_WARN,
                    "without --api-key: whoever reaches this address may use the server");
    return 0;
}

/* Loading. */

struct progress {
    int told;    /* per cent */
    double next; /* clock_seconds(): whoever has waited so long is told */
};
static const double PROGRESS_SECONDS = 5;

static void on_progress(void *context, double fraction)
{
    struct progress *progress = context;
    int percent = (int)(fraction * 100);
    double now = clock_seconds();
    if (now < progress->next || percent < progress->told + 10)
        return;
    *progress = (struct progress){percent - percent % 10, now + PROGRESS_SECONDS};
    log_message(LOG_LEVEL_INFO, "loading weights: %d %%", percent);
}

/* One word: a GPU's name has spaces. */
static void set_fingerprint(struct service *service)
{
    const struct engine_info *info = engine_info(service->engine);
    const unsigned char *tensors = engine_fingerprint(service->engine);
    char set[64];
    snprintf(set, sizeof set, "%s", info->instruction_set);
    for (char *c = set; *c != 0; c++)
        if (!isalnum((unsigned char)*c))
            *c = '_';
    char blocks[16] = ""; /* which: others are others */
    if (info->q4_blocks != 0)
        snprintf(blocks, sizeof blocks, "_%04x", (unsigned)(info->q4_blocks & 0xffff));
    snprintf(service->fingerprint, sizeof service->fingerprint,
             "regla-%s-%02x%02x%02x%02x-%s-%s%s-%s%s%s", REGLA_VERSION, tensors[0], tensors[1],
             tensors[2], tensors[3], set, weight_format_name(info->weights), blocks,
             kv_format_name(info->kv), info->activations == ACTIVATIONS_F32 ? "" : "-",
             info->activations == ACTIVATIONS_F32 ? "" : activation_format_name(info->activations));
}

static int describe_model(struct service *service, struct error *err)
{
    const struct model *model = engine_model(service->engine);
    const struct engine_info *info = engine_info(service->engine);
    const char **names = calloc((size_t)model->num_layers, sizeof *names);
    if (!names)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (int i = 0; i < model->num_layers; i++)
        names[i] = model->layers[i].name;
    service->card = (struct model_card){
        .id = service->model,
        .root = model->directory,
        .created = (int64_t)time(NULL),
        .max_model_len = service->limits.max_model_len,
        .family = model->family,
        .layer_types = names,
        .num_layers = model->num_layers,
        .parameters = model->parameters,
        .dtype = dtype_name(model->dtype),
        .state_bytes_per_text = (int64_t)info->recurrent_bytes_per_text,
        .kv_bytes_per_token = (int64_t)info->kv_bytes_per_token,
        .sampling = service->limits.sampling,
    };
    return 0;
}

static int open_engine(struct server *server, struct pace *pace, struct error *err)
{
    struct service *service = &server->service;
    struct engine_options options = server->options.engine;
    struct model *model = server->model;
    struct progress progress = {0, clock_seconds() + PROGRESS_SECONDS};
    options.progress = on_progress;
    options.progress_context = &progress;
    options.budget = server_memory_share;
    options.budget_context = &server->memory;
    options.max_step_kept = service->limits.drafts ? DRAFTS_OF_STEP : 0;
    /* A GPU's weights come to it in pieces. */
    if (device_is_cpu(options.device) && server_memory_check_weights(model, &options, err))
        return -1;
    if (!service->limits.token_ids_only &&
        grammars_create(&service->grammars, service->tokenizer, service->limits.vocab_size,
                        &service->admission, &service->metrics, err))
        return -1;
    if (!service->limits.token_ids_only && !service->limits.content_tokens &&
        own_tokens_create(&service->own_tokens, service->tokenizer, err))
        return -1;
    server->model = NULL; /* the engine's, also on an error */
    if (engine_open_model(&service->engine, model, &options, err) || describe_model(service, err) ||
        pace_measure(pace, service->engine, server->options.max_step_s, err))
        return -1;
    set_fingerprint(service);
    service->memory_limit_tokens =
        cost_longest_text(service->engine, capacity_share(service->engine));
    return 0;
}

/* Without API keys everybody is one owner, of the empty key. */
static int name_owner(void *context, const char *key, struct error *err)
{
    struct service *service = context;
    char tag[STORE_OWNER_SIZE];
    if (service->store)
        store_owner_tag(service->store, key, tag);
    pthread_mutex_lock(&service->owners_lock);
    struct names *owners = &service->owners;
    if (!service->store)
        snprintf(tag, sizeof tag, "%zu", owners->count);
    int result = names_add(owners, tag, strlen(tag), err);
    pthread_mutex_unlock(&service->owners_lock);
    return result;
}

static void report_orphans(struct service *service)
{
    pthread_mutex_lock(&service->owners_lock); /* keys may be read again meanwhile */
    size_t orphans = sessions_orphans(service->sessions, &service->owners);
    pthread_mutex_unlock(&service->owners_lock);
    if (orphans > 0)
        log_message(
            LOG_LEVEL_WARN,
            "%zu sessions in --state-dir belong to none of the API keys (was one taken away, "
            "or DIR/secret lost?); `regla sessions orphans DIR --api-key-file PATH --remove` "
            "removes them",
            orphans);
}

static const char *duration(double seconds, char text[32])
{
    static const struct {
        double seconds;
        const char *name;
    } units[] = {{1e-3, "ms"}, {1, "s"}, {60, "min"}, {3600, "h"}, {86400, "days"}};
    size_t unit = 0;
    while (unit + 1 < sizeof units / sizeof *units && seconds >= 2 * units[unit + 1].seconds)
        unit++;
    snprintf(text, 32, "%.0f %s", seconds / units[unit].seconds, units[unit].name);
    return text;
}

/* Whoever sends the longest text that fits holds so much for so long, by a few short steps. */
static void report_longest(const struct engine *engine, int64_t longest, const struct pace *pace)
{
    char time[32];
    int64_t tokens = longest > 0 ? longest : 1000000;
    log_message(LOG_LEVEL_INFO,
                longest > 0 ? "longest    %lld tokens: %.1f MiB, and about %s to read as a prompt; "
                              "--max-model-len limits it"
                            : "longest    any: %lld tokens hold %.1f MiB, and take about %s to "
                              "read as a prompt; --max-model-len limits them",
                (long long)tokens, (double)engine_state_bytes(engine, tokens) / (1 << 20),
                duration(pace_prompt_seconds(pace, 0, (double)tokens), time));
}

/* /ready says so. */
static void on_store_waits(void *context, const char *words)
{
    struct service *service = context;
    atomic_store(&service->store_waits, words);
}

int server_load(struct server *server, struct error *err)
{
    struct service *service = &server->service;
    const struct server_options *options = &server->options;
    struct states_options keeping = options->states;
    const struct memory_plan *memory = &server->memory.plan;
    int max_running = (int)options->limits.max_running, loading = SERVICE_LOADING;
    double began = clock_seconds();
    struct pace pace;
    keeping.wake = wake_engine;
    keeping.waits = on_store_waits;
    keeping.wake_context = keeping.waits_context = service;
    if (open_engine(server, &pace, err) ||
        replay_create(&service->replay, memory->bytes[MEMORY_REPLIES], IDEMPOTENCY_SECONDS, err))
        return -1;
    server_memory_limit_bodies(&server->memory, service, memory->bytes[MEMORY_BODIES]);
    keeping.host_bytes = memory->bytes[MEMORY_HOST];
    keeping.files_bytes = memory->bytes[MEMORY_FILES];
    keeping.texts_bytes = memory->bytes[MEMORY_TEXTS];
    keeping.database_bytes = memory->bytes[MEMORY_DATABASE];
    keeping.reply = replay_found;
    keeping.reply_context = service->replay;
    if (states_open(service, &keeping, err))
        return -1;
    replay_attach(service->replay, service->store, &service->replies_waiting);
    if (credentials_name(server->credentials, name_owner, service, err))
        return -1;
    report_orphans(service);
    if (scheduler_create(&service->scheduler, service, max_running, options->prefill_chunk, &pace,
                         err))
        return -1;
    double seconds = clock_seconds() - began;
    server_memory_report(&server->memory, service);
    capacity_report(service->engine, seconds, service->limits.max_model_len, max_running,
                    service->memory_limit_tokens);
    if (service->limits.max_model_len == 0)
        report_longest(service->engine, service->memory_limit_tokens, &pace);
    atomic_compare_exchange_strong(&service->phase, &loading, SERVICE_READY);
    const char *page = options->page ? http_page(server->http) : NULL;
    log_message(LOG_LEVEL_INFO, "ready: %s on %s%s%s", service->model, http_addresses(server->http),
                page ? "; try it at " : "", page ? page : "");
    return 0;
}

void server_reload(struct server *server)
{
    credentials_reload(server->credentials);
}

/* Ending. */

bool server_refuse(struct server *server)
{
    if (service_phase(&server->service) == SERVICE_LOADING)
        return false;
    atomic_store(&server->service.phase, SERVICE_DRAINING);
    return true;
}

static void sleep_ms(int ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

static bool at_rest(struct service *service)
{
    return atomic_load(&service->metrics.running) == 0 &&
           atomic_load(&service->metrics.waiting) == 0;
}

static void cancel_all(struct service *service)
{
    registry_cancel_all(&service->registry, CANCEL_DRAINING);
    scheduler_poke(service->scheduler);
}

/* The part of the time that the end needs: to tell clients, and to save. */
static double end_part(double timeout_s)
{
    return timeout_s / 4 < LEAST_END_SECONDS ? timeout_s / 4 : LEAST_END_SECONDS;
}

double server_end_seconds(double timeout_s)
{
    return timeout_s > LEAST_END_SECONDS ? timeout_s : LEAST_END_SECONDS;
}

static void wait_for_clients(struct server *server, double deadline)
{
    while (http_active(server->http) && clock_seconds() < deadline)
        sleep_ms(10);
}

void server_drain(struct server *server, double timeout_s)
{
    struct service *service = &server->service;
    double now = clock_seconds(), deadline = now + timeout_s - end_part(timeout_s);
    server->end_by = now + server_end_seconds(timeout_s);
    while (!at_rest(service) && clock_seconds() < deadline)
        sleep_ms(10);
    if (!at_rest(service)) {
        log_message(LOG_LEVEL_WARN, "cancelling %zu requests at the drain's deadline",
                    registry_count(&service->registry));
        cancel_all(service);
    }
    /* The last frames and error replies still have to be written; a client that does not read
     * them is not waited for. */
    now = clock_seconds();
    wait_for_clients(server, now + (server->end_by - now) / 2);
    /* A request may have been on its way in when the phase changed. And who still waits, waits for
     * the disk. */
    atomic_store(&service->giving_up, true);
    cancel_all(service);
    replay_give_up(service->replay);
    now = clock_seconds();
    wait_for_clients(server, now + (server->end_by - now) / 2);
}

/* What a step took, by cause. */
static void log_steps(struct metrics *metrics)
{
    double seconds[NUM_CAUSES], steps = (double)atomic_load(&metrics->steps);
    for (int i = 0; i < NUM_CAUSES; i++)
        seconds[i] = (double)atomic_load(&metrics->cause_nanos[i]) * 1e-9;
    double device = seconds[CAUSE_DEVICE], host = seconds[CAUSE_HOST];
    if (steps > 0)
        log_message(LOG_LEVEL_INFO,
                    "%.0f steps: each %.3f ms on the device, and %.3f ms until the host had it "
                    "(%.1f %%); idle for %.1f s",
                    steps, 1e3 * device / steps, 1e3 * host / steps, 100 * host / (device + host),
                    seconds[CAUSE_IDLE]);
}

/* Of a drain, for what comes after the saving. */
static const double LAST_SECONDS = 0.2;

/* The order leaves no connection suspended: a thread that could wake one ends after it has. */
size_t server_free(struct server *server)
{
    if (!server)
        return 0;
    struct service *service = &server->service;
    worker_pool_stop(service->renderers);
    worker_pool_stop(service->workers);
    scheduler_stop(service->scheduler);
    http_stop(server->http);
    credentials_close(server->credentials);
    worker_pool_free(service->renderers);
    worker_pool_free(service->workers);
    double left = server->end_by - clock_seconds() - LAST_SECONDS;
    states_close(service, server->end_by == 0 || left > SAVE_SECONDS ? SAVE_SECONDS : left);
    size_t unsaved = atomic_load(service->unsaved);
    replay_free(service->replay);
    scheduler_free(service->scheduler); /* until then the store may poke it */
    grammars_free(service->grammars);
    own_tokens_free(service->own_tokens);
    if (service->engine)
        engine_close(service->engine);
    if (service->tokenizer)
        tokenizer_free(service->tokenizer);
    chat_template_clear(&service->chat);
    model_close(server->model);
    log_steps(&service->metrics);
    names_clear(&service->owners);
    pthread_mutex_destroy(&service->owners_lock);
    free((void *)service->card.layer_types);
    free(service->eos_ids);
    page_clear(&service->page);
    names_clear(&server->origins.origins);
    names_clear(&server->origins.hosts);
    names_clear(&server->names);
    names_clear(&server->hosts);
    registry_destroy(&service->registry);
    request_bound_memory(NULL, NULL, NULL);
    admission_destroy(&service->admission);
    free(server);
    return unsaved;
}
