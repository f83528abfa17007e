/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo 2 and 3, as `transformers` 4 and 5 save Olmo2ForCausalLM and Olmo3ForCausalLM: norms stand
 * behind the branches, and one goes over all heads of q, one over those of k. */
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

#define OLMO                                                                    \
    .longest = 2048, .norm_eps = 1e-5, .act = ACT_SILU, .attention_bias = true, \
    .qk_norm = NORM_RMSNORM, .qk_norm_scope = NORM_SCOPE_HIDDEN

static const struct dense_class olmo2 = {OLMO, .rope_theta = 10000};
static const struct dense_class olmo3 = {OLMO, .rope_theta = 500000, .windows = true};

static int parse_olmo(struct dense *dense, struct config *config, const struct fields *root,
                      const struct dense_class *class, struct error *err)
{
    if (dense_parse(dense, config, root, class, NULL, err) != 0)
        return -1;
    dense_post_norms(dense);
    for (int i = 0; i < dense->layer.num_blocks; i++)
        dense->layer.blocks[i].branches[0].pre.kind = NORM_NONE;
    return 0;
}

static int parse_olmo2(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    if (parse_olmo(&dense, config, root, &olmo2, err) != 0 ||
        dense_rope(&rope, config, root, &olmo2, err) != 0)
        return -1;
    return dense_layers(&dense, config, &(struct dense_kind){.name = "attention", .rope = &rope}, 1,
                        NULL, root, err);
}

/* rope_theta of the outermost object is full_attention's alone. */
static int parse_olmo3(struct config *config, const struct fields *root, struct error *err)
{
    const struct rope_keys keys = {.base = "rope_theta",
                                   .part = "partial_rotary_factor",
                                   .usual_base = olmo3.rope_theta,
                                   .usual_part = 1,
                                   .longest = olmo3.longest,
                                   .by_kind = true};
    struct rope_keys by_kind[2] = {keys, keys};
    struct dense dense;
    struct rope ropes[2];
    by_kind[1].base = NULL;
    if (parse_olmo(&dense, config, root, &olmo3, err) != 0 ||
        rope_parse_kinds(ropes, root, by_kind, &config->warnings, err) != 0)
        return -1;
    return dense_pattern_layers(&dense, config, (const struct rope *[]){&ropes[0], &ropes[1]}, 4,
                                root, err);
}

static const struct gguf_key gguf_keys[] = {
    {"attention.sliding_window", NULL, FIELD_OPTIONAL},
    {"attention.sliding_window_pattern", NULL, FIELD_OPTIONAL},
    {"rope.freq_base_swa", NULL, FIELD_OPTIONAL},
};

static const struct gguf_name gguf_names[] = {
    {"blk.*.post_attention_norm", "model.layers.*.post_attention_layernorm", GGUF_SAME},
    {"blk.*.post_ffw_norm", "model.layers.*.post_feedforward_layernorm", GGUF_SAME},
};

/* OLMo 3 has the same architecture, with windows; sliding layers are without scaling. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    const double base = json_number_value(json_object_get(config, "rope_theta"));
    if (!gguf_find(source->gguf, gguf_config_key(full, source, "attention.sliding_window")))
        return 0;
    return gguf_config_set(config, "model_type", json_string("olmo3"), err) == 0 &&
                   gguf_dense_windows(config, source, 4, 0, err) == 0
               ? gguf_dense_rope_by_kind(config, source, base, err)
               : -1;
}

static const struct gguf_names gguf = {.architecture = "olmo2",
                                       .base = &gguf_dense,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_names,
                                       .num_names = sizeof gguf_names / sizeof *gguf_names,
                                       .complete = complete_gguf};

const struct family family_olmo2 = {.name = "olmo2",
                                    .parse = parse_olmo2,
                                    .bind = dense_bind,
                                    .random = dense_random,
                                    .gguf = &gguf};
const struct family family_olmo3 = {
    .name = "olmo3", .parse = parse_olmo3, .bind = dense_bind, .random = dense_random};
