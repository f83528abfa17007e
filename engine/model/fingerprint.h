/* SPDX-License-Identifier: Apache-2.0 */
/* Tells models apart by 16 bytes, so that no state is restored into another model than its own.
 *
 * The fingerprint is the XXH3-128 hash of the tensors and of the description. Of a tensor it takes
 * name, dtype, shape and the bytes in the file, in the order of names. The description says what is
 * computed with the tensors and what the state of a text looks like.
 *
 * The same files give the same fingerprint, whether from shards or one file, on any device and in
 * any weight format. */
#ifndef ENGINE_MODEL_FINGERPRINT_H
#define ENGINE_MODEL_FINGERPRINT_H

#include "engine/model/model.h"

enum { FINGERPRINT_BYTES = 16 };

/* Writes fingerprint [FINGERPRINT_BYTES]. Reads all weights, and refuses infinities and NaNs in
 * them.
 */
int model_fingerprint(const struct model *model, unsigned char *fingerprint, struct error *err);

struct fingerprint_run;

/* The same in a thread of its own where the weights lie in files. Elsewhere what is packed is not
 * there to be read, so it is done when the call returns. Writes fingerprint and err until
 * fingerprint_finish, which the caller must call, and which returns what model_fingerprint does.
 * NULL: an error. */
struct fingerprint_run *fingerprint_start(const struct model *model, unsigned char *fingerprint,
                                          struct error *err);
int fingerprint_finish(struct fingerprint_run *run);

#endif
