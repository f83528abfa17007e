/* SPDX-License-Identifier: Apache-2.0 */
/* `regla serve`: flags become options of the server (server/server.h), signals its end. */
#include "cli/command.h"

#include "cli/command_model.h"
#include "cli/sessions_server.h"
#include "engine/model/author_sampling.h"
#include "engine/model/model.h"
#include "lib/base/clock.h"
#include "lib/jinja/chat_template.h"
#include "server/http/socket_file.h"
#include "server/log.h"
#include "server/server.h"
#include "server/store/store_backends.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct serve_options {
    const char *directory; /* NULL: model.preset */
    const char *chat_template, *content_tokens, *reasoning, *generation_config;
    struct command_model_options model;
    const char *api_key_file, *socket_mode, *tls_certificate, *tls_key;
    struct option_list hosts, served_model_names, api_keys, allowed_origins, allowed_hosts,
        page_compare;
    bool page;
    int64_t port, max_model_len, default_max_tokens, http_threads, tokenizer_threads;
    int64_t max_queue, max_queue_tokens, max_running, max_connections, max_prompts;
    int64_t max_body_bytes, max_body_memory, max_step_tokens, prefill_chunk, max_step_ms;
    bool prefix_cache;
    int64_t checkpoint_interval, host_state_memory, disk_state, save_state_bytes, session_quota;
    int64_t max_state_bytes, idempotency_memory;
    const char *state_dir, *store, *session_durability;
    struct store_tls store_tls;
    double session_ttl, response_ttl, lease;
    int64_t store_replicas;
    const char *store_states;
    bool share_prefixes;
    double request_timeout, idle_timeout, stall_timeout, drain_timeout;
    const char *log_level, *log_format, *metrics_compat;
};

/* For tests: requests may guess their replies (draft_token_ids). */
#define DRAFTS_OF_REQUESTS "REGLA_TEST_DRAFTS"

#define FIELD(member) offsetof(struct serve_options, member)

