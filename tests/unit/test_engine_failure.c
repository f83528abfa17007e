/* SPDX-License-Identifier: Apache-2.0 */
/* A step of the engine that fails, seen from outside: the server runs in this process, and the
 * linker puts __wrap_engine_submit in the place of engine_submit (CMakeLists.txt). */
#include "engine/engine.h"
#include "engine/model/model_load.h"
#include "server/http/http.h"
#include "server/log.h"
#include "server/server.h"
#include "tests/unit/golden_cases.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A step that takes this token fails; -1: none does. The code it fails with. */
static _Atomic int poison = -1, failure = ERROR_INTERNAL;

int __real_engine_submit(struct engine *engine, struct span *spans, int num_spans,
                         struct error *err);
int __wrap_engine_submit(struct engine *engine, struct span *spans, int num_spans,
                         struct error *err);

int __wrap_engine_submit(struct engine *engine, struct span *spans, int num_spans,
                         struct error *err)
{
    for (int i = 0; i < num_spans && poison >= 0; i++)
        for (int t = 0; t < spans[i].num_tokens; t++)
            if (spans[i].tokens[t] == poison)
                return error_set(err, (enum error_code)failure, "injected");
    return __real_engine_submit(engine, spans, num_spans, err);
}

static struct server *server;

/* One text runs at a time: what is sent while it runs waits. */
static void start_server(void)
{
    struct error err = ERROR_INIT;
    static const char *const host = "127.0.0.1";
    const struct server_options options = {
        .hosts = &host,
        .num_hosts = 1,
        .http_threads = 1,
        .max_connections = 16,
        .request_timeout_s = 30,
        .idle_timeout_s = 30,
        .stall_timeout_s = 10,
        .engine = {.threads = 1, .state_memory_bytes = (size_t)8 << 20},
        .tokenizer_threads = 1,
        .limits = {16, 1, 100000, 1 << 24},
        .max_body_bytes = 1 << 20,
        .states = {.reuse = true},
    };
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    log_configure(LOG_LEVEL_OFF, false);
    int result = tokenizer_open(&tokenizer, GOLDEN_DIRECTORY "hybrid_regla/tokenizer.json", &err) ||
                 model_open(&model, GOLDEN_DIRECTORY "hybrid_regla", &err) ||
                 server_create(&server, &options, &err) ||
                 server_listen(server, model, tokenizer, NULL, &err) || server_load(server, &err);
    cr_assert(result == 0, "%s", err.message);
}

static void stop_server(void)
{
    struct metrics *metrics = &server_service(server)->metrics;
    cr_expect(atomic_load(&metrics->running) == 0);
    cr_expect(atomic_load(&metrics->waiting) == 0);
    pthread_mutex_lock(&metrics->lock);
    struct engine_memory memory = metrics->memory.device;
    pthread_mutex_unlock(&metrics->lock);
    cr_expect(memory.states == memory.cached && memory.kv_reserved_bytes == memory.kv_cached_bytes);
    server_free(server);
}

