/* SPDX-License-Identifier: Apache-2.0 */
/* A request body as JSON, and its fields by name: what all parsers of requests share.
 *
 * Each request_* leaves its outputs as they are when the field is absent or null, so that the
 * caller sets the defaults first; else it returns 0 with the value, or -1 with *err naming the
 * field. */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include "api/errors.h"

#include <jansson.h>
#include <stdint.h>

/* Parses body [length]: one JSON object, UTF-8, nested at most 64 deep, no key twice. NULL with
 * *err set (the message gives the byte offset); else the caller owns the reference. */
json_t *request_load(const char *body, size_t length, struct api_error *err);

/* The field's value (borrowed), or NULL when it is absent or null. */
json_t *request_field(const json_t *fields, const char *name);

/* An integer, which may be written as 16.0. Returns false when it is none or exceeds int64. */
bool request_as_int(const json_t *value, int64_t *number);

int request_bool(const json_t *fields, const char *name, bool *value, struct api_error *err);
int request_int(const json_t *fields, const char *name, int64_t min, int64_t max, int64_t *value,
                struct api_error *err);

/* A number in [min, max], or in (min, max] when min_open. */
int request_float(const json_t *fields, const char *name, double min, double max, bool min_open,
                  float *value, struct api_error *err);

/* A string: *text (malloc'd, NUL-terminated) and *length bytes (may be NULL). */
int request_text(const json_t *fields, const char *name, char **text, size_t *length,
                 struct api_error *err);

/* list: an array of token ids in [0, vocab_size); *ids is malloc'd (NULL when empty). `name` is the
 * field it came from. */
int request_token_ids(const json_t *list, const char *name, int32_t vocab_size, int32_t **ids,
                      size_t *count, struct api_error *err);

/* `model`: 404 unless it is absent or `served`. */
int request_model(const json_t *fields, const char *served, struct api_error *err);

int request_wrong_type(struct api_error *err, const char *name, const char *expected,
                       const json_t *got);
int request_no_memory(struct api_error *err);

#endif
