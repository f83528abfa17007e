/* SPDX-License-Identifier: Apache-2.0 */
/* Falcon-H1, as `transformers` 4 and 5 save FalconH1ForCausalLM: Mamba-2 and attention beside each
 * other in every layer, and numbers that scale what each makes. */
#include "engine/model/config_library.h"
#include "engine/model/gguf_dense.h"
#include "engine/model/gguf_mamba.h"
#include "engine/model/mamba2.h"

#include <math.h>
#include <string.h>

static const struct dense_class attention = {.num_kv_heads = 8,
                                             .head_dim_null = true,
                                             .longest = 8192,
                                             .rope_theta = 10000,
                                             .norm_eps = 1e-5,
                                             .act = ACT_SILU,
                                             .attention_bias = true,
                                             .mlp_bias = true};

static const struct mamba2_class mixers = {MAMBA2_KEYS, .out_bias = "projectors_bias",
                                           .inner = "mamba_d_ssm", .usual_inner = 1024};

static const struct layer_names layer_names = {"input_layernorm", "self_attn", "pre_ff_layernorm",
                                               "feed_forward"};

/* What an input or a result is multiplied with. */
struct multipliers {
    double embeddings, logits, keys, attention_in, attention_out, mamba_in, mamba_out;
    double mlp[2];   /* of the gate, of the output */
    double mamba[5]; /* of z, u, B, C, dt */
};

enum { MOST_MULTIPLIER = 1000000 };

static int parse_list(const struct fields *root, const char *key, size_t count, double *values,
                      struct error *err)
{
    const json_t *list;
    if (fields_list(root, key, FIELD_OPTIONAL, &list, err) != 0)
        return -1;
    if (!list)
        return 0;
    if (json_array_size(list) != count)
        return error_set(err, ERROR_INVALID, "%s: %s: expected %zu numbers, got %zu", root->place,
                         key, count, json_array_size(list));
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        values[i] = json_number_value(value);
        if (!json_is_number(value))
            return error_set(err, ERROR_INVALID, "%s: %s[%zu]: expected a number, got %s",
                             root->place, key, i, fields_kind(value));
        if (!(fabs(values[i]) <= MOST_MULTIPLIER))
            return error_set(err, ERROR_INVALID,
                             "%s: %s[%zu]: expected a number in [-1e+06, 1e+06], got %g",
                             root->place, key, i, values[i]);
    }
    return 0;
}

