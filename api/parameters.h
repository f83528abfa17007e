/* SPDX-License-Identifier: Apache-2.0 */
/* Every parameter of POST /v1/completions that OpenAI, vLLM, llama.cpp and SGLang have, and what
 * this server does with it. A parameter of the table is honoured, or refused by name, or makes no
 * difference here; none is ignored in silence. What is in no table may be a mistake: it is ignored,
 * and the client is warned.
 *
 * Read in November 2026: the newest sources of vLLM (entrypoints/openai/completion/protocol.py),
 * SGLang (entrypoints/openai/protocol.py, CompletionRequest) and llama.cpp
 * (tools/server/server-task.cpp), and OpenAI's API reference. What only older vLLMs had is there,
 * too. */
#ifndef API_PARAMETERS_H
#define API_PARAMETERS_H

#include "api/errors.h"
#include "api/reply_warnings.h"

#include <jansson.h>
#include <stdio.h>

/* In no table: only tests of this server may have it. */
#define PARAMETER_OF_TESTS "draft_token_ids"

/* Checks the fields of a request against the table. Refused: API_UNSUPPORTED with its name. Warns
 * of those that the table has not. */
int parameters_check(const json_t *fields, struct reply_warnings *warnings, struct api_error *err);
/* Warns of fields that are none of `known`, which NULL ends: those of another endpoint. */
void parameters_warn(const json_t *fields, const char *const *known,
                     struct reply_warnings *warnings);

/* Likewise the fields that a chat has beside those of a completion, or with another meaning. */
int parameters_check_chat(const json_t *fields, struct api_error *err);
/* Deletes those fields. */
void parameters_drop_chat(json_t *fields);
/* The fields of APIs that have all theirs in a table of their own: those that only completions and
 * chats have are refused. Warns of those that nobody has. */
enum parameters_api { PARAMETERS_MESSAGES, PARAMETERS_RESPONSES };
int parameters_check_all(enum parameters_api api, const json_t *fields,
                         struct reply_warnings *warnings, struct api_error *err);
/* Sets those that mean the same in a chat among the fields of one. */
int parameters_pass(enum parameters_api api, json_t *chat, const json_t *fields,
                    struct api_error *err);
/* Warns of fields that no chat has. */
void parameters_warn_chat(const json_t *fields, struct reply_warnings *warnings);

/* The tables in Markdown (api/parameters.md). */
void parameters_print(FILE *out);

#endif
