/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a request says of words and tokens of the vocabulary: which end the text, which may
 * come, which are likelier, which are told. */
#ifndef API_COMPLETION_WORDS_H
#define API_COMPLETION_WORDS_H

#include "api/completion_request.h"
#include "api/errors.h"

#include <jansson.h>

/* stop, bad_words, logit_bias, and the lists of token ids. */
int completion_words_read(const json_t *fields, struct completion_request *request,
                          const struct completion_limits *limits, struct api_error *err);

#endif
