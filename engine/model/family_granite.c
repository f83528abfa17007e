/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3 and the dense Granite 4 without Mamba, as `transformers` 4 and 5 save
 * GraniteForCausalLM. */
#include "engine/model/dense.h"
#include "engine/model/gguf_dense.h"

#include <math.h>

static const struct dense_class granite = {.longest = 2048,
                                           .rope_theta = 10000,
                                           .act = ACT_SILU,
                                           .attention_bias = true,
                                           .mlp_bias = true};

/* Four numbers that scale what Llama leaves as it is. */
static int parse_multipliers(struct config *config, const struct fields *root, struct dense *dense,
                             struct error *err)
{
    double embeddings = 1, logits = 1, residual = 1, scores = 1;
    const struct {
        const char *key;
        double *value;
    } multipliers[] = {{"embedding_multiplier", &embeddings},
                       {"logits_scaling", &logits},
                       {"residual_multiplier", &residual},
                       {"attention_multiplier", &scores}};
    for (size_t i = 0; i < sizeof multipliers / sizeof *multipliers; i++)
        if (fields_double(root, multipliers[i].key, FIELD_NOT_NULL, 1e-6, 1e6, multipliers[i].value,
                          err) != 0)
            return -1;
    config->embedding_scale = (float)embeddings;
    config->logit_scale = (float)(1 / logits);
    dense->mixer.mixer.score_scale = (float)scores;
    for (int i = 0; i < dense->layer.num_blocks; i++)
        dense->layer.blocks[i].beta = (float)residual;
    return 0;
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    if (dense_parse(&dense, config, root, &granite, NULL, err) != 0 ||
        dense_rope(&rope, config, root, &granite, err) != 0 ||
        parse_multipliers(config, root, &dense, err) != 0)
        return -1;
    return dense_layers(&dense, config, &(struct dense_kind){.name = "attention", .rope = &rope}, 1,
                        NULL, root, err);
}

static const struct gguf_key gguf_keys[] = {
    {"logit_scale", "logits_scaling", FIELD_REQUIRED},
    {"residual_scale", "residual_multiplier", FIELD_OPTIONAL},
    {"embedding_scale", "embedding_multiplier", FIELD_OPTIONAL},
    {"attention.scale", "attention_multiplier", FIELD_OPTIONAL},
};

/* Scores are as usual where the file says nothing. rope.scaling.finetuned is llama.cpp's switch for
 * rotary embeddings of this architecture. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    const json_int_t head = json_integer_value(json_object_get(config, "head_dim"));
    if (gguf_dense_refuse_false(source, "rope.scaling.finetuned", err) != 0)
        return -1;
    if (head < 1 || json_object_get(config, "attention_multiplier"))
        return 0;
    return gguf_config_set(config, "attention_multiplier", json_real(1 / sqrt((double)head)), err);
}

static const struct gguf_names gguf = {.architecture = "granite",
                                       .base = &gguf_dense_paired,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .complete = complete_gguf};

const struct family family_granite = {
    .name = "granite", .parse = parse, .bind = dense_bind, .random = dense_random, .gguf = &gguf};
