/* SPDX-License-Identifier: Apache-2.0 */
/* The tools of POST /v1/responses, and which of them are to be called, as a chat has them.
 *
 * A function of a namespace is one of the chat under both names. A custom tool is a function whose
 * only argument is its text. */
#ifndef API_RESPONSES_TOOLS_H
#define API_RESPONSES_TOOLS_H

#include "api/translation.h"

/* For the reply: responses_tools_clear frees. */
struct responses_tools {
    json_t *kept;    /* those that can be called, as the request has them */
    json_t *renamed; /* as responses_echo_make takes them */
};

/* Sets tools and tool_choice of the chat. Tools of other types are left out: that is warned of, and
 * refused where one of them is demanded. */
int responses_tools_read(struct responses_tools *tools, const struct translation *to);
void responses_tools_clear(struct responses_tools *tools);

/* What the chat calls a tool; space NULL: it is in no namespace. NULL: no memory. */
json_t *responses_tools_called(const json_t *space, json_t *name);
/* The argument of a custom tool. */
#define RESPONSES_CUSTOM_ARGUMENT "input"

#endif
