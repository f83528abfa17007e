/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as clients see them. One table maps each code to the HTTP status, the OpenAI error object
 * and its headers (api.md, "Errors"). */
#ifndef API_ERRORS_H
#define API_ERRORS_H

#include "api/strbuf.h"
#include "lib/base/error.h"

#include <stdbool.h>

enum api_code {
    API_OK = 0,
    API_MALFORMED,          /* no HTTP, or not clear where it ends; the connection is closed */
    API_INVALID_JSON,       /* malformed, not UTF-8, nested too deeply */
    API_INVALID_TYPE,       /* a field of the wrong JSON type */
    API_INVALID_VALUE,      /* a field out of its range */
    API_MISSING_PARAMETER,  /* a required field is absent */
    API_UNSUPPORTED,        /* a known field that we cannot honour */
    API_CONTEXT_LENGTH,     /* prompt + max_tokens can never fit */
    API_INVALID_KEY,        /* missing or wrong API key */
    API_HOST_NOT_ALLOWED,   /* the request was sent to a name that is not this server's */
    API_ORIGIN_NOT_ALLOWED, /* a web page of another origin may not send this */
    API_UNKNOWN_PATH,       /* no such endpoint */
    API_MODEL_NOT_FOUND,    /* `model` is not what is served */
    API_REQUEST_NOT_FOUND,  /* cancel: no such request in flight */
    API_SESSION_NOT_FOUND,  /* nobody's, or another API key's */
    API_RESPONSE_NOT_FOUND, /* the same of a kept response */
    API_PREVIOUS_NOT_FOUND, /* the same of that which a response is to go on from */
    API_METHOD_NOT_ALLOWED, /* `allow` says which methods are */
    API_SESSION_BUSY,       /* another request works on it */
    API_SESSION_CONFLICT,   /* another server has changed it meanwhile */
    API_SESSION_EXISTS,     /* the target of a fork or an import */
    API_SESSION_NOT_CHAT,   /* it holds tokens of no chat, or of none from there on */
    API_POSITION_MISMATCH,  /* expected_position is not what the session holds */
    API_BODY_TOO_LARGE,     /* the connection is closed */
    API_MEDIA_TYPE,         /* not application/json */
    API_QUEUE_FULL,         /* admission refused; retry later */
    API_SESSION_QUOTA,      /* the API key's sessions already hold as much as they may */
    API_STATE_FILE,         /* truncated, corrupt, foreign or of a newer version */
    API_KEY_IN_FLIGHT,      /* the first request with this Idempotency-Key still runs */
    API_KEY_MISMATCH,       /* the first request with this key had another body */
    API_KEY_LOST,           /* the first request was carried out; a crash took its reply */
    API_NOT_IMPLEMENTED,    /* a known endpoint that we lack */
    API_INTERNAL,           /* our own mistake */
    API_LOADING,            /* the weights are not loaded yet */
    API_DRAINING,           /* SIGTERM was received */
    API_ENGINE_FAILED,      /* the engine thread has given up */
    API_OUT_OF_MEMORY,      /* an allocation for this request failed */
    API_STORE_FAILED,       /* --state-dir did not take a change of a session, which is as it was */
    API_STORE_UNAVAILABLE,  /* --store cannot be reached */
    API_CANCELLED,          /* ended by POST /v1/requests/{id}/cancel, or its client was too slow */
    API_NUM_CODES
};

struct api_error {
    enum api_code code;
    char message[512]; /* UTF-8, one sentence */
    char param[64];    /* the field that is wrong; "": null */
    int retry_after_s; /* instead of the row's; 0: that */
    char allow[32];    /* API_METHOD_NOT_ALLOWED: value of the Allow header */
    /* API_CONTEXT_LENGTH: of the prompt with what stands before it, and the most it could have. */
    int64_t prompt_tokens, most_tokens;
};

/* One row of the table. */
struct api_error_row {
    int status;               /* of HTTP */
    const char *type;         /* error.type */
    const char *code;         /* error.code */
    const char *param;        /* error.param when the error names none; NULL: null */
    int retry_after_s;        /* value of Retry-After; 0: no such header */
    const char *should_retry; /* value of x-should-retry; NULL: no such header */
    bool close;               /* the connection is closed after the reply */
};

const struct api_error_row *api_error_row(enum api_code code);

/* Sets *err (may be NULL) unless it is set already; param may be NULL. The text may quote hostile
 * bytes, so it is made printable UTF-8. Returns -1. */
int api_error_set(struct api_error *err, enum api_code code, const char *param, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));
void api_error_clear(struct api_error *err);

/* Errors that have the same words wherever they arise. session_tokens: tokens before the prompt's;
 * 0: there is no session. `limit` names what sets limit_tokens ("--max-model-len", "the model's
 * learned positions", "memory"). */
int api_error_context_length(struct api_error *err, int64_t session_tokens, int64_t prompt_tokens,
                             int64_t max_tokens, int64_t limit_tokens, const char *limit);
int api_error_method(struct api_error *err, const char *method, const char *allow);
int api_error_unknown_path(struct api_error *err, const char *path);
int api_error_model(struct api_error *err, const char *name, const char *served);

/* Translates an engine error; param may be NULL. */
int api_error_from_engine(struct api_error *err, const struct error *engine, const char *param);

/* How an endpoint writes its errors. request_id: of the request; NULL: not known. */
typedef void api_error_encoder(struct strbuf *buf, const struct api_error *err,
                               const char *request_id);

/* Appends {"error": {"message", "type", "param", "code"}}. */
void api_error_encode(struct strbuf *buf, const struct api_error *err);
/* The same in an endpoint's own shape; encode NULL: it has none. */
void api_error_encode_as(struct strbuf *buf, api_error_encoder *encode, const struct api_error *err,
                         const char *request_id);

#endif
