/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_fla.h"

#include <math.h>

int config_fla_flag(const struct fields *root, const char *key, bool *value, struct error *err)
{
    if (json_is_null(json_object_get(root->object, key)))
        *value = false;
    return fields_bool(root, key, FIELD_OPTIONAL, value, err);
}

int config_fla_model(struct config *config, const struct fields *root,
                     const struct config_refusal *refusals, size_t count, struct error *err)
{
    static const char *const activations[] = {"swish", "silu"};
    double eps = 1e-6;
    int activation = 0;
    if (config_library_keys(config, root, err) != 0 ||
        config_library_refuse(root, refusals, count, err) != 0 ||
        fields_int(root, "max_position_embeddings", FIELD_OPTIONAL, 1, INT32_MAX,
                   &config->max_position_embeddings, err) != 0 ||
        fields_choice(root, "hidden_act", FIELD_NOT_NULL, activations, 2, &activation, err) != 0 ||
        fields_double(root, "norm_eps", FIELD_NOT_NULL, 0, 1, &eps, err) != 0 ||
        fields_bool(root, "tie_word_embeddings", FIELD_OPTIONAL, &config->tied, err) != 0)
        return -1;
    config->hidden_act = ACT_SILU;
    config->norm_kind = NORM_RMSNORM;
    config->norm_eps = (float)eps;
    return 0;
}

/* fla/modules/mlp.py */
int config_fla_intermediate(struct config *config, const struct fields *root, double usual,
                            struct error *err)
{
    /* fla's MLP knows no other than 4 where it is told null */
    double ratio = json_is_null(json_object_get(root->object, "hidden_ratio")) ? 4 : usual;
    if (fields_double(root, "hidden_ratio", FIELD_OPTIONAL, 1.0 / 1024, 1024, &ratio, err) != 0)
        return -1;
    int64_t inner = (int64_t)((double)config->hidden_size * ratio * 2 / 3);
    config->intermediate_size = (inner + 255) / 256 * 256;
    return fields_int(root, "intermediate_size", FIELD_OPTIONAL, 1, CONFIG_MAX_INTERMEDIATE,
                      &config->intermediate_size, err);
}

int config_fla_heads(const struct config *config, const struct fields *root, struct error *err)
{
    if (config->num_heads <= CONFIG_MAX_HEADS)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s: expected heads of a size that gives at most %d, got %lld", root->place,
                     CONFIG_MAX_HEADS, (long long)config->num_heads);
}

int config_fla_conv(const struct fields *root, enum value_activation activation,
                    struct convolution *conv, struct error *err)
{
    bool there = conv->width > 0;
    int64_t width = 4;
    if (config_fla_flag(root, "use_short_conv", &there, err) != 0 ||
        fields_int(root, "conv_size", FIELD_NOT_NULL, CONVOLUTION_MIN_WIDTH, CONVOLUTION_MAX_WIDTH,
                   &width, err) != 0)
        return -1;
    *conv = (struct convolution){.width = there ? (int)width : 0,
                                 .activation = there ? activation : VALUE_ACTIVATION_NONE};
    return 0;
}

/* Python's math.isclose. */
int config_fla_expansion(const struct fields *root, const char *what, int64_t of, const char *key,
                         double factor, int64_t *size, struct error *err)
{
    if (fields_double(root, key, FIELD_NOT_NULL, 0, 64, &factor, err) != 0)
        return -1;
    double exact = (double)of * factor, whole = nearbyint(exact);
    *size = (int64_t)whole;
    if (whole >= 1 && fabs(exact - whole) <= 1e-9 * fmax(exact, whole))
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s: %s: expected an integer from 1 on as %s * %s, got %.17g", root->place,
                     key, what, key, exact);
}