static const struct option ITEMS[] = {
    {"model", OPTION_TEXT, FIELD(directory), "PATH", NULL, 0, 0, NULL,
     "the model: a directory with config.json, tokenizer.json and *.safetensors, or a GGUF file, "
     "or "
     "a directory with one"},
    COMMAND_PRESET_OPTION(struct serve_options),
    {"chat-template", OPTION_TEXT, FIELD(chat_template), "FILE", NULL, 0, 0, NULL,
     "the chat template, in Jinja, instead of the model's own"},
    COMMAND_CONTENT_TOKENS_OPTION(struct serve_options),
    {"reasoning", OPTION_CHOICE, FIELD(reasoning), NULL, "auto", 0, 0, "auto|off",
     "auto: what a chat's reply has between <think> and </think>, or the template's own markers, "
     "is "
     "reasoning_content; off: it stays in the content"},
    {"generation-config", OPTION_CHOICE, FIELD(generation_config), NULL, "auto", 0, 0, "auto|off",
     "auto: what the model's author recommends for sampling (generation_config.json, or "
     "general.sampling of a GGUF file) is the default of requests that say nothing; off: the API's "
     "defaults are"},
    {"host", OPTION_LIST, FIELD(hosts), "HOST", "127.0.0.1", 0, 0, NULL,
     "name or address to listen on; 0.0.0.0 or :: for all; unix:PATH for a Unix socket; several: "
     "repeat it, or separate them with commas"},
    {"port", OPTION_INTEGER, FIELD(port), "PORT", "8000", 0, 65535, NULL,
     "TCP port to listen on; 0 picks a free one, which the log names"},
    {"socket-mode", OPTION_CHOICE, FIELD(socket_mode), NULL, "660", 0, 0, "600|660|666",
     "who may connect to a Unix socket: its owner, its group too, or all users"},
    {"tls-cert", OPTION_TEXT, FIELD(tls_certificate), "PATH", NULL, 0, 0, NULL,
     "certificate chain in PEM, the server's own first; all TCP addresses then speak TLS 1.2 and "
     "1.3 only, Unix sockets stay plain. SIGHUP reads this file, --tls-key and --api-key-file "
     "again"},
    {"tls-key", OPTION_TEXT, FIELD(tls_key), "PATH", NULL, 0, 0, NULL,
     "private key of --tls-cert in PEM, not encrypted"},
    {"served-model-name", OPTION_LIST, FIELD(served_model_names), "NAME", NULL, 0, 0, NULL,
     "the model's name to clients; without it the directory's name; several: repeat it, or "
     "separate them with commas; with * and ? any name like it: claude-*"},
    {"api-key", OPTION_LIST, FIELD(api_keys), "KEY", NULL, 0, 0, NULL,
     "key that requests must bear; several: repeat it, or separate them with commas"},
    {"api-key-file", OPTION_TEXT, FIELD(api_key_file), "PATH", NULL, 0, 0, NULL,
     "file with one API key a line; lines that begin with # are skipped; SIGHUP reads it again"},
    {"allowed-origins", OPTION_LIST, FIELD(allowed_origins), "ORIGIN", NULL, 0, 0, NULL,
     "origin of other web pages that may use the server, as http://localhost:3000: may read "
     "replies "
     "(CORS), and send POST, PUT and DELETE, which from others get 403; * for all; several: repeat "
     "it, or separate them with commas"},
    {"allowed-hosts", OPTION_LIST, FIELD(allowed_hosts), "NAME", NULL, 0, 0, NULL,
     "other name that a request may be sent to (Host); .NAME for all below it too, * for any. "
     "Always "
     "allowed: addresses, localhost, this machine's name and those of --host; where the server has "
     "keys or listens on loopback only, all names without a dot. Without this flag names are "
     "checked where the server asks for no key"},
    {"page", OPTION_FLAG, FIELD(page), NULL, "true", 0, 0, NULL,
     "show people a page at /: to try the model, and to see its sessions, memory and speed"},
    {"page-compare", OPTION_LIST, FIELD(page_compare), "URL", NULL, 0, 0, NULL,
     "another server that the page may show beside this one, as http://127.0.0.1:8001; that one "
     "needs this page's origin in its --allowed-origins; several: repeat it, or separate them with "
     "commas"},
    {"max-model-len", OPTION_INTEGER, FIELD(max_model_len), "tokens", "0", 0, 1e12, NULL,
     "most tokens of a prompt and its completion together; 0: what the model and memory allow"},
    {"default-max-tokens", OPTION_INTEGER, FIELD(default_max_tokens), "tokens", "32768", 1, 1e12,
     NULL,
     "most tokens of a chat's reply that names no max_tokens, without --max-model-len; with it "
     "such "
     "a reply may go to the end of the context"},
    COMMAND_MODEL_OPTIONS(struct serve_options, "auto"),
    {"http-threads", OPTION_INTEGER, FIELD(http_threads), "threads", "2", 1, 256, NULL,
     "threads of the HTTP event loops; as many once more where some addresses have TLS and others "
     "have not"},
    {"tokenizer-threads", OPTION_INTEGER, FIELD(tokenizer_threads), "threads", "2", 1, 256, NULL,
     "threads that tokenize long prompts, and as many that render long chats; one more of each is "
     "kept for short ones"},
    {"max-running", OPTION_INTEGER, FIELD(max_running), "texts", "128", 1, 65536, NULL,
     "most texts that are advanced at once; each of n and best_of is one"},
    {"max-queue", OPTION_INTEGER, FIELD(max_queue), "requests", "1024", 0, 1e9, NULL,
     "most requests that wait to run; more are refused with 429, but each of k API keys (without "
     "keys: addresses) may have the k-th part"},
    {"max-queue-tokens", OPTION_INTEGER, FIELD(max_queue_tokens), "tokens", "4194304", 1, 1e15,
     NULL, "most tokens that wait, by estimate; more are refused with 429, likewise"},
    {"max-connections", OPTION_INTEGER, FIELD(max_connections), "connections", "auto", 1, 1e6, NULL,
     "most open connections, as far as ulimit -n allows. For more of them those go that were idle "
     "longest, or have sent a part of a request for longest; where all are at work, a new request "
     "gets 429, but for /health and /ready; auto: 4096, or fewer where memory is scarce"},
    {"max-prompts", OPTION_INTEGER, FIELD(max_prompts), "prompts", "2048", 1, 1e6, NULL,
     "most prompts of one request"},
    {"max-body-bytes", OPTION_BYTES, FIELD(max_body_bytes), "bytes", "8M", 1024, 1e12, NULL,
     "largest request body; larger ones are refused with 413"},
    {"max-body-memory", OPTION_BYTES, FIELD(max_body_memory), "bytes", "auto", 65536, 1e15, NULL,
     "memory for the bodies, prompts, compiled grammars and replies of all requests together; "
     "beyond it requests get 429 or 503; auto: 512M, or a share of what is free if that is less; a "
     "body may then have a "
     "32nd of it, and an imported state half"},
    {"prefix-cache", OPTION_FLAG, FIELD(prefix_cache), NULL, "true", 0, 0, NULL,
     "reuse the states of prompts that begin as earlier ones did"},
    {"checkpoint-interval", OPTION_INTEGER, FIELD(checkpoint_interval), "tokens", "0", 0, 1e9, NULL,
     "keep a state every so many tokens; 0: 512, or up to 4096 where a state is larger than the KV "
     "of 512 tokens"},
    {"host-state-memory", OPTION_BYTES, FIELD(host_state_memory), "bytes", "auto", 0, 1e18, NULL,
     "memory for states that --state-memory has no room for; auto: 1G, or a share of what is free "
     "if that is less"},
    {"state-dir", OPTION_TEXT, FIELD(state_dir), "DIR", NULL, 0, 0, NULL,
     "directory for sessions and states: they survive a restart; made if need be"},
    {"store", OPTION_TEXT, FIELD(store), "LOCATION", NULL, 0, 0, NULL,
     "instead of --state-dir: a Redis (6.2 or later) or Valkey that several servers of one model "
     "share, so that each can go on with every session: redis://[user:password@]host[:port][/db], "
     "rediss://... with TLS, or unix:PATH; with Sentinel redis+sentinel://HOST:PORT,.../NAME, "
     "several by commas, NAME the master's, or rediss+sentinel://..."},
    {"store-ca", OPTION_TEXT, FIELD(store_tls.ca), "PATH", NULL, 0, 0, NULL,
     "with --store rediss://...: the CAs, in PEM, of which one has signed the store's certificate; "
     "without it those of the system"},
    {"store-cert", OPTION_TEXT, FIELD(store_tls.certificate), "PATH", NULL, 0, 0, NULL,
     "the same: certificate chain in PEM that this server shows to the store"},
    {"store-key", OPTION_TEXT, FIELD(store_tls.key), "PATH", NULL, 0, 0, NULL,
     "private key of --store-cert in PEM, not encrypted"},
    {"lease", OPTION_SECONDS, FIELD(lease), "seconds", "10", 1, 3600, NULL,
     "with --store: how long a session stays busy after the server that worked on it has died"},
    {"store-replicas", OPTION_INTEGER, FIELD(store_replicas), "replicas", "0", 0, 64, NULL,
     "with --store: how many of the store's own replicas are to have a change before it is "
     "acknowledged; fewer: 503"},
    {"store-states", OPTION_CHOICE, FIELD(store_states), NULL, "on", 0, 0, "on|off",
     "on: with --store, the deepest state of a session is in the store, too; off: another server "
     "computes it again from the tokens"},
    {"share-prefixes", OPTION_FLAG, FIELD(share_prefixes), NULL, "false", 0, 0, NULL,
     "with --store: what a server has computed of a prompt goes there, and the others read it "
     "instead of computing it again"},
    {"session-durability", OPTION_CHOICE, FIELD(session_durability), NULL, "commit", 0, 0,
     "commit|memory",
     "commit: a turn of a session is on disk when its reply ends; memory: soon after that"},
    {"disk-state", OPTION_BYTES, FIELD(disk_state), "bytes", "16G", 0, 1e18, NULL,
     "most bytes of the files in --state-dir"},
    {"save-state-bytes", OPTION_BYTES, FIELD(save_state_bytes), "bytes", "16M", 0, 1e18, NULL,
     "the largest state of a session or response that is written to --state-dir or --store after "
     "each of its requests; what is not written is computed again after a crash, and on another "
     "server of the store"},
    {"session-ttl", OPTION_SECONDS, FIELD(session_ttl), "seconds", "0", 0, 1e9, NULL,
     "a session that is not used for so long is deleted; 0: never"},
    {"response-ttl", OPTION_SECONDS, FIELD(response_ttl), "seconds", "86400", 0, 1e9, NULL,
     "a response of /v1/responses that is not used for so long is deleted; 0: never"},
    {"session-quota", OPTION_BYTES, FIELD(session_quota), "bytes", "0", 0, 1e18, NULL,
     "most bytes of the sessions of one API key; its responses, the least recently used first, "
     "make room; 0: no limit"},
    {"max-state-bytes", OPTION_BYTES, FIELD(max_state_bytes), "bytes", "256M", 1024, 1e12, NULL,
     "largest state file that may be imported; larger ones are refused with 413"},
    {"idempotency-memory", OPTION_BYTES, FIELD(idempotency_memory), "bytes", "auto", 0, 1e15, NULL,
     "memory for the replies of requests with an Idempotency-Key, kept for ten minutes; auto: 64M, "
     "or a share of what is free if that is less"},
    {"max-step-tokens", OPTION_INTEGER, FIELD(max_step_tokens), "tokens", "0", 0, 65536, NULL,
     "most tokens of one step of the engine: less shortens the gaps between tokens while prompts "
     "are read; 0: 512"},
    {"max-step-ms", OPTION_INTEGER, FIELD(max_step_ms), "ms", "0", 0, 60000, NULL,
     "longest time in ms that a step should take while prompts are read, since other requests wait "
     "for it; 0: twice the time of a step without prompts, at least 10, and up to 200 while one "
     "prompt is all there is"},
    {"prefill-chunk", OPTION_INTEGER, FIELD(prefill_chunk), "tokens", "0", 0, 65536, NULL,
     "most tokens of one prompt in a step; 0: as many as the step has room for"},
    {"request-timeout", OPTION_SECONDS, FIELD(request_timeout), "seconds", "30", 0.1, 86400, NULL,
     "from a request's first byte to its last; then its connection is closed"},
    {"idle-timeout", OPTION_SECONDS, FIELD(idle_timeout), "seconds", "75", 1, 86400, NULL,
     "without a byte in either direction; then the connection is closed"},
    {"stall-timeout", OPTION_SECONDS, FIELD(stall_timeout), "seconds", "10", 0.1, 86400, NULL,
     "a stream that is behind, and whose reader takes nothing for so long, is cancelled"},
    {"drain-timeout", OPTION_SECONDS, FIELD(drain_timeout), "seconds", "30", 0, 86400, NULL,
     "most time from SIGTERM or SIGINT to the exit, 2 s at least; running requests may finish in "
     "three quarters of it, or in all but the last 2 s if that is more"},
    {"log-level", OPTION_CHOICE, FIELD(log_level), NULL, "info", 0, 0, "debug|info|warn|error|off",
     "least important messages that are logged"},
    {"log-format", OPTION_CHOICE, FIELD(log_format), NULL, "text", 0, 0, "text|json",
     "text for people, or one JSON object a line"},
    {"metrics-compat", OPTION_CHOICE, FIELD(metrics_compat), NULL, "none", 0, 0, "none|vllm",
     "vllm: the metrics also under the names that vLLM's gateways and dashboards read"},
};

