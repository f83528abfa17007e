/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 2, as `transformers` 4 and 5 save Qwen2ForCausalLM. */
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

static const struct dense_class qwen2 = {.num_kv_heads = 32,
                                         .longest = 32768,
                                         .rope_theta = 10000,
                                         .act = ACT_SILU,
                                         .windows = true,
                                         .qkv_bias = true};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    if (dense_parse(&dense, config, root, &qwen2, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &qwen2, err) != 0)
        return -1;
    return dense_windowed_layers(&dense, config, &rope, root, err);
}

static const struct gguf_names gguf = {.architecture = "qwen2", .base = &gguf_dense_prenorm};

const struct family family_qwen2 = {
    .name = "qwen2", .parse = parse, .bind = dense_bind, .random = dense_random, .gguf = &gguf};
