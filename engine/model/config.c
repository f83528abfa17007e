/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/config.h"

int config_parse_file(struct config *config, const char *file, const char *text, size_t length,
                      config_parse_root *parse_root, struct error *err)
{
    json_t *document;
    if (fields_parse(&document, file, text, length, err) != 0)
        return -1;
    struct fields root;
    int result = fields_root(&root, document, file, err);
    if (result == 0)
        result = parse_root(config, &root, err);
    json_decref(document);
    return result;
}

int config_parse_generation(struct config *config, const char *text, size_t length,
                            struct error *err)
{
    return config_parse_file(config, "generation_config.json", text, length, config_token_ids, err);
}

static int add_eos(struct config *config, const struct fields *fields, const json_t *value,
                   struct error *err)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= config->vocab_size)
        return error_set(err, ERROR_INVALID,
                         "%s: eos_token_id: expected ids in [0, %lld), got %s %lld", fields->place,
                         (long long)config->vocab_size, fields_kind(value),
                         (long long)json_integer_value(value));
    for (size_t i = 0; i < config->num_eos; i++)
        if (config->eos[i] == json_integer_value(value))
            return 0;
    if (config->num_eos == CONFIG_MAX_EOS)
        return error_set(err, ERROR_INVALID, "%s: eos_token_id: expected at most %d ids",
                         fields->place, CONFIG_MAX_EOS);
    config->eos[config->num_eos++] = (int32_t)json_integer_value(value);
    return 0;
}

int config_token_ids(struct config *config, const struct fields *fields, struct error *err)
{
    int64_t bos = config->bos_token_id;
    if (fields_int(fields, "bos_token_id", FIELD_OPTIONAL, 0, config->vocab_size - 1, &bos, err) !=
        0)
        return -1;
    config->bos_token_id = (int32_t)bos;
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
        if (fields_int(root, sizes[i].key, FIELD_REQUIRED, 1, sizes[i].most, sizes[i].value, err))
            return -1;
    return 0;
}

int config_single_mixer(struct config *config, const char *name, const struct mixer_config *mixer,
                        struct error *err)
{
    config->mixers = arena_alloc(config->arena, 1, sizeof *config->mixers, err);
    config->layer_mixers = arena_alloc(config->arena, (size_t)config->num_layers, sizeof(int), err);
    if (!config->mixers || !config->layer_mixers)
        return -1;
    config->num_mixers = 1;
    config->mixers[0] = *mixer;
    config->mixers[0].mixer.name = arena_string(config->arena, name, err);
    return config->mixers[0].mixer.name ? 0 : -1;
}
