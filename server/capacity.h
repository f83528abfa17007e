/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can hold, for the operator: the table at start. */
#ifndef SERVER_CAPACITY_H
#define SERVER_CAPACITY_H

#include "engine/engine.h"

#include <stdint.h>

/* Logs weights, state bytes per text, KV bytes per token and how many texts fit, and warns where
 * that is less than max_texts texts of max_model_len tokens (0: unlimited). */
void capacity_report(const struct engine *engine, int64_t max_model_len, int64_t max_texts);

#endif
