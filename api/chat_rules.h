/* SPDX-License-Identifier: Apache-2.0 */
/* What a chat request wants of its replies: which parts of their text are reasoning and tool calls
 * (chat_parser.h). */
#ifndef API_CHAT_RULES_H
#define API_CHAT_RULES_H

#include "api/chat_demand.h"
#include "api/chat_syntax.h"
#include "api/chat_types.h"
#include "api/errors.h"

struct chat_rules {
    const struct chat_syntax *syntax; /* borrowed: the template's */
    bool reasoning;                   /* is split off */
    bool inside;                      /* the text begins inside reasoning: the prompt opened it */
    bool answering;                   /* channels: it begins inside an answer */
    bool calls;                       /* are looked for */
    bool one_call;                    /* all calls but the first are dropped */
    bool hide_reasoning;              /* what is split off is not told */
    struct chat_types types;          /* of the request's tools */
    int32_t
        kept[2 + CHAT_MOST_CALL_TOKENS]; /* [num_kept]: special tokens that the text has: markers */
    size_t num_kept;
    struct chat_demand demand;
};

/* A member of a tool, whatever its value: the template does not get it, since a message shows it
 * (messages_tools.h). No client's word. */
#define CHAT_TOOL_APART "shown by a message"

/* For what a client wrote: 400 for a tool with that member. */
int chat_rules_check_tools(const json_t *fields, struct api_error *err);

/* Whether the request lets the model call its tools: it has some, and tool_choice is not "none". */
bool chat_rules_tools(const json_t *fields);

/* Of a request whose prompt is text [length]; `continues`: it ends with the last message.
 * `reasoning`: --reasoning auto. The caller frees *out with chat_rules_free. */
int chat_rules_make(struct chat_rules **out, const json_t *fields, const char *text, size_t length,
                    bool continues, const struct chat_syntax *syntax, bool reasoning,
                    struct api_error *err);
void chat_rules_free(struct chat_rules *rules); /* NULL is allowed */

#endif
