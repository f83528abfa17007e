/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the fields of a completion of which a type and a range do not say all; parameter_table.c
 * names who reads what. */
#ifndef API_COMPLETION_FIELDS_H
#define API_COMPLETION_FIELDS_H

#include "api/completion_request.h"
#include "api/errors.h"

#include <jansson.h>

/* Leaves the request unchanged where the field is absent. */
typedef int completion_reader(const json_t *fields, struct completion_request *request,
                              const struct completion_limits *limits, struct api_error *err);

/* max_tokens and max_completion_tokens; of what constrains a text, all fields. */
completion_reader completion_read_session, completion_read_prompt, completion_read_max_tokens,
    completion_read_stream_options, completion_read_stop, completion_read_bad_words,
    completion_read_seed, completion_read_logit_bias, completion_read_truncation,
    completion_read_side, completion_read_request_id, completion_read_salt,
    completion_read_constraint;

/* In no row of the table: only tests of this server may have it. */
#define COMPLETION_DRAFTS "draft_token_ids"
completion_reader completion_read_drafts;

#endif
