/* SPDX-License-Identifier: Apache-2.0 */
/* Every parameter of POST /v1/completions that OpenAI, vLLM, llama.cpp and SGLang have, and those
 * of chats, messages and responses, each in a row: what it is here, how it is read, what it is for.
 * The parser (parameter_read.h), the refusals (parameters.h), parameters.md and the schemas of
 * openapi.json (parameter_documents.h) go by it. A parameter of the table is honoured, or refused
 * by name, or makes no difference here; none is ignored in silence. What is in no row may be a
 * mistake: it is ignored, and the client is warned.
 *
 * Read in November 2026: the newest sources of vLLM (entrypoints/openai/completion/protocol.py),
 * SGLang (entrypoints/openai/protocol.py, CompletionRequest) and llama.cpp
 * (tools/server/server-task.cpp), and OpenAI's API reference. What only older vLLMs had is there,
 * too. */
#ifndef API_PARAMETER_TABLE_H
#define API_PARAMETER_TABLE_H

#include "api/completion_fields.h"
#include "engine/model/sampling.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum parameters_api { /* bits */
                      PARAMETERS_COMPLETIONS = 1,
                      PARAMETERS_CHATS = 2,
                      PARAMETERS_MESSAGES = 4,
                      PARAMETERS_RESPONSES = 8
};

enum parameter_kind {
    PARAMETER_HONOURED,
    PARAMETER_REFUSED, /* unless its value asks for nothing */
    PARAMETER_HARMLESS /* whatever it says, the reply is the same */
};

enum parameter_type {
    PARAMETER_ANY,     /* what `read` takes, or who reads a body's other fields */
    PARAMETER_BOOLEAN, /* bool */
    PARAMETER_INTEGER, /* of 4 or 8 bytes */
    PARAMETER_NUMBER,  /* of a drawing: engine/model/sampling.h */
    PARAMETER_TEXT,    /* char *: malloc'd; NULL: absent */
    PARAMETER_IDS      /* int32_t *: token ids [size_t], malloc'd, each once; NULL: none */
};

struct parameter {
    const char *name;
    const char *from; /* "OpenAI", "vLLM", "llama.cpp", "SGLang"; "": only we */
    unsigned apis;    /* that have it with this meaning */
    const char *note; /* what it is for; what to use instead; why it makes no difference */
    unsigned authors; /* of messages and responses: whose own it is; others have it as chats do */
    enum parameter_kind kind;
    const char *nothing; /* REFUSED: values that ask for nothing, as JSON, parted by spaces */
    enum parameter_type type;
    int64_t low, high; /* INTEGER */
    int64_t usual;     /* BOOLEAN and INTEGER: where nothing is said */
    unsigned usual_of; /* the APIs where that holds; 0: all */
    enum sampling_number number;
    /* In struct completion_request; size 0: what reads it keeps no value of it there. */
    size_t at, size, count_at;
    bool may_be_empty;       /* IDS */
    completion_reader *read; /* in the place of its type; NULL: none */
    const char
        *schema; /* ANY: of openapi.json's components; NULL: its type's, or that of any value */
    bool needed; /* null is not allowed */
};

extern const struct parameter parameter_table[];
extern const int parameter_count;

#endif
