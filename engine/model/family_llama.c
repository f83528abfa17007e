/* SPDX-License-Identifier: Apache-2.0 */
/* Llama and its kin (SmolLM 2, TinyLlama, Mistral's old files), as `transformers` 4 and 5 save
 * LlamaForCausalLM. */
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

static const struct dense_class llama = {.head_dim_null = true,
                                         .longest = 2048,
                                         .rope_theta = 10000,
                                         .act = ACT_SILU,
                                         .attention_bias = true,
                                         .mlp_bias = true};

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    if (dense_parse(&dense, config, root, &llama, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &llama, err) != 0 ||
        config_check_heads(config, root, err) != 0)
        return -1;
    return dense_layers(&dense, config, &(struct dense_kind){.name = "attention", .rope = &rope}, 1,
                        NULL, root, err);
}

/* Mistral's files without windows, too. */
static const struct gguf_names gguf = {.architecture = "llama", .base = &gguf_dense_paired};

const struct family family_llama = {
    .name = "llama", .parse = parse, .bind = dense_bind, .random = dense_random, .gguf = &gguf};