/* Those of inputs may not be 0, as biases are divided by them. */
static int parse_multipliers(struct multipliers *m, const struct fields *root, struct error *err)
{
    const struct {
        const char *key;
        double least, *value;
    } numbers[] = {{"embedding_multiplier", 1e-6, &m->embeddings},
                   {"lm_head_multiplier", 1e-6, &m->logits},
                   {"key_multiplier", 1e-6, &m->keys},
                   {"attention_in_multiplier", 1e-6, &m->attention_in},
                   {"attention_out_multiplier", 0, &m->attention_out},
                   {"ssm_in_multiplier", 1e-6, &m->mamba_in},
                   {"ssm_out_multiplier", 0, &m->mamba_out}};
    *m = (struct multipliers){1, 1, 1, 1, 1, 1, 1, {1, 1}, {1, 1, 1, 1, 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (fields_double(root, numbers[i].key, FIELD_NOT_NULL, numbers[i].least, MOST_MULTIPLIER,
                          numbers[i].value, err) != 0)
            return -1;
    return parse_list(root, "mlp_multipliers", 2, m->mlp, err) == 0
               ? parse_list(root, "ssm_multipliers", 5, m->mamba, err)
               : -1;
}

/* The norm after the mixer: none, or in either order with the gate. */
static int parse_norm(struct mixer *mixer, const struct fields *root, struct error *err)
{
    bool norms = false, before = true;
    if (fields_bool(root, "mamba_rms_norm", FIELD_NOT_NULL, &norms, err) != 0 ||
        fields_bool(root, "mamba_norm_before_gate", FIELD_NOT_NULL, &before, err) != 0)
        return -1;
    mixer->gate_first = norms && !before;
    if (!norms) {
        mixer->output_norm.kind = NORM_NONE;
        mixer->output_norm_parts = 0;
    }
    return 0;
}

/* Both mixers see the normed x; what they make is added. The numbers of attention's input go into
 * its scores, of which both sides have them, and into its result, as values have them. */
static int make_layer(struct config *config, const struct multipliers *m, const struct dense *dense,
                      const struct rope *rope, const struct mixer_config *mamba,
                      const struct fields *root, struct error *err)
{
    const struct dense_kind kind = {.name = "hybrid", .rope = rope};
    struct mixer_config *both = arena_alloc(config->arena, 2, sizeof *both, err);
    if (!both || dense_layers(dense, config, &kind, 1, NULL, root, err) != 0)
        return -1;
    struct block_config *mix = &config->kinds[0].blocks[0], *feed = &config->kinds[0].blocks[1];
    both[0] = config->mixers[0];
    both[1] = *mamba;
    both[0].mixer.name = "attention";
    both[1].mixer.name = "mamba";
    both[0].mixer.score_scale = (float)(m->keys * m->attention_in * m->attention_in /
                                        sqrt((double)dense->mixer.mixer.head_dim));
    config->mixers = both;
    config->num_mixers = 2;
    mix->branches[1] = mix->branches[0];
    mix->branches[1].scale = (float)(m->attention_out * m->attention_in);
    mix->branches[0].name = "mamba";
    mix->branches[0].mixer = 1;
    mix->branches[0].scale = (float)m->mamba_out;
    mix->num_branches = 2;
    feed->branches[0].scale = (float)m->mlp[1];
    feed->branches[0].gate_scale = (float)m->mlp[0];
    return 0;
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct dense dense;
    struct rope rope;
    struct mixer_config mamba;
    struct mamba2_config *own;
    struct multipliers m;
    if (dense_parse(&dense, config, root, &attention, &layer_names, err) != 0 ||
        dense_rope(&rope, config, root, &attention, err) != 0 ||
        mamba2_parse(&mamba, &own, config, root, &mixers, err) != 0 ||
        parse_norm(&mamba.mixer, root, err) != 0 || parse_multipliers(&m, root, err) != 0)
        return -1;
    own->attention_scale = m.attention_in;
    own->in_scale = m.mamba_in;
    memcpy(own->scales, m.mamba, sizeof own->scales);
    config->embedding_scale = (float)m.embeddings;
    config->logit_scale = (float)m.logits;
    return make_layer(config, &m, &dense, &rope, &mamba, root, err);
}

static const struct block_names names = {MAMBA2_FALCON_NAMES};

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    return mamba2_bind(model, config, weights, &names, err);
}

static void list_random(struct random_list *list)
{
    blocks_random(list, &names, mamba2_random_mixer);
}

static const struct gguf_key gguf_keys[] = {GGUF_MAMBA_KEYS};

#define FEED_FORWARD "model.layers.*.feed_forward."
static const struct gguf_name gguf_names[] = {
    GGUF_MAMBA_NAMES("model.layers.*.mamba."),
    {"blk.*.ffn_norm", "model.layers.*.pre_ff_layernorm", GGUF_SAME},
    {"blk.*.ffn_gate", FEED_FORWARD "gate_proj", GGUF_SAME},
    {"blk.*.ffn_up", FEED_FORWARD "up_proj", GGUF_SAME},
    {"blk.*.ffn_down", FEED_FORWARD "down_proj", GGUF_SAME},
    {"output_norm", "model.final_layernorm", GGUF_SAME},
};

/* The converter has multiplied the weights with all multipliers. llama.cpp gates before it norms.
 */
static int complete_gguf(json_t *config, const struct gguf_source *source, struct error *err)
{
    const bool norms = gguf_dense_any_layer(config, source, "ssm_norm.weight");
    if (gguf_config_set(config, "mamba_rms_norm", json_boolean(norms), err) != 0 ||
        gguf_config_set(config, "mamba_norm_before_gate", json_false(), err) != 0)
        return -1;
    return gguf_mamba_complete(config, source, &mixers, err);
}

static const struct gguf_names gguf = {.architecture = "falcon-h1",
                                       .base = &gguf_dense_prenorm,
                                       .keys = gguf_keys,
                                       .num_keys = sizeof gguf_keys / sizeof *gguf_keys,
                                       .names = gguf_names,
                                       .num_names = sizeof gguf_names / sizeof *gguf_names,
                                       .complete = complete_gguf};

const struct family family_falcon_h1 = {
    .name = "falcon_h1", .parse = parse, .bind = bind, .random = list_random, .gguf = &gguf};
