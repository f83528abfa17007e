/* SPDX-License-Identifier: Apache-2.0 */
/* `regla serve`: the life of the server, from its flags to the end of its drain. */
#include "cli/command.h"

#include "api/models.h"
#include "cli/command_model.h"
#include "engine/base/clock.h"
#include "engine/cost.h"
#include "engine/model/model.h"
#include "server/capacity.h"
#include "server/http/http.h"
#include "server/http/listen.h"
#include "server/log.h"
#include "server/schedule/scheduler.h"
#include "server/service.h"
#include "server/states/states.h"

#include <ctype.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct serve_options {
    const char *directory; /* NULL: model.preset */
    struct command_model_options model;
    const char *host, *served_model_name, *api_key_file;
    struct option_list api_keys;
    int64_t port, max_model_len, http_threads, tokenizer_threads;
    int64_t max_queue, max_queue_tokens, max_running, max_connections, max_prompts;
    int64_t max_body_bytes, max_body_memory, max_step_tokens, prefill_chunk;
    bool prefix_cache;
    int64_t checkpoint_interval, host_state_memory, disk_state, session_quota;
    int64_t max_state_bytes, idempotency_memory;
    const char *state_dir;
    double session_ttl;
    double request_timeout, idle_timeout, stall_timeout, drain_timeout;
    const char *log_level, *log_format, *metrics_compat;
};

#define FIELD(member) offsetof(struct serve_options, member)

