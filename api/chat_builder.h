/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the messages of a chat from those of another API (messages_blocks.c, responses_items.c),
 * whose texts, calls and thoughts come one by one.
 *
 * Neighbours of one role are one message. Messages of the system that the template does not write
 * are a user's text at their place. What is no text becomes a line in its place, and is warned of.
 */
#ifndef API_CHAT_BUILDER_H
#define API_CHAT_BUILDER_H

#include "api/chat_syntax.h"
#include "api/errors.h"
#include "api/reply_warnings.h"
#include "api/strbuf.h"

#include <jansson.h>
#include <stdbool.h>

enum chat_role { CHAT_NOBODY, CHAT_SYSTEM, CHAT_DEVELOPER, CHAT_USER, CHAT_ASSISTANT };

enum { CHAT_BUILDER_MOST_LEFT = 16 };

/* Zero-initialise but for these four, then begin; chat_builder_clear frees. */
struct chat_builder {
    const char *field;         /* of the request: "messages" */
    const char *const *left;   /* types that are no text, and none of ours; NULL ends them */
    enum chat_systems systems; /* those that the template writes */
    struct api_error *err;

    json_t *list;        /* the chat's messages */
    enum chat_role role; /* of the message that is being made */
    bool begun;          /* its text is, even if that is empty */
    size_t texts;        /* that it has */
    struct strbuf text, reasoning;
    json_t *calls; /* NULL: none yet */
    json_t *ids;   /* an object whose keys are the ids of all calls so far */
    size_t num_left[CHAT_BUILDER_MOST_LEFT];
};

int chat_builder_begin(struct chat_builder *builder);
void chat_builder_clear(struct chat_builder *builder);

/* The role under which the template writes a message that comes now. */
enum chat_role chat_builder_role(const struct chat_builder *builder, enum chat_role role);
/* What comes now belongs to a message of the role. */
int chat_builder_turn(struct chat_builder *builder, enum chat_role role);
/* Ends the message that is being made. */
int chat_builder_flush(struct chat_builder *builder);

/* Adds a text to `to`: those of the assistant's message are parts of one, between which calls
 * stood; others are lines. *texts counts them. */
void chat_builder_text(struct chat_builder *builder, struct strbuf *to, size_t *texts,
                       const char *text, size_t length);
/* Adds the line of a part or a block of a type that is left out: "[image left out]", or with a name
 * "[tool_reference: weather]". False: it is none of these types. */
bool chat_builder_leave(struct chat_builder *builder, struct strbuf *to, size_t *texts,
                        const char *type, const char *name);

/* A call of the assistant's message; arguments: an object, or its JSON. */
int chat_builder_call(struct chat_builder *builder, const json_t *id, json_t *name,
                      json_t *arguments);
/* Whether a call before had that id. */
bool chat_builder_called(const struct chat_builder *builder, const char *id);
/* The result of a call: a message of its own. */
int chat_builder_result(struct chat_builder *builder, const json_t *id, const struct strbuf *text);

/* Warns of what was left out. */
void chat_builder_warn(const struct chat_builder *builder, struct reply_warnings *warnings);

#endif
