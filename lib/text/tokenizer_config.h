/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_config.json, as transformers' AutoTokenizer reads it beside a tokenizer.json.
 *
 * Some classes of transformers 5 take only vocabulary, merges and template from tokenizer.json and
 * build the rest themselves; so do we, for those that we know (tokenizer.md has the table). Other
 * classes are refused by name. */
#ifndef LIB_TEXT_TOKENIZER_CONFIG_H
#define LIB_TEXT_TOKENIZER_CONFIG_H

#include "lib/base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* The files beside tokenizer.json; what is not there is NULL. tokenizer_config_clear frees them. */
struct tokenizer_config {
    json_t *config;             /* tokenizer_config.json */
    json_t *special_tokens_map; /* special_tokens_map.json */
    json_t *added_tokens;       /* added_tokens.json */
    json_t *model;              /* config.json */
    bool mentions_byte_level;   /* whether tokenizer.json has the word */
    /* tokenizer_config_apply: */
    json_t *more; /* tokens that are added after those of tokenizer.json; "id" is optional */
    bool split_special_tokens;
};

/* Reads the files of a folder. Without a tokenizer_config.json all stay NULL. */
int tokenizer_config_read(struct tokenizer_config *files, const char *directory, struct error *err);

/* Changes root, the object of tokenizer.json, into what transformers makes of it. Does nothing
 * without a config. */
int tokenizer_config_apply(struct tokenizer_config *files, json_t *root, struct error *err);
void tokenizer_config_clear(struct tokenizer_config *files);

#endif
