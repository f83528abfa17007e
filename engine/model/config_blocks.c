/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config_blocks.h"

#include "engine/model/blocks.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MAX_NAME = 24 };

static const struct layer_names plain_names = BLOCK_FLA_LAYER;
static const char *const norm_names[] = {"none", "layernorm", "rmsnorm", "simple_rmsnorm"};
static const char *const act_names[] = {MODEL_ACTS(MODEL_NAME)};

/* "a norm, of the kind under `key`": its tensor is "FIRST_END", or FIRST alone without an end. */
static int parse_norm(struct config *config, const struct fields *fields, const char *key,
                      enum norm_kind usual, const char *first, const char *end,
                      struct norm_config *norm, struct error *err)
{
    char name[MAX_NAME + 16];
    int kind = (int)usual;
    if (fields_choice(fields, key, FIELD_OPTIONAL, norm_names, COUNT(norm_names), &kind, err) != 0)
        return -1;
    snprintf(name, sizeof name, "%s_%s", first, end);
    norm->kind = (enum norm_kind)kind;
    norm->name = arena_string(config->arena, name, err);
    return norm->name ? 0 : -1;
}

static int parse_scale(const struct fields *fields, const char *key, float *scale,
                       struct error *err)
{
    double value = 1;
    if (fields_double(fields, key, FIELD_OPTIONAL, 1e-6, 1e6, &value, err) != 0)
        return -1;
    *scale = (float)value;
    return 0;
}

/* "num_experts" and what is said of them, where there are any. */
static int parse_experts(const struct fields *fields, struct branch_config *out, struct error *err)
{
    static const char *const keys[] = {"num_experts_per_tok", "norm_topk_prob"};
    int64_t experts = 0, chosen = 0;
    if (fields_int(fields, "num_experts", FIELD_OPTIONAL, 2, MLP_MAX_EXPERTS, &experts, err) != 0)
        return -1;
    for (size_t i = 0; experts == 0 && i < COUNT(keys); i++)
        if (fields_has(fields, keys[i]))
            return error_set(err, ERROR_INVALID, "%s.%s: only an mlp with num_experts has it",
                             fields->place, keys[i]);
    if (experts == 0)
        return 0;
    if (fields_int(fields, keys[0], FIELD_REQUIRED, 1, experts, &chosen, err) != 0)
        return -1;
    out->num_experts = (int)experts;
    out->experts_per_token = (int)chosen;
    return fields_bool(fields, keys[1], FIELD_OPTIONAL, &out->rule.renormalize, err);
}

/* What is not there is the model's, or of one MLP without experts. */
static int parse_mlp(const struct config *config, const struct fields *branch,
                     struct branch_config *out, struct error *err)
{
    static const char *const known[] = {"hidden_act", "intermediate_size", "num_experts",
                                        "num_experts_per_tok", "norm_topk_prob"};
    struct fields fields;
    int act = (int)config->hidden_act;
    out->mixer = -1;
    out->mlp_size = config->intermediate_size;
    out->gate_scale = 1;
    if (fields_object(branch, "mlp", FIELD_REQUIRED, &fields, err) != 0 ||
        fields_only(&fields, known, COUNT(known), err) != 0 ||
        fields_choice(&fields, known[0], FIELD_OPTIONAL, act_names, COUNT(act_names), &act, err) !=
            0 ||
        fields_int(&fields, known[1], FIELD_OPTIONAL, 1, CONFIG_MAX_INTERMEDIATE, &out->mlp_size,
                   err) != 0 ||
        parse_experts(&fields, out, err) != 0)
        return -1;
    out->act = (enum hidden_act)act;
    return out->mlp_size > 0
               ? 0
               : error_set(err, ERROR_INVALID, "%s.%s: expected a size, as the model's is 0",
                           fields.place, known[1]);
}

