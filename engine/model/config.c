/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config.h"

#include "lib/base/python_json.h"

#include <string.h>

int config_parse_file(struct config *config, const char *file, const char *text, size_t length,
                      config_parse_root *parse_root, struct error *err)
{
    json_t *document;
    if (python_json_parse(&document, file, text, length, err) != 0)
        return -1;
    struct fields root;
    int result = fields_root(&root, document, file, err);
    if (result == 0)
        result = parse_root(config, &root, err);
    json_decref(document);
    return result;
}

/* *id is -1 where the vocabulary does not have it. */
static int token_id(struct config *config, const struct fields *fields, const char *key,
                    const json_t *value, int32_t *id, struct error *err)
{
    long long got = (long long)json_integer_value(value);
    if (!json_is_integer(value))
        return error_set(err, ERROR_INVALID, "%s: %s: expected an integer, got %s", fields->place,
                         key, fields_kind(value));
    bool known = got >= 0 && got < config->vocab_size;
    *id = known ? (int32_t)got : -1;
    if (!known)
        warnings_add(&config->warnings,
                     "%s: %s: expected an id in [0, %lld), got %lld: no text has that token",
                     fields->place, key, (long long)config->vocab_size, got);
    return 0;
}

static int add_eos(struct config *config, const struct fields *fields, const json_t *value,
                   struct error *err)
{
    int32_t id = -1; /* gcc does not see that it is set */
    if (token_id(config, fields, "eos_token_id", value, &id, err) != 0)
        return -1;
    for (size_t i = 0; i < config->num_eos; i++)
        if (config->eos[i] == id)
            return 0;
    if (id < 0)
        return 0;
    if (config->num_eos == CONFIG_MAX_EOS)
        return error_set(err, ERROR_INVALID, "%s: eos_token_id: expected at most %d ids",
                         fields->place, CONFIG_MAX_EOS);
    config->eos[config->num_eos++] = id;
    return 0;
}

int config_token_ids(struct config *config, const struct fields *fields, struct error *err)
{
    static const char bos[] = "bos_token_id";
    if (fields_has(fields, bos) &&
        token_id(config, fields, bos, json_object_get(fields->object, bos), &config->bos_token_id,
                 err) != 0)
        return -1;
    if (!fields_has(fields, "eos_token_id"))
        return 0;
    config->num_eos = 0;
    const json_t *eos = json_object_get(fields->object, "eos_token_id");
    if (!json_is_array(eos))
        return add_eos(config, fields, eos, err);
    for (size_t i = 0; i < json_array_size(eos); i++)
        if (add_eos(config, fields, json_array_get(eos, i), err) != 0)
            return -1;
    return 0;
}

int config_sizes(struct config *config, const struct fields *root, const char *heads_key,
                 struct error *err)
{
    const struct {
        const char *key;
        int64_t most, *value;
    } sizes[] = {
        {"vocab_size", CONFIG_MAX_VOCAB, &config->vocab_size},
        {"hidden_size", CONFIG_MAX_HIDDEN, &config->hidden_size},
        {"num_hidden_layers", CONFIG_MAX_LAYERS, &config->num_layers},
        {heads_key, CONFIG_MAX_HEADS, &config->num_heads},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (*sizes[i].value == 0 &&
            fields_int(root, sizes[i].key, FIELD_REQUIRED, 1, sizes[i].most, sizes[i].value, err))
            return -1;
    return 0;
}

int config_check_heads(const struct config *config, const struct fields *root, struct error *err)
{
    if (config->hidden_size % config->num_heads == 0)
        return 0;
    return error_set(err, ERROR_INVALID,
                     "%s: hidden_size: expected a multiple of num_attention_heads (%lld), got %lld",
                     root->place, (long long)config->num_heads, (long long)config->hidden_size);
}

int config_find_mixer(const struct config *config, const char *place, const char *name,
                      struct error *err)
{
    const char *names[16];
    const size_t most = sizeof names / sizeof *names;
    size_t count = 0;
    for (int i = 0; i < config->num_mixers; i++) {
        if (strcmp(config->mixers[i].mixer.name, name) == 0)
            return i;
        if (count < most)
            names[count++] = config->mixers[i].mixer.name;
    }
    return fields_unknown(place, "mixer", name, names, count, err);
}

struct layer_config config_plain_layer(const struct config *config, const struct layer_names *names,
                                       int mixer)
{
    const struct branch_config branches[2] = {
        {.name = names->mixer,
         .pre = {config->norm_kind, names->attn_norm},
         .scale = 1,
         .mixer = mixer},
        {.name = names->mlp,
         .pre = {config->norm_kind, names->mlp_norm},
         .scale = 1,
         .mixer = -1,
         .act = config->hidden_act,
         .mlp_size = config->intermediate_size,
         .gate_scale = 1},
    };
    const int count = config->intermediate_size > 0 ? 2 : 1;
    struct layer_config layer = {.num_blocks = config->parallel_residual ? 1 : count};
    for (int i = 0; i < count; i++) {
        struct block_config *block = &layer.blocks[config->parallel_residual ? 0 : i];
        block->alpha = block->beta = 1;
        block->branches[block->num_branches++] = branches[i];
    }
    return layer;
}

int config_layers(struct config *config, int num_kinds, int num_mixers, struct error *err)
{
    const size_t kinds = (size_t)num_kinds, mixers = (size_t)num_mixers;
    config->num_kinds = num_kinds;
    config->num_mixers = num_mixers;
    config->kinds = arena_alloc(config->arena, kinds, sizeof *config->kinds, err);
    config->mixers = arena_alloc(config->arena, mixers, sizeof *config->mixers, err);
    config->layer_kinds = arena_alloc(config->arena, (size_t)config->num_layers, sizeof(int), err);
    return config->kinds && config->mixers && config->layer_kinds ? 0 : -1;
}

int config_single_mixer(struct config *config, const char *name, const struct mixer_config *mixer,
                        const struct layer_names *names, struct error *err)
{
    if (config_layers(config, 1, 1, err) != 0)
        return -1;
    config->mixers[0] = *mixer;
    config->mixers[0].mixer.name = arena_string(config->arena, name, err);
    if (!config->mixers[0].mixer.name)
        return -1;
    config->kinds[0] = config_plain_layer(config, names, 0);
    config->kinds[0].name = config->mixers[0].mixer.name;
    return 0;
}
