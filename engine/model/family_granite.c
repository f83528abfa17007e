/* SPDX-License-Identifier: Apache-2.0 */
/* Granite 3 and 4, as `transformers` 4 and 5 save GraniteForCausalLM and, of Granite 4,
 * GraniteMoeHybridForCausalLM: layers of Mamba-2 and of attention, with or without experts. */
#include "engine/model/config_experts.h"
#include "engine/model/config_library.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_experts.h"
#include "engine/model/gguf_mamba.h"
#include "engine/model/mamba2.h"

#include <math.h>
#include <string.h>

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

/* Scores are as usual where the file says nothing. */
static int complete_scores(json_t *config, struct error *err)
{
    const json_int_t head = json_integer_value(json_object_get(config, "head_dim"));
    if (head < 1 || json_object_get(config, "attention_multiplier"))
        return 0;
    return gguf_config_set(config, "attention_multiplier", json_real(1 / sqrt((double)head)), err);
}

/* rope.scaling.finetuned is llama.cpp's switch for rotary embeddings of this architecture. */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    return gguf_dense_refuse_false(source, "rope.scaling.finetuned", err) == 0
               ? complete_scores(config, err)
               : -1;
}

static const struct gguf_names gguf = {.architecture = "granite",
                                       .base = &gguf_dense_paired,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .complete = complete_gguf};

const struct family family_granite = {
    .name = "granite", .parse = parse, .bind = dense_bind, .random = dense_random, .gguf = &gguf};

/* ---- with Mamba-2 ---- */

static const struct dense_class hybrid = {.longest = 2048,
                                          .rope_theta = 10000,
                                          .act = ACT_SILU,
                                          .inner_key = "shared_intermediate_size",
                                          .windows = true,
                                          .attention_bias = true};

static const struct mamba2_class mixers = {MAMBA2_KEYS, .out_bias = "mamba_proj_bias"};

static const struct layer_names hybrid_layer = {"input_layernorm", "self_attn",
                                                "post_attention_layernorm", "shared_mlp"};

static const struct experts_class experts = {.count = {"num_local_experts", 8},
                                             .chosen = {"num_experts_per_tok", 2},
                                             .size = {"intermediate_size", 0},
                                             .renormalize = {NULL, true}};

/* Beside the shared MLP, which is all that there is with num_local_experts 0. */
static int parse_experts(struct dense *dense, const struct config *config,
                         const struct fields *root, struct error *err)
{
    struct branch_config *mlp = &dense->layer.blocks[1].branches[0];
    int64_t count = experts.count.usual;
    if (fields_int(root, experts.count.key, FIELD_NOT_NULL, 0, MLP_MAX_EXPERTS, &count, err) != 0)
        return -1;
    if (count == 0)
        return 0;
    mlp->shared = mlp->name;
    mlp->shared_size = config->intermediate_size;
    mlp->name = "block_sparse_moe";
    return config_experts(mlp, root, &experts, err);
}

/* position_embedding_type: "rope", and anything else for none; absent or null is none, too. */
static int parse_hybrid_rope(struct rope *rope, const struct rope **used, struct config *config,
                             const struct fields *root, struct error *err)
{
    const char *type = NULL;
    if (fields_string(root, "position_embedding_type", FIELD_OPTIONAL, &type, err) != 0)
        return -1;
    *used = type && strcmp(type, "rope") == 0 ? rope : NULL;
    return *used ? dense_rope(rope, config, root, &hybrid, err) : 0;
}

/* layer_types or, as files of others call it, layers_block_type; without either all are of Mamba-2.
 */
static int parse_hybrid_kinds(int **kind_of, struct config *config, const struct fields *root,
                              struct error *err)
{
    if (mamba2_kinds(kind_of, config, root, "layer_types", false, err) != 0 ||
        (!*kind_of && mamba2_kinds(kind_of, config, root, "layers_block_type", false, err) != 0))
        return -1;
    if (*kind_of)
        return 0;
    *kind_of = arena_alloc(config->arena, (size_t)config->num_layers, sizeof **kind_of, err);
    for (int64_t i = 0; *kind_of && i < config->num_layers; i++)
        (*kind_of)[i] = 1;
    return *kind_of ? 0 : -1;
}

static int parse_hybrid(struct config *config, const struct fields *root, struct error *err)
{
    static const struct config_refusal refusals[] = {{"sliding_window", ""}};
    struct dense dense;
    struct rope rope;
    const struct rope *used;
    struct mixer_config mamba;
    int *kind_of;
    if (config_library_refuse(root, refusals, 1, err) != 0 ||
        dense_parse(&dense, config, root, &hybrid, &hybrid_layer, err) != 0 ||
        parse_experts(&dense, config, root, err) != 0 ||
        parse_hybrid_rope(&rope, &used, config, root, err) != 0 ||
        parse_multipliers(config, root, &dense, err) != 0 ||
        mamba2_parse(&mamba, NULL, config, root, &mixers, err) != 0 ||
        parse_hybrid_kinds(&kind_of, config, root, err) != 0)
        return -1;
    return mamba2_layers(&dense, config, used, &mamba, kind_of, root, err);
}