/* Names become parts of tensors' names. */
static bool is_name(const char *name)
{
    const size_t length = strlen(name);
    return length > 0 && length < MAX_NAME &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

static int parse_branch(struct config *config, const struct fields *fields, bool has_input,
                        struct branch_config *out, struct error *err)
{
    static const char *const known[] = {"mixer", "mlp", "name", "norm", "scale", "token_shift"};
    const char *mixer = NULL;
    char place[224], shift[MAX_NAME + 16];
    bool shifts = false;
    if (fields_only(fields, known, COUNT(known), err) != 0 ||
        fields_bool(fields, "token_shift", FIELD_OPTIONAL, &shifts, err) != 0 ||
        fields_string(fields, "mixer", FIELD_OPTIONAL, &mixer, err) != 0)
        return -1;
    if ((mixer != NULL) == fields_has(fields, "mlp"))
        return error_set(err, ERROR_INVALID, "%s: expected either a mixer or an mlp",
                         fields->place);
    const char *name = mixer ? plain_names.mixer : plain_names.mlp;
    if (fields_string(fields, "name", FIELD_NOT_NULL, &name, err) != 0)
        return -1;
    if (!is_name(name))
        return error_set(err, ERROR_INVALID,
                         "%s.name: expected 1 to %d of a-z, 0-9 and _, got \"%.40s\"",
                         fields->place, MAX_NAME - 1, name);
    out->name = arena_string(config->arena, name, err);
    snprintf(shift, sizeof shift, "%s_token_shift", name);
    if (shifts && !(out->shift = arena_string(config->arena, shift, err)))
        return -1;
    snprintf(place, sizeof place, "%s.mixer", fields->place);
    if (mixer)
        out->mixer = config_find_mixer(config, place, mixer, err);
    if (!out->name || (mixer ? out->mixer < 0 : parse_mlp(config, fields, out, err) != 0) ||
        parse_scale(fields, "scale", &out->scale, err) != 0)
        return -1;
    return parse_norm(config, fields, "norm", has_input ? NORM_NONE : config->norm_kind, name,
                      "norm", &out->pre, err);
}

/* Fields of an element of a list, which must be an object. */
static int element(const struct fields *list_of, const char *key, const json_t *list, size_t i,
                   struct fields *out, struct error *err)
{
    char place[256];
    const int length = key ? snprintf(place, sizeof place, "%.120s.%s[%zu]", list_of->place, key, i)
                           : snprintf(place, sizeof place, "%.120s[%zu]", list_of->place, i);
    out->object = json_array_get(list, i);
    if (!json_is_object(out->object))
        return error_set(err, ERROR_INVALID, "%s: expected an object, got %s", place,
                         fields_kind(out->object));
    memcpy(out->place, place,
           (size_t)length + 1 < sizeof out->place ? (size_t)length + 1 : sizeof out->place - 1);
    out->place[sizeof out->place - 1] = 0;
    return 0;
}

static int parse_block(struct config *config, const struct fields *fields, struct block_config *out,
                       struct error *err)
{
    static const char *const known[] = {"branches", "input_norm", "post_norm", "alpha", "beta"};
    const json_t *branches;
    if (fields_only(fields, known, COUNT(known), err) != 0 ||
        fields_list(fields, known[0], FIELD_REQUIRED, &branches, err) != 0)
        return -1;
    const size_t count = json_array_size(branches);
    if (count < 1 || count > BLOCK_MAX_BRANCHES)
        return error_set(err, ERROR_INVALID, "%s.%s: expected 1 to %d, got %zu", fields->place,
                         known[0], BLOCK_MAX_BRANCHES, count);
    const bool has_input = fields_has(fields, "input_norm");
    for (size_t i = 0; i < count; i++) {
        struct fields branch;
        if (element(fields, known[0], branches, i, &branch, err) != 0 ||
            parse_branch(config, &branch, has_input, &out->branches[i], err) != 0)
            return -1;
    }
    out->num_branches = (int)count;
    const char *first = out->branches[0].name;
    if (parse_norm(config, fields, "input_norm", NORM_NONE, first, "input_norm", &out->input,
                   err) != 0 ||
        parse_norm(config, fields, "post_norm", NORM_NONE, first, "post_norm", &out->post, err) !=
            0 ||
        parse_scale(fields, "alpha", &out->alpha, err) != 0)
        return -1;
    return parse_scale(fields, "beta", &out->beta, err);
}

/* Names of a layer's tensors, or of what they are below. */
struct names {
    const char *seen[LAYER_MAX_BLOCKS * (2 + 3 * BLOCK_MAX_BRANCHES)];
    size_t count;
};

/* Refuses the name that is there already. */
static int add_name(struct names *names, const char *name, const struct layer_config *layer,
                    const struct fields *blocks, struct error *err)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->seen[i], name) == 0)
            return error_set(err, ERROR_INVALID,
                             "%s.%s: expected a name of its own for each tensor, got \"%s\" twice",
                             blocks->place, layer->name, name);
    names->seen[names->count++] = name;
    return 0;
}

