/* SPDX-License-Identifier: Apache-2.0 */
/* How the memory that is left is handed out, and when a start is refused. */
#include "api/constraint.h"
#include "api/errors.h"
#include "api/parameters.h"
#include "api/request.h"
#include "lib/base/fields.h"
#include "server/memory.h"
#include "server/server_memory.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

/* As the shipped model's: 13 MiB of buffers, 8 MiB for a text of usual length. */
static struct memory_needs needs_of(int64_t left)
{
    struct memory_needs needs = {
        .taken = 13 * MIB,
        .short_text = MIB,
        .usual_text = 8 * MIB,
        .now = {(size_t)left, FREE_MEMORY_GROUPS, (size_t)(left + 20 * MIB)}};
    needs.sure = needs.now;
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++)
        needs.asked[part] = MEMORY_AUTO;
    return needs;
}

static int64_t sum(const struct memory_plan *plan)
{
    int64_t bytes = plan->taken;
    for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++)
        bytes += plan->bytes[part];
    return bytes;
}

Test(memory, all_parts_together_stay_inside_what_is_left)
{
    for (int64_t left = 17 * MIB; left < 100000 * MIB; left += left / 7) {
        struct memory_needs needs = needs_of(left);
        struct memory_plan plan;
        struct error err = ERROR_INIT;
        cr_assert(memory_plan_make(&plan, &needs, &err) == 0, "%lld: %s", (long long)left,
                  err.message);
        cr_expect(sum(&plan) <= left);
        cr_expect(plan.spare == left - sum(&plan));
        cr_expect(plan.bytes[MEMORY_STATES] >= needs.short_text);
        for (enum memory_part part = 0; part < NUM_MEMORY_PARTS; part++)
            cr_expect(plan.bytes[part] >= 0);
        if (left >= 32 * MIB)
            cr_expect(plan.bytes[MEMORY_STATES] >= needs.usual_text, "%lld: %lld", (long long)left,
                      (long long)plan.bytes[MEMORY_STATES]);
    }
}

Test(memory, where_there_is_enough_the_shares_have_an_upper_end)
{
    struct memory_needs needs = needs_of(24000 * MIB);
    struct memory_plan plan;
    cr_assert(memory_plan_make(&plan, &needs, NULL) == 0);
    cr_expect(plan.bytes[MEMORY_HOST] == 1024 * MIB);
    cr_expect(plan.bytes[MEMORY_BODIES] == 512 * MIB);
    cr_expect(plan.bytes[MEMORY_REPLIES] == 64 * MIB);
    cr_expect(plan.bytes[MEMORY_STATES] > 11000 * MIB);
}

Test(memory, what_is_asked_for_is_given_and_the_others_share_the_rest)
{
    struct memory_needs needs = needs_of(100 * MIB);
    struct memory_plan plan;
    needs.asked[MEMORY_HOST] = 60 * MIB;
    needs.asked[MEMORY_FILES] = needs.asked[MEMORY_DATABASE] = 0;
    cr_assert(memory_plan_make(&plan, &needs, NULL) == 0);
    cr_expect(plan.bytes[MEMORY_HOST] == 60 * MIB);
    cr_expect(plan.bytes[MEMORY_FILES] == 0);
    cr_expect(sum(&plan) <= 100 * MIB);
    needs.asked[MEMORY_STATES] = 20 * MIB;
    cr_assert(memory_plan_make(&plan, &needs, NULL) == 0);
    cr_expect(plan.bytes[MEMORY_STATES] == 20 * MIB);
    cr_expect(sum(&plan) <= 100 * MIB);
}

/* The number before "MiB would do". */
static int64_t enough(const struct error *err)
{
    const char *end = strstr(err->message, " MiB would do");
    cr_assert(end, "%s", err->message);
    while (end[-1] >= '0' && end[-1] <= '9')
        end--;
    return atoll(end) * MIB;
}

Test(memory, what_cannot_work_is_refused_with_the_limit_that_would)
{
    struct error err = ERROR_INIT;
    struct memory_plan plan;
    struct memory_needs needs = needs_of(9 * MIB);
    cr_assert(memory_plan_make(&plan, &needs, &err) == -1);
    cr_expect(err.code == ERROR_NO_MEMORY);
    cr_expect(strstr(err.message, "the limit of the control groups (29.0 MiB)"), "%s", err.message);
    needs = needs_of(enough(&err) - 20 * MIB);
    cr_expect(memory_plan_make(&plan, &needs, NULL) == 0);

    error_clear(&err);
    needs = needs_of(100 * MIB);
    needs.asked[MEMORY_HOST] = 1024 * MIB;
    cr_assert(memory_plan_make(&plan, &needs, &err) == -1);
    cr_expect(strstr(err.message, "--host-state-memory"), "%s", err.message);
    needs = needs_of(enough(&err) - 20 * MIB);
    needs.asked[MEMORY_HOST] = 1024 * MIB;
    cr_expect(memory_plan_make(&plan, &needs, NULL) == 0);
}

