/* SPDX-License-Identifier: Apache-2.0 */
/* Every parameter of POST /v1/completions that OpenAI, vLLM, llama.cpp and SGLang have, and what
 * this server does with it. A parameter of the table is honoured, or refused by name, or makes no
 * difference here; none is ignored in silence. What is in no table may be a mistake: it is ignored,
 * counted and logged.
 *
 * State of November 2026: OpenAI's API reference; vLLM 0.11 (CompletionRequest); llama.cpp's
 * tools/server; SGLang 0.5 (CompletionRequest, GenerateReqInput). */
#ifndef API_PARAMETERS_H
#define API_PARAMETERS_H

#include "api/errors.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum parameter_kind {
    PARAMETER_HONOURED,
    PARAMETER_REFUSED, /* unless its value asks for nothing */
    PARAMETER_HARMLESS /* whatever it says, the reply is the same */
};

struct parameter {
    const char *name;
    const char *from; /* "OpenAI", "vLLM", "llama.cpp", "SGLang"; "" only we */
    enum parameter_kind kind;
    const char *nothing; /* REFUSED: values that ask for nothing, as JSON, parted by spaces */
    const char *note;    /* what to use instead, or why it makes no difference */
};

/* NULL: no table has it. */
const struct parameter *parameter_find(const char *name);

/* Checks the fields of a request against the table. Refused: API_UNSUPPORTED with its name.
 * *unknown counts the fields that no table has; the first one's name goes to name [size]. */
int parameters_check(const json_t *fields, size_t *unknown, char *name, size_t size,
                     struct api_error *err);

/* The table in Markdown (api/parameters.md). */
void parameters_print(FILE *out);

#endif
