/* SPDX-License-Identifier: Apache-2.0 */
/* The ids of past calls, as a template takes them. */
#ifndef API_CHAT_IDS_H
#define API_CHAT_IDS_H

#include "api/chat_words.h"
#include "api/errors.h"

#include <jansson.h>

enum chat_ids {
    CHAT_IDS_ANY,
    CHAT_IDS_SHORT,  /* nine letters and digits */
    CHAT_IDS_COUNTED /* a name and a number, by the words of the format */
};

/* Writes others in the messages of a request, which were checked, in place of ids that are not so:
 * the same for the call and for its result. */
int chat_ids_take(json_t *messages, enum chat_ids ids, const struct chat_words *words,
                  struct api_error *err);

#endif