static const struct block_names hybrid_names = {.root = "model",
                                                .embeddings = "embed_tokens",
                                                .final_norm = "norm",
                                                .gate_proj = "gate_proj",
                                                .up_proj = "up_proj",
                                                .gate_up_proj = "input_linear",
                                                .down_proj = "output_linear",
                                                .router = "router.layer",
                                                .experts = "",
                                                .lm_head = "lm_head",
                                                .mlp = BLOCK_MLP_GATED};

static int bind_hybrid(struct model *model, const struct config *config, struct weights *weights,
                       struct error *err)
{
    return mamba2_bind(model, config, weights, &hybrid_names, err);
}

static void random_hybrid(struct random_list *list)
{
    blocks_random(list, &hybrid_names, mamba2_random_mixer);
}

static const struct gguf_key hybrid_keys[] = {
    GGUF_MAMBA_KEYS,
    {"attention.head_count_kv", NULL, FIELD_REQUIRED},
    {"feed_forward_length", "shared_intermediate_size", FIELD_REQUIRED},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", FIELD_OPTIONAL},
    {"expert_count", "num_local_experts", FIELD_OPTIONAL},
    {"expert_used_count", "num_experts_per_tok", FIELD_OPTIONAL},
};

static const struct gguf_name hybrid_tensors[] = {
    GGUF_MAMBA_NAMES("model.layers.*.mamba."),
    {"blk.*.ffn_gate", "model.layers.*.shared_mlp.gate_proj", GGUF_SAME},
    {"blk.*.ffn_up", "model.layers.*.shared_mlp.up_proj", GGUF_SAME},
    {"blk.*.ffn_down", "model.layers.*.shared_mlp.output_linear", GGUF_SAME},
    {"blk.*.ffn_gate_shexp", "model.layers.*.shared_mlp.gate_proj", GGUF_SAME},
    {"blk.*.ffn_up_shexp", "model.layers.*.shared_mlp.up_proj", GGUF_SAME},
    {"blk.*.ffn_down_shexp", "model.layers.*.shared_mlp.output_linear", GGUF_SAME},
    {"blk.*.ffn_gate_inp", "model.layers.*.block_sparse_moe.router.layer", GGUF_SAME},
    GGUF_EXPERTS_NAMES("model.layers.*.block_sparse_moe.", "gate_proj", "up_proj", "output_linear"),
};

/* With rotary embeddings it would be a Bamba, of whose heads llama.cpp turns other dimensions than
 * transformers. */
static int complete_hybrid(json_t *config, const struct gguf_source *source, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    bool turns = true;
    gguf_config_key(full, source, "rope.scaling.finetuned");
    if (gguf_bool(source->gguf, full, FIELD_OPTIONAL, &turns, err) != 0)
        return -1;
    if (turns)
        return error_set(err, ERROR_UNSUPPORTED, "%s: %s: expected false, got true (not supported)",
                         source->gguf->file, full);
    if (!json_object_get(config, "num_local_experts") &&
        gguf_config_set(config, "num_local_experts", json_integer(0), err) != 0)
        return -1;
    if (gguf_experts_check(source, &(struct gguf_routing){.gating = GGUF_GATING_SOFTMAX}, err) !=
            0 ||
        gguf_config_copy(config, "intermediate_size", source, "feed_forward_length", FIELD_REQUIRED,
                         err) != 0)
        return -1;
    if (complete_scores(config, err) != 0 || gguf_mamba_complete(config, source, &mixers, err) != 0)
        return -1;
    return gguf_mamba_layers(config, "layer_types", NULL, source, err);
}

/* The keys of Granite, and those of Mamba-2. */
static const struct gguf_names scaled_gguf = {.base = &gguf_dense_paired,
                                              .keys = gguf_keys,
                                              .num_keys = sizeof gguf_keys / sizeof *gguf_keys};
static const struct gguf_names hybrid_gguf = {.architecture = "granitehybrid",
                                              .base = &scaled_gguf,
                                              .keys = hybrid_keys,
                                              .num_keys = sizeof hybrid_keys / sizeof *hybrid_keys,
                                              .names = hybrid_tensors,
                                              .num_names =
                                                  sizeof hybrid_tensors / sizeof *hybrid_tensors,
                                              .complete = complete_hybrid};

const struct family family_granitemoehybrid = {.gguf = &hybrid_gguf,
                                               .name = "granitemoehybrid",
                                               .parse = parse_hybrid,
                                               .bind = bind_hybrid,
                                               .random = random_hybrid};