/* What the system counts as available changes. */
Test(memory, what_is_asked_for_may_be_more_than_is_available_now)
{
    struct memory_needs needs = needs_of(1000 * MIB);
    struct memory_plan plan;
    needs.now = (struct free_memory){100 * MIB, FREE_MEMORY_MACHINE, 1000 * MIB};
    needs.asked[MEMORY_STATES] = 500 * MIB;
    cr_assert(memory_plan_make(&plan, &needs, NULL) == 0);
    cr_expect(plan.bytes[MEMORY_STATES] == 500 * MIB);
    cr_expect(plan.bytes[MEMORY_HOST] == 0);
    cr_expect(plan.bytes[MEMORY_BODIES] == 512 << 10);
}

/* Buffers and the stacks of threads that run by then count for ulimit and CommitLimit already, with
 * all of their addresses; only the engine's thread and the store's have not begun. Where only what
 * is touched counts, nothing of all that does. */
Test(memory, what_counts_already_is_not_taken_off_twice)
{
    enum { STACK = 8 << 20, TOUCHED = 128 << 10 };
    static const enum free_memory_limit untouched[] = {FREE_MEMORY_COMMIT, FREE_MEMORY_ADDRESS,
                                                       FREE_MEMORY_DATA};
    static const enum free_memory_limit touched[] = {FREE_MEMORY_MACHINE, FREE_MEMORY_GROUPS};
    struct engine_info info = {.threads = 3, .workspace_bytes = 100 * (size_t)MIB, .device = "cpu"};
    struct server_memory_options options = {
        .http_threads = 2, .tokenizer_threads = 4, .max_connections = 10};
    int64_t connections = memory_connection_bytes(10);
    for (size_t i = 0; i < sizeof untouched / sizeof *untouched; i++) {
        options.store = false;
        cr_expect_eq(server_memory_taken(&options, &info, untouched[i]), connections + STACK);
        options.store = true;
        cr_expect_eq(server_memory_taken(&options, &info, untouched[i]), connections + 2 * STACK);
    }
    /* With those that render, and the store's: the watcher's, the acceptor's, that which reads keys
     * again, the log's, the signals', main. */
    int64_t threads = 2 + 2 * (4 + 1) + 3 + 7;
    for (size_t i = 0; i < sizeof touched / sizeof *touched; i++) {
        info.device = "cpu";
        cr_expect_eq(server_memory_taken(&options, &info, touched[i]),
                     connections + threads * TOUCHED + MIB + 100 * MIB);
        info.device = "cuda";
        cr_expect_eq(server_memory_taken(&options, &info, touched[i]),
                     connections + threads * TOUCHED + MIB);
    }
}

/* ---- JSON ---- */

static int64_t json_bytes, json_most, json_limit;

static bool reserve(void *context, int64_t bytes)
{
    cr_expect(context == &json_bytes);
    if (bytes > json_limit - json_bytes)
        return false;
    json_bytes += bytes;
    json_most = json_bytes > json_most ? json_bytes : json_most;
    return true;
}

/* 100,000 numbers. */
static json_t *load_numbers(struct api_error *err)
{
    enum { COUNT = 100000 };
    static char body[16 + 2 * COUNT];
    strcpy(body, "{\"prompt\":[1");
    size_t length = strlen(body);
    for (int i = 1; i < COUNT; i++, length += 2)
        memcpy(body + length, ",1", 2);
    memcpy(body + length, "]}", 2);
    return request_load(body, length + 2, err);
}

Test(memory, json_is_read_as_far_as_its_tree_has_memory)
{
    struct api_error err = {0};
    request_bound_memory(reserve, NULL, &json_bytes);
    json_limit = 1 << 20;
    cr_expect(load_numbers(&err) == NULL);
    cr_expect(err.code == API_OUT_OF_MEMORY);
    cr_expect(json_bytes == 0, "all is given back");
    json_limit = 100 << 20;
    json_t *root = load_numbers(&err);
    cr_assert(root != NULL);
    cr_expect(json_bytes > 3 << 20, "%lld", (long long)json_bytes);
    json_decref(root);
    cr_expect(json_bytes == 0);
    request_bound_memory(NULL, NULL, NULL);
    root = load_numbers(&err);
    cr_assert(root != NULL);
    json_decref(root);
    cr_expect(json_most > 3 << 20 && json_bytes == 0);
}

static int asked, refused; /* how often memory was asked for; which time there was none */

static bool refuse_once(void *context, int64_t bytes)
{
    (void)context;
    return bytes < 0 || ++asked != refused;
}

/* A text of which no two parts are alike, in JSON: {"prompt":"000000000001..."}. */
static size_t write_long_text(char *body)
{
    enum { NUMBERS = 50000 };
    size_t length = (size_t)sprintf(body, "{\"prompt\":\"");
    for (int i = 0; i < NUMBERS; i++)
        length += (size_t)sprintf(body + length, "%06d", i);
    return length + (size_t)sprintf(body + length, "\"}");
}

/* Memory that is lacking for a moment only: jansson reads on without the byte that it could not
 * append. */
