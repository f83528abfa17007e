/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes sessions and states as JSON: for /v1/sessions, /v1/state, and the `session` of a
 * completion's reply. */
#ifndef API_SESSIONS_H
#define API_SESSIONS_H

#include "api/errors.h"
#include "api/reply_warnings.h"
#include "api/states.h"

/* 1 to 128 of A-Z a-z 0-9 . _ - */
bool session_id_valid(const char *id, size_t length);
/* The same check; a bad id is an error about the field `param`. */
int session_id_check(const char *id, size_t length, const char *param, struct api_error *err);

/* Names that begin so are those of kept responses: no other session has one. */
#define RESPONSES_ID_PREFIX "resp_"
/* Whether a valid name is that of a response. */
bool response_id_valid(const char *id, size_t length);

struct session_card {
    const char *id;
    int64_t position;
    int64_t recurrent_bytes, kv_bytes;
    const char *tier;
    int64_t created, used; /* seconds since 1970 */
    int64_t checkpoints;
    bool durable;            /* a crash leaves it as it is */
    const char *shared_with; /* NULL: it shares no tokens with an older one */
    int64_t shared_tokens;
};

void session_encode(struct strbuf *buf, const struct session_card *card,
                    const struct reply_warnings *warnings);
/* {object: "list", data: [...]}: begin, each card, end. */
void session_list_begin(struct strbuf *buf);
void session_list_add(struct strbuf *buf, const struct session_card *card, bool first);
void session_list_end(struct strbuf *buf);
/* {id, object, position, tokens: [ids], texts: [strings]}; the texts follow, one by one, in the
 * order of the tokens. without_texts: they are null. */
void session_tokens_begin(struct strbuf *buf, const char *id, const int32_t *tokens, size_t count,
                          bool without_texts);
void session_tokens_add(struct strbuf *buf, const char *text, size_t length, bool first);
void session_tokens_end(struct strbuf *buf, bool without_texts);

/* {id, position, bytes, tier, durable}: the `session` of a reply. */
void session_brief_encode(struct strbuf *buf, const struct session_card *card);

/* Parse the bodies of fork ({"id"}, into id [id_size]) and rewind ({"position"}). */
int fork_parse(const char *body, size_t length, char *id, size_t id_size,
               struct reply_warnings *warnings, struct api_error *err);
int rewind_parse(const char *body, size_t length, int64_t *position,
                 struct reply_warnings *warnings, struct api_error *err);

/* The reply to GET /v1/state: bytes and counts. Tiers are in the order none, disk, host, device. */
struct state_card {
    int64_t spaces, nodes, checkpoints, tokens, interval_tokens;
    struct {
        const char *name;
        int64_t sessions, checkpoints, bytes, budget_bytes;
    } tiers[NUM_TIERS];                              /* by enum tier */
    int64_t recurrent_bytes, kv_bytes, logits_bytes; /* of the checkpoints in memory */
    int64_t device_total_bytes, device_used_bytes, device_cached_bytes, device_free_bytes;
    int64_t running_recurrent_bytes, running_kv_bytes;
    int64_t evictions, dropped;
    bool has_store;
    int64_t store_bytes, store_budget_bytes, store_sessions, store_checkpoints, store_failures;
    bool store_full;
};
void state_encode(struct strbuf *buf, const struct state_card *card);

#endif
