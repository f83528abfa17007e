/* SPDX-License-Identifier: Apache-2.0 */
/* What the request's tools say of the types of parameters: values in XML have none of their own,
 * and models spell others otherwise. */
#ifndef API_CHAT_TYPES_H
#define API_CHAT_TYPES_H

#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

/* Zero-initialise struct chat_types; chat_types_clear frees. */
struct chat_type {
    XXH128_hash_t hash; /* of the names of function and parameter, or of a function's alone */
    uint32_t kinds;     /* a set of enum chat_kind, and chat_types.c's own */
    uint32_t tool;      /* its index in the request */
};
enum chat_kind {
    CHAT_STRING = 1,
    CHAT_INTEGER = 2,
    CHAT_NUMBER = 4,
    CHAT_BOOLEAN = 8,
    CHAT_NULL = 16,
    CHAT_LIST = 32,
    CHAT_OBJECT = 64,
};
struct chat_types {
    struct chat_type *items; /* [count], by hash */
    size_t count;
    int64_t reserved; /* bytes, of request_reserve_memory */
};

/* tools: the list of the request; what is no schema there says nothing. */
int chat_types_take(struct chat_types *types, const json_t *tools, struct api_error *err);
void chat_types_clear(struct chat_types *types);
unsigned chat_types_kind(const json_t *value); /* enum chat_kind; not NULL */
/* The same of one tool's parameters, for the grammar (schema.h): by key, a list of JSON Schema's
 * names. index: the tool's. NULL: failed. */
json_t *chat_types_names(const json_t *parameters, size_t index, struct api_error *err);
/* Whether one of the tools has that name. */
bool chat_types_knows(const struct chat_types *types, const char *function, size_t length);
/* A value of one of the kinds; of a parameter that no tool has: a string. */
unsigned chat_types_of(const struct chat_types *types, const char *function, size_t function_length,
                       const char *key, size_t key_length);
/* The kinds that the tool's schema allows; 0: any. */
unsigned chat_types_asked(const struct chat_types *types, const char *function,
                          size_t function_length, const char *key, size_t key_length);

#endif
