/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/sessions_server.h"

#include "cli/client.h"
#include "server/store/redis_link.h"

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

/* In the child. Passwords and keys go by the environment, which others cannot read. */
static void become_server(const struct sessions_server *server, const struct sessions_call *call)
{
    static char exe[] = "/proc/self/exe";
    const char *directory = call->options->directory;
    const bool store = redis_location(call->place);
    char *key = call->keys.count > 0 ? call->keys.items[0] : NULL;
    unsetenv("REGLA_STORE");
    setenv("REGLA_STATE_DIR", "", 1);
    setenv(store ? "REGLA_STORE" : "REGLA_STATE_DIR", call->place, 1);
    if (key != NULL)
        setenv("REGLA_API_KEY", key, 1);
    unsetenv("REGLA_API_KEY_FILE");
    unsetenv("REGLA_TLS_CERT");
    unsetenv("REGLA_TLS_KEY");
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execl(exe, "regla", "serve", "--model", directory, "--host", server->url, "--log-level",
          "error", "--no-page", (char *)NULL);
    _exit(127);
}

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

int sessions_server_start(struct sessions_server *server, const struct sessions_call *call,
                          struct error *err)
{
    *server = (struct sessions_server){.folder = "/tmp/regla-sessions-XXXXXX"};
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
    if (server->process == 0)
        become_server(server, call);
    return await_ready(server, err);
}

int sessions_server_end(struct sessions_server *server, struct error *err)
{
    int status = 0, result = 0;
    if (server->process > 0) {
        kill(server->process, SIGTERM);
        while (waitpid(server->process, &status, 0) < 0 && errno == EINTR)
            ;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            result =
                error_set(err, ERROR_IO, "the server on it did not end well: it says why above");
    }
    if (server->folder[0] != 0) {
        unlink(server->url + strlen("unix:"));
        rmdir(server->folder);
    }
    return result;
}
