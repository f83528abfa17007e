/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/gguf_mamba.h"

#include "engine/model/gguf_dense.h"

#include <inttypes.h>

static int64_t number(const json_t *config, const char *name)
{
    return json_integer_value(json_object_get(config, name));
}

int gguf_mamba_complete(json_t *config, const struct gguf_source *source,
                        const struct mamba2_class *class, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    int64_t inner = 0, heads = 0;
    const struct {
        const char *name, *key;
    } sizes[] = {{class->heads, "ssm.time_step_rank"},
                 {class->state, "ssm.state_size"},
                 {class->groups, "ssm.group_count"},
                 {class->width, "ssm.conv_kernel"}};
    const struct {
        const char *name, *tensor;
    } biases[] = {{class->conv_bias, "ssm_conv1d.bias"},
                  {class->in_bias, "ssm_in.bias"},
                  {class->out_bias, "ssm_out.bias"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (gguf_config_copy(config, sizes[i].name, source, sizes[i].key, FIELD_REQUIRED, err) != 0)
            return -1;
    if (gguf_config_int(source, "ssm.time_step_rank", FIELD_REQUIRED, 1, CONFIG_MAX_HEADS, &heads,
                        err) != 0 ||
        gguf_config_int(source, "ssm.inner_size", FIELD_REQUIRED, 1, CONFIG_MAX_INTERMEDIATE,
                        &inner, err) != 0)
        return -1;
    if (inner % heads != 0)
        return gguf_bad(source->gguf, gguf_config_key(full, source, "ssm.inner_size"), err,
                        "expected a multiple of ssm.time_step_rank (%" PRId64 "), got %" PRId64,
                        heads, inner);
    if (gguf_config_set(config, class->head_dim, json_integer(inner / heads), err) != 0)
        return -1;
    const int64_t hidden = number(config, "hidden_size");
    const char *name = class->inner ? class->inner : class->expand;
    const int64_t width = class->inner || hidden < 1 ? inner : inner / hidden;
    if (name && gguf_config_set(config, name, json_integer(width), err) != 0)
        return -1;
    /* two may have one name */
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        const bool before = json_is_true(json_object_get(config, biases[i].name));
        const bool biased = before || gguf_dense_any_layer(config, source, biases[i].tensor);
        if (gguf_config_set(config, biases[i].name, json_boolean(biased), err) != 0)
            return -1;
    }
    return 0;
}

/* config.name = the number that all but the zeros of a list are; nothing where all are 0. */
static int set_common(json_t *config, const char *name, const struct gguf_source *source,
                      const char *key, const struct gguf_entry *list, struct error *err)
{
    char full[GGUF_KEY_SIZE];
    int64_t common = 0;
    for (int64_t i = 0; i < source->layers; i++) {
        const int64_t value = gguf_config_at(list, i);
        if (value != 0 && common != 0 && value != common)
            return gguf_bad(source->gguf, gguf_config_key(full, source, key), err,
                            "expected one number in all layers that have any, got %" PRId64
                            " and %" PRId64,
                            common, value);
        common = value != 0 ? value : common;
    }
    return common == 0 ? 0 : gguf_config_set(config, name, json_integer(common), err);
}

int gguf_mamba_layers(json_t *config, const char *name, const char *mlps,
                      const struct gguf_source *source, struct error *err)
{
    static const char heads_key[] = "attention.head_count_kv", inner_key[] = "feed_forward_length";
    const struct gguf_entry *heads, *inner = NULL;
    json_t *kinds = json_array();
    char full[GGUF_KEY_SIZE];
    if (gguf_config_set(config, name, kinds, err) != 0 ||
        gguf_config_list(source, heads_key, &heads, err) != 0 ||
        (mlps && gguf_config_list(source, inner_key, &inner, err) != 0))
        return -1;
    if (!heads || (mlps && !inner))
        return gguf_bad(source->gguf, gguf_config_key(full, source, heads ? inner_key : heads_key),
                        err, "expected a number for each layer, got none");
    for (int64_t i = 0; i < source->layers; i++) {
        const bool attends = gguf_config_at(heads, i) != 0;
        const bool feeds = inner && gguf_config_at(inner, i) != 0;
        const char *kind = attends ? "full_attention" : feeds ? mlps : "linear_attention";
        if (json_array_append_new(kinds, json_string(kind)) != 0)
            return error_set(err, ERROR_NO_MEMORY, "%s: out of memory", name);
    }
    if (set_common(config, "num_key_value_heads", source, heads_key, heads, err) != 0)
        return -1;
    return inner ? set_common(config, "intermediate_size", source, inner_key, inner, err) : 0;
}
