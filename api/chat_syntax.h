/* SPDX-License-Identifier: Apache-2.0 */
/* How a model's chat template writes reasoning and tool calls, so that replies can be taken apart.
 *
 * The template is asked, not the model's name: it renders a short chat with words that are known,
 * and what stands around these words are the markers. Where it shows no calls, the markers are
 * looked for in what it tells the model about tools. */
#ifndef API_CHAT_SYNTAX_H
#define API_CHAT_SYNTAX_H

#include "api/chat_call.h"
#include "api/chat_ids.h"
#include "lib/jinja/chat_template.h"

enum { CHAT_MARKER_SIZE = 48, CHAT_MOST_CALL_TOKENS = 8 };

/* Which messages of the system a template writes. */
enum chat_systems { CHAT_SYSTEMS_NONE, CHAT_SYSTEMS_FIRST, CHAT_SYSTEMS_ALL };

struct chat_markers {
    char open[CHAT_MARKER_SIZE];  /* "": there are none */
    char close[CHAT_MARKER_SIZE]; /* "": what was opened ends by itself */
};

struct chat_syntax {
    struct chat_markers reasoning;
    struct chat_markers calls;
    enum chat_calls_format format; /* of calls; CHAT_CALLS_NONE: they are not known */
    bool bare;                     /* they are written without markers, where content begins */
    bool list;                     /* all calls stand in one list between two markers */
    bool tool_names;               /* JSON: an object has a "tool_name", and no "name" */
    bool parameters;               /* JSON: and "parameters", not "arguments" */
    bool single;                   /* an answer has one call at most */
    bool texts;                    /* arguments of past calls are JSON in a text */
    enum chat_ids ids;             /* of past calls */
    bool broken;                   /* arguments of past calls may be a text */
    bool channels;                 /* a reply is messages in channels (chat_channels.h) */
    bool either;                   /* past calls stand beside a thought or a text, not both */
    enum chat_systems systems;
    /* Markers that are special tokens, which texts are without otherwise. */
    int32_t reasoning_tokens[2], call_tokens[CHAT_MOST_CALL_TOKENS];
    size_t num_reasoning_tokens, num_call_tokens;
    /* What reasoning's closing marker is, if it is to be written. */
    int32_t closing_tokens[CHAT_MARKER_SIZE];
    size_t num_closing_tokens;
    /* Channels: what begins the name of one that is no thought, and what ends a reply. */
    int32_t channel_tokens[2], end_tokens[2];
    size_t num_channel_tokens, num_end_tokens;
};

/* What of that is found of `template`, one of the two that *chat has. */
void chat_syntax_find(struct chat_syntax *syntax, const struct jinja *template,
                      const struct chat_template *chat, const struct tokenizer *tokenizer);

/* Takes a format that has markers of its own. */
void chat_syntax_take(struct chat_syntax *syntax, enum chat_calls_format format);

/* The title of its format. */
const char *chat_syntax_format(const struct chat_syntax *syntax);

#endif
