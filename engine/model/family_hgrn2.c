/* SPDX-License-Identifier: Apache-2.0 */
/* HGRN2, as `flash-linear-attention` 0.6 saves HGRN2ForCausalLM (fla/models/hgrn2). */
#include "engine/model/blocks.h"
#include "engine/model/config_fla.h"
#include "engine/model/config_library.h"
#include "engine/model/family.h"

#include <math.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The layer gives its norm no epsilon: rms_norm_linear's own. */
#define OUTPUT_NORM_EPS 1e-5f

static const struct layer_names layer_names = BLOCK_FLA_LAYER;
static const struct block_names names = {BLOCK_FLA_NAMES, .mlp = BLOCK_MLP_GATED};

/* Options that would change what is computed, and that we do not compute. */
static const struct config_refusal refusals[] = {
    {"attn", ""},
    {"attnres_block_size", ""},
    {"elementwise_affine", "true"},
};

struct hgrn2_config {
    bool bounded;
    const float **bounds; /* lower_bounds [L, D], once they are bound */
};

/* Heads of expand_ratio features each, of which a head has as many values. */
static int parse_heads(struct config *config, const struct fields *root, struct error *err)
{
    int64_t heads = 0,
            features = json_is_null(json_object_get(root->object, "expand_ratio")) ? 0 : 128;
    if (fields_int(root, "hidden_size", FIELD_REQUIRED, 1, CONFIG_MAX_HIDDEN, &config->hidden_size,
                   err) != 0 ||
        fields_int(root, "num_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &heads, err) != 0 ||
        fields_int(root, "expand_ratio", FIELD_OPTIONAL, 1, CONFIG_MAX_HIDDEN, &features, err) != 0)
        return -1;
    if (features == 0 && heads > 0)
        features = config->hidden_size / heads;
    if (features == 0 || config->hidden_size % features != 0)
        return error_set(err, ERROR_INVALID,
                         "%s: expand_ratio: expected a number that divides hidden_size (%lld), got "
                         "%lld",
                         root->place, (long long)config->hidden_size, (long long)features);
    config->num_heads = config->hidden_size / features;
    return config_fla_heads(config, root, err);
}

/* The layer of fla/layers/hgrn2.py in our terms. */
static struct mixer make_mixer(const struct config *config)
{
    struct mixer mixer = {.num_heads = (int)config->num_heads};
    mixer_make_linear(&mixer, GATE_HGRN2);
    mixer.head_dim = mixer.value_dim = (int)(config->hidden_size / config->num_heads);
    mixer.features = mixer.features_positioned = mixer.head_dim;
    mixer.query_scale = QUERY_SCALE_SQRT_DIM;
    mixer.dpfp_nu = 1;
    mixer.position.base = 10000;
    mixer.output_norm = (struct norm){.kind = NORM_RMSNORM, .eps = OUTPUT_NORM_EPS};
    mixer.output_norm_scope = NORM_SCOPE_HIDDEN;
    return mixer;
}

static int parse(struct config *config, const struct fields *root, struct error *err)
{
    struct hgrn2_config *own = arena_alloc(config->arena, 1, sizeof *own, err);
    if (!own)
        return -1;
    config->own = own;
    own->bounded = true;
    own->bounds = arena_alloc(config->arena, 1, sizeof(float *), err);
    if (!own->bounds)
        return -1;
    if (config_fla_model(config, root, refusals, COUNT(refusals), err) != 0 ||
        parse_heads(config, root, err) != 0 || config_sizes(config, root, "num_heads", err) != 0 ||
        config_fla_intermediate(config, root, 4, err) != 0 ||
        config_fla_flag(root, "use_lower_bound", &own->bounded, err) != 0 ||
        config_token_ids(config, root, err) != 0)
        return -1;
    struct mixer_config mixer = {.mixer = make_mixer(config)};
    if (config_fla_conv(root, VALUE_ACTIVATION_NONE, &mixer.mixer.conv, err) != 0)
        return -1;
    return config_single_mixer(config, config->family->name, &mixer, &layer_names, err);
}

/* The least f of a layer: the sum of what softmax over the layers makes of lower_bounds [L, D],
 * from the second layer to this one (Qin et al. 2024, section 3.1). */
static int make_bounds(const struct block_mixer *block, const float *bounds, struct error *err)
{
    const int64_t hidden = block->config->hidden_size, layers = block->config->num_layers;
    float *least = arena_alloc(block->weights->arena, (size_t)hidden, sizeof *least, err);
    for (int64_t j = 0; least && j < hidden; j++) {
        double most = -INFINITY, all = 0, sum = 0;
        for (int64_t l = 0; bounds && l < layers; l++)
            most = fmax(most, (double)bounds[l * hidden + j]);
        for (int64_t l = 0; bounds && l < layers; l++) {
            const double share = exp((double)bounds[l * hidden + j] - most);
            all += share;
            sum += l > 0 && l <= block->layer ? share : 0;
        }
        least[j] = bounds ? (float)(sum / all) : 0;
    }
    block->mixer->decay = least;
    return least ? 0 : -1;
}

static int bind_mixer(const struct block_mixer *block, struct error *err)
{
    static const char *const convolved[] = {"q", "f", "i"};
    const struct hgrn2_config *own = block->config->own;
    struct mixer *mixer = block->mixer;
    const int64_t hidden = block->config->hidden_size;
    char name[WEIGHT_NAME_SIZE];
    const struct block_matrix matrices[] = {
        {"q_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->q_proj},
        {"f_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->k_proj},
        {"i_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->v_proj},
        {"o_proj", hidden, hidden, WEIGHT_NO_BIAS, &mixer->o_proj},
    };
    if (blocks_bind_matrices(block, matrices, COUNT(matrices), err) != 0 ||
        blocks_bind_convs(block, convolved, err) != 0 || make_bounds(block, *own->bounds, err) != 0)
        return -1;
    return weights_norm(block->weights, weights_name(name, "%s.g_norm", block->prefix), hidden,
                        &mixer->output_norm, err);
}

static int bind(struct model *model, const struct config *config, struct weights *weights,
                struct error *err)
{
    static const char usual[] = "model.lower_bounds", bare[] = "lower_bounds";
    const struct hgrn2_config *own = config->own;
    int64_t shape[] = {config->num_layers, config->hidden_size};
    const char *name = weights_has(weights, bare) ? bare : usual;
    if (own->bounded && weights_floats(weights, name, 2, shape, own->bounds, err) != 0)
        return -1;
    return blocks_bind(model, config, weights, &names, bind_mixer, err);
}

const struct family family_hgrn2 = {.name = "hgrn2", .parse = parse, .bind = bind};