Test(memory, json_that_was_read_without_memory_is_not_taken_for_whole)
{
    static char body[400000];
    size_t length = write_long_text(body);
    int failed = 0;
    refused = 0;
    request_bound_memory(refuse_once, NULL, NULL);
    do {
        struct api_error err = {0};
        struct constraint constraint = {.spec = body, .length = length};
        json_t *read[2];
        asked = 0;
        read[0] = request_load(body, length, &err);
        if (constraint_load(&constraint, &read[1], &err))
            read[1] = NULL;
        cr_assert((read[0] && read[1]) == (err.code == API_OK), "%d: %s", refused, err.message);
        for (int i = 0; i < 2; i++) {
            const char *text = json_string_value(json_object_get(read[i], "prompt"));
            cr_assert(!read[i] || (text && strncmp(text, body + 11, length - 13) == 0), "%d",
                      refused);
            failed += !read[i];
            json_decref(read[i]);
        }
        cr_assert(err.code == API_OK || err.code == API_OUT_OF_MEMORY, "%s", err.message);
    } while (++refused <= asked);
    request_bound_memory(NULL, NULL, NULL);
    cr_assert(failed > 2, "%d", failed);
}

static void *have_none(size_t size)
{
    (void)size;
    return NULL;
}

/* What asks for nothing asks for nothing where there is no memory, too. */
Test(memory, fields_are_compared_without_memory)
{
    static const char body[] =
        "{\"n_predict\":null,\"length_penalty\":1.0,\"t_max_predict_ms\":-1,"
        "\"suffix\":\"\",\"stop_regex\":[],\"vllm_xargs\":{},"
        "\"use_beam_search\":false,\"spaces_between_special_tokens\":true,"
        "\"guided_json_object\":false,\"grammar\":\"\",\"guided_choice\":[]}";
    struct reply_warnings warnings = {0};
    struct api_error err = {0};
    struct constraint constraint;
    json_malloc_t from;
    json_free_t to;
    json_t *read = request_load(body, sizeof body - 1, &err);
    cr_assert(read != NULL, "%s", err.message);
    json_get_alloc_funcs(&from, &to);
    json_set_alloc_funcs(have_none, to);
    cr_expect(parameters_check(read, &warnings, &err) == 0, "%s", err.message);
    cr_expect(warnings.counts[WARNING_FIELD] == 0, "%s", reply_warnings_first(&warnings));
    cr_expect(constraint_parse(&constraint, read, &err) == 0, "%s", err.message);
    cr_expect(constraint.spec == NULL);
    json_set_alloc_funcs(from, to);
    json_decref(read);
}

static void expect_nothing(bool expected, const char *value, const char *nothing)
{
    json_t *read = json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    cr_assert(read != NULL, "%s", value);
    cr_expect(fields_ask_nothing(read, nothing) == expected, "%s, %s", value, nothing);
    json_decref(read);
}

Test(memory, what_asks_for_nothing)
{
    static const char ALL[] = "0 -1 true \"ab\" [] {} [\"text\"]";
    static const char *const none[] = {"0",  "0.0", "-1",         "true", "\"ab\"",
                                       "[]", "{}",  "[\"text\"]", "null"};
    static const char *const some[] = {"1",
                                       "1e-9",
                                       "false",
                                       "\"\"",
                                       "\"abc\"",
                                       "\"a\"",
                                       "[0]",
                                       "{\"a\":0}",
                                       "\"true\"",
                                       "\"[]\"",
                                       "\"ab\\u0000\"",
                                       "[\"audio\"]",
                                       "[\"text\",\"audio\"]",
                                       "[[\"text\"]]",
                                       "[[]]",
                                       "\"text\""};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        expect_nothing(true, none[i], ALL);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        expect_nothing(false, some[i], ALL);
    expect_nothing(true, "null", "");
    expect_nothing(false, "0", "");
    expect_nothing(false, "false", "");
    expect_nothing(true, "\"\"", "\"\"");
    cr_expect(fields_ask_nothing(NULL, ""));
}

/* A small one asks nobody. */
Test(memory, json_of_a_small_request_costs_no_lock)
{
    struct api_error err = {0};
    static const char body[] = "{\"prompt\":\"once\",\"max_tokens\":3}";
    request_bound_memory(reserve, NULL, &json_bytes);
    json_limit = 0;
    json_t *root = request_load(body, sizeof body - 1, &err);
    cr_assert(root != NULL);
    json_decref(root);
    request_bound_memory(NULL, NULL, NULL);
}

Test(memory, no_part_of_the_machine_has_more_than_all_of_it)
{
    struct free_memory now, sure;
    free_memory_read(&now, &sure);
    cr_expect(now.bytes > 0 && now.bytes <= now.limit);
    cr_expect(sure.bytes >= now.bytes);
    cr_expect(memory_connections() >= 32 && memory_connections() <= 4096);
    struct error err = ERROR_INIT;
    cr_expect(memory_check(1, "a byte", &err) == 0);
    cr_expect(memory_check(INT64_MAX / 4, "the weights alone", &err) == -1);
    cr_expect(strstr(err.message, "memory: the weights alone take "), "%s", err.message);
}