const struct options command_serve_options = {
    .usage = "regla serve --model PATH | --preset NAME [options]",
    .summary = "Serves a model over HTTP: the OpenAI completions API with vLLM's extensions.",
    .items = ITEMS,
    .count = sizeof ITEMS / sizeof *ITEMS,
};

/* At the end, for whoever reads the log to take what is left of it. */
enum { LOG_SECONDS = 1 };
static const double LAST_LOG_SECONDS = 0.2; /* when the drain has none left */

/* What main and the thread of the signals share. */
struct lifecycle {
    pthread_mutex_t lock;
    struct server *server; /* guarded by the lock; NULL: there is none yet, or it ends */
    bool asked;            /* guarded by the lock: a signal came that ends the process */
    atomic_bool ending;    /* the server has been taken down, or is on its way */
    double drain_timeout;
    sigset_t signals;
    sem_t stop;
    _Atomic size_t unsaved; /* sessions */
    atomic_bool over;       /* all is done but the process's end */
};

/* The drain has its time, whatever a disk does: nothing else waits for the process. */
static int await_end(struct lifecycle *life)
{
    double seconds = server_end_seconds(life->drain_timeout);
    int64_t nanos = clock_nanos(CLOCK_MONOTONIC) + (int64_t)(seconds * 1e9);
    for (;;) {
        int64_t left = nanos - clock_nanos(CLOCK_MONOTONIC);
        struct timespec rest = {left / 1000000000, left % 1000000000};
        if (left <= 0)
            return 0;
        int number = sigtimedwait(&life->signals, NULL, &rest);
        if (number > 0 && number != SIGHUP)
            return number;
    }
}

