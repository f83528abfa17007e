/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the parameters of a completion as their rows say (parameter_table.h). */
#ifndef API_PARAMETER_READ_H
#define API_PARAMETER_READ_H

#include "api/completion_request.h"
#include "api/errors.h"

#include <jansson.h>

/* What holds where nothing is said: of the table, and limits->sampling. */
void parameter_read_usual(struct completion_request *request,
                          const struct completion_limits *limits);
/* Reads all of completions. The caller clears what was read in every case. */
int parameter_read_all(struct completion_request *request, const json_t *fields,
                       const struct completion_limits *limits, struct api_error *err);
/* Frees the texts and lists of ids. */
void parameter_read_clear(struct completion_request *request);

#endif
