/* SPDX-License-Identifier: Apache-2.0 */
/* What a reply warns its client of: what the request says and the server leaves aside. Whoever
 * reads a part of a request adds a sentence; the reply has them all, and its header X-Regla-Warning
 * as many as fit (api.md, Warnings). */
#ifndef API_REPLY_WARNINGS_H
#define API_REPLY_WARNINGS_H

#include "api/strbuf.h"

#include <jansson.h>

struct warnings;

enum warning_kind {
    WARNING_FIELD,    /* a field that nobody knows */
    WARNING_TEMPLATE, /* something for the chat template, which does not take it */
    WARNING_SCHEMA,   /* keywords of a schema that are not enforced */
    WARNING_CALL,     /* a past call that a model left broken */
    WARNING_CONTENT,  /* what the model cannot be shown, or cannot use: a picture, a hosted tool */
    NUM_WARNING_KINDS
};

struct reply_warnings {     /* zero-initialise */
    struct warnings *texts; /* NULL: none */
    struct warnings *notes; /* that the header alone has; NULL: none */
    uint64_t counts[NUM_WARNING_KINDS];
};

void reply_warnings_clear(struct reply_warnings *warnings);

/* One sentence: the field, what is there, what is made of it. Hostile bytes are replaced, and what
 * is too much is cut (lib/base/warnings.h). NULL: nobody is to be warned. Without memory for its
 * text a warning is only counted. */
void reply_warnings_add(struct reply_warnings *warnings, enum warning_kind kind, const char *format,
                        ...) __attribute__((format(printf, 3, 4)));

/* The same of what clients say with each request: the reply's header has it, and the log once. */
void reply_warnings_note(struct reply_warnings *warnings, enum warning_kind kind,
                         const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Of a field of this name, which nobody knows. */
void reply_warnings_unknown(struct reply_warnings *warnings, const char *name);
/* Of fields that are none of `known`, which NULL ends. */
void reply_warnings_others(struct reply_warnings *warnings, const json_t *fields,
                           const char *const *known);

/* The first sentence; NULL: there is none. */
const char *reply_warnings_first(const struct reply_warnings *warnings);
/* The i-th that was noted; NULL past the last. */
const char *reply_warnings_noted(const struct reply_warnings *warnings, size_t i);

/* Appends ,"warnings":[...] if there are any. warnings NULL: none are told. */
void reply_warnings_encode(struct strbuf *buf, const struct reply_warnings *warnings);

/* The value of the header, printable ASCII: "" without warnings. */
enum { REPLY_WARNINGS_HEADER_SIZE = 1024 };
void reply_warnings_header(char header[REPLY_WARNINGS_HEADER_SIZE],
                           const struct reply_warnings *warnings);

/* "field", ... */
const char *reply_warnings_kind(enum warning_kind kind);

#endif
