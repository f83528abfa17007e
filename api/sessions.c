/* SPDX-License-Identifier: Apache-2.0 */
#include "api/sessions.h"

#include "api/request.h"

#include <stdlib.h>
#include <string.h>

bool session_id_valid(const char *id, size_t length)
{
    static const char ALLOWED[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    /* clients resolve . and .. where they stand in a path */
    if (length == 0 || length > 128 || (length <= 2 && memcmp(id, "..", length) == 0))
        return false;
    for (size_t i = 0; i < length; i++)
        if (id[i] == 0 || !strchr(ALLOWED, id[i]))
            return false;
    return true;
}

bool response_id_valid(const char *id, size_t length)
{
    return session_id_valid(id, length) &&
           strncmp(id, RESPONSES_ID_PREFIX, strlen(RESPONSES_ID_PREFIX)) == 0;
}

int session_id_check(const char *id, size_t length, const char *param, struct api_error *err)
{
    if (response_id_valid(id, length))
        return api_error_set(err, API_INVALID_VALUE, param,
                             "%s: expected a session's name, got \"%.130s\": names that begin "
                             "with " RESPONSES_ID_PREFIX " are those of responses",
                             param, id);
    if (session_id_valid(id, length))
        return 0;
    return api_error_set(
        err, API_INVALID_VALUE, param,
        "%s: expected 1 to 128 of A-Z a-z 0-9 . _ -, but not . or .., got \"%.130s\"", param, id);
}

static void encode_field(struct strbuf *buf, const char *name, int64_t value)
{
    strbuf_printf(buf, ",\"%s\":%lld", name, (long long)value);
}

static void encode_durable(struct strbuf *buf, const struct session_card *card)
{
    strbuf_puts(buf, ",\"durable\":");
    strbuf_json_bool(buf, card->durable);
}

void session_list_begin(struct strbuf *buf)
{
    strbuf_puts(buf, "{\"object\":\"list\",\"data\":[");
}

static void encode_session(struct strbuf *buf, const struct session_card *card, bool listed,
                           const struct reply_warnings *warnings)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, card->id);
    strbuf_puts(buf, ",\"object\":\"session\"");
    encode_field(buf, "position", card->position);
    encode_field(buf, "bytes", card->recurrent_bytes + card->kv_bytes);
    encode_field(buf, "recurrent_bytes", card->recurrent_bytes);
    encode_field(buf, "kv_bytes", card->kv_bytes);
    strbuf_puts(buf, ",\"tier\":");
    strbuf_json_cstring(buf, card->tier);
    encode_field(buf, "created", card->created);
    encode_field(buf, "used", card->used);
    encode_field(buf, "checkpoints", card->checkpoints);
    encode_durable(buf, card);
    if (listed) {
        strbuf_puts(buf, ",\"shared_with\":");
        strbuf_json_cstring(buf, card->shared_with);
        encode_field(buf, "shared_tokens", card->shared_tokens);
    }
    reply_warnings_encode(buf, warnings);
    strbuf_puts(buf, "}");
}

void session_encode(struct strbuf *buf, const struct session_card *card,
                    const struct reply_warnings *warnings)
{
    encode_session(buf, card, false, warnings);
}

void session_list_add(struct strbuf *buf, const struct session_card *card, bool first)
{
    if (!first)
        strbuf_puts(buf, ",");
    encode_session(buf, card, true, NULL);
}

void session_list_end(struct strbuf *buf)
{
    strbuf_puts(buf, "]}");
}

void session_tokens_begin(struct strbuf *buf, const char *id, const int32_t *tokens, size_t count,
                          bool without_texts)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, id);
    strbuf_puts(buf, ",\"object\":\"session.tokens\"");
    encode_field(buf, "position", (int64_t)count);
    strbuf_puts(buf, ",\"tokens\":");
    strbuf_json_ints(buf, tokens, count);
    strbuf_puts(buf, without_texts ? ",\"texts\":null" : ",\"texts\":[");
}

void session_tokens_add(struct strbuf *buf, const char *text, size_t length, bool first)
{
    if (!first)
        strbuf_puts(buf, ",");
    strbuf_json_string(buf, text, length);
}

void session_tokens_end(struct strbuf *buf, bool without_texts)
{
    strbuf_puts(buf, without_texts ? "}" : "]}");
}

void session_brief_encode(struct strbuf *buf, const struct session_card *card)
{
    strbuf_puts(buf, "{\"id\":");
    strbuf_json_cstring(buf, card->id);
    encode_field(buf, "position", card->position);
    encode_field(buf, "bytes", card->recurrent_bytes + card->kv_bytes);
    strbuf_puts(buf, ",\"tier\":");
    strbuf_json_cstring(buf, card->tier);
    encode_durable(buf, card);
    strbuf_puts(buf, "}");
}

