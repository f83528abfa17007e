/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sessions_server.h"

#include "cli/client.h"
#include "server/store/store_backends.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void set_or_not(const char *name, const char *value)
{
    if (value != NULL)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* In the child. Passwords and keys go by the environment, which others cannot read. */
static void become_server(const struct sessions_server *server, const struct sessions_call *call)
{
    static char exe[] = "/proc/self/exe";
    const char *directory = call->options->directory;
    const bool store = !store_location_is_path(call->location);
    const struct store_tls store_tls =
        store_location_has_tls(call->location) ? call->options->store_tls : (struct store_tls){0};
    char replicas[24];
    char *key = call->keys.count > 0 ? call->keys.items[0] : NULL;
    unsetenv("REGLA_STORE");
    setenv("REGLA_STATE_DIR", "", 1);
    setenv(store ? "REGLA_STORE" : "REGLA_STATE_DIR", call->location, 1);
    if (key != NULL)
        setenv("REGLA_API_KEY", key, 1);
    snprintf(replicas, sizeof replicas, "%lld", (long long)call->options->store_replicas);
    set_or_not("REGLA_STORE_REPLICAS", store ? replicas : NULL);
    set_or_not("REGLA_STORE_CA", store_tls.ca);
    set_or_not("REGLA_STORE_CERT", store_tls.certificate);
    set_or_not("REGLA_STORE_KEY", store_tls.key);
    unsetenv("REGLA_SHARE_PREFIXES");
    unsetenv("REGLA_API_KEY_FILE");
    unsetenv("REGLA_TLS_CERT");
    unsetenv("REGLA_TLS_KEY");
    if (!store) /* there its own sessions keep to it */
        unsetenv("REGLA_SESSION_TTL");
    setenv(SESSIONS_SERVER_KEEPS_FILES, "1", 1);
    execl(exe, "regla", "serve", "--model", directory, "--host", server->url, "--log-level",
          "error", "--no-page", "--disk-state", "1000000000000000000", (char *)NULL);
    _exit(127);
}

/* ---- signals ---- */

static const int SIGNALS[SESSIONS_SERVER_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
static struct sessions_server *running; /* changes only while they are blocked */

static void remove_folder(const struct sessions_server *server)
{
    if (server->folder[0] != 0) {
        unlink(server->url + strlen("unix:"));
        rmdir(server->folder);
    }
}

/* Ends the server as sessions_server_end does, by calls that a handler may make. */
static void on_signal(int number)
{
    if (running->process > 0) {
        kill(running->process, SIGTERM);
        while (waitpid(running->process, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    remove_folder(running);
    signal(number, SIG_DFL);
    raise(number); /* once this handler has returned */
}

/* server: whose; NULL: none any more. */
static void hold_signals(struct sessions_server *server, sigset_t *before)
{
    sigset_t all;
    sigemptyset(&all);
    for (size_t i = 0; i < SESSIONS_SERVER_SIGNALS; i++)
        sigaddset(&all, SIGNALS[i]);
    sigprocmask(SIG_BLOCK, &all, before);
    for (size_t i = 0; i < SESSIONS_SERVER_SIGNALS; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_mask = all};
        struct sigaction *was = &(server != NULL ? server : running)->before[i];
        if (server == NULL)
            sigaction(SIGNALS[i], was, NULL);
        else if (sigaction(SIGNALS[i], NULL, was) == 0 && was->sa_handler != SIG_IGN)
            sigaction(SIGNALS[i], &action, NULL);
    }
    running = server;
}

/* ---- beginning and end ---- */

static int ended(struct sessions_server *server, int status, struct error *err)
{
    server->process = 0;
    return error_set(err, ERROR_IO, "a server on it does not start (%s %d); it says why above",
                     WIFEXITED(status) ? "exit status" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* Loading takes as long as the model is large: as long as the child lives it is waited for. */
static int await_ready(struct sessions_server *server, struct error *err)
{
    const struct timespec pause = {0, 20 * 1000000};
    for (;;) {
        struct client_reply reply;
        struct error away = ERROR_INIT;
        int status,
            result = client_ask(
                &(struct client_request){.url = server->url, .method = "GET", .path = "/ready"},
                &reply, &away);
        bool ready = result == 0 && reply.status == 200;
        client_reply_clear(&reply);
        if (ready)
            return 0;
        if (waitpid(server->process, &status, WNOHANG) == server->process)
            return ended(server, status, err);
        nanosleep(&pause, NULL);
    }
}

/* The folder and the process; the signals wait. before: what they did not wait for. */
static int start(struct sessions_server *server, const struct sessions_call *call,
                 const sigset_t *before, struct error *err)
{
    static const char FOLDER[] = "/tmp/regla-sessions-XXXXXX";
    memcpy(server->folder, FOLDER, sizeof FOLDER);
    if (mkdtemp(server->folder) == NULL) {
        server->folder[0] = 0;
        return error_set(err, ERROR_IO, "/tmp: cannot make a directory: %s", strerror(errno));
    }
    snprintf(server->url, sizeof server->url, "unix:%s/socket", server->folder);
    fflush(stdout);
    server->process = fork();
    if (server->process < 0) {
        server->process = 0;
        return error_set(err, ERROR_IO, "cannot start a process: %s", strerror(errno));
    }
    if (server->process == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        for (size_t i = 0; i < SESSIONS_SERVER_SIGNALS; i++)
            sigaction(SIGNALS[i], &server->before[i], NULL);
        sigprocmask(SIG_SETMASK, before, NULL);
        become_server(server, call);
    }
    return 0;
}

int sessions_server_start(struct sessions_server *server, const struct sessions_call *call,
                          struct error *err)
{
    sigset_t before;
    *server = (struct sessions_server){0};
    hold_signals(server, &before);
    int result = start(server, call, &before, err);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return result != 0 ? -1 : await_ready(server, err);
}

int sessions_server_end(struct sessions_server *server, struct error *err)
{
    int status = 0, result = 0;
    sigset_t before;
    hold_signals(NULL, &before);
    if (server->process > 0) {
        kill(server->process, SIGTERM);
        while (waitpid(server->process, &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            result =
                error_set(err, ERROR_IO, "the server on it did not end well: it says why above");
    }
    remove_folder(server);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return result;
}
