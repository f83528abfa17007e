/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions and states as JSON; the bodies of fork and rewind; what a session's file says of it. */
#include "api/sessions.h"
#include "server/states/session_meta.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *parsed(struct strbuf *buf)
{
    json_error_t error;
    cr_assert_not(buf->failed);
    json_t *value = json_loadb(buf->data, buf->length, JSON_REJECT_DUPLICATES, &error);
    cr_assert_not_null(value, "%s: %.*s", error.text, (int)buf->length, buf->data);
    strbuf_clear(buf);
    return value;
}

static int64_t number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    cr_assert(json_is_integer(value), "%s", name);
    return json_integer_value(value);
}

static const struct session_card card = {.id = "a.b-c_D",
                                         .position = 26,
                                         .recurrent_bytes = 100,
                                         .kv_bytes = 23,
                                         .tier = "host",
                                         .created = 1700000000,
                                         .used = 1700000001,
                                         .checkpoints = 3,
                                         .durable = true};

Test(sessions_api, names)
{
    char longest[130];
    memset(longest, 'x', sizeof longest);
    cr_expect(session_id_valid("A", 1));
    cr_expect(session_id_valid("az.AZ_09-", 9));
    cr_expect(session_id_valid(longest, 128));
    cr_expect_not(session_id_valid(longest, 129));
    cr_expect_not(session_id_valid("", 0));
    /* clients resolve these in a path */
    cr_expect_not(session_id_valid(".", 1));
    cr_expect_not(session_id_valid("..", 2));
    cr_expect(session_id_valid("...", 3));
    for (int byte = 0; byte < 256; byte++) {
        char text[2] = {(char)byte, 0};
        bool allowed = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                       (byte >= '0' && byte <= '9') || byte == '_' || byte == '-';
        cr_expect_eq(session_id_valid(text, 1), allowed, "byte %d", byte);
    }
}

Test(sessions_api, session_object)
{
    struct strbuf buf = {0};
    session_encode(&buf, &card, NULL);
    json_t *object = parsed(&buf);
    cr_expect_str_eq(json_string_value(json_object_get(object, "id")), "a.b-c_D");
    cr_expect_str_eq(json_string_value(json_object_get(object, "object")), "session");
    cr_expect_str_eq(json_string_value(json_object_get(object, "tier")), "host");
    cr_expect_eq(number(object, "position"), 26);
    cr_expect_eq(number(object, "bytes"), 123);
    cr_expect_eq(number(object, "recurrent_bytes"), 100);
    cr_expect_eq(number(object, "kv_bytes"), 23);
    cr_expect_eq(number(object, "created"), 1700000000);
    cr_expect_eq(number(object, "used"), 1700000001);
    cr_expect_eq(number(object, "checkpoints"), 3);
    json_decref(object);
    session_brief_encode(&buf, &card);
    object = parsed(&buf);
    cr_expect_eq(json_object_size(object), 5);
    cr_expect(json_is_true(json_object_get(object, "durable")));
    cr_expect_eq(number(object, "position"), 26);
    cr_expect_eq(number(object, "bytes"), 123);
    json_decref(object);
}

Test(sessions_api, list)
{
    struct strbuf buf = {0};
    session_list_begin(&buf);
    session_list_end(&buf);
    json_t *list = parsed(&buf);
    cr_expect_eq(json_array_size(json_object_get(list, "data")), 0);
    json_decref(list);
    session_list_begin(&buf);
    struct session_card fork = card;
    fork.shared_with = "root";
    fork.shared_tokens = 7;
    session_list_add(&buf, &card, true);
    session_list_add(&buf, &fork, false);
    session_list_end(&buf);
    list = parsed(&buf);
    cr_expect_str_eq(json_string_value(json_object_get(list, "object")), "list");
    cr_expect_eq(json_array_size(json_object_get(list, "data")), 2);
    json_t *alone = json_array_get(json_object_get(list, "data"), 0);
    cr_expect(json_is_null(json_object_get(alone, "shared_with")));
    cr_expect_eq(number(alone, "shared_tokens"), 0);
    json_t *sharing = json_array_get(json_object_get(list, "data"), 1);
    cr_expect_str_eq(json_string_value(json_object_get(sharing, "shared_with")), "root");
    cr_expect_eq(number(sharing, "shared_tokens"), 7);
    json_decref(list);
}

Test(sessions_api, tokens)
{
    static const int32_t ids[] = {3, 1};
    struct strbuf buf = {0};
    session_tokens_begin(&buf, "a", ids, 2, false);
    session_tokens_add(&buf, "", 0, true);
    session_tokens_add(&buf, "<\xff", 2, false);
    session_tokens_end(&buf, false);
    json_t *object = parsed(&buf);
    cr_expect_eq(number(object, "position"), 2);
    cr_expect_eq(json_array_size(json_object_get(object, "tokens")), 2);
    json_t *texts = json_object_get(object, "texts");
    cr_expect_str_eq(json_string_value(json_array_get(texts, 0)), "");
    cr_expect_str_eq(json_string_value(json_array_get(texts, 1)), "<\xEF\xBF\xBD");
    json_decref(object);
    session_tokens_begin(&buf, "a", NULL, 0, true);
    session_tokens_end(&buf, true);
    object = parsed(&buf);
    cr_expect(json_is_null(json_object_get(object, "texts")));
    json_decref(object);
}

