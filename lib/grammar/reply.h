/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of a chat's reply: reasoning, then calls of tools, or what another constraint asks.
 *
 * The spec of GRAMMAR_REPLY is made by the API (chat_demand.h):
 *   reasoning   absent: the text has none. {open, close: markers; begun: the prompt has opened it,
 *               else the text may}
 *   calls       {syntax: of schema.h; open, close: markers, which may be ""; list: all calls stand
 * in one list between them; tool_names, parameters: objects have these keys, not "name" and
 * "arguments"; words: as in api/chat_words.h; exact: no white space may come between words; most:
 * so many calls at most; tools: a list of {place, name, parameters, types}; types as in schema.h}
 *   answer      absent: none. What stands before a text of the other constraint
 *   kind, spec  another constraint. With calls the text is either, and both have their bounds:
 *               they nest less deep, and in XML and Python no string has a marker.
 *
 * A special token in a marker or a word is that token; all else is text. */
#ifndef LIB_GRAMMAR_REPLY_H
#define LIB_GRAMMAR_REPLY_H

#include "lib/grammar/schema.h"

#include <jansson.h>

/* The arguments of each tool, once calls are compiled: zero-initialise; free rules. */
struct reply_tools {
    const json_t *list;          /* of the spec, borrowed */
    struct schema_call call;     /* but for its types */
    bool tool_names, parameters; /* JSON: these keys */
    uint32_t *rules;             /* [its length] */
};
enum { REPLY_CALLS_AROUND = 3 }; /* a call, a block and all calls; reasoning is one more */

/* A rule of calls; *rule is it. Errors begin with the tool's place. */
int reply_calls(struct builder *builder, const struct trie *trie, const json_t *calls,
                struct reply_tools *tools, uint32_t *rule);
/* The place of a tool's schema in *err's message. Returns -1. */
int reply_name_tool(const struct reply_tools *tools, size_t index, struct error *err);

/* A rule of the rule's texts, each behind the word. */
int reply_answer(struct builder *builder, const struct trie *trie, const char *word, uint32_t body,
                 uint32_t *rule);
/* A rule of what either of two rules has. */
int reply_either(struct builder *builder, uint32_t a, uint32_t b, uint32_t *rule);
/* Reasoning (NULL: none), then the body, a rule. *root is the rule of the whole text. */
int reply_reasoning(struct builder *builder, const struct trie *trie, const json_t *reasoning,
                    uint32_t body, uint32_t *root);

#endif
