/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can hold: tells the operator at start. */
#ifndef SERVER_CAPACITY_H
#define SERVER_CAPACITY_H

#include "engine/engine.h"

#include <stdint.h>

/* Of the memory for states, the bytes that are kept for others than the tenant that takes most, for
 * several short texts; 0: there is not so much. */
size_t capacity_share(const struct engine *engine);

/* Logs the model, which was loaded in so many seconds, bytes of state per text and of KV per token,
 * and how many texts fit. Warns when fewer than max_texts texts of max_model_len tokens (0: no
 * limit) do. longest: tokens of the longest text that is accepted; 0: no limit. */
void capacity_report(const struct engine *engine, double seconds, int64_t max_model_len,
                     int64_t max_texts, int64_t longest);

#endif
