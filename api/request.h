/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a request body as JSON, and its fields by name; all parsers of requests use it.
 *
 * The caller sets the defaults first: each request_* leaves its outputs unchanged when the field is
 * absent or null. Otherwise it returns 0 with the value, or -1 with *err, which names the field. */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whom to ask for the memory of JSON that is being read, beyond some of each thread: in steps,
 * which are given back as a negative number when it has been freed. False: none is left. All
 * threads; NULL: nobody. `possible` says whether so much can ever be there. */
void request_bound_memory(bool (*reserve)(void *context, int64_t bytes),
                          bool (*possible)(void *context, int64_t bytes), void *context);

/* Asks for memory of another kind in the same way, or gives it back. */
bool request_reserve_memory(int64_t bytes);
bool request_memory_possible(int64_t bytes);

/* Parses body [length]: one JSON object in UTF-8, nested at most 64 deep, without repeated keys.
 * Returns NULL with *err set (the message gives the byte offset), or a reference that the caller
 * owns. */
json_t *request_load(const char *body, size_t length, struct api_error *err);
/* The same of a body to which we have added so many arrays and objects. */
json_t *request_load_with(const char *body, size_t length, size_t added, struct api_error *err);

/* The same; of a key that comes again in an object the last value counts. */
json_t *request_load_repeats(const char *body, size_t length, struct api_error *err);
/* JSON without spaces [*length], and a NUL behind it: malloc'd. */
int request_dump(const json_t *value, char **text, size_t *length, struct api_error *err);
/* What request_dump has made, or a body that has been loaded before; NULL: no memory. Our own may
 * nest deeper, and have more in it. */
json_t *request_load_dump(const char *text, size_t length, struct api_error *err);

/* The field's value (borrowed), or NULL when it is absent or null. */
json_t *request_field(const json_t *fields, const char *name);

/* An integer, also one written as 16.0. Returns false for other values and beyond int64. */
bool request_as_int(const json_t *value, int64_t *number);

int request_bool(const json_t *fields, const char *name, bool *value, struct api_error *err);
int request_int(const json_t *fields, const char *name, int64_t min, int64_t max, int64_t *value,
                struct api_error *err);

/* A number in [min, max]; with min_open in (min, max]. */
int request_float(const json_t *fields, const char *name, double min, double max, bool min_open,
                  float *value, struct api_error *err);

/* The field cache_salt, as request_text. */
int request_salt(const json_t *fields, char **salt, size_t *length, struct api_error *err);

/* A string: *text (malloc'd, NUL-terminated) and *length bytes (may be NULL). */
int request_text(const json_t *fields, const char *name, char **text, size_t *length,
                 struct api_error *err);

/* list: an array of token ids in [0, vocab_size). *ids is malloc'd (NULL when empty). `name` is the
 * field's name, for messages. */
int request_token_ids(const json_t *list, const char *name, int32_t vocab_size, int32_t **ids,
                      size_t *count, struct api_error *err);

/* Whether a name of the model is a pattern: it has a * or ?. */
bool request_model_pattern(const char *name);
/* Bytes of a name that a pattern matches at most: each frame of a stream has the name. */
enum { REQUEST_MOST_NAME = 256 };
/* Whether the model has that name: one of the names [count], or a pattern among them matches. */
bool request_names_model(const char *const *names, size_t count, const char *name);
/* Checks `model`: 404 unless it is absent, empty, or a name of the model. */
int request_model(const json_t *fields, const char *const *names, size_t count,
                  struct api_error *err);

enum { REQUEST_ID_SIZE = 129 };
/* Whether a request id may be logged and sent back in a header: it is 1 to 128 printable ASCII
 * bytes without spaces. */
bool request_id_valid(const char *text, size_t length);

int request_wrong_type(struct api_error *err, const char *name, const char *expected,
                       const json_t *got);
int request_no_memory(struct api_error *err);

/* A copy of a string, which may have NULs, and one behind it. */
int request_copy_text(const json_t *string, char **text, size_t *length, struct api_error *err);

#endif