static const struct option ITEMS[] = {
    {"model", OPTION_TEXT, FIELD(directory), "DIR", NULL, 0, 0, NULL,
     "directory of the model: config.json, tokenizer.json, *.safetensors"},
    COMMAND_PRESET_OPTION(struct serve_options),
    {"host", OPTION_TEXT, FIELD(host), "HOST", "127.0.0.1", 0, 0, NULL,
     "name or address to listen on; 0.0.0.0 or :: for all"},
    {"port", OPTION_INTEGER, FIELD(port), "PORT", "8000", 0, 65535, NULL,
     "TCP port to listen on; 0 picks a free one, which the log names"},
    {"served-model-name", OPTION_TEXT, FIELD(served_model_name), "NAME", NULL, 0, 0, NULL,
     "the model's name to clients; without it the directory's name"},
    {"api-key", OPTION_LIST, FIELD(api_keys), "KEY", NULL, 0, 0, NULL,
     "key that requests must bear; several: repeat it, or part them by commas"},
    {"api-key-file", OPTION_TEXT, FIELD(api_key_file), "PATH", NULL, 0, 0, NULL,
     "file with one API key a line; lines that begin with # are skipped"},
    {"max-model-len", OPTION_INTEGER, FIELD(max_model_len), "tokens", "0", 0, 1e12, NULL,
     "most tokens of a prompt and its completion together; 0: what the model and memory allow"},
    COMMAND_MODEL_OPTIONS(struct serve_options),
    {"http-threads", OPTION_INTEGER, FIELD(http_threads), "threads", "2", 1, 256, NULL,
     "threads of the HTTP event loops"},
    {"tokenizer-threads", OPTION_INTEGER, FIELD(tokenizer_threads), "threads", "2", 1, 256, NULL,
     "threads that tokenize prompts"},
    {"max-running", OPTION_INTEGER, FIELD(max_running), "texts", "128", 1, 65536, NULL,
     "most texts that are advanced at once; each of n and best_of is one, and all of one prompt "
     "run together, even if they are more"},
    {"max-queue", OPTION_INTEGER, FIELD(max_queue), "requests", "1024", 0, 1e9, NULL,
     "most requests that wait to run; more are refused with 429"},
    {"max-queue-tokens", OPTION_INTEGER, FIELD(max_queue_tokens), "tokens", "4194304", 1, 1e15,
     NULL, "most tokens that wait, by estimate; more are refused with 429"},
    {"max-connections", OPTION_INTEGER, FIELD(max_connections), "connections", "4096", 1, 1e6, NULL,
     "most open connections, as far as ulimit -n allows; more wait to be accepted"},
    {"max-prompts", OPTION_INTEGER, FIELD(max_prompts), "prompts", "2048", 1, 1e6, NULL,
     "most prompts of one request"},
    {"max-body-bytes", OPTION_BYTES, FIELD(max_body_bytes), "bytes", "8M", 1024, 1e12, NULL,
     "largest request body; larger ones are refused with 413"},
    {"max-body-memory", OPTION_BYTES, FIELD(max_body_memory), "bytes", "512M", 65536, 1e15, NULL,
     "memory for the bodies, prompts and replies of all requests together; beyond it: 429, or 503"},
    {"prefix-cache", OPTION_FLAG, FIELD(prefix_cache), NULL, "true", 0, 0, NULL,
     "reuse the states of prompts that begin as earlier ones did"},
    {"checkpoint-interval", OPTION_INTEGER, FIELD(checkpoint_interval), "tokens", "0", 0, 1e9, NULL,
     "keep a state every so many tokens; 0: from the model, so that it costs less than the KV"},
    {"host-state-memory", OPTION_BYTES, FIELD(host_state_memory), "bytes", "1G", 0, 1e18, NULL,
     "memory for states that --state-memory has no room for"},
    {"state-dir", OPTION_TEXT, FIELD(state_dir), "DIR", NULL, 0, 0, NULL,
     "directory for sessions and states: they survive a restart; made if need be"},
    {"disk-state", OPTION_BYTES, FIELD(disk_state), "bytes", "16G", 0, 1e18, NULL,
     "most bytes of the files in --state-dir"},
    {"session-ttl", OPTION_SECONDS, FIELD(session_ttl), "seconds", "0", 0, 1e9, NULL,
     "a session that is not used for so long is deleted; 0: never"},
    {"session-quota", OPTION_BYTES, FIELD(session_quota), "bytes", "0", 0, 1e18, NULL,
     "most bytes of the sessions of one API key; 0: any"},
    {"max-state-bytes", OPTION_BYTES, FIELD(max_state_bytes), "bytes", "256M", 1024, 1e12, NULL,
     "largest state file that may be imported; larger ones are refused with 413"},
    {"idempotency-memory", OPTION_BYTES, FIELD(idempotency_memory), "bytes", "64M", 0, 1e15, NULL,
     "memory for the replies of requests with an Idempotency-Key, kept for ten minutes"},
    {"max-step-tokens", OPTION_INTEGER, FIELD(max_step_tokens), "tokens", "0", 0, 65536, NULL,
     "most tokens of one step of the engine: less shortens the gaps between tokens while prompts "
     "are read; 0: 512"},
    {"prefill-chunk", OPTION_INTEGER, FIELD(prefill_chunk), "tokens", "0", 0, 65536, NULL,
     "most tokens of one prompt in a step; 0: as many as the step has room for"},
    {"request-timeout", OPTION_SECONDS, FIELD(request_timeout), "seconds", "30", 0.1, 86400, NULL,
     "from a request's first byte to its last; then its connection is closed"},
    {"idle-timeout", OPTION_SECONDS, FIELD(idle_timeout), "seconds", "75", 1, 86400, NULL,
     "without a byte in either direction; then the connection is closed"},
    {"stall-timeout", OPTION_SECONDS, FIELD(stall_timeout), "seconds", "10", 0.1, 86400, NULL,
     "a stream that is behind, and whose reader takes nothing for so long, is cancelled"},
    {"drain-timeout", OPTION_SECONDS, FIELD(drain_timeout), "seconds", "30", 0, 86400, NULL,
     "after SIGTERM or SIGINT, for running requests to finish"},
    {"log-level", OPTION_CHOICE, FIELD(log_level), NULL, "info", 0, 0, "debug|info|warn|error|off",
     "least important messages that are logged"},
    {"log-format", OPTION_CHOICE, FIELD(log_format), NULL, "text", 0, 0, "text|json",
     "text for people, or one JSON object a line"},
    {"metrics-compat", OPTION_CHOICE, FIELD(metrics_compat), NULL, "none", 0, 0, "none|vllm",
     "vllm: the metrics also under the names that vLLM's gateways and dashboards read"},
};

