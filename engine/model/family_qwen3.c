/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3, as `transformers` 4 and 5 save Qwen3ForCausalLM. */
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

static const struct dense_class qwen3 = {.num_kv_heads = 32,
                                         .head_dim = 128,
                                         .longest = 32768,
                                         .rope_theta = 10000,
                                         .act = ACT_SILU,
                                         .windows = true,
                                         .attention_bias = true,
                                         .qk_norm = NORM_RMSNORM,
                                         .qk_norm_scope = NORM_SCOPE_HEAD};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    if (dense_parse(&dense, config, root, &qwen3, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &qwen3, err) != 0)
        return -1;
    return dense_windowed_layers(&dense, config, &rope, root, err);
}

static const struct gguf_names gguf = {.architecture = "qwen3", .base = &gguf_dense_prenorm};

const struct family family_qwen3 = {
    .name = "qwen3", .parse = parse, .bind = dense_bind, .random = dense_random, .gguf = &gguf};