enum answer { ANSWER_RELOAD, ANSWER_EXIT, ANSWER_DRAIN };

static enum answer answer_signal(struct lifecycle *life, int number)
{
    enum answer answer = number == SIGHUP ? ANSWER_RELOAD : ANSWER_EXIT;
    pthread_mutex_lock(&life->lock);
    if (life->ending && !life->asked)
        answer = ANSWER_RELOAD; /* it ends by itself, and says why */
    else if (life->server && number == SIGHUP)
        server_reload(life->server);
    else if (life->server && server_refuse(life->server))
        answer = ANSWER_DRAIN;
    life->asked |= number != SIGHUP;
    pthread_mutex_unlock(&life->lock);
    return answer;
}

/* SIGHUP reads files again. The first other signal begins the drain, the second ends the process at
 * once. */
static void *signal_main(void *context)
{
    struct lifecycle *life = context;
    int number = 0;
    enum answer answer = ANSWER_RELOAD;
    pthread_setname_np(pthread_self(), "regla-signals");
    while (answer == ANSWER_RELOAD) {
        sigwait(&life->signals, &number);
        answer = answer_signal(life, number);
    }
    if (answer == ANSWER_EXIT) {
        log_message(LOG_LEVEL_INFO, "signal %d while loading: exiting", number);
        socket_file_remove_all();
        log_flush(LOG_SECONDS);
        _exit(life->ending ? 1 : 0);
    }
    log_message(LOG_LEVEL_INFO, "signal %d: draining; a second one exits at once", number);
    sem_post(&life->stop);
    number = await_end(life);
    if (atomic_load(&life->over))
        return NULL;
    socket_file_remove_all();
    if (number != 0)
        _exit(128 + number);
    log_message(LOG_LEVEL_ERROR,
                "--drain-timeout is over, and something still waits (for a disk?): exiting; %zu "
                "sessions may not be on disk as they are",
                atomic_load(&life->unsaved));
    log_flush(LAST_LOG_SECONDS);
    _exit(1);
}

