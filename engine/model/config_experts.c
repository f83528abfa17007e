/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_experts.h"

static int parse_int(const struct fields *root, const struct experts_key *key, int64_t least,
                     int64_t most, int64_t *value, struct error *err)
{
    *value = key->usual;
    if (!key->key)
        return 0;
    const enum field_need need = key->usual == 0 ? FIELD_REQUIRED : FIELD_NOT_NULL;
    return fields_int(root, key->key, need, least, most, value, err);
}

/* Experts in groups: of some of them all choices come, so they have enough, and two each. */
static int parse_groups(struct branch_config *branch, const struct fields *root,
                        const struct experts_class *class, struct error *err)
{
    int64_t groups = 1, top = 1;
    const int64_t experts = branch->num_experts, chosen = branch->experts_per_token;
    if (!class->groups.key)
        return 0;
    if (parse_int(root, &class->groups, 1, experts, &groups, err) != 0 ||
        parse_int(root, &class->top_groups, 1, groups, &top, err) != 0)
        return -1;
    if (experts % groups != 0)
        return error_set(err, ERROR_INVALID, "%s: %s: expected a divisor of %s (%lld), got %lld",
                         root->place, class->groups.key, class->count.key, (long long)experts,
                         (long long)groups);
    if (groups == 1)
        return 0;
    if (groups > ROUTE_MOST_GROUPS || experts / groups < 2)
        return error_set(err, ERROR_UNSUPPORTED,
                         "%s: %s: expected at most %d groups of two experts or more, got %lld of "
                         "%lld (not supported)",
                         root->place, class->groups.key, ROUTE_MOST_GROUPS, (long long)groups,
                         (long long)(experts / groups));
    if (experts / groups * top < chosen)
        return error_set(err, ERROR_INVALID,
                         "%s: %s: expected groups with %lld experts (%s) or more, got %lld of %lld",
                         root->place, class->top_groups.key, (long long)chosen, class->chosen.key,
                         (long long)top, (long long)(experts / groups));
    if (top < groups) {
        branch->rule.groups = (int)groups;
        branch->rule.top_groups = (int)top;
    }
    return 0;
}

int config_experts(struct branch_config *branch, const struct fields *root,
                   const struct experts_class *class, struct error *err)
{
    struct experts_key count = class->count;
    int64_t experts, chosen;
    bool renormalize = class->renormalize.usual != 0;
    double factor = 1;
    if (class->also_count && fields_has(root, class->also_count))
        count.key = class->also_count;
    if (parse_int(root, &count, 1, MLP_MAX_EXPERTS, &experts, err) != 0 ||
        parse_int(root, &class->chosen, 1, experts, &chosen, err) != 0 ||
        (class->size.key &&
         parse_int(root, &class->size, 1, CONFIG_MAX_INTERMEDIATE, &branch->mlp_size, err) != 0) ||
        (class->renormalize.key &&
         fields_bool(root, class->renormalize.key, FIELD_NOT_NULL, &renormalize, err) != 0) ||
        (class->factor &&
         fields_double(root, class->factor, FIELD_NOT_NULL, 1e-6, 1e6, &factor, err) != 0))
        return -1;
    branch->num_experts = (int)experts;
    branch->experts_per_token = (int)chosen;
    branch->rule = (struct route_rule){.score = class->score,
                                       .renormalize = renormalize,
                                       .least = renormalize ? (float)class->least : 0,
                                       .factor = factor == 1 ? 0 : (float)factor};
    return parse_groups(branch, root, class, err);
}

int config_experts_layers(int **kind_of, struct config *config, const struct fields *root,
                          struct error *err)
{
    static const char key[] = "mlp_only_layers";
    const json_t *plain;
    int64_t step = 1;
    if (fields_list(root, key, FIELD_OPTIONAL, &plain, err) != 0 ||
        fields_int(root, "decoder_sparse_step", FIELD_NOT_NULL, 1, CONFIG_MAX_LAYERS, &step, err) !=
            0)
        return -1;
    *kind_of = arena_alloc(config->arena, (size_t)config->num_layers, sizeof **kind_of, err);
    if (!*kind_of)
        return -1;
    for (int64_t i = 0; i < config->num_layers; i++)
        (*kind_of)[i] = (i + 1) % step != 0;
    for (size_t i = 0; i < json_array_size(plain); i++) {
        const json_t *layer = json_array_get(plain, i);
        if (!json_is_integer(layer))
            return error_set(err, ERROR_INVALID, "%s: %s[%zu]: expected an integer, got %s",
                             root->place, key, i, fields_kind(layer));
        const int64_t at = json_integer_value(layer);
        if (at >= 0 && at < config->num_layers)
            (*kind_of)[at] = 1;
    }
    return 0;
}