static const struct options OPTIONS = {
    .usage = "regla serve --model DIR | --preset NAME [options]",
    .summary = "Serves a model over HTTP: the OpenAI completions API with vLLM's extensions.",
    .items = ITEMS,
    .count = sizeof ITEMS / sizeof *ITEMS,
};

/* What main and the thread of the signals share. */
struct lifecycle {
    struct service *service;
    sigset_t signals;
    sem_t stop;
};

/* The first signal begins the drain, the second ends the process at once. */
static void *signal_main(void *context)
{
    struct lifecycle *life = context;
    int number = 0;
    pthread_setname_np(pthread_self(), "regla-signals");
    sigwait(&life->signals, &number);
    if (atomic_load(&life->service->phase) == SERVICE_LOADING) {
        log_message(LOG_LEVEL_INFO, "signal %d while loading: exiting", number);
        _exit(0);
    }
    atomic_store(&life->service->phase, SERVICE_DRAINING);
    log_message(LOG_LEVEL_INFO, "signal %d: draining; a second one exits at once", number);
    sem_post(&life->stop);
    sigwait(&life->signals, &number);
    _exit(128 + number);
}

static void on_progress(void *context, double fraction)
{
    int *told = context;
    int percent = (int)(fraction * 100);
    if (percent < *told + 10 && !(percent == 100 && *told < 100))
        return;
    *told = percent - percent % 10;
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
    snprintf(service->fingerprint, sizeof service->fingerprint,
             "regla-%s-%02x%02x%02x%02x-%s-%s-%s%s%s", REGLA_VERSION, tensors[0], tensors[1],
             tensors[2], tensors[3], set, weight_format_name(info->weights),
             kv_format_name(info->kv), info->activations == ACTIVATIONS_F32 ? "" : "-",
             info->activations == ACTIVATIONS_F32 ? "" : activation_format_name(info->activations));
}

/* What the service knows of its model. */
static int take_model(struct service *service, const struct serve_options *options,
                      const struct model *model, struct error *err)
{
    const char *name = options->served_model_name ? options->served_model_name : model->name;
    if (!*name)
        return error_set(err, ERROR_INVALID,
                         "--served-model-name (REGLA_SERVED_MODEL_NAME): expected a name, got an "
                         "empty text");
    int32_t *eos = calloc(model->eos.count + 1, sizeof *eos);
    service->model = strdup(name);
    if (!eos || !service->model) {
        free(eos);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    if (model->eos.count)
        memcpy(eos, model->eos.ids, model->eos.count * sizeof *eos);
    service->eos_ids = eos;
    service->num_eos = model->eos.count;
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
        .model = service->model,
        .vocab_size = model->vocab_size,
        .max_model_len = limit,
        .limited_by = learned ? "the model's learned positions" : "--max-model-len",
        .max_prompts = (size_t)options->max_prompts,
        .allow_empty_prompt = model->bos_token_id >= 0,
        .token_ids_only = options->directory == NULL};
    return 0;
}

/* Reads what can be wrong with the model before the socket opens. The caller closes *model. */
static int validate_model(struct service *service, const struct serve_options *options,
                          struct model **model, struct error *err)
{
    if (command_model_load(model, options->directory, &options->model, err) ||
        command_tokenizer_open(&service->tokenizer, options->directory, err) ||
        command_tokenizer_check(service->tokenizer, options->directory, (*model)->vocab_size, err))
        return -1;
    return take_model(service, options, *model, err);
}

static int describe_model(struct service *service, struct error *err)
{
    const struct model *model = engine_model(service->engine);
    const struct engine_info *info = engine_info(service->engine);
    const char **names = calloc((size_t)model->num_layers, sizeof *names);
    if (!names)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (int i = 0; i < model->num_layers; i++)
        names[i] = model->layers[i].mixer.name;
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
    };
    return 0;
}

/* One token, so that the first request does not pay for memory that is touched for the first time.
 * A budget too small even for that serves nobody. */
static int warm_up(struct engine *engine, struct error *err)
{
    const int32_t token = 0;
    struct state *state = NULL;
    if (state_create(&state, engine, 1, err))
        return error_prefix(err, "--state-memory: not even one token fits");
    struct span span = {.state = state, .tokens = &token, .num_tokens = 1, .num_logits = 1};
    int result = engine_step(engine, &span, 1, err);
    state_free(state);
    return result;
}