static int send_request(const char *method, const char *path, const char *body)
{
    char request[2048];
    const char *colon = strrchr(http_addresses(server_http(server)), ':');
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(colon + 1)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    int length = snprintf(request, sizeof request,
                          "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                          method, path, strlen(body), body);
    cr_assert(send(fd, request, (size_t)length, 0) == length);
    return fd;
}

/* The whole reply, which ends with the connection. */
static const char *receive(int fd, char reply[16384])
{
    size_t length = 0;
    ssize_t got;
    while (length < 16383 && (got = recv(fd, reply + length, 16383 - length, 0)) > 0)
        length += (size_t)got;
    reply[length] = 0;
    close(fd);
    return reply;
}

static void expect_reply(int fd, int status, const char *words)
{
    char reply[16384], line[32];
    receive(fd, reply);
    snprintf(line, sizeof line, "HTTP/1.1 %d ", status);
    cr_expect(strncmp(reply, line, strlen(line)) == 0, "expected %d, got %s", status, reply);
    cr_expect(strstr(reply, words) != NULL, "expected %s in %s", words, reply);
}

static int complete(const char *fields)
{
    char body[512];
    snprintf(body, sizeof body, "{%s}", fields);
    return send_request("POST", "/v1/completions", body);
}

#define GOOD "\"prompt\":[40,41],\"max_tokens\":3,\"ignore_eos\":true"
#define BAD "\"prompt\":[40,50],\"max_tokens\":3"
#define INTERNAL "\"code\":\"internal_error\""

Test(engine_failure, a_failed_step_ends_its_requests_and_no_other)
{
    alarm(300);
    start_server();
    poison = 50;
    int bad = complete(BAD), good = complete(GOOD), many = complete(BAD ",\"n\":4,\"best_of\":5");
    expect_reply(bad, 500, INTERNAL);
    expect_reply(good, 200, "\"completion_tokens\":3");
    expect_reply(many, 500, INTERNAL);
    expect_reply(complete(GOOD), 200, "\"completion_tokens\":3"); /* three in a row are the last */
    failure = ERROR_INVALID; /* whatever the engine calls it, the client is not to blame */
    expect_reply(complete(BAD), 500, INTERNAL);
    expect_reply(complete(GOOD), 200, "\"completion_tokens\":3");
    expect_reply(send_request("GET", "/health", ""), 200, "ok");
    stop_server();
}

Test(engine_failure, a_stream_gets_an_error_frame)
{
    alarm(300);
    start_server();
    poison = 50;
    char reply[16384];
    receive(complete("\"prompt\":[40],\"max_tokens\":9,\"stream\":true,\"ignore_eos\":true,"
                     "\"logit_bias\":{\"50\":100},\"return_token_ids\":true"),
            reply);
    cr_expect(strncmp(reply, "HTTP/1.1 200 ", 13) == 0, "%s", reply);
    const char *token = strstr(reply, "\"token_ids\":[50]");
    const char *frame = strstr(reply, "data: {\"error\":{");
    const char *done = strstr(reply, "data: [DONE]\n\n");
    cr_expect(token && frame && done && token < frame && frame < done, "%s", reply);
    cr_expect(strstr(reply, INTERNAL) != NULL);
    expect_reply(complete(GOOD), 200, "\"completion_tokens\":3");
    stop_server();
}

Test(engine_failure, a_session_is_as_it_was_before)
{
    alarm(300);
    start_server();
    const char *session = ",\"session_id\":\"s\"", *fresh = ",\"session_id\":\"fresh\"";
    char fields[256];
    snprintf(fields, sizeof fields, GOOD "%s", session);
    expect_reply(complete(fields), 200, "\"position\":5");
    poison = 50;
    snprintf(fields, sizeof fields, BAD "%s", session);
    expect_reply(complete(fields), 500, INTERNAL);
    snprintf(fields, sizeof fields, BAD "%s", fresh);
    expect_reply(complete(fields), 500, INTERNAL);
    expect_reply(send_request("GET", "/v1/sessions/s", ""), 200, "\"position\":5,");
    expect_reply(send_request("GET", "/v1/sessions/fresh", ""), 404, "session_not_found");
    /* In the middle of a generation, too: what it drew is not held. */
    snprintf(fields, sizeof fields,
             "\"prompt\":[40],\"max_tokens\":9,\"logit_bias\":{\"50\":100}%s", session);
    expect_reply(complete(fields), 500, INTERNAL);
    snprintf(fields, sizeof fields, GOOD ",\"expected_position\":5%s", session);
    expect_reply(complete(fields), 200, "\"position\":10");
    stop_server();
}

Test(engine_failure, the_third_failure_in_a_row_is_the_last)
{
    alarm(300);
    start_server();
    poison = 50;
    for (int i = 0; i < 6; i++) /* never three in a row */
        expect_reply(complete(i % 3 < 2 ? BAD : GOOD), i % 3 < 2 ? 500 : 200, "{");
    for (int i = 0; i < 3; i++)
        expect_reply(complete(BAD), 500, INTERNAL);
    static const char *const PATHS[] = {"/health", "/ready"};
    for (int i = 0; i < 2; i++) {
        expect_reply(send_request("GET", PATHS[i], ""), 503, "\"code\":\"engine_failed\"");
        expect_reply(send_request("GET", PATHS[i], ""), 503, "Retry-After: ");
    }
    expect_reply(complete(GOOD), 503, "\"code\":\"engine_failed\"");
    expect_reply(complete(GOOD), 503, "Retry-After: ");
    stop_server();
}
