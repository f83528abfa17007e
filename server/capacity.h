/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the operator at start what the machine can hold. */
#ifndef SERVER_CAPACITY_H
#define SERVER_CAPACITY_H

#include "engine/engine.h"

#include <stdint.h>

/* Logs the model, bytes of state per text and of KV per token, and how many texts fit. Warns when
 * fewer than max_texts texts of max_model_len tokens (0: no limit) do. */
void capacity_report(const struct engine *engine, int64_t max_model_len, int64_t max_texts);

#endif
