/* SPDX-License-Identifier: Apache-2.0 */
/* Tests name tokens by what tokenizer.json calls them. */
#ifndef TESTS_UNIT_TOKEN_ID_H
#define TESTS_UNIT_TOKEN_ID_H

#include "lib/text/tokenizer.h"

#include <string.h>

/* The id of the token whose content is `content`, or -1. */
static inline int32_t token_id(const struct tokenizer *tokenizer, const char *content)
{
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++) {
        const char *known = tokenizer_token_content(tokenizer, id);
        if (known && strcmp(known, content) == 0)
            return id;
    }
    return -1;
}

#endif
