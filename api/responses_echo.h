/* SPDX-License-Identifier: Apache-2.0 */
/* What the replies of POST /v1/responses say again of their request, and by which names: its own
 * fields, and its tools where a chat calls them otherwise. */
#ifndef API_RESPONSES_ECHO_H
#define API_RESPONSES_ECHO_H

#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A tool that a reply calls otherwise than its chat does. */
struct responses_tool {
    char *called; /* [called_length], in the chat */
    char *name;   /* [name_length] */
    char *space;  /* [space_length], its namespace; NULL: it is in none */
    size_t called_length, name_length, space_length;
    bool custom; /* its only argument is a text */
};

struct responses_echo {
    char *members; /* [length]: of the reply's object, without what surrounds them */
    size_t length;
    struct responses_tool *tools; /* [num_tools], sorted by what they are called */
    size_t num_tools;
    char *asked; /* [asked_length]: {input, instructions} as JSON, of a response that is kept or
                    goes on from one; NULL: it is neither */
    size_t asked_length;
    bool logprobs; /* are told */
    bool seals;    /* thoughts have encrypted_content */
};

/* members: an object. tools: by what a chat calls each, [name, namespace or null, custom].
 * NULL: failed. */
struct responses_echo *responses_echo_make(const json_t *members, const json_t *tools,
                                           struct api_error *err);
void responses_echo_free(struct responses_echo *echo); /* NULL is allowed */
/* What it takes; NULL: nothing. */
size_t responses_echo_bytes(const struct responses_echo *echo);

/* The tool that a chat calls by that name; NULL: a function of that name. */
const struct responses_tool *responses_echo_tool(const struct responses_echo *echo,
                                                 const char *called, size_t length);

#endif
