/* SPDX-License-Identifier: Apache-2.0 */
/* The chat template that a model brings, and the tokens that it writes by name. */
#ifndef LIB_JINJA_CHAT_TEMPLATE_H
#define LIB_JINJA_CHAT_TEMPLATE_H

#include "lib/jinja/jinja.h"
#include "lib/text/tokenizer.h"

struct chat_template {
    struct jinja *template;      /* NULL: there is none that can be used */
    struct jinja *with_tools;    /* for requests with tools; NULL: the same */
    char why[512];               /* template is NULL: the reason, as a sentence */
    char *bos_token, *eos_token; /* NULL: there is none */
};

/* The model's tokenizer, and its tokens around a text (-1: none), of which templates know the texts
 * where no tokenizer_config.json says others. */
struct chat_template_source {
    const struct tokenizer *tokenizer;
    int32_t bos_token_id, eos_token_id;
};

/* Reads what stands beside the model at `path` (a folder or a GGUF file): chat_template.jinja and
 * additional_chat_templates/tool_use.jinja, the string or named strings in tokenizer_config.json or
 * chat_template.json, or those of the GGUF file. With `file` the template is that file; then it is
 * an error if it cannot be used, else only `why` says so. */
int chat_template_open(struct chat_template *chat, const char *path, const char *file,
                       const struct chat_template_source *source, struct error *err);
void chat_template_clear(struct chat_template *chat);

#endif
