/* SPDX-License-Identifier: Apache-2.0 */
/* What a chat demands of its reply: calls of tools (tool_choice), or what another field constrains,
 * behind reasoning. Both become one constraint (engine/grammar/reply.h). */
#ifndef API_CHAT_DEMAND_H
#define API_CHAT_DEMAND_H

#include "api/chat_rules.h"
#include "api/constraint.h"

/* Calls of one reply at most, where several are demanded. */
enum { CHAT_DEMAND_MOST = 32 };

/* Reads tool_choice, and the tools if calls are demanded: sets rules->demand. All else of the rules
 * is there. */
int chat_demand_make(struct chat_rules *rules, const json_t *fields, struct api_error *err);

/* Makes the constraint of a request what its rules and its own fields ask. */
int chat_demand_constrain(const struct chat_rules *rules, struct constraint *constraint,
                          struct api_error *err);

#endif
