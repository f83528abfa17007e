/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens that transformers' AutoTokenizer adds to those of tokenizer.json: those of
 * tokenizer_config.json and of its older companions. For tokenizer_config.c. */
#ifndef LIB_TEXT_SPECIAL_TOKENS_H
#define LIB_TEXT_SPECIAL_TOKENS_H

#include "lib/base/error.h"

#include <jansson.h>
#include <stdbool.h>

struct special_tokens {     /* all borrowed; NULL: not there */
    const json_t *config;   /* tokenizer_config.json */
    const json_t *map;      /* special_tokens_map.json */
    const json_t *added;    /* added_tokens.json */
    const json_t *defaults; /* {name: content}: those of the class */
    bool replaces;          /* the list of tokenizer.json is not used as it is */
    bool adds_all;          /* special tokens are added once more, without their flags */
};

/* *more becomes the list of tokens to add, in order, each an object as in "added_tokens", with an
 * "id" only where a file states one. Where `replaces`, root's own list becomes empty. The caller
 * frees *more. */
int special_tokens_list(const struct special_tokens *tokens, json_t *root, json_t **more,
                        struct error *err);

#endif