/* *model becomes the engine's: NULL here. */
static int load(struct service *service, const struct serve_options *options, struct model **model,
                struct error *err)
{
    struct model *taken = *model;
    *model = NULL;
    double began = clock_seconds();
    int told = -10;
    struct engine_options engine = command_engine_options(&options->model);
    engine.max_step_tokens = (int)options->max_step_tokens;
    engine.progress = on_progress;
    engine.progress_context = &told;
    if (engine_open_model(&service->engine, taken, &engine, err) || describe_model(service, err) ||
        warm_up(service->engine, err))
        return -1;
    set_fingerprint(service);
    service->memory_limit_tokens = cost_longest_text(service->engine);
    struct states_options keeping = {.reuse = options->prefix_cache,
                                     .interval_tokens = options->checkpoint_interval,
                                     .host_bytes = options->host_state_memory,
                                     .directory = options->state_dir,
                                     .disk_bytes = options->disk_state,
                                     .session_ttl_s = options->session_ttl,
                                     .session_quota_bytes = options->session_quota,
                                     .idempotency_bytes = options->idempotency_memory};
    if (states_open(service, &keeping, err))
        return -1;
    if (scheduler_create(&service->scheduler, service, (int)options->max_running,
                         (int)options->prefill_chunk, err))
        return -1;
    log_message(LOG_LEVEL_INFO, "loaded in %.2f s", clock_seconds() - began);
    capacity_report(service->engine, service->limits.max_model_len, options->max_running);
    return 0;
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

/* Lets what runs finish until the deadline, then cancels it. Nothing new comes in meanwhile. */
static void drain(struct service *service, struct http_server *http, double timeout_s)
{
    double deadline = clock_seconds() + timeout_s;
    while (!at_rest(service) && clock_seconds() < deadline)
        sleep_ms(10);
    if (!at_rest(service)) {
        log_message(LOG_LEVEL_WARN, "cancelling %zu requests at the drain's deadline",
                    registry_count(&service->registry));
        cancel_all(service);
    }
    /* The last frames and error replies still have to be written; a client that does not read
     * them is not waited for. */
    deadline = clock_seconds() + 2;
    while (http_active(http) && clock_seconds() < deadline)
        sleep_ms(10);
    /* A request may have been on its way in when the phase changed. */
    cancel_all(service);
}

/* At the end, for states that are only in memory to be written to --state-dir. */
enum { SAVE_SECONDS = 10 };

/* In an order that leaves no connection suspended: whoever could wake one ends after it has. */
static void stop(struct service *service, struct http_server *http)
{
    worker_pool_stop(service->workers);
    scheduler_stop(service->scheduler);
    http_stop(http);
    worker_pool_free(service->workers);
    states_close(service, SAVE_SECONDS);
    scheduler_free(service->scheduler); /* until then the store may poke it */
    if (service->engine)
        engine_close(service->engine);
    if (service->tokenizer)
        tokenizer_free(service->tokenizer);
    free((void *)service->card.layer_types);
    free((void *)service->eos_ids);
    free((void *)service->model);
    auth_clear(&service->auth);
    registry_destroy(&service->registry);
    admission_destroy(&service->admission);
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

/* Each connection is a file, and the soft limit is often 1024. Returns as many of the connections
 * as there may be files for: a thread of libmicrohttpd that accepts its first one without a file
 * left tries again and again, and the files of states need some too. */
static int64_t fit_file_limit(int64_t connections)
{
    enum { OTHER_FILES = 256 };
    struct rlimit limit;
    rlim_t wanted = (rlim_t)connections + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
        return connections;
    rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    rlim_t most = setrlimit(RLIMIT_NOFILE, &limit) ? soft : limit.rlim_cur;
    if (most >= wanted)
        return connections;
    int64_t fit = (int64_t)(most > 2 * OTHER_FILES ? most - OTHER_FILES : most / 2);
    fit = fit < 1 ? 1 : fit < connections ? fit : connections;
    log_message(LOG_LEVEL_WARN,
                "--max-connections %lld: %lld at most, as this process may open only %llu files "
                "(ulimit -n)",
                (long long)connections, (long long)fit, (unsigned long long)most);
    return fit;
}

static void init(struct service *service, const struct serve_options *options)
{
    *service = (struct service){0};
    atomic_init(&service->phase, SERVICE_LOADING);
    service->vllm_names = strcmp(options->metrics_compat, "vllm") == 0;
    service->max_body_bytes = options->max_body_bytes;
    service->max_state_bytes = options->max_state_bytes;
    service->stall_timeout_s = options->stall_timeout;
    metrics_init(&service->metrics);
    registry_init(&service->registry);
    struct admission_limits limits = {options->max_queue, options->max_running,
                                      options->max_queue_tokens, options->max_body_memory};
    admission_init(&service->admission, &limits);
}

static int run(struct service *service, const struct serve_options *options, struct error *err)
{
    static struct lifecycle life; /* the thread of the signals outlives this function */
    struct http_server *http = NULL;
    struct model *model = NULL; /* until it is the engine's */
    pthread_t signals;
    life.service = service;
    sem_init(&life.stop, 0, 0);
    sigemptyset(&life.signals);
    sigaddset(&life.signals, SIGTERM);
    sigaddset(&life.signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &life.signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    struct http_options listening = {.host = options->host,
                                     .port = (int)options->port,
                                     .threads = (int)options->http_threads,
                                     .max_connections =
                                         (int)fit_file_limit(options->max_connections),
                                     .request_timeout_s = options->request_timeout,
                                     .idle_timeout_s = options->idle_timeout};
    int result = -1;
    if (auth_init(&service->auth, &options->api_keys, options->api_key_file, err) == 0 &&
        validate_model(service, options, &model, err) == 0 &&
        worker_pool_create(&service->workers, (int)options->tokenizer_threads, err) == 0 &&
        http_start(&http, service, &listening, err) == 0) {
        log_message(LOG_LEVEL_INFO, "listening on http://%s, loading the model",
                    http_address(http));
        if (service->auth.count == 0 && !listen_is_loopback(http_address(http)))
            log_message(LOG_LEVEL_WARN,
                        "without --api-key: whoever reaches this address may use the server");
        int code = pthread_create(&signals, NULL, signal_main, &life);
        if (code)
            error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
        else
            pthread_detach(signals);
        if (code == 0 && load(service, options, &model, err) == 0) {
            int loading = SERVICE_LOADING;
            atomic_compare_exchange_strong(&service->phase, &loading, SERVICE_READY);
            log_message(LOG_LEVEL_INFO, "ready: %s on http://%s/v1", service->model,
                        http_address(http));
            while (sem_wait(&life.stop) && errno == EINTR)
                ;
            drain(service, http, options->drain_timeout);
            result = 0;
        }
    }
    stop(service, http);
    model_close(model);
    if (result == 0) {
        log_steps(&service->metrics);
        log_message(LOG_LEVEL_INFO, "bye");
    }
    return result;
}

int command_serve(int argc, char **argv)
{
    struct serve_options options = {0};
    struct error err = ERROR_INIT;
    int status = 0;
    if (command_options(&OPTIONS, &options, argc, argv, NULL, &status)) {
        options_clear(&OPTIONS, &options);
        return status;
    }
    status = command_model_given(argv[0], options.directory, &options.model, OPTIONS.usage);
    if (status) {
        options_clear(&OPTIONS, &options);
        return status;
    }
    bool json = strcmp(options.log_format, "json") == 0;
    log_configure(log_level_named(options.log_level), json);
    struct service *service = calloc(1, sizeof *service);
    if (!service) {
        options_clear(&OPTIONS, &options);
        fprintf(stderr, "regla serve: out of memory\n");
        return 1;
    }
    init(service, &options);
    status = run(service, &options, &err) ? 1 : 0;
    if (status && json && log_enabled(LOG_LEVEL_ERROR)) /* who reads the log reads JSON */
        log_message(LOG_LEVEL_ERROR, "%s", err.message);
    else if (status)
        fprintf(stderr, "regla serve: %s\n", err.message);
    free(service);
    options_clear(&OPTIONS, &options);
    return status;
}
