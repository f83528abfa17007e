/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions of all models in Redis, for `regla sessions`. */
#ifndef SERVER_STORE_REDIS_UPKEEP_H
#define SERVER_STORE_REDIS_UPKEEP_H

#include "server/store/store_upkeep.h"

extern const struct store_upkeep redis_upkeep;

#endif