static int check_names(const struct layer_config *layer, const struct fields *blocks,
                       struct error *err)
{
    struct names names = {.count = 0};
    for (int i = 0; i < layer->num_blocks; i++) {
        const struct block_config *block = &layer->blocks[i];
        const struct norm_config *norms[2 + BLOCK_MAX_BRANCHES] = {&block->input, &block->post};
        for (int b = 0; b < block->num_branches; b++) {
            norms[2 + b] = &block->branches[b].pre;
            if (add_name(&names, block->branches[b].name, layer, blocks, err) != 0 ||
                (block->branches[b].shift &&
                 add_name(&names, block->branches[b].shift, layer, blocks, err) != 0))
                return -1;
        }
        for (int n = 0; n < 2 + block->num_branches; n++)
            if (norms[n]->kind != NORM_NONE && norms[n]->kind != NORM_SIMPLE_RMSNORM &&
                add_name(&names, norms[n]->name, layer, blocks, err) != 0)
                return -1;
    }
    return 0;
}

static int parse_kind(struct config *config, const struct fields *blocks, const char *name,
                      struct layer_config *out, struct error *err)
{
    const json_t *list;
    struct fields fields;
    if (fields_list(blocks, name, FIELD_REQUIRED, &list, err) != 0)
        return -1;
    const size_t count = json_array_size(list);
    if (count < 1 || count > LAYER_MAX_BLOCKS)
        return error_set(err, ERROR_INVALID, "%s.%.60s: expected 1 to %d blocks, got %zu",
                         blocks->place, name, LAYER_MAX_BLOCKS, count);
    out->name = arena_string(config->arena, name, err);
    if (!out->name)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (element(blocks, name, list, i, &fields, err) != 0 ||
            parse_block(config, &fields, &out->blocks[i], err) != 0)
            return -1;
    out->num_blocks = (int)count;
    return check_names(out, blocks, err);
}

/* Plain layers of each mixer, then those of blocks. */
static int parse_kinds(struct config *config, const struct fields *root, struct error *err)
{
    struct fields blocks;
    if (fields_object(root, "blocks", FIELD_OPTIONAL, &blocks, err) != 0)
        return -1;
    const size_t count = blocks.object ? json_object_size(blocks.object) : 0;
    if (count > CONFIG_MAX_LAYERS)
        return error_set(err, ERROR_INVALID, "%s: expected at most %d, got %zu", blocks.place,
                         CONFIG_MAX_LAYERS, count);
    const size_t kinds = (size_t)config->num_mixers + count;
    config->kinds = arena_alloc(config->arena, kinds, sizeof *config->kinds, err);
    if (!config->kinds)
        return -1;
    for (int i = 0; i < config->num_mixers; i++) {
        config->kinds[i] = config_plain_layer(config, &plain_names, i);
        config->kinds[i].name = config->mixers[i].mixer.name;
    }
    config->num_kinds = config->num_mixers;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)blocks.object, name, value)
    {
        for (int i = 0; i < config->num_mixers; i++)
            if (strcmp(config->mixers[i].mixer.name, name) == 0)
                return error_set(err, ERROR_INVALID, "%s.%.60s: a mixer has that name",
                                 blocks.place, name);
        if (parse_kind(config, &blocks, name, &config->kinds[config->num_kinds++], err) != 0)
            return -1;
    }
    return 0;
}

static int find_kind(const struct config *config, const char *place, const char *name,
                     struct error *err)
{
    const char *names[16];
    size_t count = 0;
    for (int i = 0; i < config->num_kinds; i++) {
        if (strcmp(config->kinds[i].name, name) == 0)
            return i;
        if (count < COUNT(names))
            names[count++] = config->kinds[i].name;
    }
    return fields_unknown(place, "layer", name, names, count, err);
}

static int parse_layers(struct config *config, const struct fields *root, struct error *err)
{
    const json_t *layers = json_object_get(root->object, "layer_types");
    if (!json_is_array(layers))
        return error_set(err, ERROR_INVALID, "%s: layer_types: expected a list, got %s",
                         root->place, fields_kind(layers));
    if (json_array_size(layers) != (size_t)config->num_layers)
        return error_set(err, ERROR_INVALID,
                         "%s: layer_types: expected %lld names (num_hidden_layers), got %zu",
                         root->place, (long long)config->num_layers, json_array_size(layers));
    config->layer_kinds =
        arena_alloc(config->arena, (size_t)config->num_layers, sizeof *config->layer_kinds, err);
    if (!config->layer_kinds)
        return -1;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *name = json_array_get(layers, i);
        char place[96];
        snprintf(place, sizeof place, "%.32s: layer_types[%zu]", root->place, i);
        if (!json_is_string(name))
            return error_set(err, ERROR_INVALID, "%s: expected a string, got %s", place,
                             fields_kind(name));
        config->layer_kinds[i] = find_kind(config, place, json_string_value(name), err);
        if (config->layer_kinds[i] < 0)
            return -1;
    }
    return 0;
}

int config_blocks_parse(struct config *config, const struct fields *root, struct error *err)
{
    return parse_kinds(config, root, err) == 0 ? parse_layers(config, root, err) : -1;
}
