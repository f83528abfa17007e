/* SPDX-License-Identifier: Apache-2.0 */
/* What llama.cpp calls the keys and tensors of Mamba-2's mixers, whatever else a family has. */
#ifndef ENGINE_MODEL_GGUF_MAMBA_H
#define ENGINE_MODEL_GGUF_MAMBA_H

#include "engine/model/gguf_config.h"
#include "engine/model/mamba2.h"

/* For a family's table; gguf_mamba_complete reads them. */
#define GGUF_MAMBA_KEYS                                                                      \
    {"ssm.conv_kernel", NULL, FIELD_REQUIRED}, {"ssm.inner_size", NULL, FIELD_REQUIRED},     \
        {"ssm.state_size", NULL, FIELD_REQUIRED}, {"ssm.group_count", NULL, FIELD_REQUIRED}, \
    {                                                                                        \
        "ssm.time_step_rank", NULL, FIELD_REQUIRED                                           \
    }

/* A mixer's tensors, of which `below` is the folder's name up to its last point. */
#define GGUF_MAMBA_NAMES(below)                                                                   \
    {"blk.*.ssm_in", below "in_proj", GGUF_SAME}, {"blk.*.ssm_out", below "out_proj", GGUF_SAME}, \
        {"blk.*.ssm_conv1d", below "conv1d", GGUF_SAME},                                          \
        {"blk.*.ssm_a", below "A_log", GGUF_DECAY}, {"blk.*.ssm_d", below "D", GGUF_FLAT},        \
        {"blk.*.ssm_dt.bias", below "dt_bias", GGUF_FLAT},                                        \
    {                                                                                             \
        "blk.*.ssm_norm", below "norm", GGUF_FLAT                                                 \
    }

/* Sizes of the mixers and which biases they have, under the names that the class has for them. */
int gguf_mamba_complete(json_t *config, const struct gguf_source *source,
                        const struct mamba2_class *class, struct error *err);

/* config.NAME, a list of kinds of layers, and num_key_value_heads: layers with keys and values are
 * full_attention, others linear_attention, but those with an MLP alone `mlps`. NULL: none are. */
int gguf_mamba_layers(json_t *config, const char *name, const char *mlps,
                      const struct gguf_source *source, struct error *err);

#endif