Test(sessions_api, state_object)
{
    struct state_card state = {.nodes = 5,
                               .tiers = {{"none", 1, 0, 0, 0},
                                         {"disk", 2, 3, 4, 5},
                                         {"host", 6, 7, 8, 9},
                                         {"device", 10, 11, 12, 13}},
                               .device_total_bytes = 100,
                               .device_used_bytes = 30,
                               .device_cached_bytes = 20,
                               .device_free_bytes = 50};
    struct strbuf buf = {0};
    state_encode(&buf, &state);
    json_t *object = parsed(&buf);
    cr_expect(json_is_null(json_object_get(object, "store")));
    cr_expect_eq(number(json_object_get(object, "tree"), "nodes"), 5);
    json_t *host = json_object_get(json_object_get(object, "tiers"), "host");
    cr_expect_eq(number(host, "checkpoints"), 7);
    cr_expect_eq(number(host, "bytes"), 8);
    cr_expect_eq(number(host, "budget_bytes"), 9);
    cr_expect_eq(number(json_object_get(object, "sessions"), "none"), 1);
    cr_expect_eq(number(json_object_get(object, "sessions"), "device"), 10);
    json_t *device = json_object_get(object, "device");
    cr_expect_eq(number(device, "free") + number(device, "used") + number(device, "cached"),
                 number(device, "total"));
    json_decref(object);
    state.has_store = state.store_full = true;
    state.store_bytes = 77;
    state_encode(&buf, &state);
    object = parsed(&buf);
    cr_expect_eq(number(json_object_get(object, "store"), "bytes"), 77);
    cr_expect(json_is_true(json_object_get(json_object_get(object, "store"), "full")));
    json_decref(object);
}

Test(sessions_api, fork_and_rewind_bodies)
{
    char id[129];
    int64_t position = 0;
    struct api_error err = {0};
    const char *body = "{\"id\":\"copy\"}";
    cr_expect_eq(fork_parse(body, strlen(body), id, sizeof id, NULL, &err), 0);
    cr_expect_str_eq(id, "copy");
    body = "{\"position\":12}";
    cr_expect_eq(rewind_parse(body, strlen(body), &position, NULL, &err), 0);
    cr_expect_eq(position, 12);
    const struct {
        const char *body;
        bool fork;
        enum api_code code;
        const char *param;
    } wrong[] = {
        {"{}", true, API_MISSING_PARAMETER, "id"},
        {"{\"id\":null}", true, API_MISSING_PARAMETER, "id"},
        {"{\"id\":1}", true, API_INVALID_TYPE, "id"},
        {"{\"id\":\"a b\"}", true, API_INVALID_VALUE, "id"},
        {"{\"id\":\"\"}", true, API_INVALID_VALUE, "id"},
        {"[]", true, API_INVALID_TYPE, ""},
        {"{\"id\"", true, API_INVALID_JSON, ""},
        {"{}", false, API_MISSING_PARAMETER, "position"},
        {"{\"position\":-1}", false, API_INVALID_VALUE, "position"},
        {"{\"position\":1.5}", false, API_INVALID_TYPE, "position"},
        {"{\"position\":\"1\"}", false, API_INVALID_TYPE, "position"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t length = strlen(wrong[i].body);
        api_error_clear(&err);
        int result = wrong[i].fork ? fork_parse(wrong[i].body, length, id, sizeof id, NULL, &err)
                                   : rewind_parse(wrong[i].body, length, &position, NULL, &err);
        cr_expect_eq(result, -1, "%s", wrong[i].body);
        cr_expect_eq(err.code, wrong[i].code, "%s: %s", wrong[i].body, err.message);
        cr_expect_str_eq(err.param, wrong[i].param, "%s", wrong[i].body);
    }
}

Test(sessions_api, meta_there_and_back)
{
    /* Rounded to a thousandth, the first would be of the next second. */
    struct session_meta meta = {.created = 1795386369.9996, .used = 1795386370.125}, back;
    static const char *const far[] = {"nan", "inf", "1e308", "-1e300"};
    char text[SESSION_META_SIZE];
    memset(meta.owner, 'f', sizeof meta.owner - 1);
    memset(meta.id, 'x', sizeof meta.id - 1);
    size_t length = session_meta_encode(&meta, text);
    cr_assert_lt(length, sizeof text);
    cr_assert_eq(session_meta_parse(&back, text, length), 0);
    cr_expect_str_eq(back.owner, meta.owner);
    cr_expect_str_eq(back.id, meta.id);
    cr_expect_eq(back.created, meta.created);
    cr_expect_eq(back.used, meta.used);
    cr_expect_str_eq(back.space, "");
    memset(meta.space, 's', sizeof meta.space - 1);
    length = session_meta_encode(&meta, text);
    cr_assert_lt(length, sizeof text);
    cr_assert_eq(session_meta_parse(&back, text, length), 0);
    cr_expect_str_eq(back.space, meta.space);
    cr_expect_eq(back.used, meta.used);
    /* Cut inside of its numbers it may still be one; before them it is none. */
    size_t head = (size_t)(strstr(text, "created") - text);
    for (size_t cut = 0; cut <= head; cut++)
        cr_expect_eq(session_meta_parse(&back, text, cut), -1, "cut at %zu", cut);
    cr_expect_eq(session_meta_parse(&back, "session 1\nowner a\nid b/c\ncreated 1\nused 1\n", 42),
                 -1);
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        length = (size_t)snprintf(text, sizeof text,
                                  "session 1\nowner a\nid b\ncreated %s\nused 1\n", far[i]);
        cr_expect_eq(session_meta_parse(&back, text, length), -1, "%s", far[i]);
    }
}
