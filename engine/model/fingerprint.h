/* SPDX-License-Identifier: Apache-2.0 */
/* What a model is, in 16 bytes: XXH3-128 over its tensors (name, dtype, shape and bytes as in the
 * file, in the order of their names) and over the description that says what is computed with them
 * and what a text's state looks like.
 *
 * The same whenever the same files are loaded, from shards or one file, on any device and in any
 * weight format; not the same for two models whose states could be taken for each other's. */
#ifndef ENGINE_MODEL_FINGERPRINT_H
#define ENGINE_MODEL_FINGERPRINT_H

#include "engine/model/model.h"

enum { FINGERPRINT_BYTES = 16 };

/* fingerprint: [FINGERPRINT_BYTES]. Reads all of the weights: infinities and NaNs in them are
 * refused. */
int model_fingerprint(const struct model *model, unsigned char *fingerprint, struct error *err);

#endif
