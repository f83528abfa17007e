/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a chat shorter whose prompt has more tokens than there is room for: whole turns go, the
 * oldest first. A turn is a user's message and what follows it up to the next. The system's
 * messages before all turns stay, and so does the last turn. */
#ifndef API_CHAT_SHORTEN_H
#define API_CHAT_SHORTEN_H

#include "api/errors.h"

#include <jansson.h>
#include <stdint.h>

/* Drops as many turns of the fields' messages as it takes, by the bytes of their texts, from
 * `tokens` to `most`; one at least, if there are two, and so many that `attempts` of it that were
 * not enough end soon. *dropped: how many; 0: there is but one. */
int chat_shorten(json_t *fields, int64_t tokens, int64_t most, int attempts, size_t *dropped,
                 struct api_error *err);

#endif