int fork_parse(const char *body, size_t length, char *id, size_t id_size,
               struct reply_warnings *warnings, struct api_error *err)
{
    static const char *const KNOWN[] = {"id", NULL};
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return -1;
    reply_warnings_others(warnings, fields, KNOWN);
    char *text = NULL;
    size_t bytes = 0;
    int result = request_text(fields, "id", &text, &bytes, err);
    if (result == 0 && !text)
        result =
            api_error_set(err, API_MISSING_PARAMETER, "id", "id is required: the new session's");
    if (result == 0)
        result = session_id_check(text, bytes, "id", err);
    if (result == 0)
        snprintf(id, id_size, "%s", text);
    free(text);
    json_decref(fields);
    return result;
}

int rewind_parse(const char *body, size_t length, int64_t *position,
                 struct reply_warnings *warnings, struct api_error *err)
{
    static const char *const KNOWN[] = {"position", NULL};
    json_t *fields = request_load(body, length, err);
    if (!fields)
        return -1;
    reply_warnings_others(warnings, fields, KNOWN);
    *position = -1;
    int result = request_int(fields, "position", 0, INT64_MAX, position, err);
    if (result == 0 && *position < 0)
        result = api_error_set(err, API_MISSING_PARAMETER, "position",
                               "position is required: the tokens to keep");
    json_decref(fields);
    return result;
}

static void encode_tiers(struct strbuf *buf, const struct state_card *card)
{
    strbuf_puts(buf, ",\"tiers\":{");
    for (int i = 3; i > 0; i--) {
        strbuf_printf(buf, "\"%s\":{\"checkpoints\":%lld,\"bytes\":%lld,\"budget_bytes\":%lld}%s",
                      card->tiers[i].name, (long long)card->tiers[i].checkpoints,
                      (long long)card->tiers[i].bytes, (long long)card->tiers[i].budget_bytes,
                      i > 1 ? "," : "");
    }
    strbuf_puts(buf, "},\"sessions\":{");
    for (int i = 3; i >= 0; i--)
        strbuf_printf(buf, "\"%s\":%lld%s", card->tiers[i].name, (long long)card->tiers[i].sessions,
                      i ? "," : "}");
}

static void encode_store(struct strbuf *buf, const struct state_card *card)
{
    if (!card->has_store) {
        strbuf_puts(buf, ",\"store\":null");
        return;
    }
    strbuf_printf(buf, ",\"store\":{\"bytes\":%lld", (long long)card->store_bytes);
    encode_field(buf, "budget_bytes", card->store_budget_bytes);
    encode_field(buf, "session_files", card->store_sessions);
    encode_field(buf, "checkpoint_files", card->store_checkpoints);
    encode_field(buf, "failures", card->store_failures);
    strbuf_puts(buf, ",\"full\":");
    strbuf_json_bool(buf, card->store_full);
    strbuf_puts(buf, "}");
}

void state_encode(struct strbuf *buf, const struct state_card *card)
{
    strbuf_puts(buf, "{\"object\":\"state\"");
    strbuf_printf(buf, ",\"tree\":{\"spaces\":%lld", (long long)card->spaces);
    encode_field(buf, "nodes", card->nodes);
    encode_field(buf, "checkpoints", card->checkpoints);
    encode_field(buf, "tokens", card->tokens);
    encode_field(buf, "checkpoint_interval", card->interval_tokens);
    encode_field(buf, "evictions", card->evictions);
    encode_field(buf, "dropped", card->dropped);
    strbuf_puts(buf, "}");
    encode_tiers(buf, card);
    strbuf_printf(buf, ",\"parts\":{\"recurrent\":%lld", (long long)card->recurrent_bytes);
    encode_field(buf, "kv", card->kv_bytes);
    encode_field(buf, "logits", card->logits_bytes);
    encode_field(buf, "checkpoints", card->recurrent_bytes + card->kv_bytes + card->logits_bytes);
    encode_field(buf, "running_recurrent", card->running_recurrent_bytes);
    encode_field(buf, "running_kv", card->running_kv_bytes);
    strbuf_printf(buf, "},\"device\":{\"total\":%lld", (long long)card->device_total_bytes);
    encode_field(buf, "used", card->device_used_bytes);
    encode_field(buf, "cached", card->device_cached_bytes);
    encode_field(buf, "free", card->device_free_bytes);
    strbuf_puts(buf, "}");
    encode_store(buf, card);
    strbuf_puts(buf, "}");
}
