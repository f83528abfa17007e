/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads bodies of routes that llama.cpp's server has: GET /props and GET /slots, with
 * those of their members that are known here, and POST /apply-template. */
#ifndef API_LLAMA_CPP_H
#define API_LLAMA_CPP_H

#include "api/completion.h"
#include "api/strbuf.h"

struct llama_cpp_props {
    const char *model, *path; /* the served name; as given on the command line */
    const char *version;      /* of this program */
    const char *template;     /* [template_length]: of chats; NULL: there is none */
    size_t template_length;
    const char *bos_token, *eos_token;      /* NULL: there is none */
    int64_t context;                        /* tokens of the longest text; 0: no limit */
    int64_t slots, running;                 /* texts that may run at once, and that run now */
    const struct author_sampling *sampling; /* of requests that say nothing; NULL: the API's */
};

void llama_cpp_props_encode(struct strbuf *buf, const struct llama_cpp_props *props);
/* A list of all slots, of which the first ones run a text. */
void llama_cpp_slots_encode(struct strbuf *buf, const struct llama_cpp_props *props);

/* Renders the messages of a chat's body. The caller frees out->text and clears out->input. */
int llama_cpp_template_parse(struct completion_prompt *out, const char *body, size_t length,
                             const struct completion_limits *limits, struct api_error *err);

#endif
