/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral, as `transformers` 4 and 5 save MistralForCausalLM. */
#include "engine/model/config_library.h"
#include "engine/model/dense.h"

static const struct dense_class mistral = {.num_kv_heads = 8,
                                           .head_dim_null = true,
                                           .longest = 131072,
                                           .rope_theta = 10000,
                                           .act = ACT_SILU,
                                           .windows = true};

/* The window is that of all layers. */
static int parse(struct config *config, const struct fields *root, struct error *err)
{
    static const struct config_refusal refusal = {"layer_types", ""};
    struct dense dense;
    struct rope rope;
    int64_t window = 4096;
    if (dense_parse(&dense, config, root, &mistral, NULL, err) != 0 ||
        config_library_refuse(root, &refusal, 1, err) != 0 ||
        dense_rope(&rope, config, root, &mistral, err) != 0 ||
        dense_window(&window, root, err) != 0)
        return -1;
    return dense_layers(&dense, config,
                        &(struct dense_kind){.name = "attention", .window = window, .rope = &rope},
                        1, NULL, root, err);
}

const struct family family_mistral = {
    .name = "mistral", .parse = parse, .bind = dense_bind, .random = dense_random};
