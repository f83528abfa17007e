/* SPDX-License-Identifier: Apache-2.0 */
/* The tools of a request of another API as functions of a chat, and those that are left out
 * (messages_tools.c, responses_tools.c). */
#ifndef API_FUNCTION_LIST_H
#define API_FUNCTION_LIST_H

#include "api/errors.h"
#include "api/reply_warnings.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* function_list_begin makes it; function_list_clear frees. */
struct function_list {
    json_t *functions; /* those that can be called, as a chat has them */
    json_t *names;     /* of all: an object; the value of one that was left out is its type */
    size_t left;
    const char *left_type; /* of the first that was left out */
    const char *unseen;    /* a member of a tool that the model does not see; NULL: none */
    struct api_error *err;
};

int function_list_begin(struct function_list *list, struct api_error *err);
void function_list_clear(struct function_list *list);

/* Adds a function. description and parameters may be NULL. */
int function_list_add(struct function_list *list, json_t *name, json_t *description,
                      json_t *parameters);
/* Leaves out a tool of a type that its API's servers carry out or describe. name: NULL: none. */
int function_list_leave(struct function_list *list, const json_t *name, const json_t *type);
/* Notes the first member that says something to the model or of its calls, and reaches neither:
 * none of those that are known, which NULL ends, or `strict`, if that is true. */
void function_list_note(struct function_list *list, const json_t *tool, const char *const *known);

/* Sets `tools` of the chat, unless there are none. */
int function_list_set(const struct function_list *list, json_t *chat);
/* needs: what a tool must have to be called. */
void function_list_warn(const struct function_list *list, const char *needs,
                        struct reply_warnings *warnings);

/* Calls of some function are demanded by that place: there must be one. */
int function_list_demand(const struct function_list *list, const char *place);
/* Demands calls of the function with that name. */
int function_list_choose(const struct function_list *list, json_t *chat, const json_t *name);

#endif
