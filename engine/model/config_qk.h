/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of the native family's mixers that say what becomes of q and k before they meet. */
#ifndef ENGINE_MODEL_CONFIG_QK_H
#define ENGINE_MODEL_CONFIG_QK_H

#include "engine/model/config.h"
#include "lib/base/fields.h"

/* "qk_norm": {"type", "scope", "eps", "plus_one"} */
int config_qk_norm(const struct fields *mixer, const struct config *config, struct mixer *out,
                   struct error *err);

/* How many heads q and k of a linear mixer have, their norm, and how far the delta rule goes. Its
 * gate has been read. */
int config_qk_parse(const struct fields *fields, const struct config *config, struct mixer *mixer,
                    struct error *err);

/* What goes with fewer heads of q and k, and what does not, once all of the mixer has been read. */
int config_qk_check(const struct fields *fields, const struct config *config,
                    const struct mixer *mixer, struct error *err);

#endif
