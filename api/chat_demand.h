/* SPDX-License-Identifier: Apache-2.0 */
/* What a chat demands of its reply: calls of tools (tool_choice), or what another field constrains,
 * behind reasoning. Both become one constraint (lib/grammar/reply.h). */
#ifndef API_CHAT_DEMAND_H
#define API_CHAT_DEMAND_H

#include "api/chat_syntax.h"
#include "api/constraint.h"

/* Calls of one reply at most, where several are demanded. */
enum { CHAT_DEMAND_MOST = 32 };

/* Zero-initialise; chat_demand_clear frees it. */
struct chat_demand {
    bool begun;    /* the text begins inside reasoning */
    bool may_open; /* the model may begin with reasoning */
    bool heads;    /* an answer has the head of a message (chat_channels.h) */
    char *calls;   /* [length]: a member of the spec of GRAMMAR_REPLY; NULL: none are demanded */
    size_t length;
    char *offered; /* [offered_length]: the same, where response_format constrains other texts */
    size_t offered_length;
};
void chat_demand_clear(struct chat_demand *demand);

/* The tools that the model is to see: a list of those of the request, or NULL; to be decref'd. */
json_t *chat_demand_tools(const json_t *fields, struct api_error *err);
/* Reads tool_choice, and the tools if calls are demanded. one: at most one call. */
int chat_demand_read(struct chat_demand *demand, const json_t *fields,
                     const struct chat_syntax *syntax, bool one, struct api_error *err);

/* Makes the constraint of a request what its demand and its own fields ask. */
int chat_demand_constrain(const struct chat_demand *demand, const struct chat_syntax *syntax,
                          struct constraint *constraint, struct api_error *err);

#endif
