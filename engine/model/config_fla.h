/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that the models of flash-linear-attention share. */
#ifndef ENGINE_MODEL_CONFIG_FLA_H
#define ENGINE_MODEL_CONFIG_FLA_H

#include "engine/model/config.h"
#include "engine/model/config_library.h"

/* A flag whose null is false, as Python takes it; absent it is *value. */
int config_fla_flag(const struct fields *root, const char *key, bool *value, struct error *err);

/* What all but gla's and rwkv7's configurations have, with the defaults of fla's classes: tokens,
 * the length, a silu GLU, RMS norms and their epsilon, tied embeddings. refusals [count]. */
int config_fla_model(struct config *config, const struct fields *root,
                     const struct config_refusal *refusals, size_t count, struct error *err);

/* intermediate_size or, without it, a multiple of 256, about 2/3 of hidden_size * hidden_ratio,
 * which is `usual` where it is absent. */
int config_fla_intermediate(struct config *config, const struct fields *root, double usual,
                            struct error *err);

/* Checks a number of heads that follows from their size. */
int config_fla_heads(const struct config *config, const struct fields *root, struct error *err);

/* The convolution of use_short_conv (absent: *conv has a width) and conv_size, with this
 * activation. */
int config_fla_conv(const struct fields *root, enum value_activation activation,
                    struct convolution *conv, struct error *err);

/* `of`, which is called `what`, times the factor under `key`, which must give a whole number from 1
 * on. */
int config_fla_expansion(const struct fields *root, const char *what, int64_t of, const char *key,
                         double factor, int64_t *size, struct error *err);

#endif
