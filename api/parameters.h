/* SPDX-License-Identifier: Apache-2.0 */
/* Every parameter of POST /v1/completions that OpenAI, vLLM, llama.cpp and SGLang have, and what
 * this server does with it. A parameter of the table is honoured, or refused by name, or makes no
 * difference here; none is ignored in silence. What is in no table may be a mistake: it is ignored,
 * counted and logged.
 *
 * Read in November 2026: the newest sources of vLLM (entrypoints/openai/completion/protocol.py),
 * SGLang (entrypoints/openai/protocol.py, CompletionRequest) and llama.cpp
 * (tools/server/server-task.cpp), and OpenAI's API reference. What only older vLLMs had is there,
 * too. */
#ifndef API_PARAMETERS_H
#define API_PARAMETERS_H

#include "api/errors.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

/* Checks the fields of a request against the table. Refused: API_UNSUPPORTED with its name.
 * *unknown counts the fields that no table has; the first one's name goes to name [size]. */
int parameters_check(const json_t *fields, size_t *unknown, char *name, size_t size,
                     struct api_error *err);

/* Likewise the fields that a chat has beside those of a completion, or with another meaning. */
int parameters_check_chat(const json_t *fields, struct api_error *err);
/* Deletes those fields. */
void parameters_drop_chat(json_t *fields);

/* The tables in Markdown (api/parameters.md). */
void parameters_print(FILE *out);

#endif
