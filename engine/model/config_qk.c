/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_qk.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

int config_qk_norm(const struct fields *mixer, const struct config *config, struct mixer *out,
                   struct error *err)
{
    static const char *const known[] = {"type", "scope", "eps", "plus_one"};
    static const char *const types[] = {NULL, "layernorm", "rmsnorm", NULL, NULL, "l2"};
    static const char *const scopes[] = {"head", "hidden"};
    struct fields fields;
    int type = NORM_NONE, scope = NORM_SCOPE_HEAD;
    bool plus_one = false;
    if (fields_object(mixer, "qk_norm", FIELD_OPTIONAL, &fields, err) != 0)
        return -1;
    if (!fields.object)
        return 0;
    if (fields_choice(&fields, known[0], FIELD_REQUIRED, types, COUNT(types), &type, err) != 0)
        return -1;
    double eps = type == NORM_L2 ? 1e-6 : (double)config->norm_eps;
    if (fields_choice(&fields, known[1], FIELD_OPTIONAL, scopes, COUNT(scopes), &scope, err) != 0 ||
        fields_only(&fields, known, COUNT(known), err) != 0 ||
        fields_double(&fields, known[2], FIELD_OPTIONAL, 0, 1, &eps, err) != 0 ||
        fields_bool(&fields, known[3], FIELD_OPTIONAL, &plus_one, err) != 0)
        return -1;
    if (type == NORM_L2 && plus_one)
        return error_set(err, ERROR_UNSUPPORTED, "%s.plus_one: l2 has no weights", fields.place);
    out->qk_norm_scope = scope;
    out->q_norm = out->k_norm =
        (struct norm){.kind = type, .eps = (float)eps, .plus_one = plus_one};
    return 0;
}

int config_qk_parse(const struct fields *fields, const struct config *config, struct mixer *mixer,
                    struct error *err)
{
    int64_t heads = 0; /* as many as of values */
    double most = 0;
    if (config_qk_norm(fields, config, mixer, err) != 0 ||
        fields_int(fields, "num_qk_heads", FIELD_OPTIONAL, 1, CONFIG_MAX_HEADS, &heads, err) != 0 ||
        fields_double(fields, "beta_max", FIELD_OPTIONAL, 1, 2, &most, err) != 0)
        return -1;
    if (most != 0 && !(gate_does(mixer->gate) & ERASES))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: beta_max is only for the gates delta, gated_delta and kda",
                         fields->place);
    mixer->num_qk_heads = (int)heads;
    mixer->beta_max = most == 1 ? 0 : (float)most;
    return 0;
}

/* Whether a feature map, gate or position has parameters of each head of q and k. */
static bool has_key_parameters(const struct mixer *mixer)
{
    const enum feature_map map = mixer->feature_map;
    return map == FEATURE_FAVOR || map == FEATURE_COS_SIN || map == FEATURE_UNIT_COS_SIN ||
           map == FEATURE_HEDGEHOG || (gate_does(mixer->gate) & DECAYS_FEATURES) ||
           position_does(mixer->position.kind, OF_HEADS);
}

int config_qk_check(const struct fields *fields, const struct config *config,
                    const struct mixer *mixer, struct error *err)
{
    const int64_t heads = mixer->num_heads > 0 ? mixer->num_heads : config->num_heads;
    const int64_t keys = mixer->num_qk_heads;
    if ((gate_does(mixer->gate) & MAKES_KEYS) &&
        (mixer->feature_map != FEATURE_IDENTITY || mixer->position.kind != POSITION_NONE ||
         mixer->shared_qk || mixer->k_norm.kind != NORM_NONE))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: the gate hgrn2 needs feature_map identity, position none, and a "
                         "separate qk_projection without qk_norm (it makes k of what k_proj makes)",
                         fields->place);
    if (keys == 0 || keys == heads)
        return 0;
    if (heads % keys != 0)
        return error_set(err, ERROR_INVALID,
                         "%s.num_qk_heads: expected a divisor of %lld heads, got %lld",
                         fields->place, (long long)heads, (long long)keys);
    if (mixer->shared_qk || has_key_parameters(mixer))
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: num_qk_heads needs a separate qk_projection, a feature_map without a "
                         "matrix, no gate that decays by feature, and the position none or rope",
                         fields->place);
    return 0;
}