/* None of these ends the process, at no time. */
static void hold_signals(void)
{
    sigset_t hang_up;
    sigemptyset(&hang_up);
    sigaddset(&hang_up, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &hang_up, NULL);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

/* An interrupt that is ignored at the start is meant for others (`regla serve &` in a script).
 * Linux would give it to sigwait all the same. */
static void block_signals(struct lifecycle *life)
{
    struct sigaction inherited;
    sem_init(&life->stop, 0, 0);
    pthread_mutex_init(&life->lock, NULL);
    sigemptyset(&life->signals);
    sigaddset(&life->signals, SIGTERM);
    if (sigaction(SIGINT, NULL, &inherited) != 0 || inherited.sa_handler != SIG_IGN)
        sigaddset(&life->signals, SIGINT);
    sigaddset(&life->signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &life->signals, NULL);
}

static int watch_signals(struct lifecycle *life, struct error *err)
{
    pthread_t thread;
    int code = pthread_create(&thread, NULL, signal_main, life);
    if (code)
        return error_set(err, ERROR_IO, "cannot start a thread: %s", strerror(code));
    pthread_detach(thread);
    return 0;
}

/* Each connection is a file, and the soft limit is often 1024. Returns as many of the connections
 * as there may be files for: the files of states need some too. */
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

_Static_assert((int)OPTION_AUTO == (int)MEMORY_AUTO, "an option that is left to the server");

static struct server_options server_options(const struct serve_options *options)
{
    struct server_options server = {
        .served_model_names = options->served_model_names.items,
        .num_served_model_names = options->served_model_names.count,
        .api_keys = options->api_keys.items,
        .num_api_keys = options->api_keys.count,
        .api_key_file = options->api_key_file,
        .allowed_origins = options->allowed_origins.items,
        .num_allowed_origins = options->allowed_origins.count,
        .allowed_hosts = options->allowed_hosts.items,
        .num_allowed_hosts = options->allowed_hosts.count,
        .page = options->page,
        .page_compare = options->page_compare.items,
        .num_page_compare = options->page_compare.count,
        .hosts = options->hosts.items,
        .num_hosts = options->hosts.count,
        .socket_mode = (mode_t)strtol(options->socket_mode, NULL, 8),
        .tls_certificate = options->tls_certificate,
        .tls_key = options->tls_key,
        .port = (int)options->port,
        .http_threads = (int)options->http_threads,
        .max_connections =
            (int)fit_file_limit(options->max_connections == OPTION_AUTO ? memory_connections()
                                                                        : options->max_connections),
        .request_timeout_s = options->request_timeout,
        .idle_timeout_s = options->idle_timeout,
        .stall_timeout_s = options->stall_timeout,
        .engine = command_engine_options(&options->model),
        .max_model_len = options->max_model_len,
        .default_max_tokens = options->default_max_tokens,
        .token_ids_only = options->directory == NULL,
        .tokenizer_threads = (int)options->tokenizer_threads,
        .limits = {.max_requests = options->max_queue,
                   .max_running = options->max_running,
                   .max_tokens = options->max_queue_tokens,
                   .max_body_bytes = options->max_body_memory},
        .prefill_chunk = (int)options->prefill_chunk,
        .max_step_s = 1e-3 * (double)options->max_step_ms,
        .max_prompts = (size_t)options->max_prompts,
        .max_body_bytes = options->max_body_bytes,
        .max_state_bytes = options->max_state_bytes,
        .states = {.reuse = options->prefix_cache,
                   .interval_tokens = options->checkpoint_interval,
                   .host_bytes = options->host_state_memory,
                   .location = options->store ? options->store : options->state_dir,
                   .tls = options->store_tls,
                   .option = options->store ? "--store" : "--state-dir",
                   .lease_s = options->lease,
                   .store_replicas = (int)options->store_replicas,
                   .local_states =
                       options->store != NULL && strcmp(options->store_states, "off") == 0,
                   .share_prefixes = options->share_prefixes,
                   .disk_bytes = options->disk_state,
                   .soon_bytes = options->save_state_bytes,
                   .keeps_files = getenv(SESSIONS_SERVER_KEEPS_FILES) != NULL,
                   .session_ttl_s = options->session_ttl,
                   .response_ttl_s = options->response_ttl,
                   .memory_durability = strcmp(options->session_durability, "memory") == 0,
                   .session_quota_bytes = options->session_quota},
        .idempotency_bytes = options->idempotency_memory,
        .vllm_names = strcmp(options->metrics_compat, "vllm") == 0,
        .content_tokens = strcmp(options->content_tokens, "tokens") == 0,
        .drafts = getenv(DRAFTS_OF_REQUESTS) != NULL,
        .reasoning = strcmp(options->reasoning, "auto") == 0,
    };
    server.engine.max_step_tokens = (int)options->max_step_tokens;
    return server;
}

static void log_warnings(const struct warnings *warnings)
{
    const char *text;
    for (size_t i = 0; (text = warnings_at(warnings, i)); i++)
        log_message(LOG_LEVEL_WARN, "%s", text);
}

/* A template that cannot be used is no reason not to serve: whoever chats is told, and the log. */
static int open_chat(struct chat_template *chat, const struct serve_options *options,
                     const struct model *model, const struct tokenizer *tokenizer,
                     struct error *err)
{
    const struct chat_template_source source = command_template_source(model, tokenizer);
    if (chat_template_open(chat, options->directory, options->chat_template, &source, err))
        return -1;
    if (!chat->template)
        log_message(LOG_LEVEL_INFO, "no chat: %s", chat->why);
    return 0;
}

/* Reads what can be wrong with the model before the socket opens, and listens. */
static int listen_with_model(struct server *server, const struct serve_options *options,
                             struct error *err)
{
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    if (command_model_load(&model, options->directory, &options->model, err) ||
        command_tokenizer_open(&tokenizer, options->directory, err) ||
        tokenizer_limit(tokenizer, model->vocab_size, err)) {
        model_close(model);
        if (tokenizer)
            tokenizer_free(tokenizer);
        return -1;
    }
    struct chat_template chat;
    if (!options->directory && options->chat_template) {
        error_set(err, ERROR_INVALID, "--chat-template: a preset has no tokenizer");
        model_close(model);
        tokenizer_free(tokenizer);
        return -1;
    }
    if (options->directory && open_chat(&chat, options, model, tokenizer, err)) {
        model_close(model);
        tokenizer_free(tokenizer);
        return -1;
    }
    log_warnings(&model->warnings);
    log_warnings(tokenizer_warnings(tokenizer));
    return server_listen(server, model, tokenizer, options->directory ? &chat : NULL, err);
}

/* What the model's author recommends is the default of requests, unless nobody wants that. */
static int read_sampling(struct author_sampling *sampling, const struct serve_options *options,
                         struct error *err)
{
    char text[200];
    struct warnings warnings = {0};
    const bool wanted = strcmp(options->generation_config, "auto") == 0;
    if (author_sampling_open(sampling, wanted ? options->directory : NULL, &warnings, err))
        return -1;
    log_warnings(&warnings);
    if (author_sampling_says(sampling))
        log_message(LOG_LEVEL_INFO, "sampling   %s by %s, where requests say nothing",
                    author_sampling_text(sampling, text, sizeof text), sampling->from);
    return 0;
}

static int check_store_tls(const struct serve_options *options, struct error *err)
{
    const struct store_tls *tls = &options->store_tls;
    const char *given = tls->ca ? "--store-ca" : tls->certificate ? "--store-cert" : "--store-key";
    if ((tls->ca || tls->certificate || tls->key) &&
        !(options->store && store_location_has_tls(options->store)))
        return error_set(err, ERROR_INVALID, "%s: expected --store rediss://..., which has TLS",
                         given);
    return 0;
}

/* What cannot be promised for sessions that other servers use is refused, rather than kept to by
 * each server alone. */
static int check_store(const struct serve_options *options, struct error *err)
{
    const char *refused = options->state_dir && *options->state_dir ? "--state-dir"
                          : strcmp(options->session_durability, "commit") != 0
                              ? "--session-durability memory"
                              : NULL;
    if (!options->store && options->state_dir && !store_location_is_path(options->state_dir))
        return error_set(err, ERROR_INVALID,
                         "--state-dir: expected a directory; a store that servers share is given "
                         "by --store");
    if (check_store_tls(options, err))
        return -1;
    const char *missing = !options->share_prefixes                   ? NULL
                          : !options->store                          ? "--store"
                          : !options->prefix_cache                   ? "--prefix-cache"
                          : strcmp(options->store_states, "on") != 0 ? "--store-states on"
                                                                     : NULL;
    if (missing)
        return error_set(err, ERROR_INVALID, "--share-prefixes: expected %s", missing);
    if (!options->store)
        return 0;
    if (store_location_is_path(options->store))
        return error_set(
            err, ERROR_INVALID,
            "--store: expected redis://..., rediss://... or unix:PATH; a directory is given by "
            "--state-dir");
    return refused ? error_set(err, ERROR_UNSUPPORTED,
                               "%s is not supported with --store, whose sessions all servers share",
                               refused)
                   : 0;
}

static int run(const struct serve_options *options, int argc, char **argv, struct error *err)
{
    static struct lifecycle life; /* the thread of the signals outlives this function */
    life.drain_timeout = options->drain_timeout;
    block_signals(&life);
    struct author_sampling sampling; /* which the server borrows */
    if (log_start(err) || check_store(options, err) || read_sampling(&sampling, options, err))
        return -1;
    struct server_options serving = server_options(options);
    serving.sampling = &sampling;
    serving.unsaved = &life.unsaved;
    if (server_create(&life.server, &serving, err))
        return -1;
    command_hide_api_keys(argc, argv);
    int result = -1;
    if (listen_with_model(life.server, options, err) == 0 && watch_signals(&life, err) == 0 &&
        server_load(life.server, err) == 0) {
        while (sem_wait(&life.stop) && errno == EINTR)
            ;
        server_drain(life.server, options->drain_timeout);
        result = 0;
    }
    pthread_mutex_lock(&life.lock);
    struct server *server = life.server;
    life.server = NULL;
    life.ending = true;
    pthread_mutex_unlock(&life.lock);
    size_t unsaved = server_free(server);
    atomic_store(&life.over, true);
    if (unsaved > 0)
        return error_set(err, ERROR_IO, "%zu sessions could not be saved to --state-dir", unsaved);
    if (result == 0)
        log_message(LOG_LEVEL_INFO, "bye");
    return result;
}

int command_serve(int argc, char **argv)
{
    struct serve_options options = {0};
    struct error err = ERROR_INIT;
    int status = 0;
    hold_signals();
    if (command_options(&command_serve_options, &options, argc, argv, NULL, &status)) {
        options_clear(&command_serve_options, &options);
        return status;
    }
    status = command_model_given(argv[0], options.directory, &options.model,
                                 command_serve_options.usage);
    if (status) {
        options_clear(&command_serve_options, &options);
        return status;
    }
    bool json = strcmp(options.log_format, "json") == 0;
    log_configure(log_level_named(options.log_level), json);
    status = run(&options, argc, argv, &err) ? 1 : 0;
    bool told = status && json && log_enabled(LOG_LEVEL_ERROR); /* who reads the log reads JSON */
    if (told)
        log_message(LOG_LEVEL_ERROR, "%s", err.message);
    if (log_flush(LOG_SECONDS) && status && !told)
        command_failed("serve", &err);
    options_clear(&command_serve_options, &options);
    return status;
}
