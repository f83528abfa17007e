/* SPDX-License-Identifier: Apache-2.0 */
/* Holds the fields of a request against the table (parameter_table.h). */
#ifndef API_PARAMETERS_H
#define API_PARAMETERS_H

#include "api/errors.h"
#include "api/parameter_table.h"
#include "api/reply_warnings.h"

#include <jansson.h>

/* Checks the fields of a request against the table. Refused: API_UNSUPPORTED with its name. Warns
 * of those that the table has not. */
int parameters_check(const json_t *fields, struct reply_warnings *warnings, struct api_error *err);

/* Likewise the fields that a chat has beside those of a completion, or with another meaning. */
int parameters_check_chat(const json_t *fields, struct api_error *err);
/* Deletes those fields. */
void parameters_drop_chat(json_t *fields);
/* Those of messages and responses, all of which have rows: what only others have is refused. Warns
 * of those that nobody has. */
int parameters_check_all(enum parameters_api api, const json_t *fields,
                         struct reply_warnings *warnings, struct api_error *err);
/* Sets those that mean the same in a chat among the fields of one. */
int parameters_pass(enum parameters_api api, json_t *chat, const json_t *fields,
                    struct api_error *err);
/* Warns of fields that no chat has. */
void parameters_warn_chat(const json_t *fields, struct reply_warnings *warnings);

#endif
